"""``cloudspot show``: show everything about one job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from cloudspot.cli.charts.plots import check_plot, plot_job, take_picture
from cloudspot.cli.jobs import Job, open_job
from cloudspot.cli.screen import output
from cloudspot.cli.screen.jobdetails import TABLES, echo_details
from cloudspot.cli.screen.jobsummary import (
    MAX_ARTIFACTS,
    echo_last_lines,
    echo_title,
    headline_fields,
    job_json,
    summary_fields,
)
from cloudspot.cli.sharedoptions import job_argument, json_option, plot_option, store_option
from cloudspot.cli.stored.storedjobs import StoredJobs, driven_json
from cloudspot.errors import CorruptData
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import RemoteCommand, Seat
from cloudspot.jobstore.remote.places import read_commands
from cloudspot.story.outcomes import own_beat
from cloudspot.story.states import TERMINAL_STATES

UNDRIVEN_SECONDS = 900.0
"""A job that was last driven longer ago than this counts as undriven. A driver started by cron may run only
every ten minutes."""
MAX_COMMANDS = 3
MAX_WARNINGS = 8
"""The maximum number of warnings shown. Many nodes may report the same warning, each with its own figures."""
FEW = 2
"""The number of artifacts, commands and warnings in the overview."""
SHORT, MARGIN = 120, 40
"""The overview cuts a warning after ``SHORT`` characters if at least ``MARGIN`` more would follow."""
TAIL_LINES = 5
"""How many of a failed node's last lines the overview shows."""
SECTIONS = (*TABLES, "warnings", "log")


@click.command("show")
@job_argument
@click.option(
    "--verify", "verify_chunks", is_flag=True, help="Read the whole newest checkpoint and verify it."
)
@click.option(
    "--section",
    "sections",
    type=click.Choice(SECTIONS),
    multiple=True,
    help="Show this in place of the overview. Repeatable.",
)
@click.option(
    "-a",
    "--all",
    "show_all",
    is_flag=True,
    help="All sections, or those named, with every row of their tables.",
)
@plot_option
@store_option
@json_option
@click.pass_context
def show(
    ctx: click.Context,
    job_id: str,
    verify_chunks: bool,
    sections: Sequence[str],
    show_all: bool,
    plot: Path | None,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Show one job: an overview that fits a screen, or more by section.

    With --verify, exits with 8 if the newest checkpoint is corrupt.
    """
    if plot is not None:
        check_plot(plot)
    job = open_job(store_url, job_id)
    report = job_json(job, job.first_history, verify_chunks=verify_chunks)
    summary = StoredJobs(job.store).find_summary(job.id)
    report["driven"] = None if summary is None else driven_json(summary)
    report["commands"] = [_command_json(one, job.first_history) for one in read_commands(job.store, job.id)]
    if as_json:
        output.echo_json(report)
    else:
        echo_title(report)
        if not sections:
            _echo_fields(job, report, show_all=show_all)
        shown = sections or (SECTIONS if show_all else ())
        if "warnings" in sections:
            output.echo_fields([("warnings", _warnings(report["warnings"], len(report["warnings"])))])
        echo_details(report, shown, show_all=show_all)
        if "log" in shown:
            echo_last_lines(job, report)
        elif not sections:
            echo_last_lines(job, report, max_lines=TAIL_LINES)
            _echo_more(job, report)
    if plot is not None:
        plot_job(plot, take_picture(job))
        output.echo(f"drawn: {plot}", error=True)
    if report["last_commit"] is not None and report["last_commit"]["verified"] is False:
        ctx.exit(CorruptData.exit_code)


def _echo_fields(job: Job, report: Mapping[str, Any], *, show_all: bool) -> None:
    many = (MAX_ARTIFACTS, MAX_COMMANDS, MAX_WARNINGS) if show_all else (FEW, FEW, FEW)
    max_artifacts, max_commands, max_warnings = many
    output.echo_fields(
        [
            *headline_fields(job, report),
            ("provider", report["provider"]),
            ("labels", ", ".join(f"{name}={text}" for name, text in report["labels"].items())),
            ("submitted", output.moment_text(report["created"])),
            ("forked from", _origin(report["forked_from"])),
            ("resumed", ", ".join(_resumptions(report["turns"]))),
            ("stop", _stop(report)),
            ("driver", _driver_text(report)),
            *summary_fields(job, report, max_artifacts=max_artifacts),
            ("commands", _commands(report["commands"], max_commands)),
            ("warnings", _warnings(report["warnings"], max_warnings, is_short=not show_all)),
        ]
    )


def _echo_more(job: Job, report: Mapping[str, Any]) -> None:
    """Name the sections that are not empty, with their numbers of rows."""
    if not report["launches"]:
        return
    counts = {
        "launches": report["launches"],
        "generations": report["generations"],
        "notices": report["notices"],
        "machines": report["ledger"],
        "warnings": report["warnings"],
    }
    names = ["time", *(f"{name} ({len(rows)})" for name, rows in counts.items() if rows)]
    if report["state"] == "failed":
        names.append("log")
    output.echo()
    output.echo(f"more: {job.command('show')} --section NAME, of {', '.join(names)}; or --all", style="dim")


def _stop(value: Mapping[str, Any]) -> str:
    if not value["stop_requested"]:
        return ""
    figures = f": {value['stop_detail']}" if value["stop_detail"] else ""
    return f"requested ({value['stop_requested']}){figures}"


def _driver_text(value: Mapping[str, Any]) -> str:
    """Return a text that names the job's drivers and its last driver.

    The text is empty once the job has ended.
    """
    driven = value["driven"]
    if driven is None or value["state"] in TERMINAL_STATES:
        return ""
    seconds = (datetime.now(timezone.utc) - datetime.fromisoformat(driven["at"])).total_seconds()
    driver = driven["by"] or "an unnamed driver"
    if seconds < UNDRIVEN_SECONDS:
        undone = f"; it does not do what it is asked for: {driven['undone']}" if driven["undone"] else ""
        return f"{driver}, {output.duration_text(max(0.0, seconds))} ago{undone}"
    return f"nobody for {output.duration_text(seconds)}; the last was {driver}"


def _origin(origin: Mapping[str, Any] | None) -> str:
    return "" if origin is None else f"{origin['id']} at step {origin['step']}"


def _resumptions(turns: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield, for each resumption, when it happened and from which state."""
    before = "waiting"
    for turn in turns:
        if turn["what"] == "resumed":
            yield f"{output.moment_text(turn['at'])} ({before})"
        before = f"moved to {turn['detail']}" if turn["what"] == "moved" else turn["what"]


def _command_json(one: RemoteCommand, history: History) -> dict[str, Any]:
    launch = history.launch_of(Seat(one.launch, one.rank))
    beat = None if launch is None else own_beat(launch, one.rank)
    # Its agent records its end, unless the agent ended with it.
    has_vanished = one.ended is None and (
        launch is None
        or launch.certificate(one.rank) is not None
        or (beat is not None and bool(one.agent) and beat.agent != one.agent)
    )
    return {
        "node": str(Seat(one.launch, one.rank)),
        "user": one.user,
        "words": list(one.words),
        "has_terminal": one.has_terminal,
        "started": one.at.isoformat(),
        "ended": None if one.ended is None else one.ended.isoformat(),
        "status": one.status,
        "cut_off": "its agent has ended" if has_vanished else one.why,
    }


def _commands(commands: Sequence[Mapping[str, Any]], most: int) -> str:
    """Return a line for each of the newest commands that people ran on nodes."""
    lines = []
    for one in commands[-most:]:
        runs = one["ended"] is None and not one["cut_off"]
        ended = "runs" if runs else one["cut_off"] or f"ended with {one['status']}"
        lines.append(f"{one['user']} on {one['node']}: {shlex.join(one['words'])} ({ended})")
    left = len(commands) - most
    return "\n".join([*([f"{left} older; see them all with --json"] if left > 0 else []), *lines])


def _warnings(warnings: Sequence[str], most: int, *, is_short: bool = False) -> str:
    shown = [
        f"{one[:SHORT]}... (--section warnings)" if is_short and len(one) > SHORT + MARGIN else one
        for one in warnings[:most]
    ]
    left = len(warnings) - most
    more = [f"and {left} more: --section warnings"] if left > 0 else []
    return "\n".join([*shown, *more])
