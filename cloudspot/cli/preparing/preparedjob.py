"""A checked job file, and the opened provider and store for it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import msgspec

from cloudspot.agent.delivery.checkpoint_files import expand
from cloudspot.boot.agentarchive import AgentArchive, make_agent_archive
from cloudspot.cli.config import open_configured, with_configured
from cloudspot.cli.invocation import ChosenStore, current_invocation
from cloudspot.cli.jobs import Job, unnamed_store
from cloudspot.cli.preparing.image_digest import with_digest
from cloudspot.cli.preparing.imported_trackers import imported_trackers
from cloudspot.cli.preparing.notifying import check_messages, with_notify
from cloudspot.cli.screen import output
from cloudspot.errors import SpecError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.image import find_login
from cloudspot.jobfile.setup_key import setup_key
from cloudspot.jobfile.spec import POLICIES, JobSpec, check_files, load_job
from cloudspot.jobstore.code.bundle import code_digests, code_files
from cloudspot.jobstore.code.extraction import read_bundle
from cloudspot.jobstore.jobs.forking import code_of
from cloudspot.jobstore.jobs.submission import check_secrets
from cloudspot.model import Capability
from cloudspot.registry import driver_distributions, open_store, open_tracker, plugin_distributions

_SESSION = re.compile(r"\bcloudspot\.train\b|\bfrom cloudspot import train\b")

MAX_SKIPPED = 5
"""The maximum number of excluded files that are listed."""


@dataclass(frozen=True)
class PreparedJob:
    """A checked job file, and everything with which it would run."""

    spec: JobSpec
    workdir: Path
    provider: Provider
    store: ObjectStore


def prepare_job(
    job_file: Path, provider_name: str, overrides: Sequence[str], store_url: str | None
) -> PreparedJob:
    """Read the job file and open the objects that it needs; ask the provider only for pinned options.

    The store is the first that is set of these: the one on the command line or in the environment
    (``store_url``), the job file's, the user's default, the provider's.

    Raises:
        SpecError: the job file, an override or the config file is invalid, or there is no store.
        PluginError: a plugin is missing or broken.
        AuthError: the provider has no credentials.
    """
    spec = with_notify(load_job(job_file, overrides=overrides))
    workdir = check_files(spec, job_file.resolve().parent)
    spec, provider = open_pinned(spec, provider_name, lambda: code_digests(workdir))
    if store_url is None:
        in_file = None if spec.store is None else ChosenStore(spec.store, f"store in {job_file}")
        chosen = current_invocation().chosen_store = in_file or unnamed_store(provider)
        store_url = chosen.url
    return PreparedJob(spec, workdir, provider, open_store(store_url))


def open_pinned(
    spec: JobSpec,
    provider_name: str,
    digests: Callable[[], Sequence[tuple[str, str]]],
    *,
    environ: Mapping[str, str] = os.environ,
) -> tuple[JobSpec, Provider]:
    """Open the provider; return it with the job file that includes its pinned options.

    Raises the same errors as ``prepare_job``.

    If the provider keeps images, the pinned options include the key of the job's setup; ``digests`` returns
    the digests of the job's code.

    An image's tag is replaced with its digest. A plugin's market policy and trackers are also opened, and the
    job's notifications are checked. ``environ`` holds the secrets for the image's login and for the messages.
    """
    check_messages(spec.notify, environ)
    for tracker in spec.run.trackers:
        open_tracker(tracker)
    spec = with_configured(spec, provider_name)
    provider = open_configured(provider_name, spec)
    if spec.run.image is not None:

        def secret(name: str) -> str:
            check_secrets([name], environ)
            return environ[name]

        login = partial(find_login, named=spec.run.image_login, provider=provider, secret=secret)
        image = with_digest(spec.run.image, login)
        spec = msgspec.structs.replace(spec, run=msgspec.structs.replace(spec.run, image=image))
    if spec.spot.policy not in POLICIES:
        from cloudspot.controller.supply.spot_market import policy_of
        from cloudspot.market.knowledge import NOTHING_KNOWN

        policy_of(spec.spot, NOTHING_KNOWN)
    pinned = {**provider.pinned_options()}
    if Capability.IMAGES in provider.capabilities:
        python = provider.boot_profile().train_python
        pinned["setup_key"] = setup_key(spec.run, train_python=python, digests=digests())
    if not pinned:
        return spec, provider
    table = {**spec.providers.get(provider_name, {}), **pinned}
    spec = msgspec.structs.replace(spec, providers={**spec.providers, provider_name: table})
    return spec, open_configured(provider_name, spec)


def check_code(job: Job, before: JobSpec, spec: JobSpec) -> None:
    """Raise SpecError if the submitted code lacks the entrypoint of a changed job file."""
    if spec.run.entrypoint in {None, before.run.entrypoint}:
        return
    code = code_of(job.store, job.first_history.submission)
    if all(one.name != spec.run.entrypoint for one in read_bundle(code.data, sha256=code.sha256)):
        raise SpecError(f"run.entrypoint: the code of job {job.id} has no file {spec.run.entrypoint!r}")


def with_secrets(spec: JobSpec, stored: Mapping[str, str]) -> Mapping[str, str]:
    """Return the job's secrets and no other variables: from the environment, from the store, or typed in."""
    known = {**stored, **os.environ}
    found = {name: known[name] for name in spec.secret_names if name in known}
    for name in spec.secret_names:
        if name not in found and output.can_ask():
            found[name] = click.prompt(f"secret {name}", hide_input=True, err=True)
    return found


def warn_of_losses(job: PreparedJob) -> None:
    """Warn about files that are not sent, and about a job whose results would be lost with its machine."""
    skipped: list[str] = []
    code = code_files(job.workdir, skipped)
    for line in sorted(skipped)[:MAX_SKIPPED]:
        output.warn(f"not sent to the machines: {line}")
    if len(skipped) > MAX_SKIPPED:
        output.warn(f"not sent to the machines: {len(skipped) - MAX_SKIPPED} more such files")
    if own := _own_checkpoints(job, code):
        more = f" and {len(own) - 1} more" if own[1:] else ""
        output.warn(
            f"{own[0]}{more}: matches checkpoint.directory, but is sent as code, so a script that resumes "
            "starts from it, even at its end. To start at step 0, delete it or list it in .cloudspotignore"
        )
    run, lacks = job.spec.run, job.provider.boot_profile().lacks
    if lacks and (job.spec.resources.accelerator or (run.setup is None and run.image is None)):
        output.warn(lacks)
    if saves_nothing(job):
        output.warn(
            f"no code in {job.workdir} opens a session (cloudspot.train.session), and checkpoint.directory "
            "names no checkpoints, so the job starts over at step 0 whenever its machine is lost"
        )


def suggest_trackers(job: PreparedJob) -> None:
    """Name the trackers that the code imports and ``run.trackers`` lacks."""
    code = [job.workdir / name for name in code_files(job.workdir) if name.endswith(".py")]
    found = [name for name in imported_trackers(code) if name not in job.spec.run.trackers]
    if found:
        listed = ", ".join(f'"{name}"' for name in (*job.spec.run.trackers, *found))
        output.echo(
            f"the code imports {' and '.join(found)}: with trackers = [{listed}] in [run], each keeps one "
            "run across reclaims, moves and resumes",
            error=True,
        )


def _own_checkpoints(job: PreparedJob, code: Sequence[str]) -> list[str]:
    """Return the files in the code that belong to the script's checkpoints, as local test runs leave them."""
    found = [path for pattern in job.spec.checkpoint.patterns for path in expand(job.workdir, pattern)]
    roots = {path.relative_to(job.workdir) for path in found} - {Path()}
    return [
        name
        for name in code
        if not roots.isdisjoint((Path(name), *Path(name).parents)) and (job.workdir / name).stat().st_size > 0
    ]


def saves_nothing(job: PreparedJob) -> bool:
    """Return whether nothing that the job makes outlives its machine: no session, no checkpoint directory."""
    if job.spec.checkpoint.directory is not None:
        return False
    code = (name for name in code_files(job.workdir) if name.endswith(".py"))
    return not any(opens_session(job.workdir / name) for name in code)


def opens_session(script: Path) -> bool:
    """Return whether the code mentions the session."""
    try:
        return _SESSION.search(script.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False


def agent_archive(provider: Provider, store: ObjectStore, spec: JobSpec) -> AgentArchive | None:
    """Return the archive from which a job's machines install the agent, or None if their image has it.

    Raise CloudspotError if cloudspot or the plugin is not installed here as a distribution.
    """
    if provider.boot_profile().has_cloudspot:
        return None
    urls = (store.url, *(one.url for one in spec.data.values() if not one.is_http))
    trackers = spec.run.trackers
    if spec.nodes.drive:
        return make_agent_archive(driver_distributions(provider.name, *urls, trackers=trackers), drives=True)
    return make_agent_archive(plugin_distributions(provider.name, *urls, trackers=trackers))
