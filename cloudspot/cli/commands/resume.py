"""``cloudspot resume``: lets a job that was stopped, failed or suspended go on, perhaps otherwise."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from functools import partial

import click

from cloudspot.cli.completers import complete_providers, complete_stores
from cloudspot.cli.config import named_store
from cloudspot.cli.following.detached import launch
from cloudspot.cli.following.follow import follow
from cloudspot.cli.invocation import current_invocation
from cloudspot.cli.jobs import Job, find_job, open_named_store
from cloudspot.cli.preparedjob import agent_archive, open_pinned, with_secrets
from cloudspot.cli.screen import output
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.sharedoptions import (
    STORE_VARIABLE,
    job_argument,
    overrides_option,
    plain_option,
    store_option,
)
from cloudspot.controller.decide import exceeded_limit
from cloudspot.controller.launchrequest import find_offers
from cloudspot.controller.ownership import adopt, store_label
from cloudspot.errors import CloudspotError, JobNotFound, NotAdopted, SpecError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.spec import JobSpec, change_job
from cloudspot.jobstore import resumption
from cloudspot.jobstore.copying import DamagedCheckpoint, copy, describe_copy, plan_copy
from cloudspot.jobstore.history import History
from cloudspot.jobstore.reader import write_summary
from cloudspot.jobstore.records import CheckpointId
from cloudspot.jobstore.submission import check_secrets, read_secrets, request_stop
from cloudspot.model import InstanceState
from cloudspot.story.ledger import bill
from cloudspot.story.progress import last_commit_id
from cloudspot.story.report import summarise
from cloudspot.story.states import is_over


@click.command("resume")
@job_argument
@click.option(
    "--provider",
    "provider_name",
    metavar="NAME",
    shell_complete=complete_providers,
    help="Where it goes on. Default: where it ran.",
)
@overrides_option
@click.option(
    "--adopt", "is_adopted", is_flag=True, help="Run it on this computer, though it was submitted elsewhere."
)
@click.option("--detach", is_flag=True, help="Return as soon as the first machine is requested.")
@click.option("--json", "as_json", is_flag=True, help="With --detach: print JSON.")
@click.option(
    "--from",
    "source_url",
    metavar="STORE",
    shell_complete=complete_stores,
    help="Move the job from there to --store. Default: the default store, if it is not in --store.",
)
@plain_option
@store_option
@click.pass_context
def resume(
    ctx: click.Context,
    job_id: str,
    provider_name: str | None,
    overrides: tuple[str, ...],
    is_adopted: bool,
    detach: bool,
    as_json: bool,
    source_url: str | None,
    is_plain: bool,
    store_url: str | None,
) -> None:
    """Let a job that has ended go on.

    A job that was stopped, has failed, or is suspended keeps its id, its code and its bill, and trains on
    from its newest checkpoint. Limits count over the whole job: raise the one that ended it, as with --set
    limits.max_cost=40. Earlier failures, refusals and waits count no longer. Exits as `run` does.

    Secrets were deleted at the job's end. They come from the environment again, or are asked for.

    If --store names another store than the job's, the job moves there first.
    """
    if as_json and not detach:
        raise SpecError("--json needs --detach; a followed job prints its log")
    job, target = _find(job_id, store_url, source_url)
    history = _ended(job)
    spec, provider = open_pinned(change_job(job.spec, overrides), provider_name or job.provider.name)
    if not is_adopted:
        _check_adopted(job, provider, history)
    _check_limits(spec, history)
    find_offers(spec, provider)  # raises here, before anything is written, if no offer can fit it
    # Until the job has ended, its secrets are in the store.
    stored = read_secrets(job.store, job.id, spec.run.secrets, resumption=history.submission.resumption)
    environ = with_secrets(spec, stored)
    check_secrets(spec.run.secrets, environ)
    _check_machines(job, provider, spec, is_moving=target is not None)
    before = job.spec
    if target is not None:
        job = _move(job, provider, target)
    history = job.history()
    resumption.resume(
        job.store,
        history,
        spec=spec,
        provider=provider.name,
        environ=environ,
        agent=agent_archive(provider, job.store),
        adopt=partial(adopt, job.store, provider, job.id),
        open_progress=transfer,
    )
    if not as_json:
        newest = last_commit_id(history)
        where = "from the start: it has no checkpoint" if newest is None else f"at step {newest.step}"
        output.echo("resumed job ", output.Styled(job.id, "bold"), f" on {provider.name}; it goes on {where}")
    _warn_of_inexactness(before, spec)
    resumed = Job(job.store, job.id)
    ctx.exit(launch(resumed, as_json=as_json) if detach else follow(resumed, is_plain=is_plain))


def _find(text: str, store_url: str | None, source_url: str | None) -> tuple[Job, ObjectStore | None]:
    """Return the job, and the store to which it has to be moved first, if any."""
    target = open_named_store(store_url)
    chosen = current_invocation().chosen_store
    is_asked = chosen is not None and chosen.origin.startswith("--store")
    try:
        job = Job(target, find_job(target, text))
        elsewhere = job.history().moved_to
    except JobNotFound:
        # Where it would have been looked for without --store.
        source = _open_source(source_url, os.environ.get(STORE_VARIABLE))
        if not is_asked or source.canonical_url == target.canonical_url:
            raise
        return Job(source, find_job(source, text)), target
    if elsewhere in {None, target.canonical_url} or not is_asked:
        return job, None
    # It was here before, and comes back.
    return Job(_open_source(source_url, elsewhere), job.id), target


def _open_source(named: str | None, default: str | None) -> ObjectStore:
    url = default if named is None else named_store(named, "--from").url
    return open_named_store(None if url is None else named_store(url, STORE_VARIABLE).url)


def _ended(job: Job) -> History:
    """Return the job's records; CloudspotError if it has not ended."""
    history = job.history()
    if history.finished is None and is_over(history):
        # Its nodes have ended it, and nothing drives it: write that down.
        job.controller().run_pass()
        history = job.history()
    if history.moved_to is None:
        resumption.check_resumable(job.store, history)
    return history


def _move(job: Job, provider: Provider, target: ObjectStore) -> Job:
    """Copy the job to another store, the only one that may resume it from then on; return it there."""
    costs = describe_copy(plan_copy(job.store, job.id))
    output.echo(f"copying job {job.id} to {target.url}: {costs}", error=True)
    if not job.log_sink.is_in_store:
        output.warn(f"the log of job {job.id} up to now is not in {job.store.url}, and stays where it is")
    history = job.history()
    if not resumption.move_away(job.store, history, target):
        raise CloudspotError(f"something has happened to job {job.id} meanwhile; look at it and try again")
    # As in the other store: a job of this computer stays one.
    adopt(target, provider, job.id, history.submission_sha256)
    damaged: set[CheckpointId] = set()
    while True:
        plan = plan_copy(job.store, job.id, damaged=damaged)
        for one in plan.skipped:
            output.warn(f"checkpoint {one.checkpoint} is left out: {one.reason}")
        try:
            with transfer("copying the job", plan.num_bytes) as progress:
                copy(plan, job.store, target, progress=progress)
        except DamagedCheckpoint as error:
            damaged.add(error.checkpoint)
            continue
        write_summary(job.store, summarise(job.history(), datetime.now(timezone.utc)))
        return Job(target, job.id)


def _check_adopted(job: Job, provider: Provider, history: History) -> None:
    sha256 = history.submission_sha256
    try:
        provider.check_adopted(job.id, store_url=store_label(job.store), sha256=sha256, is_resumed=True)
    except NotAdopted as error:
        raise NotAdopted(
            f"job {job.id!r} in {job.store.url} did not run on this computer, and machines of provider "
            f"{provider.name!r} are processes of it; if you trust its code, run: "
            f"{job.command('resume')} --adopt --provider {provider.name}"
        ) from error


def _check_limits(spec: JobSpec, history: History) -> None:
    """SpecError if the job would end at once."""
    now = datetime.now(timezone.utc)
    reached = exceeded_limit(spec, history, now)
    if reached is None:
        return
    ledger = bill(history, now)
    told = {
        "max_cost": f"cost {output.money_text(ledger.spent, ledger.currency)}",
        "max_runtime": f"run for {output.duration_text(ledger.run_seconds)}",
    }
    raise SpecError(
        f"limits.{reached}: the job has {told[reached]}; raise it with --set limits.{reached}=..."
    )


def _check_machines(job: Job, provider: Provider, spec: JobSpec, *, is_moving: bool) -> None:
    """Make sure that nothing of the job runs where nobody would look for it any more.

    Its drivers ask only the provider with the options of the newest submission, in one store.
    """
    name, history = job.provider.name, job.history()
    stays = provider.name == name and spec.providers.get(name) == job.spec.providers.get(name)
    if history.moved_to is not None or (stays and not is_moving):
        return
    if history.finished is None and is_moving:
        request_stop(job.store, job.id, "user", resumption=history.submission.resumption)
    if history.finished is not None or is_moving:
        job.controller().run_until_finished()
    listed = job.provider.provisioner().instances(job_id=job.id)
    live = [one.id for one in listed if one.state is not InstanceState.ENDED]
    if live:
        raise CloudspotError(
            f"machines of job {job.id} still run on {name}: {', '.join(live)}; try again when they have ended"
        )


def _warn_of_inexactness(before: JobSpec, spec: JobSpec) -> None:
    changed = [
        name
        for name, old, new in (
            ("nodes", before.nodes, spec.nodes),
            ("resources", before.resources, spec.resources),
            ("procs_per_node", before.procs_per_node, spec.procs_per_node),
        )
        if old != new
    ]
    if changed:
        output.warn(
            f"{' and '.join(changed)} changed: with other machines, or another number of ranks, it goes "
            "on from the same state, but not bit for bit"
        )
