"""The table of ``ps``: the columns that fit the width, chosen by importance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from cloudspot.cli.screen import output
from cloudspot.cli.screen.jobfields import duration, metric_names
from cloudspot.jobfile.amounts import cost_text
from cloudspot.jobstore.layout.records import Summary
from cloudspot.story.states import TERMINAL_STATES

CODE_LETTERS = 12
"""How many characters of the code's hash are shown."""
MIN_DETAIL_WIDTH = 30
GAP = 2
_STATES_WITH_METRICS = frozenset({"running", "draining", "succeeded"})
"""States in which the metrics are more informative than the reason for the state."""


@dataclass(frozen=True)
class _Column:
    """A column; if there is too little space, columns with a higher ``rank`` are omitted first."""

    header: str
    cell: Callable[[Summary], str]
    rank: int
    """The rank; columns with rank 0 are always shown."""


def echo_jobs(jobs: Sequence[Summary], *, metrics_first: Sequence[str] = ()) -> None:
    """Print the table: only the columns that fit on a terminal, or all of them elsewhere.

    ``metrics_first`` are the metrics that the user's filters and sort field name.
    """
    columns = _columns(metric_names(jobs, first=metrics_first))
    if all(_driven_cell(job) == "-" for job in jobs):
        columns = [one for one in columns if one.header != "DRIVEN"]
    width = output.terminal_width()
    id_width = None
    if width is not None:
        # Long ids, of up to 63 characters, must not push the other columns off a narrow screen.
        id_width = min(max(len(job.job_id) for job in jobs), width // 2)
        columns = _that_fit(columns, jobs, width, id_width)
    rows = [[one.cell(job) for one in columns] for job in jobs]
    output.echo_table([one.header for one in columns], rows, first_width=id_width)


def _columns(metrics: Sequence[str]) -> list[_Column]:
    """Return all columns, in their order on the screen."""
    return [
        _Column("ID", lambda job: job.job_id, 0),
        _Column("STATE", lambda job: job.state, 0),
        _Column("STEP", lambda job: output.steps_text(job.step, job.steps_total), 0),
        *(_metric(name, 2 if number == 0 else 4 + 4 * number) for number, name in enumerate(metrics)),
        _Column("COST", lambda job: cost_text(job.spent, 0.0, job.currency, job.others), 1),
        _Column("DURATION", _duration_cell, 3),
        _Column("STARTS", lambda job: str(job.starts), 9),
        _Column("NODES", lambda job: f"{job.num_nodes}/{job.max_nodes}" if job.max_nodes else "-", 8),
        _Column("CODE", lambda job: (job.code_sha256 or "-")[:CODE_LETTERS], 7),
        _Column("DRIVEN", _driven_cell, 10),
        _Column("STARTED", lambda job: _moment_cell(job.started_at), 5),
        _Column("DETAIL", _detail_cell, 6),
    ]


def _metric(name: str, rank: int) -> _Column:
    def cell(job: Summary) -> str:
        value = job.metrics.get(name)
        return "-" if value is None else f"{value:.4g}"

    return _Column(name, cell, rank)


def _duration_cell(job: Summary) -> str:
    seconds = duration(job)
    return "-" if seconds is None else output.duration_text(seconds)


def _moment_cell(moment: datetime | None) -> str:
    return "-" if moment is None else output.moment_text(moment)


def _driven_cell(job: Summary) -> str:
    """Return the time since a driver last looked at the job, if the job needs a driver."""
    if job.driven_at is None or job.state in TERMINAL_STATES:
        return "-"
    seconds = (datetime.now(timezone.utc) - job.driven_at).total_seconds()
    return f"{output.duration_text(max(0.0, seconds))} ago"


def _detail_cell(job: Summary) -> str:
    is_told = bool(job.metrics) and job.state in _STATES_WITH_METRICS
    if job.kept_until is not None and job.kept_until > datetime.now(timezone.utc):
        return f"node {job.kept} is kept until {output.moment_text(job.kept_until)}; {job.detail}"
    return job.idle or ("" if is_told else job.detail)


def _that_fit(
    columns: Sequence[_Column], jobs: Sequence[Summary], width: int, id_width: int
) -> list[_Column]:
    """Return the columns that fit, chosen in order of rank."""
    kept, left = set(), width + GAP
    for column in sorted(columns, key=lambda one: one.rank):
        cells = [len(column.cell(job)) for job in jobs]
        needed: float
        if column.header == "ID":
            needed = id_width
        elif column.header == "DETAIL":
            # The column wraps, so space for a few words is enough. If there are no details, it is omitted.
            needed = min(max(cells, default=0), MIN_DETAIL_WIDTH) or math.inf
        else:
            needed = max([len(column.header), *cells])
        if column.rank == 0 or needed + GAP <= left:
            kept.add(column)
            left -= int(needed) + GAP
    return [column for column in columns if column in kept]
