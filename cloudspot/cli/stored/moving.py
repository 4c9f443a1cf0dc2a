"""Detach an ended job from its provider and its store, so that it can be resumed only elsewhere."""

from __future__ import annotations

import os
from collections.abc import Collection

from cloudspot.calls import InstancesRequest
from cloudspot.cli.config import named_store
from cloudspot.cli.invocation import current_invocation
from cloudspot.cli.jobs import Job, find_job, open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.sharedoptions import STORE_VARIABLE
from cloudspot.cli.stored.trust import noting
from cloudspot.controller.ownership import store_label
from cloudspot.errors import CloudspotError, CorruptData, JobNotFound, SpecError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobstore.access.store_clock import store_time
from cloudspot.jobstore.access.stored_records import find_meta
from cloudspot.jobstore.jobs import resumption
from cloudspot.jobstore.jobs.copying import (
    CopyPlan,
    DamagedCheckpoint,
    copy,
    describe_copy,
    plan_copy,
    reserve,
)
from cloudspot.jobstore.jobs.reader import write_summary
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import InstanceState
from cloudspot.story.report import summarise


def find_resumable(
    text: str, store_url: str | None, source_url: str | None
) -> tuple[Job, ObjectStore | None]:
    """Return the job, and the store to which it must first be moved, or None if it stays.

    It moves only if ``--store`` was given. ``source_url`` is the value of ``--from``.

    Raises:
        JobNotFound: the job is in neither store.
        CloudspotError: the job is in ``--store``, but was moved from there to another store.
        SpecError: ``--from`` was given without ``--store``.
    """
    target = open_named_store(store_url, may_be_new=True)
    chosen = current_invocation().chosen_store
    is_asked = chosen is not None and chosen.origin.startswith("--store")
    if not is_asked:
        target.hold_to()
    if source_url is not None and not is_asked:
        raise SpecError("--from needs --store, the store to which the job moves")
    if source_url is not None:
        source = open_named_store(named_store(source_url, "--from").url)
        return Job(source, find_job(source, text)), target
    try:
        job = Job(target, find_job(target, text))
        if is_asked and job.id != text and find_meta(_usual_store(), keys.index(text)) is not None:
            raise JobNotFound(f"no job {text!r} in {target.url}, but the default store has one")
        elsewhere = job.history().moved_to
    except JobNotFound:
        source = _usual_store() if is_asked else target
        if source.canonical_url == target.canonical_url:
            find_job(source, text)  # Unlike the target, this store reports if it is not mounted.
            raise
        return Job(source, find_job(source, text)), target
    target.hold_to()
    if elsewhere is None or elsewhere == target.canonical_url or not is_asked:
        return job, None
    # Only the user decides which store is opened; a record must not.
    raise CloudspotError(
        f"job {job.id} was moved to {elsewhere}. To bring it back, run "
        f"`cloudspot resume {job.id} --from {elsewhere} --store {target.url}`. If the copy was interrupted, "
        f"run `cloudspot resume {job.id} --from {target.url} --store {elsewhere}`"
    )


def _usual_store() -> ObjectStore:
    """Return the store in which jobs are looked up without ``--store``."""
    variable = os.environ.get(STORE_VARIABLE)
    return open_named_store(None if variable is None else named_store(variable, STORE_VARIABLE).url)


def leave_provider(job: Job, *, is_moving: bool) -> None:
    """Make sure that no machine or resource of the job remains where drivers would no longer look.

    Its drivers query only the provider of the newest submission, with its options, in one store. A job that
    has not ended, because it waits for a machine, is stopped before it moves to another store.

    Raises:
        CloudspotError: one of the job's machines is still running.
        TransientError: the provider could not release the job's resources; try again.
    """
    history = job.history()
    if history.moved_to is not None:
        return  # An earlier attempt has already done this.
    name = job.provider.name
    output.echo(f"waiting until job {job.id} has no resources left on {name}", error=True)
    if history.finished is None and is_moving:
        output.echo(f"stopping job {job.id}, which waits for a machine, before the move", error=True)
        request_stop(job.store, job.id, "user", resumption=history.submission.resumption)
    if history.finished is not None or is_moving:
        job.controller().run_until_finished()
    provisioner = job.provider.provisioner()
    listed = provisioner.instances(InstancesRequest(job_id=job.id)).instances
    live = [one.id for one in listed if one.state is not InstanceState.ENDED]
    if live:
        raise CloudspotError(
            f"machines of job {job.id} are still running on {name}: {', '.join(live)}; try again when they "
            "have ended"
        )
    provisioner.release(job.id, store_url=store_label(job.store))


def confirm_move(job: Job, target: ObjectStore, *, yes: bool) -> None:
    """Print the size of the copy to another store, and ask for confirmation unless ``yes`` is given.

    Nothing is stopped or copied before the answer. If the answer is no, the command ends.

    Raises:
        CloudspotError: the job was moved to ``target`` earlier, but is not there.
        SpecError: there is no terminal for the question.
    """
    if _is_repeated(job, target) and find_meta(target, keys.index(job.id)) is None:
        raise CloudspotError(
            f"job {job.id} was moved to {target.url}, but is not there; check that this is the same directory"
        )
    plan = plan_copy(job.store, job.id, is_estimate=True)
    output.echo(f"copying job {job.id} to {target.url}: {describe_copy(plan)}", error=True)
    if not isinstance(job.log_sink, ObjectStoreLogSink):
        output.warn(
            f"the earlier log is not copied; read it with: cloudspot logs {job.id} --store {job.store.url}"
        )
    output.confirm("Copy it?", action="copy the job", otherwise="nothing was copied", yes=yes)


def _reasons(plan: CopyPlan) -> str:
    found = [f"{one.checkpoint}: {one.reason}" for one in plan.skipped]
    return "; ".join(found) or "their manifests are gone"


def _plan_with_checkpoint(job: Job, history: History, damaged: Collection[CheckpointId] = ()) -> CopyPlan:
    plan = plan_copy(job.store, job.id, damaged=damaged)
    if plan.checkpoint is None and history.head is not None:
        reasons = _reasons(plan)
        raise CorruptData(
            f"no checkpoint of job {job.id} is complete, so the job cannot be resumed: {reasons}"
        )
    return plan


def _is_repeated(job: Job, target: ObjectStore) -> bool:
    return job.history().moved_to == target.canonical_url


def move(job: Job, provider: Provider, target: ObjectStore) -> Job:
    """Copy the ended job to another store, and return it there; from then on, only that store may resume it.

    Raises:
        CloudspotError: the target cannot accept the job, which is detected before anything is changed; or the
            job has changed in the meantime. CorruptData: there were checkpoints, but none is intact.
    """
    history = job.history()
    if history.submission_sha256 != job.submission_sha256:  # the submission that the user has seen
        raise CloudspotError(resumption.CHANGED.format(job.id))
    plan = _plan_with_checkpoint(job, history)
    target.establish()
    reserve(plan, job.store, target)
    if not resumption.move_away(job.store, history, target):
        raise CloudspotError(resumption.CHANGED.format(job.id))
    # Note it for the other store: a job of this computer remains one.
    noting(target, provider)(history.submission, history.submission_sha256)
    damaged: set[CheckpointId] = set()
    while True:
        plan = _plan_with_checkpoint(job, history, damaged)
        for one in plan.skipped:
            output.warn(f"checkpoint {one.checkpoint} is left out: {one.reason}")
        try:
            with transfer("copying the job", plan.num_bytes) as progress:
                copy(plan, job.store, target, progress=progress)
        except DamagedCheckpoint as error:
            damaged.add(error.checkpoint)
            continue
        write_summary(job.store, summarise(job.history(), store_time(job.store)))
        return Job(target, job.id)
