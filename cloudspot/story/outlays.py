"""The outlays of one or more jobs, by day, provider, market, zone and purpose; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timezone

from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Outlay, Summary
from cloudspot.model import Market
from cloudspot.story.ledger import PURPOSES, Ledger, pieces_of

_DECIMALS = 9
"""The decimals of an amount, so many that large sums are still correct to a millionth."""


def outlays(history: History, ledger: Ledger, now: datetime) -> tuple[Outlay, ...]:
    """Return the job's outlays, in the order of days; they add up to the ledger."""
    by_key: dict[tuple[date, str, Market, str, str], dict[str, tuple[float, float, float]]] = {}
    for line, pieces in zip(ledger.lines, pieces_of(history, ledger, now), strict=True):
        provider = history.launches[line.launch - 1].intent.request.provider
        for piece in pieces:
            day = piece.begun.astimezone(timezone.utc).date()
            purposes = by_key.setdefault((day, provider, line.market, line.zone, line.currency), {})
            seconds, spent, on_demand = purposes.get(piece.purpose, (0.0, 0.0, 0.0))
            purposes[piece.purpose] = (
                seconds + piece.seconds,
                spent + piece.spent,
                on_demand + piece.on_demand_equivalent,
            )
    return tuple(
        Outlay(
            day=day,
            provider=provider,
            market=market,
            zone=zone,
            currency=currency,
            purposes={
                name: (
                    round(purposes[name][0], 3),
                    round(purposes[name][1], _DECIMALS),
                    round(purposes[name][2], _DECIMALS),
                )
                for name in PURPOSES
                if any(purposes.get(name, ()))
            },
        )
        for (day, provider, market, zone, currency), purposes in sorted(by_key.items())
    )


@dataclass(frozen=True)
class JobOutlays:
    """The outlays of one job."""

    job_id: str
    labels: Mapping[str, str]
    outlays: tuple[Outlay, ...]


def of_summary(summary: Summary) -> JobOutlays | None:
    """Return the job's outlays from its summary, or None if the summary has none."""
    return None if summary.outlays is None else JobOutlays(summary.job_id, summary.labels, summary.outlays)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The outlays under one heading, in one currency."""

    key: str
    currency: str
    num_jobs: int
    seconds: float
    """The total time of all machines."""
    spent: float
    on_demand_equivalent: float
    purposes: Mapping[str, float]
    """The amount spent, by purpose."""

    @property
    def saved(self) -> float:
        """The difference from the on-demand cost."""
        return self.on_demand_equivalent - self.spent


KINDS = ("job", "day", "provider", "market", "zone", "purpose", "label")
LABEL = "label."
"""The prefix before the name of a label."""
NO_LABEL = "-"
"""The heading of jobs without the label."""


def rows(jobs: Iterable[JobOutlays], by: str, *, since: date | None, until: date | None) -> tuple[Row, ...]:
    """Return the jobs' outlays by one of ``KINDS`` or ``label.NAME``, from ``since`` to ``until`` inclusive.

    Amounts in different currencies are never added; a heading has a row for each currency. The rows add up to
    all outlays. Days are sorted newest first, purposes in their order, and all other headings by amount,
    largest first.
    """
    sums: dict[tuple[str, str], _Sum] = {}
    for job in jobs:
        for outlay in job.outlays:
            if (since is None or outlay.day >= since) and (until is None or outlay.day <= until):
                for purpose, amounts in outlay.purposes.items():
                    key = _key(by, job, outlay, purpose)
                    sums.setdefault((outlay.currency, key), _Sum()).add(job.job_id, purpose, amounts)
    found = [total.row(key, currency) for (currency, key), total in sums.items()]
    return tuple(sorted(found, key=_order(by)))


def totals(jobs: Iterable[JobOutlays], *, since: date | None, until: date | None) -> tuple[Row, ...]:
    """Return the total of the jobs' outlays, with a row for each currency."""
    return rows(jobs, "", since=since, until=until)


class _Sum:
    def __init__(self) -> None:
        self._jobs: set[str] = set()
        self._seconds = self._on_demand = 0.0
        self._purposes = dict.fromkeys(PURPOSES, 0.0)

    def add(self, job_id: str, purpose: str, amounts: tuple[float, float, float]) -> None:
        seconds, spent, on_demand = amounts
        self._jobs.add(job_id)
        self._seconds += seconds
        self._on_demand += on_demand
        self._purposes[purpose] = self._purposes.get(purpose, 0.0) + spent

    def row(self, key: str, currency: str) -> Row:
        return Row(
            key=key,
            currency=currency,
            num_jobs=len(self._jobs),
            seconds=self._seconds,
            spent=sum(self._purposes.values()),
            on_demand_equivalent=self._on_demand,
            purposes={name: spent for name, spent in self._purposes.items() if spent},
        )


def _key(by: str, job: JobOutlays, outlay: Outlay, purpose: str) -> str:
    if by.startswith(LABEL):
        return job.labels.get(by.removeprefix(LABEL), NO_LABEL)
    if by == "label":
        return ", ".join(f"{name}={value}" for name, value in sorted(job.labels.items())) or NO_LABEL
    keys = {
        "": "total",
        "job": job.job_id,
        "day": outlay.day.isoformat(),
        "provider": outlay.provider,
        "market": outlay.market.value,
        "zone": f"{outlay.provider} {outlay.zone}",
        "purpose": purpose,
    }
    return keys[by]


def _order(by: str) -> Callable[[Row], tuple[object, ...]]:
    places = {name: number for number, name in enumerate(PURPOSES)}
    if by == "day":
        return lambda row: (-date.fromisoformat(row.key).toordinal(), row.currency)
    if by == "purpose":
        return lambda row: (row.currency, places.get(row.key, len(places)), row.key)
    return lambda row: (row.currency, -row.spent, row.key)
