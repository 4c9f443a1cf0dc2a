"""``cloudspot show``: show everything about one job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from cloudspot.cli.charts.plots import check_plot, plot_job, take_picture
from cloudspot.cli.jobs import open_job
from cloudspot.cli.screen import output
from cloudspot.cli.screen.jobdetails import echo_details
from cloudspot.cli.screen.jobsummary import (
    echo_last_lines,
    echo_title,
    headline_fields,
    job_json,
    summary_fields,
)
from cloudspot.cli.sharedoptions import job_argument, json_option, plot_option, store_option
from cloudspot.cli.stored.storedjobs import StoredJobs, driven_json
from cloudspot.errors import CorruptData
from cloudspot.jobstore.layout.records import RemoteCommand, Seat
from cloudspot.jobstore.remote.places import read_commands
from cloudspot.story.states import TERMINAL_STATES

UNDRIVEN_SECONDS = 900.0
"""A job last driven longer ago than this counts as undriven. A cron job may come every ten minutes."""
MAX_COMMANDS = 3
MAX_WARNINGS = 8
"""How many warnings are shown. Many nodes may report the same one, each with its own figures."""


@click.command("show")
@job_argument
@click.option(
    "--verify", "verify_chunks", is_flag=True, help="Read the whole newest checkpoint and verify it."
)
@click.option("-a", "--all", "show_all", is_flag=True, help="Show every row of long tables.")
@plot_option
@store_option
@json_option
@click.pass_context
def show(
    ctx: click.Context,
    job_id: str,
    verify_chunks: bool,
    show_all: bool,
    plot: Path | None,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Show everything about one job.

    With --verify, exits with 8 if the newest checkpoint is corrupt.
    """
    if plot is not None:
        check_plot(plot)
    job = open_job(store_url, job_id)
    report = job_json(job, job.first_history, verify_chunks=verify_chunks)
    summary = StoredJobs(job.store).find_summary(job.id)
    report["driven"] = None if summary is None else driven_json(summary)
    report["commands"] = [_command_json(one) for one in read_commands(job.store, job.id)]
    if as_json:
        output.echo_json(report)
    else:
        echo_title(report)
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
                *summary_fields(job, report),
                ("commands", _commands(report["commands"])),
                ("warnings", _warnings(report["warnings"])),
            ]
        )
        echo_details(report, show_all=show_all)
        echo_last_lines(job, report)
    if plot is not None:
        plot_job(plot, take_picture(job))
        output.echo(f"drawn: {plot}", error=True)
    if report["last_commit"] is not None and report["last_commit"]["verified"] is False:
        ctx.exit(CorruptData.exit_code)


def _stop(value: Mapping[str, Any]) -> str:
    if not value["stop_requested"]:
        return ""
    figures = f": {value['stop_detail']}" if value["stop_detail"] else ""
    return f"requested ({value['stop_requested']}){figures}"


def _driver_text(value: Mapping[str, Any]) -> str:
    """Return who drives the job and who drove it last. It is empty once the job has ended."""
    driven = value["driven"]
    if driven is None or value["state"] in TERMINAL_STATES:
        return ""
    seconds = (datetime.now(timezone.utc) - datetime.fromisoformat(driven["at"])).total_seconds()
    who = driven["by"] or "an unnamed driver"
    if seconds < UNDRIVEN_SECONDS:
        return f"{who}, {output.duration_text(max(0.0, seconds))} ago"
    return f"nobody for {output.duration_text(seconds)}; the last was {who}"


def _origin(origin: Mapping[str, Any] | None) -> str:
    return "" if origin is None else f"{origin['id']} at step {origin['step']}"


def _resumptions(turns: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield when the job was resumed, and from which state."""
    before = "waiting"
    for turn in turns:
        if turn["what"] == "resumed":
            yield f"{output.moment_text(turn['at'])} ({before})"
        before = f"moved to {turn['detail']}" if turn["what"] == "moved" else turn["what"]


def _command_json(one: RemoteCommand) -> dict[str, Any]:
    return {
        "node": str(Seat(one.launch, one.rank)),
        "user": one.user,
        "words": list(one.words),
        "has_terminal": one.has_terminal,
        "started": one.at.isoformat(),
        "ended": None if one.ended is None else one.ended.isoformat(),
        "status": one.status,
        "cut_off": one.why,
    }


def _commands(commands: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each of the newest commands that people have run on nodes."""
    lines = []
    for one in commands[-MAX_COMMANDS:]:
        ended = "runs" if one["ended"] is None else one["cut_off"] or f"ended with {one['status']}"
        lines.append(f"{one['user']} on {one['node']}: {shlex.join(one['words'])} ({ended})")
    left = len(commands) - MAX_COMMANDS
    return "\n".join([*([f"{left} older; see them all with --json"] if left > 0 else []), *lines])


def _warnings(warnings: Sequence[str]) -> str:
    left = len(warnings) - MAX_WARNINGS
    more = [f"and {left} more; see them all with --json"] if left > 0 else []
    return "\n".join([*warnings[:MAX_WARNINGS], *more])
