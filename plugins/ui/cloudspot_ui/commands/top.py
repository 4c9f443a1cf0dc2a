"""``cloudspot top``: show the utilization of a job's machines, by node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import click

from cloudspot.cli.jobs import open_job
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import job_argument, json_option, store_option
from cloudspot.host.size_text import size_text
from cloudspot.story.report import show_json
from cloudspot.story.states import is_over

FOLLOW_SECONDS = 5.0


@click.command("top")
@job_argument
@click.option(
    "-f", "--follow", is_flag=True, help="Print the figures every 5 seconds until the job has ended."
)
@store_option
@json_option
def top(job_id: str, follow: bool, store_url: str | None, as_json: bool) -> None:
    """Show the utilization of a job's machines: CPU, memory, GPUs, disk, network and steps.

    Each figure except memory is an average over half a minute. "-" means that a figure is not measured.
    """
    job = open_job(store_url, job_id)
    while True:
        history = job.history()
        report = show_json(history, datetime.now(timezone.utc))
        found = {"nodes": report["utilization"], "limited_by": report["limited_by"]}
        if as_json and follow:
            output.echo_json_line(found)
        elif as_json:
            output.echo_json(found)
        else:
            _echo(found, job.id)
        if not follow or is_over(history):
            return
        time.sleep(FOLLOW_SECONDS)


def _echo(found: Mapping[str, Any], job_id: str) -> None:
    if not found["nodes"]:
        output.echo(f"no node of job {job_id} has measured anything yet; it takes 10 s of training")
        return
    rows = [
        (
            one["node"],
            output.moment_text(one["at"]),
            str(one["step"]),
            "-" if one["step_seconds"] is None else f"{one['step_seconds']:.3g} s",
            _percent(one["data_wait"]),
            _percent(one["cpu"]),
            _percent(one["memory"]),
            " ".join(map(_percent, one["gpus"])) or "-",
            " ".join(map(_percent, one["gpu_memory"])) or "-",
            f"{_rate(one['disk_read'])} / {_rate(one['disk_written'])}",
            f"{_rate(one['received'])} / {_rate(one['sent'])}",
        )
        for one in found["nodes"]
    ]
    output.echo_table(
        (
            *("NODE", "AT", "STEP", "A STEP", "DATA WAIT", "CPU", "MEMORY", "GPU", "GPU MEMORY"),
            *("DISK READ / WRITTEN", "NETWORK IN / OUT"),
        ),
        rows,
    )
    output.echo(f"limited by {found['limited_by']['text']}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{size_text(int(rate))}/s"
