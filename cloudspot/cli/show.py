"""``cloudspot show``: all that is known of one job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from cloudspot.cli import output
from cloudspot.cli.jobs import open_job
from cloudspot.cli.options import debug_option, job_argument, json_option, store_option
from cloudspot.cli.story import echo_last_lines, echo_title, job_json, summary_fields


@click.command("show")
@job_argument
@click.option(
    "--verify", "verify_chunks", is_flag=True, help="Read the newest checkpoint whole and check it."
)
@store_option
@json_option
@debug_option
@click.pass_context
def show(ctx: click.Context, job_id: str, verify_chunks: bool, store_url: str | None, as_json: bool) -> None:
    """Tell the story of one job.

    With --verify it ends with 1 when the newest checkpoint is corrupt.
    """
    job = open_job(store_url, job_id)
    value = job_json(job, job.first_history, verify_chunks=verify_chunks)
    if as_json:
        output.echo_json(value)
    else:
        echo_title(value)
        output.echo_fields(
            [
                ("provider", value["provider"]),
                ("submitted", _moment(value["created"])),
                ("stop", f"requested ({value['stop_requested']})" if value["stop_requested"] else ""),
                *summary_fields(job, value),
                ("warnings", "\n".join(value["warnings"])),
            ]
        )
        _echo_launches(value)
        _echo_notices(value)
        echo_last_lines(value)
    if value["last_commit"] is not None and value["last_commit"]["verified"] is False:
        ctx.exit(1)


def _echo_launches(value: Mapping[str, Any]) -> None:
    if not value["launches"]:
        return
    attempts = {attempt["launch"]: number for number, attempt in enumerate(value["attempts"], start=1)}
    nodes = {attempt["launch"]: attempt["nodes"] for attempt in value["attempts"]}
    output.echo()
    rows = [
        (
            str(launch["launch"]),
            str(attempts.get(launch["launch"], "-")),
            f"{launch['market']}/{launch['zone']}/{launch['instance_type']}",
            _moment(launch["started"]),
            _outcome(launch, nodes.get(launch["launch"], [])),
        )
        for launch in value["launches"]
    ]
    headers = ("LAUNCH", "ATTEMPT", "OFFER", "STARTED", "OUTCOME")
    output.echo_table(headers, rows)


def _outcome(launch: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    if launch["outcome"] is None:
        return ", ".join(node["state"] for node in nodes) or "launching"
    detail = f": {launch['detail']}" if launch["detail"] else ""
    return f"{launch['outcome']}{detail}"


def _echo_notices(value: Mapping[str, Any]) -> None:
    if not value["notices"]:
        return
    output.echo()
    rows = [
        (
            _moment(notice["at"]),
            f"{notice['rank']} of launch {notice['launch']}",
            str(notice["step"]),
            notice["source"],
        )
        for notice in value["notices"]
    ]
    output.echo_table(("NOTICE", "NODE", "STEP", "SOURCE"), rows)


def _moment(text: str) -> str:
    return output.moment_text(datetime.fromisoformat(text))
