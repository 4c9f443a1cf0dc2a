"""``cloudspot rm``: delete finished jobs and all their data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import click
import msgspec

from cloudspot.calls import InstancesRequest
from cloudspot.cli import exit_codes
from cloudspot.cli.completers import complete_jobs
from cloudspot.cli.config import configured_options, open_configured
from cloudspot.cli.jobs import Job, find_job, open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.sharedoptions import store_option
from cloudspot.controller.ownership import check_adopted, is_ours, store_label
from cloudspot.errors import (
    CloudspotError,
    CorruptData,
    JobNotFound,
    NotAdopted,
    ObjectMissing,
    PluginError,
    SpecError,
    TransientError,
)
from cloudspot.host.size_text import size_text
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.access.store_clock import store_time
from cloudspot.jobstore.access.stored_records import read_record
from cloudspot.jobstore.jobs import own_jobs
from cloudspot.jobstore.jobs.index_entry import read_entry
from cloudspot.jobstore.jobs.removal import measure, remove_job
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Intent
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.jobstore.nodes.keeping import kept_now
from cloudspot.model import InstanceState, LogPiece
from cloudspot.registry import open_provider, with_driver_options
from cloudspot.story.states import is_over

LONGEST_SUBMISSION = timedelta(hours=1)
"""A younger entry in the index may belong to a submission that is still under way."""


@click.command("rm")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_jobs)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--force",
    is_flag=True,
    help="Also delete jobs that may not have ended, unless they may have machines.",
)
@store_option
@click.pass_context
def rm(ctx: click.Context, job_ids: Sequence[str], yes: bool, force: bool, store_url: str | None) -> None:
    """Delete finished jobs and all their data.

    Checkpoints, logs, artifacts and records are deleted permanently, after a confirmation. To finish an
    interrupted deletion, run the same command again. A job with malformed records is kept, because they do
    not show whether the job has ended; the command then exits with 8.

    --force also deletes such jobs, and jobs of the provider local that only another computer can drive (see
    attach --adopt). But it keeps them while their provider lists a machine of theirs, and for ten minutes
    after the last report of a node.
    """
    store = open_named_store(store_url)
    jobs = []
    status = exit_codes.SUCCEEDED
    for text in dict.fromkeys(job_ids):
        try:
            jobs.append(_checked(store, text, force=force))
        except (CorruptData, SpecError) as error:
            status = CorruptData.exit_code
            output.warn(f"job {text} is not deleted: {error}; to delete it anyway, add --force")
    if jobs:
        _delete(store, jobs, yes=yes)
    ctx.exit(status)


def _delete(store: ObjectStore, jobs: Sequence[Job], *, yes: bool) -> None:
    logs = {job.id: _log_elsewhere(job) for job in jobs}
    sizes = {}
    for job in jobs:
        count, num_bytes = measure(store, job.id)
        log_bytes = sum(piece.num_bytes or 0 for piece in logs[job.id])
        count, num_bytes = sizes[job.id] = count + len(logs[job.id]), num_bytes + log_bytes
        output.echo(f"{job.id}: {count} objects, {size_text(num_bytes)}")
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
        with suppress(SpecError):  # If the state home is unusable, there is no note of the job.
            own_jobs.forget_job(job.id, store_url=store_label(store))
        output.echo(f"deleted job {job.id}")


def _log_elsewhere(job: Job) -> Sequence[LogPiece]:
    """Return the pieces of the log that are in the store but outside the job's prefix; delete these first."""
    try:
        if read_entry(job.store, job.id).removal is not None:
            return ()  # An interrupted removal has already deleted them.
        sink = job.log_sink
    except (JobNotFound, PluginError, CorruptData, SpecError):
        return ()  # The job was never fully submitted, or a warning was printed above.
    # An ObjectStoreLogSink keeps its lines below the prefix, so they are deleted with the rest.
    return sink.pieces() if sink.is_in_store and not isinstance(sink, ObjectStoreLogSink) else ()


def _checked(store: ObjectStore, text: str, *, force: bool) -> Job:
    """Return the job; raise an error if it is not over, has machines, or its id is incomplete."""
    found = find_job(store, text)
    if found != text:
        raise JobNotFound(f"rm needs the complete id, but there is no job {text!r}; did you mean {found}?")
    job = Job(store, found)
    try:
        _check_end(job, force=force)
    except (CorruptData, SpecError) as error:
        if not force:
            raise
        output.warn(f"job {job.id}: {error}")
        _check_no_machine(job)
    return job


def _check_end(job: Job, *, force: bool) -> None:
    """Refuse a job that is not over; if ``force``, only one that may have machines or be driven here."""
    entry = read_entry(job.store, job.id)
    if entry.removal is not None:
        return
    try:
        history = job.first_history
    except JobNotFound:
        age = store_time(job.store) - entry.since
        if age < LONGEST_SUBMISSION:
            raise CloudspotError(
                f"job {job.id} is being submitted, or its submission was interrupted: the submission began "
                f"{output.duration_text(age.total_seconds())} ago, and the job can be removed one hour "
                "after that"
            ) from None
        return
    if history.finished is None:
        try:
            with suppress(PluginError):
                check_adopted(job.store, job.provider, history)
        except NotAdopted as error:
            if not force:
                raise NotAdopted(f"{error}; to delete it, add --force") from error
            _check_no_machine(job)
            return
        if is_over(history):
            raise CloudspotError(
                f"job {job.id} has ended, but its records are not closed yet; run: "
                f"{job.command('reconcile --job')}"
            )
        raise CloudspotError(f"job {job.id} has not ended; stop it first: {job.command('stop --wait')}")
    _check_provider(job, history)


def _check_provider(job: Job, history: History) -> None:
    """Refuse while a machine is alive, because the machine uses the data; warn about data that stays."""
    try:
        if not job.log_sink.is_in_store:
            output.warn(f"the log of job {job.id} is not in {job.store.url}, so it is not deleted")
        machines = job.provider.provisioner().instances(InstancesRequest(job_id=job.id)).instances
    except (PluginError, TransientError) as error:
        if history.live_launches:
            raise CloudspotError(
                f"job {job.id} has ended, but some of its machines may still run, and its provider does not "
                f"answer: {error}"
            ) from error
        # Every machine has written its exit record or has provably ended, so this was only a second check.
        output.warn(f"cannot tell whether job {job.id} still has machines: {error}")
        return
    label = store_label(job.store)
    alive = [
        machine.id
        for machine in machines
        if machine.state is not InstanceState.ENDED and is_ours(machine, label, history)
    ]
    if alive:
        is_kept = kept_now(history, store_time(job.store)) is not None
        raise CloudspotError(
            f"job {job.id} still has machines: {', '.join(alive)}; end them with: "
            f"{job.command('stop' if is_kept else 'reconcile --job')}"
        )


def _check_no_machine(job: Job) -> None:
    """Refuse while the job may have a machine, according to the store's times and the provider."""
    job.check_silence()
    request = InstancesRequest(job_id=job.id, store_url=store_label(job.store))
    alive = [
        machine.id
        for provider in _providers(job)
        for machine in provider.provisioner().instances(request).instances
        if machine.state is not InstanceState.ENDED
    ]
    if alive:
        raise CloudspotError(f"job {job.id} still has machines: {', '.join(alive)}; end them first")


class _Named(msgspec.Struct):
    """The fields that can still be read if a submission is otherwise malformed."""

    provider: str
    spec: dict[str, Any]


def _providers(job: Job) -> Sequence[Provider]:
    """Return the providers that may have machines of the job; warn if some cannot be queried."""
    resumed = (meta.key for meta in job.store.list_objects(keys.submissions_prefix(job.id)))
    try:
        submissions = [read_record(job.store, key, _Named) for key in (keys.spec(job.id), *resumed)]
        return [
            open_provider(
                one.provider,
                with_driver_options(spec_from_json(one.spec), one.provider, configured_options(one.provider)),
            )
            for one in submissions
        ]
    except PluginError as error:
        output.warn(f"cannot tell whether job {job.id} has machines: {error}")
        return []
    except (CorruptData, SpecError, ObjectMissing):
        pass
    providers = {}
    for meta in job.store.list_objects(keys.journal_prefix(job.id)):
        with suppress(CorruptData, ObjectMissing, PluginError, SpecError):
            record = codec.decode_journal(job.store.get(meta.key), key=meta.key)
            if isinstance(record, Intent):
                providers[record.request.provider] = open_configured(record.request.provider, None)
    where = f"with default options: {', '.join(providers)}" if providers else "nowhere, because none is known"
    output.warn(f"job {job.id}: its provider's options are malformed; looking for machines {where}")
    return list(providers.values())
