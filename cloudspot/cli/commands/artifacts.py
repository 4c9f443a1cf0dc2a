"""``cloudspot artifacts``: list and download the files that a job keeps in addition to its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from cloudspot.cli import exit_codes
from cloudspot.cli.jobs import Job, open_job
from cloudspot.cli.screen.output import echo, echo_json, echo_table, moment_text, warn
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.sharedoptions import job_argument, json_option, store_option
from cloudspot.errors import CloudspotError
from cloudspot.host.size_text import size_text
from cloudspot.jobstore.logs.stored_artifacts import Artifact, download, is_present, list_artifacts

pattern_argument = click.argument("patterns", metavar="[PATTERN]...", nargs=-1)


@click.group()
def artifacts() -> None:
    """List and download a job's artifacts."""


@artifacts.command("ls")
@job_argument
@pattern_argument
@store_option
@json_option
def ls(job_id: str, patterns: Sequence[str], store_url: str | None, as_json: bool) -> None:
    """List a job's artifacts."""
    job = open_job(store_url, job_id)
    matching = _matching(job, patterns)
    if as_json:
        echo_json(
            [
                {"name": each.name, "bytes": each.size, "modified": each.modified_at.isoformat()}
                for each in matching
            ]
        )
    elif not matching:
        echo(f"job {job.id} has no artifacts")
    else:
        rows = [(size_text(each.size), moment_text(each.modified_at), each.name) for each in matching]
        echo_table(("SIZE", "MODIFIED", "NAME"), rows)


@artifacts.command("download")
@job_argument
@pattern_argument
@click.option(
    "--to",
    "target",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The directory for the files. Default: ID-artifacts in the current directory.",
)
@store_option
@json_option
@click.pass_context
def download_(
    ctx: click.Context,
    job_id: str,
    patterns: Sequence[str],
    target: Path | None,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Download a job's artifacts, except files that already exist locally.

    Exits with 1 if a file could not be written under its name.
    """
    job = open_job(store_url, job_id)
    directory = target or Path(f"{job.id}-artifacts")
    matching = _matching(job, patterns)
    wanted = [each for each in matching if not is_present(each, directory)]
    with transfer("downloading artifacts", sum(each.size for each in wanted)) as advance:
        problems = download(job.store, wanted, directory, progress=advance) if wanted else []
    failed = {each.key: why for each, why in zip(wanted, problems, strict=True) if why is not None}
    if as_json:
        echo_json([_described(each, directory, wanted, failed) for each in matching])
    else:
        num_new, num_there = len(wanted) - len(failed), len(matching) - len(wanted)
        size = sum(each.size for each in wanted if each.key not in failed)
        there = f"; {num_there} were already there" if num_there else ""
        echo(f"{num_new} files ({size_text(size)}) downloaded to {directory}{there}")
    for each in wanted:
        if each.key in failed:
            warn(f"{each.name} was not downloaded: {failed[each.key]}")
    if failed:
        ctx.exit(exit_codes.FAILED)


def _described(
    artifact: Artifact, directory: Path, wanted: Sequence[Artifact], failed: dict[str, str]
) -> dict[str, object]:
    done = "downloaded" if artifact in wanted else "present"
    state = "failed" if artifact.key in failed else done
    return {
        "name": artifact.name,
        "file": None if state == "failed" else str(directory / artifact.name),
        "bytes": artifact.size,
        "state": state,
        "error": failed.get(artifact.key),
    }


def _matching(job: Job, patterns: Sequence[str]) -> list[Artifact]:
    """Return the artifacts that match a pattern, or all without patterns; each pattern must match one."""
    stored = list_artifacts(job.store, job.id)
    for pattern in patterns:
        if not any(each.matches(pattern) for each in stored):
            listing = job.command("artifacts ls")
            raise CloudspotError(
                f"no artifact of job {job.id} matches {pattern!r}; list them with: {listing}"
            )
    return [each for each in stored if not patterns or any(each.matches(pattern) for pattern in patterns)]
