"""``cloudspot checkpoints``: what a job could resume from."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from cloudspot.cli.jobs import open_job
from cloudspot.cli.options import debug_option, job_argument, json_option, store_option
from cloudspot.cli.output import echo, echo_json, echo_table, moment_text, size_text
from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.manifests import read_commit, verify
from cloudspot.jobstore.records import CheckpointId


@click.command("checkpoints")
@job_argument
@click.option(
    "--verify", "verify_chunks", is_flag=True, help="Read every chunk and compare it with its checksum."
)
@store_option
@json_option
@debug_option
@click.pass_context
def checkpoints(
    ctx: click.Context, job_id: str, verify_chunks: bool, store_url: str | None, as_json: bool
) -> None:
    """List a job's checkpoints, and verify them.

    Newest first. With --verify it ends with 1 when one of them is corrupt.
    """
    job = open_job(store_url, job_id)
    described = (
        _describe(job.store, job.id, each, verify_chunks=verify_chunks)
        for each in job.first_history.commits[::-1]
    )
    found = [each for each in described if each is not None]
    if as_json:
        echo_json(found)
    elif not found:
        echo(f"job {job.id} has no checkpoint")
    else:
        echo_table(
            ("CHECKPOINT", "STEP", "SIZE", "PARTS", "KIND", "COMMITTED", "STATUS"),
            [_row(each) for each in found],
        )
    if any(each["error"] is not None for each in found):
        ctx.exit(1)


def _describe(
    store: ObjectStore, job_id: str, checkpoint: CheckpointId, *, verify_chunks: bool
) -> dict[str, Any] | None:
    """Return a checkpoint as ``--json`` prints it; None where it has been deleted since."""
    value: dict[str, Any] = {
        "id": str(checkpoint),
        "generation": checkpoint.generation,
        "step": checkpoint.step,
        "kind": None,
        "bytes": None,
        "num_parts": None,
        "at": None,
        "verified": None,
        "error": None,
    }
    try:
        commit = read_commit(store, job_id, checkpoint)
        value |= {
            "kind": commit.kind,
            "bytes": commit.size,
            "num_parts": len(commit.parts),
            "at": commit.at.isoformat(),
        }
        if verify_chunks:
            verify(store, job_id, commit)
            value["verified"] = True
    except ObjectMissing:
        return None
    except CorruptData as error:
        value |= {"verified": False, "error": str(error)}
    return value


def _row(value: dict[str, Any]) -> tuple[str, ...]:
    status = value["error"] or ("verified" if value["verified"] else "committed")
    if value["bytes"] is None:
        return (value["id"], str(value["step"]), "", "", "", "", status)
    return (
        value["id"],
        str(value["step"]),
        size_text(value["bytes"]),
        str(value["num_parts"]),
        value["kind"],
        moment_text(datetime.fromisoformat(value["at"])),
        status,
    )
