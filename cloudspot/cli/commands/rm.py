"""``cloudspot rm``: deletes the data of jobs that are over."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import click

from cloudspot.cli import exit_codes
from cloudspot.cli.completers import complete_jobs
from cloudspot.cli.jobs import Job, find_job, open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.sharedoptions import debug_option, store_option
from cloudspot.controller.ownership import is_ours, store_label
from cloudspot.errors import CloudspotError, JobNotFound, PluginError, SpecError, TransientError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.history import History
from cloudspot.jobstore.objectlog import ObjectStoreLogSink
from cloudspot.jobstore.removal import measure, read_entry, remove_job
from cloudspot.model import InstanceState, LogPiece
from cloudspot.story.states import is_over

LONGEST_SUBMISSION = timedelta(hours=1)
"""An entry in the index that is younger may belong to a submission that is still under way."""


@click.command("rm")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_jobs)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@store_option
@debug_option
def rm(job_ids: Sequence[str], yes: bool, store_url: str | None) -> None:
    """Delete the data of jobs that are over.

    Checkpoints, logs, artifacts and records; nothing can bring them back. It asks first. Interrupted,
    it is finished by the same command.
    """
    store = open_named_store(store_url)
    jobs = [_checked(store, text) for text in dict.fromkeys(job_ids)]
    logs = {job.id: _log_elsewhere(job) for job in jobs}
    sizes = {}
    for job in jobs:
        count, num_bytes = measure(store, job.id)
        log_bytes = sum(piece.num_bytes or 0 for piece in logs[job.id])
        count, num_bytes = sizes[job.id] = count + len(logs[job.id]), num_bytes + log_bytes
        output.echo(f"{job.id}: {count} objects, {output.size_text(num_bytes)}")
    if not yes:
        _ask(jobs)
    for job in jobs:
        try:
            with transfer(f"deleting {job.id}", sizes[job.id][1]) as advance:
                if logs[job.id]:
                    job.log_sink.remove(logs[job.id])
                    advance(sum(piece.num_bytes or 0 for piece in logs[job.id]))
                remove_job(store, job.id, progress=advance)
        except BaseException:  # Ctrl-C too.
            output.warn(f"job {job.id} is half deleted; finish it with: {job.command('rm')}")
            raise
        output.echo(f"deleted job {job.id}")


def _log_elsewhere(job: Job) -> Sequence[LogPiece]:
    """Return what of the log is in the store and not below the job's own prefix; it goes first."""
    if read_entry(job.store, job.id).removal is not None:
        return ()  # That was done before the rest, which an interruption has left.
    try:
        sink = job.log_sink
    except (JobNotFound, PluginError):
        return ()  # It was never submitted whole, or said so above.
    # That one's lines lie below the prefix, and go with it.
    return sink.pieces() if sink.is_in_store and not isinstance(sink, ObjectStoreLogSink) else ()


def _ask(jobs: Sequence[Job]) -> None:
    if not _is_attended():
        raise SpecError("nobody is there to be asked: give --yes to delete without a question")
    what = jobs[0].id if len(jobs) == 1 else f"these {len(jobs)} jobs"
    if not click.confirm(f"Delete all data of {what} for good?", err=True):
        output.echo("nothing was deleted", error=True)
        click.get_current_context().exit(exit_codes.FAILED)


def _is_attended() -> bool:
    return sys.stdin.isatty()


def _checked(store: ObjectStore, text: str) -> Job:
    """Return the job, which may be removed.

    Raises:
        JobNotFound: no job has this very id.
        CloudspotError: it is not over, or its machines are not gone.
    """
    found = find_job(store, text)
    if found != text:
        raise JobNotFound(f"rm takes whole ids: no job is called {text!r}; did you mean {found}?")
    job = Job(store, found)
    entry = read_entry(store, job.id)
    if entry.removal is not None:
        return job
    try:
        history = job.first_history
    except JobNotFound:
        age = datetime.now(timezone.utc) - entry.since
        if age < LONGEST_SUBMISSION:
            raise CloudspotError(
                f"job {job.id} is being submitted, or its submission was cut short "
                f"{output.duration_text(age.total_seconds())} ago: it can be removed an hour after that"
            ) from None
        return job
    if history.finished is None:
        if is_over(history):
            raise CloudspotError(
                f"job {job.id} has ended, and nobody has closed its records yet; run: "
                f"{job.command('reconcile --job')}"
            )
        raise CloudspotError(f"job {job.id} is not over; stop it first: {job.command('stop --wait')}")
    _check_provider(job, history)
    return job


def _check_provider(job: Job, history: History) -> None:
    """Refuse while a machine lives, which reads and writes what would be deleted; say what stays."""
    try:
        if not job.log_sink.is_in_store:
            output.warn(f"the log of job {job.id} is not in {job.store.url}, and stays where it is")
        machines = job.provider.provisioner().instances(job_id=job.id)
    except (PluginError, TransientError) as error:
        # Its journal was closed on proof of death already; this is the second look.
        output.warn(f"whether machines of job {job.id} are still there is not known: {error}")
        return
    label = store_label(job.store)
    alive = [
        machine.id
        for machine in machines
        if machine.state is not InstanceState.ENDED and is_ours(machine, label, history)
    ]
    if alive:
        raise CloudspotError(
            f"job {job.id} still has machines: {', '.join(alive)}; end them with: "
            f"{job.command('reconcile --job')}"
        )
