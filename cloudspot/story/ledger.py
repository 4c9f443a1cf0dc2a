"""The bill: machine time and money of a job, from its records; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise

from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import Seat
from cloudspot.model import Instance, InstanceState, Market
from cloudspot.story.outcomes import own_beat, own_exit
from cloudspot.story.states import held_generations

DEFAULT_CURRENCY = "USD"
PURPOSES = ("starting", "standby", "holding", "training")
"""What a machine was paid for: to boot and set up; to be ready and wait until the training takes it in; to be
kept warm in a generation of too few nodes; and all the rest of its time in the training."""


@dataclass(frozen=True, kw_only=True)
class LedgerLine:
    """What one machine has cost."""

    launch: int
    rank: int | None
    instance_id: str
    instance_type: str
    zone: str
    market: Market
    started: datetime
    ended: datetime | None
    """None: it still runs."""
    seconds: float
    price_per_hour: float
    currency: str
    spent: float
    on_demand_equivalent: float
    """What the same time would have cost on demand."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What the job has cost so far, estimated from list prices; the provider's invoice is what counts."""

    spent: float
    on_demand_equivalent: float
    currency: str
    """Of both; it is the newest launch's."""
    others: Mapping[str, float]
    """What was spent in other currencies, on other providers, by currency."""
    machine_seconds: float
    """Over all machines."""
    run_seconds: float
    """For how long at least one machine ran."""
    lines: tuple[LedgerLine, ...]


def spent_in(ledger: Ledger, currency: str | None) -> float:
    """Return what was spent in a currency; None: in that of the newest launch."""
    if currency is None or currency == ledger.currency:
        return ledger.spent
    return ledger.others.get(currency, 0.0)


def bill(history: History, now: datetime, *, instances: Sequence[Instance] = ()) -> Ledger:
    """Return the bill at ``now``.

    A machine that has provably ended is billed by its certificate; another one from its claim on, and more
    exactly where ``instances`` (a listing) tells when it really started.
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


def purposes(history: History, ledger: Ledger, now: datetime) -> tuple[dict[str, float], ...]:
    """Return what each line's seconds were paid for, by ``PURPOSES``; together they are the line's."""
    turns = _turns(history)
    return tuple(_split(history, line, turns, now) for line in ledger.lines)


def _turns(history: History) -> dict[Seat, list[tuple[datetime, str]]]:
    """Return when each node began to train or to hold, in order; one that was left out goes on as it was."""
    held = held_generations(history)
    found: dict[Seat, list[tuple[datetime, str]]] = {}
    for generation in history.generations:
        purpose = "holding" if generation.number in held else "training"
        for seat in generation.seats:
            turns = found.setdefault(seat, [])
            if not turns or turns[-1][1] != purpose:
                turns.append((generation.at, purpose))
    return found


def _split(
    history: History, line: LedgerLine, turns: Mapping[Seat, Sequence[tuple[datetime, str]]], now: datetime
) -> dict[str, float]:
    seconds, marks = dict.fromkeys(PURPOSES, 0.0), [(line.started, "starting")]
    if line.rank is not None:
        beat = own_beat(history.launches[line.launch - 1], line.rank)
        phases = () if beat is None else beat.phases
        ready = [one.at for one in phases if one.state == "ready" and one.generation == 0]
        marks += [(at, "standby") for at in ready[:1]]
        marks += turns.get(Seat(line.launch, line.rank), ())
    end = max(line.started, line.ended or now)
    # Whoever wrote one of these down had a clock of its own.
    moments = [min(at, end) for at in accumulate((at for at, _ in marks), max)]
    for (_, purpose), (begun, over) in zip(marks, pairwise([*moments, end]), strict=True):
        seconds[purpose] += (over - begun).total_seconds()
    return seconds


def _union_seconds(lines: Sequence[LedgerLine], now: datetime) -> float:
    total, until = 0.0, None
    for line in sorted(lines, key=lambda one: one.started):
        ended = max(line.started, line.ended or now)
        begun = line.started if until is None else max(line.started, until)
        total += max(0.0, (ended - begun).total_seconds())
        until = ended if until is None else max(until, ended)
    return total


def _lines(launch: LaunchHistory, now: datetime, instances: Sequence[Instance]) -> Iterator[LedgerLine]:
    listed = {one.id: one for one in instances if one.launch == launch.number}
    ranks = {slot.instance_id: rank for rank, slot in launch.claimed.items() if slot.instance_id}
    for instance_id in sorted({*ranks, *listed, *launch.certificates}):
        instance, rank = listed.get(instance_id), ranks.get(instance_id)
        certificate = launch.certificates.get(instance_id)
        if certificate is not None:
            yield _line(launch, rank, instance_id, certificate.started_at, certificate.ended_at, now)
            continue
        started = launch.intent.at if rank is None else launch.slots[rank].at
        ended = None
        if rank is not None and (exit_record := own_exit(launch, rank)) is not None:
            ended = exit_record.at
        if instance is not None:
            started = instance.launched_at or started
            if instance.state is InstanceState.ENDED:
                ended = instance.ended_at or ended or now
        yield _line(launch, rank, instance_id, started, ended, now)


def _line(
    launch: LaunchHistory,
    rank: int | None,
    instance_id: str,
    started: datetime,
    ended: datetime | None,
    now: datetime,
) -> LedgerLine:
    offer = launch.intent.offer
    seconds = max(0.0, ((ended or now) - started).total_seconds())
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
        price_per_hour=offer.price_per_hour,
        currency=offer.currency,
        spent=seconds * offer.price_per_hour / 3600,
        on_demand_equivalent=seconds * offer.on_demand_price_per_hour / 3600,
    )
