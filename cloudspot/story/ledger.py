"""The bill of a job: its machine time and money, computed from its records; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Seat
from cloudspot.model import GIB, EndReason, Instance, InstanceState, Market, Offer
from cloudspot.story.outcomes import claimed_at, last_sign, launched_at, left_at, machine_ended_at, own_beat
from cloudspot.story.states import held_generations
from cloudspot.story.stretches import stretches

DEFAULT_CURRENCY = "USD"
_NEITHER_LISTED_NOR_HEARD = timedelta(minutes=10)
"""A machine is billed no further once it is unlisted and has been silent for this long."""
PURPOSES = ("starting", "standby", "holding", "training", "lost", "kept", "transfer")
"""The purposes of a machine's cost.

``starting`` is its boot and setup, ``standby`` the wait until the training takes it in, and ``holding`` the
time in generations of too few nodes. ``lost`` is the time of steps that were repeated, or are in no
checkpoint of a job that has ended; ``training`` is the rest of its time in the training, including delivery.
``kept`` is the inspection after a failure. ``transfer`` is the cost of bytes to and from a bucket in another
region.
"""


class Paid(NamedTuple):
    """The time and money of one or more machines for one purpose."""

    seconds: float
    spent: float
    """The amount, in the currency of the ledger line."""


@dataclass(frozen=True, kw_only=True)
class LedgerLine:
    """The cost of one machine."""

    launch: int
    rank: int | None
    instance_id: str
    instance_type: str
    zone: str
    market: Market
    started: datetime
    ended: datetime | None
    """The end, or None if the machine still runs."""
    seconds: float
    """The time for which the machine has run."""
    charged_seconds: float
    """The time charged under ``Offer.billing``: at least its minimum; 0 for a spot machine that was reclaimed
    within its free time.
    """
    price_per_hour: float
    """The newest price; ``spent`` counts each second at the price that then applied."""
    currency: str
    transfer_bytes: int
    """The bytes that the machine moved to and from the job's bucket; 0 if its provider does not charge for
    this.
    """
    transfer_spent: float
    """The cost of the transfer, which is part of ``spent``."""
    spent: float
    on_demand_equivalent: float
    """The cost of the same machine on demand, without transfer."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The cost of the job so far, estimated from list prices; only the provider's invoice is binding."""

    spent: float
    on_demand_equivalent: float
    currency: str
    """The currency of both amounts, which is that of the newest launch."""
    others: Mapping[str, float]
    """The amounts spent in other currencies, by currency."""
    machine_seconds: float
    """The total over all machines."""
    run_seconds: float
    """The time in which at least one machine ran."""
    lines: tuple[LedgerLine, ...]

    @cached_property
    def by_launch(self) -> Mapping[int, Sequence[LedgerLine]]:
        """The lines of each launch, in order, by launch number."""
        found: dict[int, list[LedgerLine]] = defaultdict(list)
        for line in self.lines:
            found[line.launch].append(line)
        return found


def spent_in(ledger: Ledger, currency: str | None) -> float:
    """Return the amount spent in a currency; None stands for the newest launch's currency."""
    if currency is None or currency == ledger.currency:
        return ledger.spent
    return ledger.others.get(currency, 0.0)


def bill(history: History, now: datetime, *, instances: Sequence[Instance] | None = None) -> Ledger:
    """Return the bill at ``now``.

    A machine that has provably ended is billed by its certificate, and any other machine from its claim on.
    The listing ``instances`` makes the bill more exact, because it has the start and shows that a machine
    still runs. An unlisted machine that has been silent for longer than a listing may lag is billed until its
    last heartbeat.
    """
    lines = [line for launch in history.launches for line in _lines(launch, now, instances)]
    currency = history.launches[-1].intent.offer.currency if history.launches else DEFAULT_CURRENCY
    others: dict[str, float] = {}
    for line in lines:
        if line.currency != currency:
            others[line.currency] = others.get(line.currency, 0.0) + line.spent
    return Ledger(
        spent=sum(line.spent for line in lines if line.currency == currency),
        on_demand_equivalent=sum(line.on_demand_equivalent for line in lines if line.currency == currency),
        currency=currency,
        others=others,
        machine_seconds=sum(line.seconds for line in lines),
        run_seconds=_union_seconds(lines, now),
        lines=tuple(lines),
    )


def cost_until(
    history: History,
    ledger: Ledger,
    now: datetime,
    later: datetime,
    currency: str,
    *,
    instances: Sequence[Instance] | None = None,
) -> float:
    """Return by how much the bill at ``later`` exceeds ``ledger``, the bill at ``now``, in a currency.

    Only launches with a machine that has not ended by ``now`` are billed again.
    """
    numbers = {line.launch for line in ledger.lines if line.ended is None or line.ended >= now}
    after = (line for number in numbers for line in _lines(history.launches[number - 1], later, instances))
    before = (line for number in numbers for line in ledger.by_launch[number])
    return _spent_by(after, currency) - _spent_by(before, currency)


def _spent_by(lines: Iterable[LedgerLine], currency: str) -> float:
    return sum(line.spent for line in lines if line.currency == currency)


def purposes(history: History, ledger: Ledger, now: datetime) -> tuple[dict[str, Paid], ...]:
    """Return the time and money of each line by ``PURPOSES``; they add up to the line's totals."""
    paid_lines = []
    for pieces in pieces_of(history, ledger, now):
        paid = dict.fromkeys(PURPOSES, Paid(0.0, 0.0))
        for piece in pieces:
            seconds, spent = paid[piece.purpose]
            paid[piece.purpose] = Paid(seconds + piece.seconds, spent + piece.spent)
        paid_lines.append(paid)
    return tuple(paid_lines)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A stretch of a machine's time, for one purpose and within one day (UTC)."""

    purpose: str
    begun: datetime
    seconds: float
    spent: float
    on_demand_equivalent: float


def pieces_of(history: History, ledger: Ledger, now: datetime) -> Iterator[tuple[Piece, ...]]:
    """Yield the pieces of each line, in order; they add up to the line's seconds and money.

    Each second has the price that then applied. Refunds, and amounts added by a minimum time or an increment,
    are distributed in proportion.
    """
    turns = _turns(history, now)
    for line in ledger.lines:
        times = list(_times(history, line, turns, now))
        yield tuple(_priced(history.launches[line.launch - 1], line, times))


def _turns(history: History, now: datetime) -> dict[Seat, list[tuple[datetime, str]]]:
    """Return when each node began to train, to hold, or to make steps that do not count, in order of time.

    An excluded node keeps its last purpose.
    """
    held = held_generations(history)
    by_seat: dict[Seat, list[tuple[datetime, str]]] = {}
    for generation, part in zip(history.generations, stretches(history, now), strict=True):
        is_held = generation.number in held
        turns = [(generation.at, "holding" if is_held else "training")]
        if part.lost is not None and not is_held:
            turns += [(part.lost[0], "lost"), (part.lost[1], "training")]
        for seat in generation.seats:
            by_seat.setdefault(seat, []).extend(turns)
    return by_seat


class _Time(NamedTuple):
    purpose: str
    begun: datetime
    over: datetime


def _times(
    history: History, line: LedgerLine, turns: Mapping[Seat, Sequence[tuple[datetime, str]]], now: datetime
) -> Iterator[_Time]:
    """Yield a machine's time by purpose, from its start to its end, without a gap."""
    marks = [(line.started, "starting")]
    if line.rank is not None:
        beat = own_beat(history.launches[line.launch - 1], line.rank)
        phases = () if beat is None else beat.phases
        ready = [one.at for one in phases if one.state == "ready" and one.generation == 0]
        marks += [(at, "standby") for at in ready[:1]]
        marks += turns.get(Seat(line.launch, line.rank), ())
        kept = history.launches[line.launch - 1].kept
        if kept is not None and kept.rank == line.rank:
            marks.append((kept.at, "kept"))
    end = max(line.started, line.ended or now)
    # Different clocks have measured these times, so put them in order.
    moments = [min(at, end) for at in accumulate((at for at, _ in marks), max)]
    for (_, purpose), (begun, over) in zip(marks, pairwise([*moments, end]), strict=True):
        yield from _by_day(purpose, begun, over)


def _by_day(purpose: str, begun: datetime, over: datetime) -> Iterator[_Time]:
    """Yield the time, divided at each midnight (UTC)."""
    while True:
        day = begun.astimezone(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
        midnight = day + timedelta(days=1)
        if over <= midnight:
            yield _Time(purpose, begun, over)
            return
        yield _Time(purpose, begun, midnight)
        begun = midnight


def _priced(launch: LaunchHistory, line: LedgerLine, times: Sequence[_Time]) -> Iterator[Piece]:
    """Yield the line's time with its money, distributed by the price of each second."""
    for_time = line.spent - line.transfer_spent
    costs = [_spent(launch, one.begun, one.over) for one in times]
    lasted = [(one.over - one.begun).total_seconds() for one in times]
    # A machine that has just begun is charged the minimum time, which belongs to the first piece.
    first = [1.0, *[0.0] * (len(times) - 1)]
    money, seconds = (costs if sum(costs) else first), (lasted if sum(lasted) else first)
    for time, lasts, cost, second in zip(times, lasted, money, seconds, strict=True):
        yield Piece(
            purpose=time.purpose,
            begun=time.begun,
            seconds=lasts,
            spent=for_time * cost / sum(money),
            on_demand_equivalent=line.on_demand_equivalent * second / sum(seconds),
        )
        if line.transfer_spent:
            yield Piece(
                purpose="transfer",
                begun=time.begun,
                seconds=0.0,
                spent=line.transfer_spent * second / sum(seconds),
                on_demand_equivalent=0.0,
            )


def _union_seconds(lines: Sequence[LedgerLine], now: datetime) -> float:
    total, until = 0.0, None
    for line in sorted(lines, key=lambda one: one.started):
        ended = max(line.started, line.ended or now)
        begun = line.started if until is None else max(line.started, until)
        total += max(0.0, (ended - begun).total_seconds())
        until = ended if until is None else max(until, ended)
    return total


def _lines(
    launch: LaunchHistory, now: datetime, instances: Sequence[Instance] | None
) -> Iterator[LedgerLine]:
    listed = {one.id: one for one in instances or () if one.launch == launch.number}
    ranks = {slot.instance_id: rank for rank, slot in launch.claimed.items() if slot.instance_id}
    voided = {machine: slot.at for slot in launch.slots.values() for machine in slot.machines}
    for instance_id in sorted({*ranks, *listed, *launch.certificates, *voided}):
        instance, rank = listed.get(instance_id), ranks.get(instance_id)
        certificate = launch.certificates.get(instance_id)
        if certificate is not None:
            is_reclaimed = certificate.end_reason is EndReason.RECLAIMED
            times = certificate.started_at, certificate.ended_at
            yield _line(launch, rank, instance_id, *times, now, is_reclaimed=is_reclaimed)
            continue
        started = launch.intent.at if rank is None else claimed_at(launch, rank)
        # A cloud may stop listing a machine whose seat was made void before the machine's end was proven.
        ended = None if instance_id in ranks else voided.get(instance_id)
        if rank is not None and (left := left_at(launch, rank)) is not None:
            ended = None if _is_kept(launch, rank, left, now) else min(left, now)
        elif rank is not None and instances is not None and instance is None:
            sign = last_sign(launch, rank)
            ended = sign if now - sign > _NEITHER_LISTED_NOR_HEARD else None
        if instance is not None:
            started = launched_at(launch, instance) or started
            if instance.state is InstanceState.ENDED:
                ended = machine_ended_at(launch, instance) or ended or now
            elif instance.state.is_up:  # The end of the machine ends the bill; the exit record does not.
                ended = None
        started = min(started, ended or now)  # A node's clock may be ahead.
        is_reclaimed = instance is not None and instance.end_reason is EndReason.RECLAIMED
        yield _line(launch, rank, instance_id, started, ended, now, is_reclaimed=is_reclaimed)


def _is_kept(launch: LaunchHistory, rank: int, heard_at: datetime, now: datetime) -> bool:
    """Return whether the machine is kept for inspection and still runs, as far as is known."""
    kept = launch.kept
    is_ours = kept is not None and kept.rank == rank
    return is_ours and kept is not None and now < kept.until and now - heard_at <= _NEITHER_LISTED_NOR_HEARD


def _spent(launch: LaunchHistory, started: datetime, ended: datetime) -> float:
    """Return the cost of one node between two moments, at the price of each second."""
    costs = [launch.intent.offer.price_per_hour, *(one.price_per_hour for one in launch.prices)]
    # Different clocks have measured these times, so put them in order.
    moments = accumulate((started, *(min(one.at, ended) for one in launch.prices), ended), max)
    spent = 0.0
    for price, (begun, over) in zip(costs, pairwise(moments), strict=True):
        spent += (over - begun).total_seconds() * price / 3600
    return spent


def _line(
    launch: LaunchHistory,
    rank: int | None,
    instance_id: str,
    started: datetime,
    ended: datetime | None,
    now: datetime,
    *,
    is_reclaimed: bool,
) -> LedgerLine:
    offer = launch.intent.offer
    seconds = max(0.0, ((ended or now) - started).total_seconds())
    charged = offer.billing.charged_seconds(seconds)
    spent = _spent(launch, started, started + timedelta(seconds=charged))
    on_demand = charged * offer.on_demand_price_per_hour / 3600
    if is_reclaimed and ended is not None and _is_free(offer, seconds):
        charged, spent = 0.0, charged * min(offer.extras_per_hour, offer.price_per_hour) / 3600
    transfer_bytes = _transfer_bytes(launch, rank)
    transfer_spent = transfer_bytes / GIB * offer.transfer_price_per_gib
    return LedgerLine(
        launch=launch.number,
        rank=rank,
        instance_id=instance_id,
        instance_type=offer.instance_type,
        zone=offer.zone,
        market=offer.market,
        started=started,
        ended=ended,
        seconds=seconds,
        charged_seconds=charged,
        price_per_hour=launch.price_per_hour,
        currency=offer.currency,
        transfer_bytes=transfer_bytes,
        transfer_spent=transfer_spent,
        spent=spent + transfer_spent,
        on_demand_equivalent=on_demand,
    )


def _transfer_bytes(launch: LaunchHistory, rank: int | None) -> int:
    """Return the bytes that a machine has moved, by its newest heartbeat; 0 if transfer is not charged."""
    beat = None if rank is None else own_beat(launch, rank)
    return beat.moved_bytes if beat is not None and launch.intent.offer.transfer_price_per_gib else 0


def _is_free(offer: Offer, seconds: float) -> bool:
    """Return whether a machine that was reclaimed after ``seconds`` is free of charge."""
    return offer.market is Market.SPOT and seconds < offer.billing.free_if_reclaimed_seconds
