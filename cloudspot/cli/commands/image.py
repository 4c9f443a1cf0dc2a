"""``cloudspot image``: make images of machines on which a job's setup has run, so that launches skip it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from cloudspot.calls import InstancesRequest
from cloudspot.calls.retrying import retry
from cloudspot.cli.config import open_configured, open_overridden
from cloudspot.cli.following.follow import follow
from cloudspot.cli.jobs import Job
from cloudspot.cli.preparing.preparedjob import PreparedJob, prepare_job
from cloudspot.cli.preparing.submitting import submit_prepared
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import (
    job_file_argument,
    json_option,
    overrides_option,
    provider_option,
    store_option,
)
from cloudspot.controller.launchrequest import find_offers
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.interfaces import ImageHost, Provisioner
from cloudspot.jobfile.notify import NotifySpec
from cloudspot.jobfile.spec import MAX_NAME_LENGTH, Nodes
from cloudspot.jobstore.access.stored_records import find_record
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import SetupReady
from cloudspot.model import Capability, Instance, InstanceState, MachineImage

MAX_RUNTIME_SECONDS = 6 * 3600.0
"""The maximum running time of the machine that makes an image, unless the job file sets a shorter time."""
LOOK_SECONDS = 2.0
"""The interval between checks whether the setup or the copy has finished."""
LISTED_LOOKS = 5
"""The number of consecutive listings in which a new image may be missing."""
STOP_WAITS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 60.0, 60.0)
"""The waits, in seconds, if the store does not accept the stop request."""
_SUFFIX = "-image"
_PLACES = ("region", "project")
"""The options that select where a provider looks for images."""


@click.group("image")
def image() -> None:
    """Make images of machines on which a job's setup is done.

    Machines that start from such an image already have the agent, everything that the setup installed, and
    the container of run.image, so they skip these steps. An image is billed like a disk until it is removed.
    """


@image.command("bake")
@job_file_argument
@provider_option
@overrides_option
@click.option(
    "--again", is_flag=True, help="Replace an existing image, for a setup that fetches changing data."
)
@store_option
def bake(
    job_file: Path, provider_name: str, overrides: tuple[str, ...], again: bool, store_url: str | None
) -> None:
    """Run a job's setup on one machine, and make an image of the machine.

    JOB_FILE is job.toml by default. Later jobs that `run` submits in this region start from the image, as
    long as the setup and the code that it reads are unchanged: see run.setup_files. Without the image, or
    with a different setup, machines run the setup as usual. If the image already exists, nothing is done.
    Ctrl-C ends the machine without making an image.
    """
    prepared = prepare_job(job_file, provider_name, overrides, store_url)
    prepared.provider.require(Capability.IMAGES)
    host = prepared.provider.image_host()
    table = prepared.spec.providers[provider_name]
    image = host.find(key := str(table["setup_key"]))
    if image is not None and not again and not image.failure:
        if not image.is_ready:
            output.echo(f"image {image.id} is still being made")
            _wait_until_ready(host, key)
        output.echo(f"image {image.id} exists with this setup; jobs start from it")
        return
    where = [f"--set providers.{provider_name}.{name}={table[name]}" for name in _PLACES if table.get(name)]
    remove = " ".join(("cloudspot image rm --provider", provider_name, *where))
    prepared = _for_setup(prepared)
    find_offers(prepared.spec, prepared.provider)
    job = Job(prepared.store, submit_prepared(prepared, None, bakes=True).job_id)
    output.echo("the setup runs on a machine of job ", output.Styled(job.id, "bold"), "; Ctrl-C ends it")
    baking = _Baking(job, host, prepared.provider.provisioner(), key, replaces=again, remove=remove)
    thread = threading.Thread(target=baking.run, name="bake")
    thread.start()
    try:
        follow(job, is_new=True, is_plain=True, interrupted=baking.is_over.set)
    finally:
        baking.is_over.set()
        thread.join()
    made = baking.made
    if made is None:
        why = f": {baking.failure}" if baking.failure is not None else ""
        raise CloudspotError(f"no image was made{why}; see {job.command('logs')}")
    size = "" if made.size_gib is None else f" ({made.size_gib:g} GiB)"
    output.echo(f"made image {made.id}{size} of {made.job_name}; jobs with this setup start from it")
    output.echo(f"it is billed until you remove it: {remove} {made.id}")


@image.command("ls")
@provider_option
@overrides_option
@json_option
def ls(provider_name: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """List the images that `cloudspot image bake` has made in the provider's region.

    This is the region that the environment sets; select another with --set providers.NAME.region=REGION.
    """
    host = _host(provider_name, overrides)
    images = sorted(host.images(), key=lambda one: (one.job_name, one.id))
    if as_json:
        output.echo_json([msgspec.to_builtins(one) for one in images])
        return
    if not images:
        output.echo(f"{provider_name} has no image made by `cloudspot image bake`")
        return
    output.echo_table(
        ("IMAGE", "JOB", "MADE", "SIZE", "STATE", "WHERE"),
        [
            (
                one.id,
                one.job_name,
                "" if one.created_at is None else output.moment_text(one.created_at),
                "" if one.size_gib is None else f"{one.size_gib:g} GiB",
                one.failure or ("ready" if one.is_ready else "being made"),
                one.where,
            )
            for one in images
        ],
    )


@image.command("rm")
@provider_option
@overrides_option
@click.argument("image_ids", nargs=-1, required=True, metavar="IMAGE...")
def rm(provider_name: str, overrides: tuple[str, ...], image_ids: tuple[str, ...]) -> None:
    """Delete images, which ends their billing.

    Jobs continue: their later machines run the setup. Only images that `cloudspot image bake` has made are
    deleted.
    """
    host = _host(provider_name, overrides)
    known = {one.id for one in host.images()}
    for image_id in image_ids:
        if image_id not in known:
            raise CloudspotError(f"{provider_name} has no image {image_id!r} made by `cloudspot image bake`")
    for image_id in image_ids:
        host.remove(image_id)
        output.echo(f"removed {image_id}")


def _host(provider_name: str, overrides: Sequence[str]) -> ImageHost:
    provider = open_overridden(provider_name, overrides)
    provider.require(Capability.IMAGES)
    return provider.image_host()


class _Baking:
    """In a thread, waits for the end of the setup, has the image made, and then has the machine ended."""

    def __init__(
        self, job: Job, host: ImageHost, provisioner: Provisioner, key: str, *, replaces: bool, remove: str
    ) -> None:
        """If ``replaces``, an existing image with the key is deleted first.

        ``remove`` is the command that users can run to remove the image.
        """
        self._job, self._host, self._provisioner, self._key = job, host, provisioner, key
        self._replaces, self._command = replaces, remove
        self.is_over = threading.Event()
        """Once this is set, no new image is begun, and an unfinished one is removed."""
        self._has_begun = False
        """Whether an image may have been begun; such an image must be removed unless it becomes ready."""
        self._num_missed = 0
        """The number of consecutive listings that lack the image."""
        self._copied: SetupReady | None = None
        """The machine whose image is being made."""
        self._complaint = ""
        self.made: MachineImage | None = None
        """The image, once machines can start from it."""
        self.failure: CloudspotError | None = None
        """Why no image was made."""

    def run(self) -> None:
        """Make the image, and in any case request that the job stop."""
        try:
            while self.made is None and not self.is_over.wait(LOOK_SECONDS):
                try:
                    self._look()
                except TransientError as error:
                    self._complain(error)
        except CloudspotError as error:
            self.failure = error
        finally:
            self._stop()
            if self.made is None and self._has_begun:
                self._remove()

    def _look(self) -> None:
        ready = find_record(self._job.store, keys.setup_ready(self._job.id), SetupReady)
        if self._copied is None:
            machine = None if ready is None else self._machine(ready)
            if ready is not None and machine is not None:
                self._begin(ready, machine)
            return
        image = self._host.find(self._key)
        self._num_missed = 0 if image is not None else self._num_missed + 1
        if image is not None and image.is_ready:
            self.made = image
        elif self._num_missed == LISTED_LOOKS or (image is not None and image.failure):
            why = "it was removed" if image is None else image.failure
            if self._has_begun and self._machine(self._copied) is not None:
                raise CloudspotError(f"the image could not be made: {why}")
            output.echo(f"the machine or its image is gone ({why}); trying again on another machine")
            self._copied, self._num_missed = None, 0

    def _begin(self, ready: SetupReady, machine: Instance) -> None:
        if ready.key != self._key:
            raise CloudspotError("the code changed during the submission; make the image again")
        theirs = None if self._has_begun else self._host.find(self._key)
        if theirs is not None and self._replaces:
            self._host.remove(theirs.id)
            return  # until the image is no longer listed
        if theirs is not None and not theirs.failure:
            output.echo(f"the setup is done: waiting for image {theirs.id}, which someone else has begun")
            self._copied = ready
            return
        self._has_begun = True
        name = self._job.spec.name.removesuffix(_SUFFIX)
        begun = self._host.save(machine, key=self._key, job_name=name)
        self._copied = ready
        output.echo(f"the setup is done: image {begun.id} is being made")

    def _machine(self, ready: SetupReady) -> Instance | None:
        """Return the machine on which the setup has run, if it is still running."""
        found = self._provisioner.instances(InstancesRequest(job_id=self._job.id)).instances
        running = (one for one in found if one.state is InstanceState.RUNNING)
        return next((one for one in running if one.id == ready.instance_id), None)

    def _stop(self) -> None:
        """Request the end of the machine, which would otherwise end by itself only after some hours."""
        job, number = self._job, self._job.submitted[0].resumption
        try:
            retry(
                lambda: request_stop(job.store, job.id, "image", resumption=number),
                sleep=time.sleep,
                waits=STOP_WAITS,
                on_wait=self._complain,
            )
        except CloudspotError as error:
            output.warn(f"the machine may still run: {error}; end it with: {job.command('stop')}")

    def _remove(self) -> None:
        """Remove an unfinished image; some clouds refuse this until it is finished, or list it late."""
        image: MachineImage | None = None
        try:
            for _ in range(LISTED_LOOKS):
                image = self._host.find(self._key)
                if image is not None and image.is_ready:
                    self.made = image  # finished after all, or made by someone else
                    return
                if image is not None:
                    output.echo(f"removing image {image.id}, which is not ready")
                    self._host.remove(image.id)
                    return
                time.sleep(LOOK_SECONDS)
            why = "it is not listed yet"
        except CloudspotError as error:
            why = str(error)
        which = "IMAGE" if image is None else image.id
        output.warn(f"an image may still appear and be billed: {why}; if so, run: {self._command} {which}")

    def _complain(self, error: Exception) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            output.warn(f"{error}; trying again")


def _wait_until_ready(host: ImageHost, key: str) -> None:
    """Wait for an image that someone else began to make.

    Raises:
        CloudspotError: the image was not made.
    """
    pause = threading.Event()
    while True:
        with suppress(TransientError):
            image = host.find(key)
            if image is not None and image.is_ready:
                return
            if image is None or image.failure:
                why = "it is gone" if image is None else image.failure
                raise CloudspotError(f"the image was not made: {why}; make it again")
        pause.wait(LOOK_SECONDS)


def _for_setup(prepared: PreparedJob) -> PreparedJob:
    """Return the job with one machine that only runs the setup, on the image in the provider's table."""
    spec, name = prepared.spec, prepared.provider.name
    runtime = min(MAX_RUNTIME_SECONDS, spec.limits.max_runtime or MAX_RUNTIME_SECONDS)
    spec = msgspec.structs.replace(
        spec,
        name=spec.name[: MAX_NAME_LENGTH - len(_SUFFIX)].rstrip("-") + _SUFFIX,
        nodes=Nodes(min=1, max=1),
        data={},
        notify=NotifySpec(),
        limits=msgspec.structs.replace(spec.limits, max_runtime=runtime),
        providers={**spec.providers, name: {**spec.providers[name], "setup_key": None}},
    )
    return replace(prepared, spec=spec, provider=open_configured(name, spec))
