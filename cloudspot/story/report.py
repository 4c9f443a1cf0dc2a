"""The output of ``show --json`` and ``ps`` for a job, from its records; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from cloudspot.decoding import Metrics
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import (
    Commit,
    Finished,
    Generation,
    Heartbeat,
    Moved,
    Resumed,
    Seat,
    Summary,
    Turn,
)
from cloudspot.jobstore.nodes.keeping import kept_now, kept_text
from cloudspot.model import EndReason
from cloudspot.story.advice import idleness, silence, warnings
from cloudspot.story.answers import Answer
from cloudspot.story.bottleneck import Bottleneck, bottleneck
from cloudspot.story.ledger import PURPOSES, Ledger, LedgerLine, Paid, bill, purposes
from cloudspot.story.outcomes import JobEnd, end_by_nodes, launch_end, member_exits, own_beat, own_exit
from cloudspot.story.outlays import outlays
from cloudspot.story.progress import StepsLost, newest_step, steps_lost, steps_total
from cloudspot.story.save_costs import save_cost, save_cost_text
from cloudspot.story.spans import Span
from cloudspot.story.states import ended_at, held_generations, is_over, job_state, labels_of, nodes_of
from cloudspot.story.stretches import Stretch
from cloudspot.story.timeline import timeline


def show_json(history: History, now: datetime, *, verified: bool | None = None) -> dict[str, Any]:
    """Return the job as JSON values, with times in ISO 8601 and UTC; open bills run until ``now``.

    ``verified`` says whether the newest checkpoint's chunks were found intact; None if not checked.
    """
    ledger = bill(history, now)
    newest, origin = history.find_commit(history.head), history.submission.forked_from
    times, nodes, held = timeline(history, now), nodes_of(history), held_generations(history)
    paid = purposes(history, ledger, now)
    end, over, limit = ended_at(history), _end(history), bottleneck(history)
    cost = save_cost(history)
    return {
        "id": history.submission.job_id,
        "name": history.submission.spec.get("name", history.submission.job_id),
        "labels": labels_of(history),
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
        "stop_detail": "" if history.stop is None else history.stop.detail,
        "kept": _kept(history, now),
        "nodes_min": nodes.min,
        "nodes_max": nodes.max,
        "launches": [_launch(launch, ledger) for launch in history.launches],
        "nodes": list(_nodes(history, ledger, now)),
        "generations": [
            _generation(one, part, is_holding=one.number in held)
            for one, part in zip(history.generations, times.stretches, strict=True)
        ],
        "notices": [_notice(one) for one in times.answers],
        "step": newest_step(history),
        "steps_total": steps_total(history),
        "counts_steps": not history.has_no_session,
        **_steps_lost(steps_lost(history)),
        "metrics": metrics(history),
        "limited_by": None if limit is None else _values(limit) | {"text": limit.text},
        "utilization": _utilization(history),
        "saves": None if cost is None else msgspec.to_builtins(cost) | {"text": save_cost_text(cost)},
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
            "purposes": _purposes(ledger, paid),
        },
        "ledger": [_ledger_line(line, one) for line, one in zip(ledger.lines, paid, strict=True)],
        "final": _final(history),
        "warnings": [*silence(history, now), *kept_warning(history, now), *warnings(history)],
    }


def kept_warning(history: History, now: datetime) -> Iterator[str]:
    """Yield a warning that a machine is kept for inspection, if there is such a machine."""
    kept = kept_now(history, now)
    if kept is not None:
        yield f"{kept_text(kept)}, and paid for"


def _kept(history: History, now: datetime) -> dict[str, Any] | None:
    """Return the node that was kept for inspection after the job had failed, or None."""
    kept = history.kept
    if kept is None:
        return None
    certificate = history.launches[kept.launch - 1].certificates.get(kept.instance_id)
    return {
        "node": str(kept.seat),
        "instance_id": kept.instance_id,
        "since": _time(kept.at),
        "until": _time(kept.until),
        "is_kept": kept_now(history, now) is not None,
        "ended": None if certificate is None else _time(certificate.ended_at),
    }


def _turn(turn: Turn) -> dict[str, Any]:
    what = turn.outcome if isinstance(turn, Finished) else turn.__struct_config__.tag
    detail = turn.to if isinstance(turn, Moved) else "" if isinstance(turn, Resumed) else turn.detail
    return {"what": what, "at": _time(turn.at), "detail": detail}


def _last_commit(commit: Commit, *, verified: bool | None) -> dict[str, Any]:
    sizes = {"bytes": commit.size, "shared_bytes": commit.shared}
    rescue = None if commit.rescue is None else msgspec.to_builtins(commit.rescue)
    how = {"evidence": commit.evidence, "rescue": rescue}
    return {**msgspec.structs.asdict(commit.id), "verified": verified, **sizes, **how}


def summarise(history: History, now: datetime, *, ledger: Ledger | None = None) -> Summary:
    """Return the small record that ``ps`` reads; ``ledger`` is the bill at ``now``, computed if None."""
    ledger = ledger or bill(history, now)
    submission, kept = history.submission, kept_now(history, now)
    return Summary(
        job_id=submission.job_id,
        provider=submission.provider,
        state=job_state(history),
        step=newest_step(history),
        steps_total=steps_total(history),
        starts=len(history.generations),
        num_nodes=history.num_nodes,
        max_nodes=nodes_of(history).max,
        spent=round(ledger.spent, 6),
        currency=ledger.currency,
        others=_rounded(ledger.others),
        submitted_at=history.first_submission.at,
        metrics=Metrics(metrics(history)),
        detail=detail(history),
        idle=idleness(history),
        kept=None if kept is None else kept.seat,
        kept_until=None if kept is None else kept.until,
        at=now,
        name=submission.spec.get("name"),
        code_sha256=submission.code_sha256,
        started_at=history.launches[0].intent.at if history.launches else None,
        finished_at=ended_at(history),
        labels=labels_of(history),
        outlays=None if history.finished is None else outlays(history, ledger, now),
    )


def detail(history: History) -> str:
    """Return a line that says why the job is in its state, or an empty string."""
    end = _end(history)
    if history.moved_to is not None:
        return f"moved to {history.moved_to}"
    if end is not None:
        return end.detail
    if history.suspended is not None and not history.live_launches:
        return history.suspended.detail
    if not history.current_launches:
        return ""
    state = job_state(history)
    missing = ""
    if state == "holding":
        missing = f"{history.num_nodes} of the {nodes_of(history).min} nodes that the training needs; "
    last = (history.live_launches or history.current_launches)[-1]
    over = launch_end(last)
    if over is not None:
        why = f": {over.detail}" if over.detail else ""
        return f"launch {last.number} {over.outcome}{why}"
    offer = last.intent.offer
    return f"{missing}launch {last.number}: {offer.instance_type} in {offer.zone} ({offer.market.value})"


def _end(history: History) -> JobEnd | Finished | None:
    return history.finished or (end_by_nodes(history) if is_over(history) else None)


def metrics(history: History) -> dict[str, float]:
    """Return the newest metrics: the final ones or, without these, those of the first member that has any.

    A generation that only ended the script after the last step has no metrics, so older nodes count, too.
    """
    final = _final(history)
    if final is not None:
        return dict(final["metrics"])
    return _reported_metrics(history)


def _reported_metrics(history: History) -> dict[str, float]:
    members = history.generations[-1].seats if history.generations else ()
    beats = [history.launches[seat.launch - 1].heartbeats.get(seat.rank) for seat in members]
    for launch in reversed(history.launches):
        beats += [beat for _, beat in sorted(launch.heartbeats.items())]
    for beat in beats:
        if beat is not None and beat.metrics:
            return dict(beat.metrics)
    return {}


def _final(history: History) -> dict[str, Any] | None:
    """Return the result of the first rank, which alone knows the weights of all ranks."""
    for member_exit in member_exits(history):
        if member_exit is not None and member_exit.outcome == "succeeded" and member_exit.final is not None:
            newest, step = history.head, member_exit.final.step
            return {
                "step": newest.step if step is None and newest is not None else step,
                "weights_sha256": member_exit.final.weights_sha256,
                "are_weights_sharded": member_exit.final.are_weights_sharded,
                "metrics": dict(member_exit.final.metrics) or _reported_metrics(history),
            }
    return None


def _nodes(history: History, ledger: Ledger, now: datetime) -> Iterator[dict[str, Any]]:
    kept = kept_now(history, now)
    lines = {(line.launch, line.instance_id): line for line in ledger.lines}
    for launch in history.launches:
        for rank, slot in launch.claimed.items():
            last, over = own_exit(launch, rank), launch.over_at(rank)
            line = lines[launch.number, slot.instance_id or ""]
            yield {
                "name": str(Seat(launch.number, rank)),
                "launch": launch.number,
                "rank": rank,
                "instance_id": slot.instance_id,
                "address": slot.address,
                "claimed": _time(slot.at),
                "ended": None if over is None else _time(over),
                "state": "kept"
                if kept is not None and kept.instance_id == slot.instance_id
                else _node_state(launch, rank),
                "outcome": _node_outcome(launch, rank),
                "exit_code": None if last is None else last.exit_code,
                "detail": "" if last is None else last.detail,
                "log_tail": [] if last is None else list(last.log_tail),
                "seconds": round(line.seconds, 3),
                "spent": round(line.spent, 6),
                "data": _inputs(own_beat(launch, rank)),
            }


def _inputs(beat: Heartbeat | None) -> list[dict[str, Any]]:
    """Return the inputs on the node's disk, and the progress of the input that it is staging."""
    inputs: list[dict[str, Any]] = [
        {
            "name": one.name,
            "files": one.num_files,
            "bytes": one.size,
            "fetched_bytes": one.fetched,
            "seconds": round(one.seconds, 3),
        }
        for one in (() if beat is None else beat.staged)
    ]
    transfer = None if beat is None else beat.transfer
    if transfer is not None and transfer.what == "staging":
        inputs.append({"name": None, "bytes": transfer.total, "here_bytes": transfer.done})
    return inputs


def _utilization(history: History) -> list[dict[str, Any]]:
    found = []
    for seat in history.generations[-1].seats if history.generations else ():
        beat = own_beat(history.launches[seat.launch - 1], seat.rank)
        if beat is not None and beat.utilization is not None:
            measured = msgspec.structs.asdict(beat.utilization)
            found.append({"node": str(seat), **measured, "at": _time(beat.utilization.at)})
    return found


def _node_state(launch: LaunchHistory, rank: int) -> str:
    if launch.is_over(rank):
        return "ended"
    beat = own_beat(launch, rank)
    return "claimed" if beat is None else beat.state


def _node_outcome(launch: LaunchHistory, rank: int) -> str | None:
    """Return how the node ended, by its exit record or else its certificate; None if it has neither."""
    last, proof = own_exit(launch, rank), launch.certificate(rank)
    if last is not None:
        return last.outcome
    if proof is None:
        return None
    return "reclaimed" if proof.end_reason is EndReason.RECLAIMED else "lost"


def _launch(launch: LaunchHistory, ledger: Ledger) -> dict[str, Any]:
    intent, offer, over = launch.intent, launch.intent.offer, launch_end(launch)
    lines = ledger.by_launch.get(launch.number, ())
    return {
        "launch": launch.number,
        "num_nodes": intent.num_nodes,
        "stands_in_for": [None if seat is None else str(seat) for seat in intent.stands_in_for],
        "why": intent.why,
        "detail": intent.detail,
        "provider": intent.request.provider,
        "instance_type": offer.instance_type,
        "zone": offer.zone,
        "market": offer.market.value,
        "price_per_hour": offer.price_per_hour,
        "transfer_price_per_gib": offer.transfer_price_per_gib,
        "started": _time(intent.at),
        "ended": None if over is None else _time(over.at),
        "outcome": None if over is None else over.outcome,
        "outcome_detail": "" if over is None else over.detail,
        "seconds": round(sum(line.seconds for line in lines), 3),
        "spent": round(sum(line.spent for line in lines), 6),
        "currency": offer.currency,
    }


def _generation(generation: Generation, part: Stretch, *, is_holding: bool) -> dict[str, Any]:
    restored = generation.restore_from
    return {
        "generation": generation.number,
        "nodes": [str(seat) for seat in generation.seats],
        "is_holding": is_holding,
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
        "node": str(Seat(notice.launch, answer.rank)),
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


def _purposes(ledger: Ledger, paid: Sequence[Mapping[str, Paid]]) -> dict[str, dict[str, float]]:
    """Return the machines' seconds, and their money in the ledger's currency, by purpose."""
    pairs = list(zip(ledger.lines, paid, strict=True))
    return {
        name: {
            "seconds": round(sum(one[name].seconds for _, one in pairs), 3),
            "spent": round(
                sum(one[name].spent for line, one in pairs if line.currency == ledger.currency), 6
            ),
        }
        for name in PURPOSES
    }


def _ledger_line(line: LedgerLine, paid: Mapping[str, Paid]) -> dict[str, Any]:
    return {
        **_values(line),
        "node": None if line.rank is None else str(Seat(line.launch, line.rank)),
        "purposes": {name: round(one.seconds, 3) for name, one in paid.items()},
        "seconds": round(line.seconds, 3),
        "charged_seconds": round(line.charged_seconds, 3),
        "transfer_spent": round(line.transfer_spent, 6),
        "spent": round(line.spent, 6),
        "on_demand_equivalent": round(line.on_demand_equivalent, 6),
    }


def _values(one: Span | LedgerLine | Bottleneck) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(one, builtin_types=(datetime,))
    return {name: _time(value) if isinstance(value, datetime) else value for name, value in found.items()}


def _time(moment: datetime) -> str:
    return moment.isoformat()
