"""What ``show --json`` and ``ps`` say about a job, from its records; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import (
    Commit,
    Exit,
    Finished,
    Generation,
    Heartbeat,
    Moved,
    Resumed,
    Summary,
    Turn,
)
from cloudspot.model import Instance
from cloudspot.story.advice import silence, warnings
from cloudspot.story.answers import Answer
from cloudspot.story.ledger import Ledger, LedgerLine, bill
from cloudspot.story.outcomes import End, end_by_nodes, own_exit, own_exits
from cloudspot.story.progress import StepsLost, last_commit_id, newest_step, steps_lost, steps_total
from cloudspot.story.spans import Span
from cloudspot.story.states import ended_at, is_over, job_state
from cloudspot.story.stretches import Stretch
from cloudspot.story.timeline import timeline


def show_json(history: History, now: datetime, *, verified: bool | None = None) -> dict[str, Any]:
    """Return the job as JSON values, times in ISO 8601 and UTC; open bills run until ``now``.

    ``verified`` says whether the newest checkpoint's chunks were found whole; None: not checked.
    """
    ledger = bill(history, now)
    newest, origin = history.find_commit(history.head), history.submission.forked_from
    times = timeline(history, now)
    end, over = ended_at(history), _end(history)
    return {
        "id": history.submission.job_id,
        "name": history.submission.spec.get("name", history.submission.job_id),
        "provider": history.submission.provider,
        "code_sha256": history.submission.code_sha256,
        "state": job_state(history),
        "detail": detail(history),
        "exit_code": None if over is None else over.exit_code,
        "created": _time(history.first_submission.at),
        "finished": None if end is None else _time(end),
        "forked_from": None if origin is None else {"id": origin.job_id, "step": origin.checkpoint.step},
        "turns": [_turn(turn) for _, turn in history.turns],
        "stop_requested": None if history.stop is None else history.stop.reason,
        "attempts": [_attempt(history, launch, ledger) for launch in history.attempts],
        "launches": [_launch(launch) for launch in history.launches],
        "generations": [
            _generation(one, part) for one, part in zip(history.generations, times.stretches, strict=True)
        ],
        "notices": [_notice(one) for one in times.answers],
        "step": newest_step(history),
        "steps_total": steps_total(history),
        **_steps_lost(steps_lost(history)),
        "metrics": metrics(history),
        "last_commit": None if newest is None else _last_commit(newest, verified=verified),
        "goodput": None if times.goodput is None else round(times.goodput, 4),
        "time": {
            **{state: round(seconds, 3) for state, seconds in times.seconds.items()},
            "total": round(times.total_seconds, 3),
        },
        "timeline": [_values(span) for span in times.spans],
        "cost": {
            "spent": round(ledger.spent, 6),
            "on_demand_equivalent": round(ledger.on_demand_equivalent, 6),
            "currency": ledger.currency,
            "others": _rounded(ledger.others),
            "machine_seconds": round(ledger.machine_seconds, 3),
        },
        "ledger": [_ledger_line(line) for line in ledger.lines],
        "final": _final(history),
        "warnings": [*silence(history, now), *warnings(history)],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    what = turn.outcome if isinstance(turn, Finished) else turn.__struct_config__.tag
    said = turn.to if isinstance(turn, Moved) else "" if isinstance(turn, Resumed) else turn.detail
    return {"what": what, "at": _time(turn.at), "detail": said}


def _last_commit(commit: Commit, *, verified: bool | None) -> dict[str, Any]:
    return {**msgspec.structs.asdict(commit.id), "verified": verified, "bytes": commit.size}


def summarise(history: History, now: datetime, *, instances: Sequence[Instance] = ()) -> Summary:
    """Return the small record that ``ps`` reads; with ``instances`` the open launch's bill is more exact."""
    ledger = bill(history, now, instances=instances)
    submission = history.submission
    return Summary(
        job_id=submission.job_id,
        provider=submission.provider,
        state=job_state(history),
        step=newest_step(history),
        steps_total=steps_total(history),
        attempts=len(history.attempts),
        spent=round(ledger.spent, 6),
        currency=ledger.currency,
        others=_rounded(ledger.others),
        submitted_at=history.first_submission.at,
        metrics=metrics(history),
        detail=detail(history),
        at=now,
        name=submission.spec.get("name"),
        code_sha256=submission.code_sha256,
        started_at=history.launches[0].intent.at if history.launches else None,
        finished_at=ended_at(history),
    )


def detail(history: History) -> str:
    """Return why the job is in its state, in one line; empty if there is nothing to say."""
    end = _end(history)
    if history.moved_to is not None:
        return f"moved to {history.moved_to}"
    if end is not None:
        return end.detail
    if history.suspended is not None and history.open_launch is None:
        return history.suspended.detail
    last = history.current_launches[-1] if history.current_launches else None
    if last is None:
        return ""
    if last.closed is not None:
        why = f": {last.closed.detail}" if last.closed.detail else ""
        return f"launch {last.number} {last.closed.outcome}{why}"
    offer = last.intent.offer
    return f"launch {last.number}: {offer.instance_type} in {offer.zone} ({offer.market.value})"


def _end(history: History) -> End | Finished | None:
    return history.finished or (end_by_nodes(history) if is_over(history) else None)


def metrics(history: History) -> dict[str, float]:
    """Return the newest metrics: the final ones, or those of the newest launch that has any.

    A generation that only ended the script, after the last step, has logged nothing.
    """
    final = _final(history)
    if final is not None:
        return dict(final["metrics"])
    return _reported_metrics(history)


def _reported_metrics(history: History) -> dict[str, float]:
    for launch in reversed(history.launches):
        for _, beat in sorted(launch.heartbeats.items()):
            if beat.metrics:
                return dict(beat.metrics)
    return {}


def _final(history: History) -> dict[str, Any] | None:
    for launch in reversed(history.launches):
        for one in own_exits(launch):
            if one.outcome == "succeeded" and one.final is not None:
                newest, step = last_commit_id(history), one.final.step
                return {
                    "step": newest.step if step is None and newest is not None else step,
                    "weights_sha256": one.final.weights_sha256,
                    "are_weights_sharded": one.final.are_weights_sharded,
                    "metrics": dict(one.final.metrics) or _reported_metrics(history),
                }
    return None


def _attempt(history: History, launch: LaunchHistory, ledger: Ledger) -> dict[str, Any]:
    lines = {line.instance_id: line for line in ledger.lines if line.launch == launch.number}
    return {
        **_launch(launch),
        "generations": [one.number for one in history.generations_by_launch.get(launch.number, ())],
        "spent": round(sum(line.spent for line in lines.values()), 6),
        "nodes": [
            {
                "rank": rank,
                "instance_id": slot.instance_id,
                "address": slot.address,
                "claimed": _time(slot.at),
                "state": _node_state(launch.heartbeats.get(rank), own_exit(launch, rank)),
                "outcome": None if (last := own_exit(launch, rank)) is None else last.outcome,
                "exit_code": None if last is None else last.exit_code,
                "detail": "" if last is None else last.detail,
                "log_tail": [] if last is None else list(last.log_tail),
                "seconds": round(lines[slot.instance_id].seconds, 3) if slot.instance_id in lines else None,
            }
            for rank, slot in sorted(launch.slots.items())
        ],
    }


def _node_state(beat: Heartbeat | None, last: Exit | None) -> str:
    if last is not None:
        return "ended"
    return "claimed" if beat is None else beat.state


def _launch(launch: LaunchHistory) -> dict[str, Any]:
    offer, closed = launch.intent.offer, launch.closed
    return {
        "launch": launch.number,
        "why": launch.intent.why,
        "provider": launch.intent.request.provider,
        "instance_type": offer.instance_type,
        "zone": offer.zone,
        "market": offer.market.value,
        "price_per_hour": offer.price_per_hour,
        "started": _time(launch.intent.at),
        "ended": None if closed is None else _time(closed.at),
        "outcome": None if closed is None else closed.outcome,
        "detail": "" if closed is None else closed.detail,
    }


def _generation(generation: Generation, part: Stretch) -> dict[str, Any]:
    restored = generation.restore_from
    return {
        "generation": generation.number,
        "nodes": [str(seat) for seat in generation.seats],
        "why": generation.why,
        "restored": None if restored is None else msgspec.structs.asdict(restored),
        "skipped": [str(skipped.checkpoint) for skipped in generation.skipped],
        "started": _time(generation.at),
        "training_from": None if part.started is None else _time(part.started),
        "training_until": None if part.ended is None else _time(part.ended),
        "last_step": part.last_step,
        **_steps_lost(part.steps_lost),
    }


def _steps_lost(lost: StepsLost | None) -> dict[str, Any]:
    return {
        "steps_lost": None if lost is None else lost.num_steps,
        "steps_lost_is_exact": lost is not None and lost.is_exact,
    }


def _notice(answer: Answer) -> dict[str, Any]:
    notice, commit, seconds = answer.notice, answer.commit, answer.commit_seconds
    return {
        "launch": notice.launch,
        "rank": answer.rank,
        "at": _time(notice.at),
        "deadline": _time(notice.deadline),
        "action": notice.action,
        "source": notice.source,
        "step": notice.step,
        "commit": None if commit is None else msgspec.structs.asdict(commit),
        "commit_seconds": None if seconds is None else round(seconds, 3),
    }


def _rounded(amounts: Mapping[str, float]) -> dict[str, float]:
    return {currency: round(amount, 6) for currency, amount in amounts.items()}


def _ledger_line(line: LedgerLine) -> dict[str, Any]:
    return {
        **_values(line),
        "seconds": round(line.seconds, 3),
        "spent": round(line.spent, 6),
        "on_demand_equivalent": round(line.on_demand_equivalent, 6),
    }


def _values(one: Span | LedgerLine) -> dict[str, Any]:
    """Return the fields as JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(one, builtin_types=(datetime,))
    return {name: _time(value) if isinstance(value, datetime) else value for name, value in found.items()}


def _time(moment: datetime) -> str:
    return moment.isoformat()
