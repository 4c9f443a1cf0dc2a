"""``cloudspot resume``: lets a job that was stopped, failed or suspended go on, perhaps otherwise."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial

import click

from cloudspot.cli.completers import complete_providers
from cloudspot.cli.following.detached import launch
from cloudspot.cli.following.follow import follow
from cloudspot.cli.jobs import Job, open_job
from cloudspot.cli.preparedjob import agent_archive, open_pinned, with_secrets
from cloudspot.cli.screen import output
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.sharedoptions import job_argument, overrides_option, plain_option, store_option
from cloudspot.controller.decide import exceeded_limit
from cloudspot.controller.launchrequest import find_offers
from cloudspot.controller.ownership import adopt, store_label
from cloudspot.errors import CloudspotError, NotAdopted, SpecError
from cloudspot.interfaces import Provider
from cloudspot.jobfile.spec import JobSpec, change_job
from cloudspot.jobstore import resumption
from cloudspot.jobstore.history import History
from cloudspot.jobstore.submission import read_secrets
from cloudspot.model import InstanceState
from cloudspot.story.ledger import bill
from cloudspot.story.progress import last_commit_id
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
    is_plain: bool,
    store_url: str | None,
) -> None:
    """Let a job that has ended go on.

    A job that was stopped, has failed, or is suspended keeps its id, its code and its bill, and trains on
    from its newest checkpoint. Limits count over the whole job: raise the one that ended it, as with --set
    limits.max_cost=40. Earlier failures, refusals and waits count no longer. Exits as `run` does.

    Secrets were deleted at the job's end. They come from the environment again, or are asked for.
    """
    if as_json and not detach:
        raise SpecError("--json needs --detach; a followed job prints its log")
    job = open_job(store_url, job_id)
    history = _ended(job)
    spec, provider = open_pinned(change_job(job.spec, overrides), provider_name or job.provider.name)
    if not is_adopted:
        _check_adopted(job, provider, history)
    _check_limits(spec, history)
    find_offers(spec, provider)  # raises here, before anything is written, if no offer can fit it
    _check_machines(job, provider, spec, history)
    # Until the job has ended, its secrets are in the store.
    stored = read_secrets(job.store, job.id, spec.run.secrets, resumption=history.submission.resumption)
    environ = with_secrets(spec, stored)
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
    _warn_of_inexactness(job.spec, spec)
    resumed = Job(job.store, job.id)
    ctx.exit(launch(resumed, as_json=as_json) if detach else follow(resumed, is_plain=is_plain))


def _ended(job: Job) -> History:
    """Return the job's records; CloudspotError if it has not ended."""
    history = job.history()
    if history.finished is None and is_over(history):
        # Its nodes have ended it, and nothing drives it: write that down.
        job.controller().run_pass()
        history = job.history()
    resumption.check_resumable(history)
    return history


def _check_adopted(job: Job, provider: Provider, history: History) -> None:
    sha256 = history.submission_sha256
    try:
        provider.check_adopted(job.id, store_url=store_label(job.store), sha256=sha256)
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


def _check_machines(job: Job, provider: Provider, spec: JobSpec, history: History) -> None:
    """Make sure that nothing of the job runs where nobody would look for it any more.

    Its drivers ask only the provider with the options of the newest submission.
    """
    name = job.provider.name
    if provider.name == name and spec.providers.get(name) == job.spec.providers.get(name):
        return
    if history.finished is not None:
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
