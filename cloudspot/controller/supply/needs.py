"""Decide how many machines a job lacks, and whether buying them pays (protocol P2); pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cloudspot.calls.retrying import doubled
from cloudspot.controller.assess.measured import restart_seconds, seconds_to_end, start_seconds
from cloudspot.controller.supply.refusals import CAPACITY_COOL_SECONDS, MAX_CAPACITY_COOL_SECONDS, refusal
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.nodes.seats import Seats
from cloudspot.model import Market, Offer
from cloudspot.story.outcomes import member_exits, own_beat, was_reclaimed

MOST_AT_ONCE = 2
"""The most live machines, as a multiple of ``nodes.max``, because each machine may overlap with its
successor.
"""
MARKET_MOVE_SECONDS = 900.0
"""The least time between two launches that move a job to another market."""
DAY_SECONDS = 86400.0
"""Until losses are seen, one loss per node and day is assumed."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Machines to be bought in one launch."""

    num_nodes: int
    min_nodes: int
    """The least useful number of machines."""
    why: str
    """``lost`` is replaced by the outcome of the loss. With ``notice``, ``rebalance`` or ``growth``, the job
    trains without the machines for now."""
    detail: str = ""
    stands_in_for: tuple[Seat, ...] = ()
    """The nodes to replace, which the provider may take soon; the new machines must have other offers."""


def room(spec: JobSpec, seats: Seats, *, stands_in_for: int = 0) -> int:
    """Return how many nodes may be bought now if ``stands_in_for`` staying nodes are replaced.

    At most ``nodes.max`` machines may be staying, and at most twice as many may be live.
    """
    staying = len(seats.staying) - stands_in_for
    return max(0, min(spec.nodes.max - staying, MOST_AT_ONCE * spec.nodes.max - len(seats.live)))


def need(spec: JobSpec, history: History, seats: Seats, now: datetime) -> Need | None:
    """Return the machines that the job lacks now, or None if it lacks none.

    Below ``nodes.min``, all missing nodes are bought at once, and a node with a notice is replaced.
    Otherwise, nodes are added only if their training until the next loss outweighs the restart of all others,
    and a node that the provider may take soon gets a stand-in.
    """
    if _is_ending(history, seats):
        return None
    return _missing(spec, history, seats, now) or _stand_ins(spec, history, seats, now)


def _missing(spec: JobSpec, history: History, seats: Seats, now: datetime) -> Need | None:
    num_nodes = room(spec, seats)
    if num_nodes == 0:
        return None
    staying = len(seats.staying)
    if not seats.live:
        return Need(num_nodes=num_nodes, min_nodes=min(num_nodes, spec.nodes.min), why="lost")
    going = _doomed(seats)
    if staying < spec.nodes.min:
        min_nodes = min(num_nodes, spec.nodes.min - staying)
        return Need(num_nodes=num_nodes, min_nodes=min_nodes, why="notice" if going else "lost")
    if going:
        return Need(num_nodes=min(num_nodes, len(going)), min_nodes=1, why="notice")
    detail = growth(history, seats, num_nodes, now)
    return None if detail is None else Need(num_nodes=num_nodes, min_nodes=1, why="growth", detail=detail)


def _stand_ins(spec: JobSpec, history: History, seats: Seats, now: datetime) -> Need | None:
    """Return stand-ins for the members that the provider may take soon, as far as there is room."""
    risky = [seat for seat in seats.members if seat in seats.staying and _is_at_risk(history, seat)]
    num_nodes = min(len(risky), room(spec, seats, stands_in_for=len(risky)))
    if num_nodes == 0 or _is_cooling(history, "rebalance", now):
        return None
    chosen = tuple(risky[:num_nodes])
    return Need(num_nodes=num_nodes, min_nodes=1, why="rebalance", stands_in_for=chosen)


def movable(spec: JobSpec, history: History, seats: Seats, now: datetime) -> tuple[Seat, ...]:
    """Return the nodes that may move to another market now.

    The result has the members that run on demand or, without any, all members (not with the policy
    ``spot-then-on-demand``). The result is empty unless no node is coming, leaving or being replaced, the
    newest generation has a commit, there is room for the successors, and the last such move was at least
    ``MARKET_MOVE_SECONDS`` ago.
    """
    is_quiet = len(seats.members) == len(seats.staying) == len(seats.live) and not seats.named
    has_committed = bool(history.commits_by_generation.get(len(history.generations)))
    if not is_quiet or not has_committed or _is_ending(history, seats) or _is_cooling(history, "market", now):
        return ()
    moves = [one.intent.at for one in history.current_launches if one.intent.why == "market"]
    if moves and (now - moves[-1]).total_seconds() < MARKET_MOVE_SECONDS:
        return ()
    markets = {seat: history.launches[seat.launch - 1].intent.offer.market for seat in seats.members}
    found = tuple(seat for seat in seats.members if markets[seat] is Market.ON_DEMAND)
    if not found and spec.spot.policy != "spot-then-on-demand":
        found = tuple(seats.members)
    may_move = spec.spot.policy not in {"spot", "on-demand"}
    return found if may_move and room(spec, seats, stands_in_for=len(found)) >= len(found) else ()


def may_replace(spec: JobSpec, old: Offer, new: Offer) -> bool:
    """Return whether a stand-in of the new offer may take over from a node of the old offer.

    Each member leaves when its own stand-in is ready, so old and new nodes train together for a while. Only a
    job of a single node can move to a network that its machine does not reach.
    """
    return spec.nodes.max == 1 or new.reaches(old)


def _is_at_risk(history: History, seat: Seat) -> bool:
    launch = history.launch_of(seat)
    beat = None if launch is None else own_beat(launch, seat.rank)
    return beat is not None and beat.at_risk


def _is_ending(history: History, seats: Seats) -> bool:
    """Return whether the training is ending by itself, so that a new machine would be too late."""
    if history.kept is not None:
        return True
    exits = [one for one in member_exits(history) if one is not None]
    if any(one.outcome == "succeeded" or (one.outcome == "failed" and one.permanent) for one in exits):
        return bool(seats.live.intersection(seats.members))
    # After a generation has failed, its other nodes leave one after another.
    has_failed = any(one.outcome == "failed" and one.generation == len(history.generations) for one in exits)
    here = seats.live.intersection(seats.members)
    return has_failed and any(_is_leaving_by_itself(history, seat) for seat in here)


def _is_leaving_by_itself(history: History, seat: Seat) -> bool:
    launch = history.launch_of(seat)
    beat = None if launch is None else launch.heartbeats.get(seat.rank)
    return beat is not None and beat.state == "ending"


def _doomed(seats: Seats) -> list[Seat]:
    """Return the live members that have a notice."""
    return [seat for seat in seats.members if seat in seats.live and seat in seats.noticed]


def growth(history: History, seats: Seats, num_nodes: int, now: datetime) -> str | None:
    """Return the calculation that shows that growth pays in a training with enough nodes, or None.

    New nodes train from their start until the next loss or the end of the job; in return, all others pause
    for a restart.
    """
    # New nodes are admitted only once the generation has a commit; by then the pace is known.
    has_committed = bool(history.commits_by_generation.get(len(history.generations)))
    if not has_committed or seats.newcomers or _is_cooling(history, "growth", now):
        return None
    num_before = len(seats.staying)
    seconds = expected_seconds_to_loss(history, num_before + num_nodes, now)
    until = "the next loss is expected"
    to_go = seconds_to_end(history)
    if to_go is not None and to_go * num_before / (num_before + num_nodes) < seconds:
        seconds, until = to_go * num_before / (num_before + num_nodes), "the end of the job"
    start, restart = start_seconds(history), restart_seconds(history)
    gain, cost = num_nodes * (seconds - start), num_before * restart
    if gain <= cost:
        return None
    more, others = _count(num_nodes, "more node"), _count(num_before, "node")
    verb = "trains" if num_nodes == 1 else "train"
    return (
        f"{more} {verb} for {_duration(seconds - start)} until {until}: {gain / 3600:.2f} node-hours; "
        f"a restart of {others} takes {_duration(restart)}: {cost / 3600:.2f} node-hours"
    )


def _duration(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200.0 else f"{seconds / 3600:.1f} h"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _is_cooling(history: History, why: str, now: datetime) -> bool:
    """Return whether the last launch for this reason was refused too recently to try again."""
    count, newest = 0, None
    for launch in reversed(history.current_launches):
        found = refusal(history, launch)
        if launch.intent.why != why or found is None:
            break
        count, newest = count + 1, newest or found[1]
    if newest is None:
        return False
    wait = doubled(CAPACITY_COOL_SECONDS, count - 1, most=MAX_CAPACITY_COOL_SECONDS)
    return (now - newest).total_seconds() < wait


def expected_seconds_to_loss(history: History, num_nodes: int, now: datetime) -> float:
    """Return how long ``num_nodes`` nodes are expected to train until one of them is lost.

    The rate is that of the job's own losses, with one loss per node and day at first.
    """
    lost = sum(1 for launch in history.launches if was_reclaimed(launch))
    seconds = DAY_SECONDS
    for launch in history.launches:
        for rank, slot in launch.claimed.items():
            seconds += max(0.0, ((launch.over_at(rank) or now) - slot.at).total_seconds())
    return seconds / (lost + 1) / num_nodes
