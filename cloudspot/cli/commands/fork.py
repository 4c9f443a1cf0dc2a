"""``cloudspot fork``: submit a new job that starts from a checkpoint of another job."""

from __future__ import annotations

from pathlib import Path

import click

from cloudspot.cli.completers import complete_providers
from cloudspot.cli.following.detached import launch
from cloudspot.cli.following.follow import follow
from cloudspot.cli.jobs import Job, check_job_id, new_job_id, open_job
from cloudspot.cli.preparing.inputs import find_inputs
from cloudspot.cli.preparing.preparedjob import agent_archive, check_code, open_pinned, with_secrets
from cloudspot.cli.screen import output
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.sharedoptions import job_argument, overrides_option, plain_option, store_option
from cloudspot.cli.stored.trust import check_trusted, noting, trust_option
from cloudspot.controller.launchrequest import find_offers
from cloudspot.errors import SpecError
from cloudspot.jobfile.spec import JobSpec, change_job, check_files
from cloudspot.jobstore.checkpoints.manifests import read_manifest, while_it_exists
from cloudspot.jobstore.code.bundle import Bundle, make_bundle
from cloudspot.jobstore.jobs.forking import bring_checkpoint, code_of
from cloudspot.jobstore.jobs.submission import new_submission, submit_bundle
from cloudspot.jobstore.layout.records import Origin


@click.command("fork")
@job_argument
@click.option(
    "--from",
    "step",
    type=click.IntRange(min=0),
    metavar="STEP",
    help="The step of the checkpoint. Default: the newest.",
)
@click.option("--name", metavar="ID", help="The new job's id. Default: its name and a random suffix.")
@overrides_option
@click.option(
    "--code",
    "code_directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    is_flag=False,
    flag_value=".",
    metavar="DIR",
    help="Take the code from this directory, as if the job file were there. Default of DIR: the current one.",
)
@click.option(
    "--provider",
    "provider_name",
    metavar="NAME",
    shell_complete=complete_providers,
    help="The provider of the new job. Default: that of the other job.",
)
@trust_option
@click.option("--detach", is_flag=True, help="Return as soon as the first machine is requested.")
@click.option("--json", "as_json", is_flag=True, help="With --detach: print JSON.")
@plain_option
@store_option
@click.pass_context
def fork(
    ctx: click.Context,
    job_id: str,
    step: int | None,
    name: str | None,
    overrides: tuple[str, ...],
    code_directory: Path | None,
    provider_name: str | None,
    trust: str | None,
    detach: bool,
    as_json: bool,
    is_plain: bool,
    store_url: str | None,
) -> None:
    """Start a new job from a checkpoint of another one.

    The new job has the other job's job file, which --set can change, its code or that of --code, and a copy
    of the checkpoint in the same store, so it no longer needs the other job. Its bill starts at
    0. The other job may still be running. Exits like `run`.

    If the other job's record differs from what was submitted from this computer, the command shows the
    differences, and which variables would be sent where, and asks for confirmation. Without a terminal,
    --trust gives the answer.
    """
    if as_json and not detach:
        raise SpecError("--json needs --detach; a followed job prints its log")
    if name is not None:
        check_job_id(name)
    job = open_job(store_url, job_id)
    candidates = job.checkpoints_at(step)
    if not candidates:
        raise SpecError(
            f"job {job.id} has no checkpoint to start from; to start at step 0, use: cloudspot run"
        )
    checkpoint = candidates[0]
    history = job.first_history
    submission, before = history.submission, history.job_file
    spec = change_job(before, overrides)
    check_trusted(job, history, trust=trust, action="fork", sends=spec)
    if code_directory is None:
        check_code(job, before, spec)
        bundle = code_of(job.store, submission)
    else:
        bundle = _bundle(spec, code_directory)
    environ = with_secrets(spec, {})
    spec, provider = open_pinned(spec, provider_name or submission.provider, bundle.digests, environ=environ)
    find_offers(spec, provider)  # raises, before the job exists, if no offer fits it
    find_inputs(spec, provider)
    agent = agent_archive(provider, job.store, spec)
    origin = Origin(job_id=job.id, checkpoint=checkpoint)
    forked = new_submission(
        spec,
        provider=provider.name,
        bundle=bundle,
        job_id=name or new_job_id(spec.name),
        agent=agent,
        forked_from=origin,
    )

    def bring() -> None:
        with while_it_exists(job.store, job.id, checkpoint):
            manifest = read_manifest(job.store, job.id, checkpoint)
            with transfer("copying the checkpoint", manifest.size) as progress:
                bring_checkpoint(job.store, origin, manifest, forked.job_id, progress=progress)

    submit_bundle(
        job.store,
        forked,
        bundle=bundle,
        environ=environ,
        agent=agent,
        adopt=noting(job.store, provider),
        open_progress=transfer,
        bring=bring,
    )
    new = Job(job.store, forked.job_id)
    if not as_json:
        where = f"step {checkpoint.step} of {job.id}"
        output.echo("submitted job ", output.Styled(new.id, "bold"), f" to {job.store.url}, from {where}")
    ctx.exit(launch(new, as_json=as_json) if detach else follow(new, is_new=True, is_plain=is_plain))


def _bundle(spec: JobSpec, directory: Path) -> Bundle:
    workdir = check_files(spec, directory.resolve())
    return make_bundle(workdir, entrypoint=spec.run.entrypoint, open_progress=transfer)
