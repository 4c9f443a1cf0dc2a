"""``cloudspot rm``: deletes finished jobs and all their data."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import click

from cloudspot.cli.completers import complete_jobs
from cloudspot.cli.jobs import Job, find_job, open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.sharedoptions import store_option
from cloudspot.controller.ownership import is_ours, store_label
from cloudspot.errors import CloudspotError, CorruptData, JobNotFound, PluginError, TransientError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.history import History
from cloudspot.jobstore.objectlog import ObjectStoreLogSink
from cloudspot.jobstore.removal import measure, read_entry, remove_job
from cloudspot.model import InstanceState, LogPiece
from cloudspot.story.states import is_over

LONGEST_SUBMISSION = timedelta(hours=1)
"""A younger entry in the index may belong to a submission that is still running."""


@click.command("rm")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_jobs)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@store_option
@click.pass_context
def rm(ctx: click.Context, job_ids: Sequence[str], yes: bool, store_url: str | None) -> None:
    """Delete finished jobs and all their data.

    Checkpoints, logs, artifacts and records are deleted for good, after a question. If interrupted, run
    the same command again to finish. A job whose records are malformed is left alone: they do not tell
    whether it has ended. The status is then 8.
    """
    store = open_named_store(store_url)
    jobs = []
    is_all = True
    for text in dict.fromkeys(job_ids):
        try:
            jobs.append(_checked(store, text))
        except CorruptData as error:
            is_all = False
            output.warn(f"job {text} is not deleted: {error}")
    if jobs:
        _delete(store, jobs, yes=yes)
    if not is_all:
        ctx.exit(CorruptData.exit_code)


def _delete(store: ObjectStore, jobs: Sequence[Job], *, yes: bool) -> None:
    logs = {job.id: _log_elsewhere(job) for job in jobs}
    sizes = {}
    for job in jobs:
        count, num_bytes = measure(store, job.id)
        log_bytes = sum(piece.num_bytes or 0 for piece in logs[job.id])
        count, num_bytes = sizes[job.id] = count + len(logs[job.id]), num_bytes + log_bytes
        output.echo(f"{job.id}: {count} objects, {output.size_text(num_bytes)}")
    what = jobs[0].id if len(jobs) == 1 else f"these {len(jobs)} jobs"
    output.confirm_deletion(f"all data of {what}", yes=yes)
    for job in jobs:
        try:
            with transfer(f"deleting {job.id}", sizes[job.id][1]) as advance:
                if logs[job.id]:
                    job.log_sink.remove(logs[job.id])
                    advance(sum(piece.num_bytes or 0 for piece in logs[job.id]))
                remove_job(store, job.id, progress=advance)
        except BaseException:  # Ctrl-C too.
            output.warn(f"job {job.id} is only partly deleted; finish with: {job.command('rm')}")
            raise
        output.echo(f"deleted job {job.id}")


def _log_elsewhere(job: Job) -> Sequence[LogPiece]:
    """Return the pieces of the log that are in the store but outside the job's prefix; they go first."""
    if read_entry(job.store, job.id).removal is not None:
        return ()  # An interrupted removal has deleted them already.
    try:
        sink = job.log_sink
    except (JobNotFound, PluginError):
        return ()  # The job was never fully submitted, or a warning was printed above.
    # An ObjectStoreLogSink keeps its lines below the prefix, so they go with the rest.
    return sink.pieces() if sink.is_in_store and not isinstance(sink, ObjectStoreLogSink) else ()


def _checked(store: ObjectStore, text: str) -> Job:
    """Return the job; an error if it is not over, still has machines, or the id is not its whole id."""
    found = find_job(store, text)
    if found != text:
        raise JobNotFound(f"rm needs the whole id: there is no job {text!r}; did you mean {found}?")
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
                f"job {job.id} is being submitted, or its submission was cut short: it began "
                f"{output.duration_text(age.total_seconds())} ago and can be removed an hour after it began"
            ) from None
        return job
    if history.finished is None:
        if is_over(history):
            raise CloudspotError(
                f"job {job.id} has ended, but its records are not closed yet; run: "
                f"{job.command('reconcile --job')}"
            )
        raise CloudspotError(f"job {job.id} has not ended; stop it first: {job.command('stop --wait')}")
    _check_provider(job, history)
    return job


def _check_provider(job: Job, history: History) -> None:
    """Refuse while a machine lives, since it uses what would be deleted; warn of what is not deleted."""
    try:
        if not job.log_sink.is_in_store:
            output.warn(f"the log of job {job.id} is not in {job.store.url} and is not deleted")
        machines = job.provider.provisioner().instances(job_id=job.id)
    except (PluginError, TransientError) as error:
        # The journal was closed on proof that the machines had ended; this is only a second look.
        output.warn(f"cannot tell whether job {job.id} still has machines: {error}")
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
