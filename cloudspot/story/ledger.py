"""The bill: machine time and money of a job, from its records; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.model import Instance, InstanceState, Market
from cloudspot.story.outcomes import own_exit

DEFAULT_CURRENCY = "USD"


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
    """Over all launches; each counts as long as its longest machine ran."""
    lines: tuple[LedgerLine, ...]


def spent_in(ledger: Ledger, currency: str | None) -> float:
    """Return what was spent in a currency; None: in that of the newest launch."""
    if currency is None or currency == ledger.currency:
        return ledger.spent
    return ledger.others.get(currency, 0.0)


def bill(history: History, now: datetime, *, instances: Sequence[Instance] = ()) -> Ledger:
    """Return the bill at ``now``.

    A closed launch is billed by what its closing record says, and by what ``instances`` (a listing) shows
    besides: a machine that came too late for the record costs money too. The open one is billed by its
    slots, and more exactly where the listing tells when its machines really started.
    """
    lines = [line for launch in history.launches for line in _lines(launch, now, instances)]
    longest: dict[int, float] = {}
    for line in lines:
        longest[line.launch] = max(longest.get(line.launch, 0.0), line.seconds)
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
        run_seconds=sum(longest.values()),
        lines=tuple(lines),
    )


def _lines(launch: LaunchHistory, now: datetime, instances: Sequence[Instance]) -> Iterator[LedgerLine]:
    listed = {one.id: one for one in instances if one.launch == launch.number}
    if launch.closed is not None:
        for machine in launch.closed.machines:
            yield _line(launch, machine.rank, machine.instance_id, machine.started_at, machine.ended_at, now)
            listed.pop(machine.instance_id, None)
        for instance_id, late in sorted(listed.items()):
            started = late.launched_at or launch.closed.at
            ended = (late.ended_at or now) if late.state is InstanceState.ENDED else None
            yield _line(launch, None, instance_id, started, ended, now)
        return
    ranks = {slot.instance_id: rank for rank, slot in launch.slots.items() if slot.instance_id}
    for instance_id in sorted({*ranks, *listed}):
        instance, rank = listed.get(instance_id), ranks.get(instance_id)
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
