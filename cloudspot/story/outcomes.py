"""How nodes and whole jobs ended, by the records alone; pure."""

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
    "image": "it ran for an image of its machine",
    "max_cost": "limits.max_cost was reached",
    "max_runtime": "limits.max_runtime was reached",
    "idle_after": "limits.idle_after was reached",
}
"""What the user is told, by the reason in the request."""


@dataclass(frozen=True)
class JobEnd:
    """The job is over."""

    outcome: JobOutcome
    detail: str
    exit_code: int


@dataclass(frozen=True)
class LaunchEnd:
    """How a launch ended of which nothing is live any more."""

    outcome: LaunchOutcome
    detail: str
    at: datetime


def launch_end(launch: LaunchHistory) -> LaunchEnd | None:
    """Return how the launch ended, by what its nodes said and its provider proved; None: it is live."""
    return None if launch.ended_at is None else end_so_far(launch)


def end_so_far(launch: LaunchHistory) -> LaunchEnd | None:
    """Return how those nodes of the launch ended that are over, or None; void seats count if no other does.

    A reclaim explains the failures of the peers, since a rank whose peer was taken fails too. It does not
    explain a success, a stop that was obeyed, or a failure that the script would repeat anywhere.
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
    words = "; ".join(_last_words(launch))
    return ("left", words) if len(exits) == len(over) else ("lost", words)


def was_reclaimed(launch: LaunchHistory) -> bool:
    """Return whether the provider took back a machine of the launch, whether it had claimed a seat or not."""
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


def _last_words(launch: LaunchHistory) -> Iterator[str]:
    said: dict[str, list[Seat]] = {}
    for rank, last in launch.own_exits.items():
        said.setdefault(f"{last.outcome}: {last.detail}", []).append(Seat(launch.number, rank))
    for words, nodes in said.items():
        yield f"{named(nodes)} {words}"
    for rank, slot in launch.claimed.items():
        certificate = launch.certificate(rank)
        if rank not in launch.own_exits and certificate is not None:
            yield f"node {Seat(launch.number, rank)} ({slot.instance_id}) {how_it_ended(certificate)}"


def how_it_ended(certificate: Certificate) -> str:
    """Return what the provider said of a machine's end, or that it vanished if the provider said nothing."""
    reason = "" if certificate.end_reason is EndReason.UNKNOWN else certificate.end_reason.value
    said = "; ".join(filter(None, (reason, certificate.detail)))
    return f"ended: {said}" if said else "vanished"


VOID_OUTCOMES: dict[str, VoidOutcome] = {one: one for one in get_args(VoidOutcome)}
"""How a launch ended that no machine has claimed; the detail of a void begins with one of these."""


def void_detail(outcome: VoidOutcome, detail: str) -> str:
    """Return the detail of a void seat, from which everybody can tell why."""
    return f"{outcome}: {detail}"


def void_outcome(launch: LaunchHistory) -> tuple[VoidOutcome, str]:
    """Return the (outcome, detail) that the launch's void seats give; ``voided`` if they give none."""
    for _, slot in sorted(launch.slots.items()):
        if slot.instance_id is None:
            outcome, _, detail = slot.detail.partition(": ")
            known = VOID_OUTCOMES.get(outcome)
            return ("voided", slot.detail) if known is None else (known, detail)
    return "voided", ""


def end_by_nodes(history: History) -> JobEnd | None:
    """Return the end that needs nobody's judgement; None: not yet.

    Success needs the word of all members of the newest generation, after equally many steps. A stop, or a
    failure that no other machine would mend, is the end once no claimed seat is live. Once a node is kept for
    inspection, the job has failed, whoever asks it to stop after that.
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
    """Return that the nodes came to the end after different numbers of steps; empty if they did not."""
    finals = [last.final for last in member_exits(history) if last is not None and last.final is not None]
    steps = {one.step for one in finals if one.step is not None}
    if len(steps) < 2:
        return ""
    return f"the nodes made {min(steps)} to {max(steps)} steps: the last state is in no checkpoint"


def _left_early(history: History) -> str:
    """Return where the script has left its loop early; empty if it came to the end."""
    for last in member_exits(history):
        final = None if last is None else last.final
        if final is not None and final.left_early:
            planned = "" if final.planned is None else f" of {final.planned}"
            return f"the script left its loop after {final.step}{planned} steps"
    return ""


def member_exits(history: History) -> tuple[Exit | None, ...]:
    """Return the exit record of each node of the newest generation, in rank order; None: it has none."""
    seats = history.generations[-1].seats if history.generations else ()
    launches = ((history.launch_of(seat), seat.rank) for seat in seats)
    return tuple(None if launch is None else own_exit(launch, rank) for launch, rank in launches)


def own_exit(launch: LaunchHistory, rank: int) -> Exit | None:
    """Return the exit record of the machine that owns the rank; another machine's does not count."""
    return launch.own_exits.get(rank)


def own_exits(launch: LaunchHistory) -> list[Exit]:
    """Return the exit records of the launch's own machines, in order of their ranks."""
    return list(launch.own_exits.values())


def own_beat(launch: LaunchHistory, rank: int) -> Heartbeat | None:
    """Return the newest heartbeat of the machine that owns the rank."""
    beat, slot = launch.heartbeats.get(rank), launch.slots.get(rank)
    return beat if beat is not None and slot is not None and beat.instance_id == slot.instance_id else None


def last_sign(launch: LaunchHistory, rank: int) -> datetime:
    """Return when the machine that owns the rank was last heard of: its newest heartbeat, or its claim."""
    beat = own_beat(launch, rank)
    if beat is None:
        return claimed_at(launch, rank)
    return launch.beats_listed[rank][0] if rank in launch.beats_listed else beat.at


_LONGEST_BOOT = timedelta(minutes=20)
"""A seat that is not claimed by then becomes void, so its owner's clock is no further behind than that."""
_ROUNDED = timedelta(seconds=2)
"""Stores round times down, and a clock is known to about a second."""


def claimed_at(launch: LaunchHistory, rank: int) -> datetime:
    """Return when its owner claimed the rank, or when the launch was intended if that cannot be true.

    An owner's clock may be wrong: a claim lies between the intent and its last heartbeat.
    """
    at, begun = launch.slots[rank].at, launch.intent.at
    beat = own_beat(launch, rank)
    last = launch.beats_listed[rank][0] if beat is not None and rank in launch.beats_listed else at
    return at if begun <= at <= last + _ROUNDED else begun


def launched_at(launch: LaunchHistory, instance: Instance) -> datetime | None:
    """Return when the provider created the machine, but not before its launch was intended.

    None if the provider does not say.

    The provider's clock may be behind the store's: that of ``local`` is the clock of the user's computer.
    """
    at = instance.launched_at
    return None if at is None else max(at, launch.intent.at)


def machine_ended_at(launch: LaunchHistory, instance: Instance) -> datetime | None:
    """Return when the machine ended, by the clock of ``launched_at``; None if the provider does not say.

    The provider's two times are of one clock: the end is moved by as much as the start.
    """
    at, start, moved = instance.ended_at, instance.launched_at, launched_at(launch, instance)
    return at if at is None or start is None or moved is None else at + (moved - start)


def left_at(launch: LaunchHistory, rank: int) -> datetime | None:
    """Return when the owner of the rank said its last word, if it did: not before it was last heard of.

    A node's exit record and its last heartbeat come within seconds, and the store's clock dates the latter. A
    copy of the store dates it anew, so it counts for no more than the node's clock can have been behind.
    A node that was kept for inspection has gone on with its heartbeat after its exit record.
    """
    last = own_exit(launch, rank)
    if last is None:
        return None
    if launch.kept is not None and launch.kept.rank == rank:
        return max(last.at, last_sign(launch, rank))
    behind = max(timedelta(), launch.intent.at - launch.slots[rank].at)
    return max(last.at, min(last_sign(launch, rank), last.at + behind + _LONGEST_BOOT))


def succeeded(history: History) -> bool:
    """Return whether every node of the newest generation has succeeded, since the job was last resumed."""
    newest = history.generations[-1] if history.generations else None
    current = {launch.number for launch in history.current_launches}
    if newest is None or newest.seats[0].launch not in current:
        return False
    return all(one is not None and one.outcome == "succeeded" for one in member_exits(history))


def permanent_failure(launch: LaunchHistory) -> Exit | None:
    """Return the exit record of a node whose failure no other machine would mend, or None."""
    return next((one for one in own_exits(launch) if one.outcome == "failed" and one.permanent), None)
