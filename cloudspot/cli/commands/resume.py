"""``cloudspot resume``: resume a job that was stopped, failed or suspended, possibly with changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import click

from cloudspot.cli.completers import complete_providers, complete_stores
from cloudspot.cli.following.detached import launch
from cloudspot.cli.following.follow import follow
from cloudspot.cli.jobs import Job
from cloudspot.cli.preparing.inputs import find_inputs
from cloudspot.cli.preparing.preparedjob import agent_archive, check_code, open_pinned, with_secrets
from cloudspot.cli.preparing.prospects import anyway_option, hopeless, refuse
from cloudspot.cli.screen import output
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.sharedoptions import job_argument, overrides_option, plain_option, store_option
from cloudspot.cli.stored.moving import confirm_move, find_resumable, leave_provider, move
from cloudspot.cli.stored.trust import check_trusted, noting, trust_option
from cloudspot.controller.assess.assessment import Assessment
from cloudspot.controller.assess.limits import check_affordable
from cloudspot.controller.assess.measured import seconds_to_end, start_seconds
from cloudspot.controller.launchrequest import allowed_offers
from cloudspot.errors import CloudspotError, CorruptData, SpecError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobfile.spec import JobSpec, change_job
from cloudspot.jobstore.access.store_clock import store_time
from cloudspot.jobstore.jobs import resumption
from cloudspot.jobstore.jobs.forking import code_of
from cloudspot.jobstore.jobs.reader import write_summary
from cloudspot.jobstore.jobs.submission import check_secrets, read_secrets
from cloudspot.jobstore.journal.history import History
from cloudspot.model import Offer
from cloudspot.story.ledger import spent_in
from cloudspot.story.report import summarise
from cloudspot.story.states import is_over


@click.command("resume")
@job_argument
@click.option(
    "--provider",
    "provider_name",
    metavar="NAME",
    shell_complete=complete_providers,
    help="The provider to resume on. Default: the one it ran on.",
)
@overrides_option
@anyway_option
@trust_option
@click.option("--detach", is_flag=True, help="Return as soon as the first machine is requested.")
@click.option("--json", "as_json", is_flag=True, help="With --detach: print JSON.")
@click.option(
    "--from",
    "source_url",
    metavar="STORE",
    shell_complete=complete_stores,
    help="Move the job from this store to --store. Default: the default store, if the job is not in --store.",
)
@click.option("-y", "--yes", is_flag=True, help="With --store: copy the job without asking.")
@plain_option
@store_option
@click.pass_context
def resume(
    ctx: click.Context,
    job_id: str,
    provider_name: str | None,
    overrides: tuple[str, ...],
    anyway: bool,
    trust: str | None,
    detach: bool,
    as_json: bool,
    source_url: str | None,
    yes: bool,
    is_plain: bool,
    store_url: str | None,
) -> None:
    """Resume a job that was stopped, has failed or is suspended.

    The job keeps its id, its code and its bill, and continues from its newest checkpoint. Limits apply to the
    whole job: raise the limit that ended it, as in --set limits.max_cost=40. Earlier failures, refusals and
    waits no longer count. Exits like `run`.

    Secrets were deleted when the job ended. They are read from the environment again, or the command asks for
    them.

    If --store names a store other than the job's, the command asks for confirmation and then moves the job
    there first.

    If the job's record differs from what was submitted from this computer, the command shows the differences,
    and which variables would be sent where, and asks for confirmation. Without a terminal, --trust gives the
    answer.
    """
    if as_json and not detach:
        raise SpecError("--json needs --detach; a followed job prints its log")
    job, target = find_resumable(job_id, store_url, source_url)
    history = _ended(job, target)
    before = history.job_file
    changed = change_job(before, overrides)
    check_trusted(job, history, trust=trust, action="resume", sends=changed)
    # Until the job has ended, its secrets are in the store.
    number = history.submission.resumption
    stored = read_secrets(job.store, job.id, changed.secret_names, resumption=number)
    environ = with_secrets(changed, stored)
    spec, provider = open_pinned(
        changed,
        provider_name or history.submission.provider,
        lambda: code_of(job.store, history.submission).digests(),
        environ=environ,
    )
    check_code(job, before, spec)
    find_inputs(spec, provider)
    offers = allowed_offers(spec, provider)
    _check_limits(spec, history, offers, now=store_time(job.store), anyway=anyway)
    check_secrets(spec.secret_names, environ)
    is_elsewhere = provider.name != history.submission.provider or _options(spec, provider) != _options(
        before, provider
    )
    if target is not None:
        confirm_move(job, target, yes=yes)
    if target is not None or is_elsewhere:
        leave_provider(job, is_moving=target is not None)
    if target is not None:
        job = move(job, provider, target)
    now = job.history()
    if now.submission_sha256 != history.submission_sha256:
        raise CloudspotError(resumption.CHANGED.format(job.id))
    if now.head is not None and not job.checkpoints_at(None):
        raise CorruptData(f"no checkpoint of job {job.id} is left, so it cannot be resumed; submit it again")
    resumption.resume(
        job.store,
        now,
        spec=spec,
        provider=provider.name,
        environ=environ,
        agent=agent_archive(provider, job.store, spec),
        adopt=noting(job.store, provider),
        open_progress=transfer,
    )
    if not as_json:
        found = job.checkpoints_at(None)
        where = f"at step {found[0].step}" if found else "from step 0, because it has no checkpoint"
        output.echo("resumed job ", output.Styled(job.id, "bold"), f" on {provider.name}, {where}")
    _warn_of_inexactness(before, spec)
    resumed = Job(job.store, job.id)
    with suppress(CloudspotError):  # Otherwise, `ps` would show the old end until a driver's pass.
        write_summary(job.store, summarise(resumed.first_history, store_time(job.store)))
    if detach:
        ctx.exit(launch(resumed, as_json=as_json, since=now))
    ctx.exit(follow(resumed, since=now, is_plain=is_plain))


def _options(spec: JobSpec, provider: Provider) -> Mapping[str, Any]:
    return spec.providers.get(provider.name, {})


def _ended(job: Job, target: ObjectStore | None) -> History:
    """Return the job's records; raise CloudspotError if it has not ended, or was moved to another store."""
    history = job.history()
    if history.finished is None and is_over(history):
        # The job's nodes have ended it and no driver is running, so record the end.
        job.controller().run_pass()
        history = job.history()
    if target is None or history.moved_to != target.canonical_url:
        resumption.check_resumable(job.store, history)
    return history


def _check_limits(
    spec: JobSpec, history: History, offers: Sequence[Offer], *, now: datetime, anyway: bool
) -> None:
    """Raise SpecError if the job would end immediately, or if its limit is ambiguous."""
    currency = offers[0].currency
    assessed = Assessment(spec, history, now)
    ledger, limits = assessed.ledger, spec.limits
    others = {**ledger.others, ledger.currency: ledger.spent} if history.launches else {}
    others.pop(limits.currency or currency, None)
    if limits.max_cost is not None and others:
        besides = ", ".join(money_text(amount, other) for other, amount in others.items())
        if limits.currency is None:
            raise SpecError(
                f"limits.max_cost has no currency, but the job has spent {besides}, and will now spend "
                f"{currency}; set a limit in {currency}: --set 'limits.max_cost=... {currency}'"
            )
        output.warn(f"limits.max_cost counts {limits.currency} only, not the {besides} already spent")
    reached, spent = assessed.reached, spent_in(ledger, limits.currency)
    if reached is None:
        check_affordable(assessed.budget, offers, spec.nodes.min)
        # Use the job's own pace; spot.length no longer applies once a part of the job is done.
        left = seconds_to_end(history) or (spec.spot.length if history.head is None else None)
        start = start_seconds(history)
        refuse(hopeless(spec, offers, length_seconds=left, start_seconds=start, spent=spent), anyway=anyway)
        return
    reached_texts = {
        "max_cost": f"cost {money_text(spent, limits.currency or currency)}",
        "max_runtime": f"run for {output.duration_text(ledger.run_seconds)}",
    }
    raise SpecError(
        f"limits.{reached.reason}: the job has {reached_texts[reached.reason]}; raise the limit with --set "
        f"limits.{reached.reason}=..."
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
            f"{' and '.join(changed)} changed: training continues from the same state, but on other machines "
            "or with another number of ranks, the results are not bit for bit the same"
        )
