"""A job's experience of the spot market: how long it kept machines, and where it got none; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import inf
from typing import Final

import msgspec

from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import MarketSeen, PoolSeen
from cloudspot.market.hazards import AGE_EDGES_HOURS, NUM_AGES, Tally, total
from cloudspot.market.knowledge import Knowledge, pool
from cloudspot.model import EndReason, Market
from cloudspot.story.outcomes import own_exit, void_outcome

MAX_GAP_HOURS: Final = 1.0
"""The most time that counts between a look that found no capacity and the next look. The rest of a longer gap
was not watched, because the job trained elsewhere or nothing drove it. If capacity is found after such a gap,
the resulting rate is close to the usual rate of one change in 1.2 hours.
"""
MAX_RECORD_WEIGHT: Final = 500.0
"""The most hours, and the most changes, for which one job's record of a pool counts. Three weeks are enough
to know a market, and no single record should outweigh the others.
"""
_MAX_POOLS: Final = 200
_MAX_NAME_LENGTH: Final = 200


def market_seen(history: History, now: datetime, *, provider: str | None = None) -> Knowledge:
    """Return the knowledge of each pool from the job's spot launches, optionally only those on ``provider``.

    All nodes of a launch are one sample. The sample is *up* from the start of its first node to the first
    reclaim, which is a loss, or otherwise to the end of its last node.

    A pool is *down* from a refusal for capacity, or from a loss that leaves the job no machine in it, until a
    launch in it gets machines. The time after the last look does not count.
    """
    by_pool: dict[str, list[LaunchHistory]] = {}
    for launch in history.launches:
        offer = launch.intent.offer
        if offer.market is Market.SPOT and provider in {None, launch.intent.request.provider}:
            by_pool.setdefault(pool(offer.zone, offer.instance_type), []).append(launch)
    found = {name: _tally(launches, now) for name, launches in by_pool.items()}
    return Knowledge({name: tally for name, tally in found.items() if tally != Tally()})


def to_record(seen: Knowledge, at: datetime) -> MarketSeen:
    """Return the record kept for later jobs: the pools that were watched longest, in rounded numbers."""

    def hours(tally: Tally) -> float:
        return sum(tally.up_hours) + sum(tally.down_hours)

    names = [name for name in seen.tallies if len(name) <= _MAX_NAME_LENGTH]
    names.sort(key=lambda name: hours(seen.tallies[name]), reverse=True)
    pools = {name: _pool_seen(_limited(seen.tallies[name])) for name in sorted(names[:_MAX_POOLS])}
    return MarketSeen(pools=pools, at=at)


def learned(records: Iterable[MarketSeen]) -> Knowledge:
    """Return the sum of several jobs' records, all with the same weight, whatever their age."""
    found: dict[str, Tally] = {}
    for record in records:
        for name, seen in record.pools.items():
            found[name] = found.get(name, Tally()) + _limited(Tally(**msgspec.structs.asdict(seen)))
    return Knowledge(found)


@dataclass(frozen=True)
class _Held:
    asked: datetime
    since: datetime
    until: datetime
    is_lost: bool
    """Whether the provider reclaimed one of the machines."""

    @property
    def hours(self) -> float:
        return max(0.0, (self.until - self.since).total_seconds() / 3600)


@dataclass(frozen=True, order=True)
class _Look:
    """Whether a pool had capacity at some moment."""

    at: datetime
    has_capacity: bool


def _tally(launches: Sequence[LaunchHistory], now: datetime) -> Tally:
    held = [one for launch in launches if (one := _held(launch, now)) is not None]
    looks = [_Look(one.asked, has_capacity=True) for one in held]
    looks += [
        _Look(one.until, has_capacity=False)
        for one in held
        if one.is_lost and not any(other.asked <= one.until < other.until for other in held)
    ]
    looks += [_Look(at, has_capacity=False) for launch in launches if (at := _refused(launch)) is not None]
    return total([*map(_up, held), _down(looks)])


def _held(launch: LaunchHistory, now: datetime) -> _Held | None:
    """Return the time in which the launch had machines, or None if none of its machines is known."""
    since, ends, taken = [], [], []
    ranks = {slot.instance_id: rank for rank, slot in launch.claimed.items()}
    for machine in sorted({*launch.certificates, *(one for one in ranks if one is not None)}):
        proof, rank = launch.certificates.get(machine), ranks.get(machine)
        since.append(launch.intent.at if proof is None else proof.started_at)
        end = launch.over_at(rank) if rank is not None and proof is None else None
        ends.append(proof.ended_at if proof is not None else end or now)
        if _was_taken(launch, rank, None if proof is None else proof.end_reason):
            taken.append(ends[-1])
    if not since:
        return None
    return _Held(launch.intent.at, min(since), min(taken, default=max(ends)), is_lost=bool(taken))


def _was_taken(launch: LaunchHistory, rank: int | None, reason: EndReason | None) -> bool:
    if reason is EndReason.RECLAIMED:
        return True
    if rank is None or not launch.is_over(rank):
        return False
    last = own_exit(launch, rank)
    return rank in launch.notices or (last is not None and last.outcome == "drained")


def _refused(launch: LaunchHistory) -> datetime | None:
    """Return when the launch was refused for lack of capacity, or None if it was not."""
    if launch.claimed or not launch.slots or void_outcome(launch)[0] != "capacity":
        return None
    return min(slot.at for slot in launch.slots.values())


def _up(held: _Held) -> Tally:
    losses = _once(held.hours if held.is_lost else None)
    return Tally(losses=losses, up_hours=_split(0.0, held.hours))


def _down(looks: Sequence[_Look]) -> Tally:
    """Return the tally of one pool's times without capacity."""
    tallies, age = [], 0.0
    for before, after in pairwise(sorted(looks)):
        if before.has_capacity:
            age = 0.0
            continue
        until = age + min((after.at - before.at).total_seconds() / 3600, MAX_GAP_HOURS)
        gains = _once(until if after.has_capacity else None)
        tallies.append(Tally(gains=gains, down_hours=_split(age, until)))
        age = until
    return total(tallies)


def _split(begin: float, end: float) -> tuple[float, ...]:
    """Return the hours between two ages of a state, divided among the age classes."""
    edges = pairwise((0.0, *AGE_EDGES_HOURS, inf))
    return tuple(max(0.0, min(end, above) - max(begin, below)) for below, above in edges)


def _once(age: float | None) -> tuple[float, ...]:
    """Return counts by age class: one change at ``age``, or no change if it is None."""
    index = None if age is None else sum(1 for edge in AGE_EDGES_HOURS if edge <= age)
    return tuple(float(one == index) for one in range(NUM_AGES))


def _limited(tally: Tally) -> Tally:
    """Return the tally scaled down to the maximum weight of one job; its rates stay the same."""
    weight = max(sum(tally.losses) + sum(tally.gains), sum(tally.up_hours) + sum(tally.down_hours))
    share = min(1.0, MAX_RECORD_WEIGHT / weight) if weight else 1.0
    return Tally(**{name: tuple(share * one for one in values) for name, values in _fields(tally)})


def _pool_seen(tally: Tally) -> PoolSeen:
    return PoolSeen(**{name: tuple(round(one, 4) for one in values) for name, values in _fields(tally)})


def _fields(tally: Tally) -> Iterable[tuple[str, tuple[float, ...]]]:
    return msgspec.structs.asdict(tally).items()
