"""``cloudspot checkpoints``: list and verify a job's checkpoints, and export its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from cloudspot.cli.jobs import Job, open_job
from cloudspot.cli.screen.output import echo, echo_json, echo_table, moment_text, shared_size_text
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.sharedoptions import job_argument, json_option, store_option
from cloudspot.errors import CorruptData, ObjectMissing, SpecError, TransientError
from cloudspot.host.size_text import size_text
from cloudspot.jobstore.checkpoints.fetching import verify
from cloudspot.jobstore.checkpoints.manifests import read_manifest, while_it_exists
from cloudspot.jobstore.layout.records import CheckpointId, Manifest

step_option = click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="Only the checkpoints of this step."
)


@click.group()
def checkpoints() -> None:
    """List, verify and export a job's checkpoints."""


@checkpoints.command("ls")
@job_argument
@store_option
@json_option
@click.pass_context
def ls(ctx: click.Context, job_id: str, store_url: str | None, as_json: bool) -> None:
    """List a job's checkpoints, newest first."""
    job = open_job(store_url, job_id)
    _show(ctx, job, [_Described(job, each) for each in job.checkpoints_at(None)], as_json=as_json)


@checkpoints.command("verify")
@job_argument
@step_option
@store_option
@json_option
@click.pass_context
def verify_(ctx: click.Context, job_id: str, step: int | None, store_url: str | None, as_json: bool) -> None:
    """Verify the checksum of every chunk.

    Reads the checkpoints completely. Exits with 8 if any checkpoint is corrupt.
    """
    job = open_job(store_url, job_id)
    found = [_Described(job, each) for each in job.checkpoints_at(step)]
    with transfer("verifying", sum(each.value["bytes"] or 0 for each in found)) as advance:
        for each in found:
            each.verify(advance)
    _show(ctx, job, found, as_json=as_json)


@checkpoints.command("export")
@job_argument
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="FILE.safetensors or FILE.pt; a directory if the script wrote the checkpoint itself.",
)
@click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="N",
    help="The checkpoint of this step. Default: the one the job would resume from.",
)
@click.option("--only", metavar="NAME", help="Only the state of this object of the session.")
@click.option("--all", "whole", is_flag=True, help="The whole state, including optimizer and scheduler.")
@store_option
@json_option
def export(
    job_id: str,
    target: Path,
    step: int | None,
    only: str | None,
    whole: bool,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Export the weights to a file.

    safetensors and torch.load can read it. The checksum of every chunk that is read is verified; exits with 8
    if a chunk is corrupt.
    """
    from cloudspot.cli.stored.checkpointexport import export_checkpoint

    if only is not None and whole:
        raise SpecError("give --only or --all, not both")
    job = open_job(store_url, job_id)
    candidates = job.checkpoints_at(step)
    if not candidates:
        raise SpecError(f"job {job.id} has no checkpoint to export")
    checkpoint = candidates[0]
    try:
        with while_it_exists(job.store, job.id, checkpoint):
            manifest = read_manifest(job.store, job.id, checkpoint)
            written = export_checkpoint(job, manifest, target, only=only, whole=whole)
    except ObjectMissing as error:
        raise TransientError(
            f"checkpoint {checkpoint} was deleted while it was being read: job {job.id} has not ended and "
            "keeps only its newest checkpoints; try again"
        ) from error
    if as_json:
        echo_json(written)
        return
    what = f", {written['tensors']} tensors" if written["tensors"] is not None else ""
    echo(f"step {manifest.step} of {job.id}: {written['file']} ({size_text(written['bytes'])}{what})")
    if written["left_out"]:
        echo(f"left out, not tensors: {', '.join(written['left_out'])}", error=True)


class _Described:
    """A checkpoint as ``--json`` prints it."""

    def __init__(self, job: Job, checkpoint: CheckpointId) -> None:
        self._job = job
        self._manifest: Manifest | None = None
        self.is_gone = False
        """Whether it was deleted after the list was read."""
        fields = ("kind", "bytes", "shared_bytes", "sent_bytes", "num_parts", "at", "verified", "error")
        unknown = dict.fromkeys(fields)
        self.value: dict[str, Any] = {"id": str(checkpoint), **msgspec.structs.asdict(checkpoint), **unknown}
        try:
            self._manifest = manifest = read_manifest(job.store, job.id, checkpoint)
        except ObjectMissing:
            self.is_gone = True
        except CorruptData as error:
            self.value |= {"verified": False, "error": str(error)}
        else:
            self.value |= {
                "kind": manifest.kind,
                "bytes": manifest.size,
                "shared_bytes": manifest.shared,
                "sent_bytes": manifest.sent,
                "num_parts": len(manifest.parts),
                "at": manifest.at.isoformat(),
            }

    def verify(self, progress: Callable[[int], None]) -> None:
        """Read the whole checkpoint and verify it."""
        if self._manifest is None:
            return
        job = self._job
        try:
            with while_it_exists(job.store, job.id, self._manifest.id):
                verify(job.store, job.id, self._manifest, progress=progress)
            self.value["verified"] = True
        except ObjectMissing:
            self.is_gone = True
        except CorruptData as error:
            self.value |= {"verified": False, "error": str(error)}


def _show(ctx: click.Context, job: Job, described: Sequence[_Described], *, as_json: bool) -> None:
    values = [each.value for each in described if not each.is_gone]
    if as_json:
        echo_json(values)
    elif not values:
        echo(f"job {job.id} has no checkpoint")
    else:
        echo_table(
            ("CHECKPOINT", "STEP", "SIZE", "PARTS", "KIND", "COMMITTED", "STATUS"),
            [_row(each) for each in values],
        )
    if any(each["error"] is not None for each in values):
        ctx.exit(CorruptData.exit_code)


def _row(value: dict[str, Any]) -> tuple[str, ...]:
    status = value["error"] or ("verified" if value["verified"] else "committed")
    known = ("", "", "", "")
    if value["bytes"] is not None:
        size = shared_size_text(value["bytes"], value["shared_bytes"], value["sent_bytes"])
        known = (size, str(value["num_parts"]), value["kind"], moment_text(value["at"]))
    return (value["id"], str(value["step"]), *known, status)
