"""``cloudspot cost``: show what the jobs of a store have cost."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import click

from cloudspot.cli.charts.plots import check_plot, plot_costs
from cloudspot.cli.jobs import open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import json_option, parsed, store_option
from cloudspot.cli.stored.storedjobs import StoredJobs
from cloudspot.errors import SpecError
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobfile.quantities import parse_moment
from cloudspot.jobfile.spec import LABEL_NAME
from cloudspot.jobstore.jobs.job_lists import list_jobs, list_live
from cloudspot.jobstore.journal.history import History
from cloudspot.story.ledger import bill
from cloudspot.story.outlays import KINDS, LABEL, JobOutlays, Row, of_summary, outlays, rows, totals
from cloudspot.story.states import TERMINAL_STATES, labels_of

MOST = 30
"""The number of rows shown without --all."""


def _parse_by(text: str) -> str:
    if text in KINDS or (text.startswith(LABEL) and re.fullmatch(LABEL_NAME, text.removeprefix(LABEL))):
        return text
    raise ValueError(f"expected {', '.join(KINDS)} or {LABEL}NAME, got {text!r}")


def _parse_day(text: str) -> date:
    """Return the day (UTC) of a time, written as for ``logs --since``."""
    return parse_moment(text, now=datetime.now(timezone.utc)).astimezone(timezone.utc).date()


@click.command("cost")
@click.option(
    "--by",
    default="job",
    show_default=True,
    callback=parsed(_parse_by),
    metavar="WHAT",
    help="Group by job, day, provider, market, zone, purpose, label (all labels of a job) or label.NAME.",
)
@click.option(
    "--since",
    callback=parsed(_parse_day),
    metavar="WHEN",
    help="The first day (UTC), such as 2026-11-01, or 30d for 30 days ago.",
)
@click.option("--until", callback=parsed(_parse_day), metavar="WHEN", help="The last day (UTC), inclusive.")
@click.option("-a", "--all", "show_all", is_flag=True, help=f"Show all rows instead of the first {MOST}.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the costs by purpose into FILE (.png, .svg or .pdf).",
)
@store_option
@json_option
@click.pass_context
def cost(
    ctx: click.Context,
    by: str,
    since: date | None,
    until: date | None,
    show_all: bool,
    as_csv: bool,
    plot: Path | None,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Add up what jobs have cost.

    The amounts are estimates from list prices, like the bill in `show`, next to the on-demand cost of the
    same machines. Amounts in different currencies are never added. A job with malformed records is omitted
    and named in a warning; the command then exits with 8.
    """
    if as_csv and as_json:
        raise SpecError("give --csv or --json, not both")
    if since is not None and until is not None and since > until:
        raise SpecError(f"--since must not be after --until: got {since} and {until}")
    if plot is not None:
        check_plot(plot)
    store = open_named_store(store_url)
    stored = StoredJobs(store)
    live = list_live(store)

    def look(job_id: str) -> JobOutlays | None:
        summary = None if job_id in live else stored.find_summary(job_id)
        # Only the last summary of a settled job is final; machines of other jobs may still run.
        known = of_summary(summary) if summary is not None and summary.state in TERMINAL_STATES else None
        return known or stored.work_out(job_id, _job_outlays)

    jobs = stored.each(look, list_jobs(store))
    cost_rows, sums = rows(jobs, by, since=since, until=until), totals(jobs, since=since, until=until)
    if as_json:
        output.echo_json(
            {
                "by": by,
                "since": None if since is None else since.isoformat(),
                "until": None if until is None else until.isoformat(),
                "rows": [_as_json(row) for row in cost_rows],
                "totals": [_as_json(row) for row in sums],
            }
        )
    elif as_csv:
        _echo_csv(by, cost_rows)
    elif cost_rows:
        _echo_rows(by, cost_rows if show_all else cost_rows[:MOST], sums)
        if len(cost_rows) > MOST and not show_all:
            output.echo(f"{len(cost_rows) - MOST} more rows; see them with --all", error=True)
    else:
        output.echo(f"no costs in {store.url}" + (" in that time" if since or until else ""))
    if plot is not None:
        plot_costs(plot, cost_rows, title=f"cost by {by}")
        output.echo(f"drawn: {plot}", error=True)
    stored.report_faults(ctx)


def _job_outlays(history: History) -> JobOutlays:
    now = datetime.now(timezone.utc)
    paid = outlays(history, bill(history, now), now)
    return JobOutlays(history.submission.job_id, labels_of(history), paid)


def _echo_rows(by: str, found: Sequence[Row], sums: Sequence[Row]) -> None:
    counts = () if by == "job" else ("JOBS",)
    output.echo_table(
        (by.upper(), *counts, "MACHINE TIME", "SPENT", "ON DEMAND", "SAVED"),
        [_cells(row, with_count=by != "job") for row in (*found, *sums)],
        first_width=None,
    )


def _cells(row: Row, *, with_count: bool) -> tuple[str, ...]:
    return (
        row.key,
        *([str(row.num_jobs)] if with_count else []),
        output.duration_text(row.seconds),
        money_text(row.spent, row.currency),
        money_text(row.on_demand_equivalent, row.currency),
        f"{100 * row.saved / row.on_demand_equivalent:.0f}%" if row.on_demand_equivalent > 0 else "-",
    )


def _as_json(row: Row) -> dict[str, Any]:
    return {
        "key": row.key,
        "currency": row.currency,
        "jobs": row.num_jobs,
        "machine_seconds": round(row.seconds, 3),
        "spent": round(row.spent, 6),
        "on_demand_equivalent": round(row.on_demand_equivalent, 6),
        "saved": round(row.saved, 6),
        "purposes": {name: round(spent, 6) for name, spent in row.purposes.items()},
    }


def _echo_csv(by: str, found: Sequence[Row]) -> None:
    names = ("currency", "jobs", "machine_seconds", "spent", "on_demand_equivalent", "saved")
    for cells in ((by, *names), *((row.key, *(_as_json(row)[name] for name in names)) for row in found)):
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(cells)
        output.echo(line.getvalue())
