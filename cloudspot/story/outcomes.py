"""Determine how nodes, launches and jobs ended, from the records alone; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import (
    Certificate,
    Exit,
    Heartbeat,
    JobOutcome,
    LaunchOutcome,
    Seat,
    VoidOutcome,
)
from cloudspot.model import EndReason, Instance
from cloudspot.story.node_names import named

_STOP_DETAILS = {
    "user": "asked for with cloudspot stop",
    "image": "it ran to make an image of its machine",
    "max_cost": "limits.max_cost was reached",
    "max_runtime": "limits.max_runtime was reached",
    "idle_after": "limits.idle_after was reached",
}
"""The texts for the user, by the reason in the stop request."""


@dataclass(frozen=True)
class JobEnd:
    """The end of a job."""

    outcome: JobOutcome
    detail: str
    exit_code: int


@dataclass(frozen=True)
class LaunchEnd:
    """The end of a launch without live seats."""

    outcome: LaunchOutcome
    detail: str
    at: datetime


def launch_end(launch: LaunchHistory) -> LaunchEnd | None:
    """Return how the launch ended, by its nodes' exit records and certificates; None if it is live."""
    return None if launch.ended_at is None else end_so_far(launch)


def end_so_far(launch: LaunchHistory) -> LaunchEnd | None:
    """Return how the launch's ended nodes ended, or None; void seats count if the launch has only these.

    A reclaim explains the failures of other nodes, because a rank whose peer is gone fails, too. A reclaim
    does not explain a success, an obeyed stop, or a failure that the script would repeat anywhere.
    """
    ranks = [rank for rank in launch.claimed if launch.is_over(rank)]
    if not ranks and (launch.claimed or launch.open_ranks):
        return None
    ends = [launch.over_at(rank) for rank in ranks or launch.slots]
    outcome, detail = _outcome(launch, ranks) if ranks else void_outcome(launch)
    return LaunchEnd(outcome, detail, max(end for end in ends if end is not None))


def _outcome(launch: LaunchHistory, over: Sequence[int]) -> tuple[LaunchOutcome, str]:
    exits = own_exits(launch)
    stopped = next((one for one in exits if one.outcome == "stopped"), None)
    outcomes = {one.outcome for one in exits}
    if "succeeded" in outcomes and "failed" not in outcomes and len(exits) == len(over):
        return "succeeded", ""
    if stopped is not None:
        return "stopped", stopped.detail
    permanent = permanent_failure(launch)
    if permanent is not None:
        return "failed", permanent.detail
    reclaimed = _reclaim(launch)
    if reclaimed is not None:
        return "reclaimed", reclaimed
    failed = next((one for one in exits if one.outcome == "failed"), None)
    if failed is not None:
        return "failed", failed.detail
    endings = "; ".join(_endings(launch))
    return ("left", endings) if len(exits) == len(over) else ("lost", endings)


def was_reclaimed(launch: LaunchHistory) -> bool:
    """Return whether the provider reclaimed a machine of the launch, even a machine without a seat."""
    if any(one.end_reason is EndReason.RECLAIMED for one in launch.certificates.values()):
        return True
    end = end_so_far(launch)
    return end is not None and end.outcome == "reclaimed"


def _reclaim(launch: LaunchHistory) -> str | None:
    for rank, slot in launch.claimed.items():
        node, certificate, last = Seat(launch.number, rank), launch.certificate(rank), own_exit(launch, rank)
        if certificate is not None and certificate.end_reason is EndReason.RECLAIMED:
            return f"the provider took back {slot.instance_id} (node {node})"
        if last is not None and last.outcome == "drained":
            return last.detail or f"node {node} drained"
        if rank in launch.notices:
            return f"node {node} had a notice ({launch.notices[rank].source})"
    return None


def _endings(launch: LaunchHistory) -> Iterator[str]:
    nodes_by_ending: dict[str, list[Seat]] = {}
    for rank, last in launch.own_exits.items():
        nodes_by_ending.setdefault(f"{last.outcome}: {last.detail}", []).append(Seat(launch.number, rank))
    for ending, nodes in nodes_by_ending.items():
        yield f"{named(nodes)} {ending}"
    for rank, slot in launch.claimed.items():
        certificate = launch.certificate(rank)
        if rank not in launch.own_exits and certificate is not None:
            yield f"node {Seat(launch.number, rank)} ({slot.instance_id}) {how_it_ended(certificate)}"


def how_it_ended(certificate: Certificate) -> str:
    """Return the provider's reason for a machine's end, or ``vanished`` if it gave none."""
    reason = "" if certificate.end_reason is EndReason.UNKNOWN else certificate.end_reason.value
    text = "; ".join(filter(None, (reason, certificate.detail)))
    return f"ended: {text}" if text else "vanished"


VOID_OUTCOMES: dict[str, VoidOutcome] = {one: one for one in get_args(VoidOutcome)}
"""The outcomes of a launch without a claimed seat; the detail of a void begins with one of them."""


def void_detail(outcome: VoidOutcome, detail: str) -> str:
    """Return the detail of a void seat, from which ``void_outcome`` reads the outcome."""
    return f"{outcome}: {detail}"


def void_outcome(launch: LaunchHistory) -> tuple[VoidOutcome, str]:
    """Return the (outcome, detail) of the launch's first void seat; ``voided`` if it states no outcome."""
    for _, slot in sorted(launch.slots.items()):
        if slot.instance_id is None:
            outcome, _, detail = slot.detail.partition(": ")
            known = VOID_OUTCOMES.get(outcome)
            return ("voided", slot.detail) if known is None else (known, detail)
    return "voided", ""


def end_by_nodes(history: History) -> JobEnd | None:
    """Return the end of the job that follows from its nodes' records alone, or None if none follows.

    The job succeeds if all members of the newest generation report success after the same number of steps. A
    stop, or a failure that would repeat on any machine, ends the job once no claimed seat is live. Once a
    node is kept for inspection, the job has failed, even if it is asked to stop afterwards.
    """
    if succeeded(history):
        unequal = _unequal(history)
        return JobEnd("failed", unequal, 1) if unequal else JobEnd("succeeded", _left_early(history), 0)
    if any(set(launch.claimed) & set(launch.live_ranks) for launch in history.live_launches):
        return None
    if history.kept is not None:
        return JobEnd("failed", history.kept.detail, history.kept.exit_code or 1)
    if history.stop is not None:
        reason, figures = history.stop.reason, history.stop.detail
        detail = _STOP_DETAILS.get(reason, reason) + (f": {figures}" if figures else "")
        return JobEnd("stopped", detail, 0 if reason == "user" else 1)
    found = (permanent_failure(launch) for launch in reversed(history.current_launches))
    permanent = next((one for one in found if one is not None), None)
    return None if permanent is None else JobEnd("failed", permanent.detail, permanent.exit_code or 1)


def _unequal(history: History) -> str:
    """Return a message if the nodes ended after different numbers of steps, otherwise an empty string."""
    finals = [last.final for last in member_exits(history) if last is not None and last.final is not None]
    steps = {one.step for one in finals if one.step is not None}
    if len(steps) < 2:
        return ""
    return f"the nodes made {min(steps)} to {max(steps)} steps: the last state is in no checkpoint"


def _left_early(history: History) -> str:
    """Return a message if the script left its loop early, otherwise an empty string."""
    for last in member_exits(history):
        final = None if last is None else last.final
        if final is not None and final.left_early:
            planned = "" if final.planned is None else f" of {final.planned}"
            return f"the script left its loop after {final.step}{planned} steps"
    return ""


def member_exits(history: History) -> tuple[Exit | None, ...]:
    """Return the exit record, or None, of each node of the newest generation, in rank order."""
    seats = history.generations[-1].seats if history.generations else ()
    launches = ((history.launch_of(seat), seat.rank) for seat in seats)
    return tuple(None if launch is None else own_exit(launch, rank) for launch, rank in launches)


def own_exit(launch: LaunchHistory, rank: int) -> Exit | None:
    """Return the exit record of the machine that owns the rank, or None; other machines do not count."""
    return launch.own_exits.get(rank)


def own_exits(launch: LaunchHistory) -> list[Exit]:
    """Return the exit records of the launch's own machines, in the order of their ranks."""
    return list(launch.own_exits.values())


def own_beat(launch: LaunchHistory, rank: int) -> Heartbeat | None:
    """Return the newest heartbeat of the machine that owns the rank, or None."""
    beat, slot = launch.heartbeats.get(rank), launch.slots.get(rank)
    return beat if beat is not None and slot is not None and beat.instance_id == slot.instance_id else None


def last_sign(launch: LaunchHistory, rank: int) -> datetime:
    """Return the last sign of life of the machine that owns the rank: its newest heartbeat, or its claim."""
    beat = own_beat(launch, rank)
    if beat is None:
        return claimed_at(launch, rank)
    return launch.beats_listed[rank][0] if rank in launch.beats_listed else beat.at


_LONGEST_BOOT = timedelta(minutes=20)
"""A seat unclaimed after this long becomes void, so its owner's clock is behind by no more than this."""
_ROUNDED = timedelta(seconds=2)
"""The tolerance between two clocks: stores round times down, and clocks are known to about a second."""


def claimed_at(launch: LaunchHistory, rank: int) -> datetime:
    """Return when the owner claimed the rank, or the time of the intent if the claim's time is impossible.

    The owner's clock may be wrong; a possible time is between the intent and the last heartbeat.
    """
    at, begun = launch.slots[rank].at, launch.intent.at
    beat = own_beat(launch, rank)
    last = launch.beats_listed[rank][0] if beat is not None and rank in launch.beats_listed else at
    return at if begun <= at <= last + _ROUNDED else begun


def launched_at(launch: LaunchHistory, instance: Instance) -> datetime | None:
    """Return when the provider created the machine, or None if the provider does not report it.

    The result is never before the intent. The provider's clock may be behind the store's: for ``local`` it is
    the clock of the user's computer.
    """
    at = instance.launched_at
    return None if at is None else max(at, launch.intent.at)


def machine_ended_at(launch: LaunchHistory, instance: Instance) -> datetime | None:
    """Return when the machine ended, by the clock of ``launched_at``; None if that is not reported.

    The provider takes both times from one clock, so the end is shifted by the same amount as the start.
    """
    at, start, moved = instance.ended_at, instance.launched_at, launched_at(launch, instance)
    return at if at is None or start is None or moved is None else at + (moved - start)


def left_at(launch: LaunchHistory, rank: int) -> datetime | None:
    """Return when the owner of the rank wrote its exit record, or None; not before its last heartbeat.

    The exit record follows the last heartbeat within seconds, and the heartbeat has the store's time. In a
    copied store, the heartbeat has the time of the copy, so it moves the result only as far as a clock may be
    behind. A node that was kept for inspection continued its heartbeats after its exit record.
    """
    last = own_exit(launch, rank)
    if last is None:
        return None
    if launch.kept is not None and launch.kept.rank == rank:
        return max(last.at, last_sign(launch, rank))
    behind = max(timedelta(), launch.intent.at - launch.slots[rank].at)
    return max(last.at, min(last_sign(launch, rank), last.at + behind + _LONGEST_BOOT))


def succeeded(history: History) -> bool:
    """Return whether every node of the newest generation has succeeded since the job was last resumed."""
    newest = history.generations[-1] if history.generations else None
    current = {launch.number for launch in history.current_launches}
    if newest is None or newest.seats[0].launch not in current:
        return False
    return all(one is not None and one.outcome == "succeeded" for one in member_exits(history))


def permanent_failure(launch: LaunchHistory) -> Exit | None:
    """Return the exit record of a node whose failure would repeat on any machine, or None."""
    return next((one for one in own_exits(launch) if one.outcome == "failed" and one.permanent), None)
