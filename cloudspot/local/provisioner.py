"""Create, list and end local machines; this takes the place of a cloud's API."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from cloudspot.calls import (
    CreateRequest,
    CreateResult,
    InstancesRequest,
    InstancesResult,
    OffersRequest,
    OffersResult,
    TerminateRequest,
    TerminateResult,
)
from cloudspot.decoding import NodeCount, convert, decode
from cloudspot.errors import AuthError, CapacityError, CloudspotError, ProvisionError, TransientError
from cloudspot.host.boot_clock import boot_seconds, this_boot
from cloudspot.host.locks import lock, try_lock
from cloudspot.interfaces import Provisioner
from cloudspot.jobstore.jobs import own_jobs
from cloudspot.jobstore.jobs.state_home import account, state_home
from cloudspot.local.machine_records import LaunchTerms, MachineRecord, PlannedReclaim, ReclaimRequest
from cloudspot.local.machines import MachineDirectory, erase, now_utc
from cloudspot.local.options import LocalOptions
from cloudspot.local.supervisor_start import start_supervisor
from cloudspot.model import (
    EndReason,
    Instance,
    InstanceGroup,
    InstanceState,
    LaunchRequest,
    Market,
    Offer,
)
from cloudspot.plugin.terminating import end_all

_log = logging.getLogger(__name__)

INSTANCE_TYPE = "local"
KEPT = timedelta(hours=24)
"""How long an ended machine is still reported, with its console output."""
_START_TIMEOUT_SECONDS = 60.0


P = ParamSpec("P")
T = TypeVar("T")


def _retriable(method: Callable[P, T]) -> Callable[P, T]:
    """Turn an OSError, such as a full disk, into a TransientError, so that a driver tries again later."""

    @functools.wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> T:
        try:
            return method(*args, **options)
        except OSError as error:
            raise TransientError(f"provider 'local': {error}") from error

    return call


class LocalRequest(LaunchTerms, frozen=True, kw_only=True):
    """The body of a launch request."""

    user_data: str
    min_nodes: NodeCount
    """The minimum number of machines; if there is room for fewer, none are created."""
    reclaims: tuple[tuple[PlannedReclaim, ...], ...]
    """By rank."""
    pass_environment: tuple[str, ...] = ()
    """Names of environment variables. The values are not stored; they come from the process that creates the
    machine."""


class LocalProvisioner(Provisioner):
    """The machines below one state home; several processes may use it at the same time."""

    token_seconds = KEPT.total_seconds()
    absence_proves_after_seconds = 5.0

    def __init__(self, options: LocalOptions) -> None:
        self._options = options

    def render(self, group: InstanceGroup) -> LaunchRequest:
        """Return the request, with its machines' planned reclaims and this state home's signature."""
        options = self._options
        is_spot = group.offer.market is Market.SPOT
        body = LocalRequest(
            job_id=group.job_id,
            launch=group.launch,
            num_nodes=group.num_nodes,
            job_nodes=group.job_nodes,
            min_nodes=group.min_nodes,
            zone=group.offer.zone,
            instance_type=group.offer.instance_type,
            market=group.offer.market,
            user_data=group.user_data,
            max_seconds=group.max_seconds,
            boot_delay_seconds=options.boot_delay,
            notice_seconds=options.notice,
            reclaims=tuple(
                options.planned_reclaims(launch=group.launch, rank=rank) if is_spot else ()
                for rank in range(group.num_nodes)
            ),
            store_url=group.store_url,
            pass_environment=options.pass_environment,
        )
        # The body is converted through JSON, with lists for tuples, so that it is equal to its stored form.
        stored: LocalRequest = decode(msgspec.json.encode(body), LocalRequest)
        encoded = msgspec.json.encode(stored)
        return LaunchRequest(
            provider="local", body=decode(encoded, dict[str, Any]), signature=own_jobs.signature(encoded)
        )

    @_retriable
    def create(self, request: CreateRequest) -> CreateResult:
        """Create as many machines as there is room for, and return when each has its supervisor.

        Raises:
            CapacityError: according to the job's options, the zone has no room for ``min_nodes``.
            ProvisionError: the request was not rendered in this state home, or its token was used for another
                request.
            AuthError: a variable in ``pass_environment`` is not set here.
            TransientError: a supervisor did not start, or the disk is full.
        """
        try:
            body: LocalRequest = convert(request.request.body, LocalRequest)
        except msgspec.ValidationError as error:
            raise ProvisionError(f"the request was not made by provider 'local': {error}") from error
        encoded = msgspec.json.encode(body)
        signature = request.request.signature
        if not signature or signature != own_jobs.signature(encoded):
            # Anyone who can write to the store could write a launch, which would then run as this user.
            raise ProvisionError(
                f"the launch was not requested from this computer (state home {state_home()})"
            )
        digest = hashlib.sha256(encoded).hexdigest()
        environment = _passed_on(body.pass_environment)
        self._check_home()
        machines = self._machines_home()
        machines.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock(self._lock_path()):
            self._prune()
            name = hashlib.sha256(f"{account()}/{request.token}".encode()).hexdigest()[:10]
            first = machines / f"m-{name}-0"
            if first.exists():
                record = MachineDirectory(first).record()
                if record.request_sha256 != digest:
                    raise ProvisionError("the token was already used for another request")
                num_nodes = record.num_nodes
            else:
                num_nodes = self._granted(body)
            created = [
                MachineDirectory.create(
                    machines / f"m-{name}-{rank}",
                    _record(body, rank, num_nodes, f"m-{name}-{rank}", digest),
                    user_data=body.user_data.encode(),
                    environment=environment,
                )
                for rank in range(num_nodes)
            ]
            _start_supervisors(created)
        return CreateResult(instances=tuple(machine.instance() for machine in created))

    @_retriable
    def announce(self, instances: Sequence[Instance], facts: Mapping[str, str]) -> None:
        """Add the facts to the machines' tags, which their metadata services show."""
        for instance in instances:
            machine = self._find(instance.id)
            if machine is not None:
                with lock(self._lock_path()), suppress(FileNotFoundError):  # pruned meanwhile
                    machine.set_tags({**machine.tags(), **facts})

    @_retriable
    def instances(self, request: InstancesRequest) -> InstancesResult:
        """Return the machines; end any machine whose supervisor was killed, as LOST."""
        instances = []
        for machine in self._machines():
            try:
                if request.job_id not in {None, machine.record().job_id}:
                    continue
                machine.settle()
                instances.append(machine.instance())
            except FileNotFoundError:  # pruned meanwhile
                continue
        return InstancesResult(instances=tuple(filter(request.wants, instances)))

    def terminate(self, request: TerminateRequest) -> TerminateResult:
        """Request the end of the machines, whose processes are killed without warning."""
        return end_all(request.instance_ids, lambda ids: self._terminate(*ids))

    @_retriable
    def _terminate(self, instance_id: str) -> None:
        machine = self._find(instance_id)
        if machine is not None:
            with suppress(FileNotFoundError):  # pruned meanwhile
                machine.request_termination()
                # This ends the machine if it has no supervisor.
                machine.settle(reason=EndReason.TERMINATED, unborn_seconds=0)

    def console(self, instance: Instance) -> str:
        """Return the end of the machine's output, as long as the machine is listed; see Provisioner."""
        machine = self._find(instance.id)
        try:
            return "" if machine is None else machine.read_console()
        except FileNotFoundError:  # the machine has printed nothing, or was pruned in the meantime
            return ""

    @_retriable
    def release(self, job_id: str, *, store_url: str = "") -> None:
        """Note that the job has ended, so that no driver runs it here until it is resumed."""
        own_jobs.end_job(job_id, store_url=store_url)

    def offers(self, request: OffersRequest) -> OffersResult:
        """Return invented offers for each zone.

        A local machine is this host, whatever resources the job requests: a job for eight accelerators is
        rehearsed without them.
        """
        prices = {Market.SPOT: self._options.spot_price, Market.ON_DEMAND: self._options.on_demand_price}
        return OffersResult(
            offers=tuple(
                Offer(
                    instance_type=INSTANCE_TYPE,
                    zone=zone,
                    market=market,
                    price_per_hour=price,
                    on_demand_price_per_hour=self._options.on_demand_price,
                )
                for zone in self._options.zones
                for market, price in prices.items()
            )
        )

    def reclaim(self, instance_id: str, *, notice_seconds: float | None) -> None:
        """Reclaim a machine after a notice; None means the notice in the job's options.

        Raises:
            CloudspotError: the machine does not exist, has ended, or will end sooner anyway.
        """
        machine = self._find(instance_id)
        if machine is None:
            raise CloudspotError(f"provider 'local' has no machine {instance_id!r}")
        machine.settle()
        if machine.state().state is InstanceState.ENDED:
            raise CloudspotError(f"machine {instance_id} has already ended")
        seconds = machine.record().notice_seconds if notice_seconds is None else notice_seconds
        standing = machine.state().notice_deadline
        if standing is not None and standing <= now_utc() + timedelta(seconds=seconds):
            ends = f"{standing:%H:%M:%S} UTC"
            raise CloudspotError(f"machine {instance_id} already has a notice, and ends at {ends}")
        machine.request_reclaim(ReclaimRequest(notice_seconds=seconds))

    def _machines_home(self) -> Path:
        return state_home() / "machines"

    def _lock_path(self) -> Path:
        return state_home() / "lock"

    def _check_home(self) -> None:
        """Check that the machines' directory exists, if it ever did, because cloudspot never removes it.

        Raises:
            TransientError: the directory is missing, so machines may be running unseen.
        """
        machines = self._machines_home()
        if self._lock_path().exists() and not machines.is_dir():
            raise TransientError(
                f"provider 'local': the directory of its machines, {machines}, is missing, and some of them "
                "may be running; put it back or, if none is running, make an empty one"
            )

    def _granted(self, body: LocalRequest) -> int:
        """Return how many machines there is room for, at least ``min_nodes``; the caller holds the lock."""
        if body.market is Market.SPOT and body.launch in self._options.refused_launches:
            raise CapacityError(f"{body.zone} has no spot {body.instance_type} now")
        room = self._options.capacity.get(body.zone) if body.market is Market.SPOT else None
        if room is None:
            return body.num_nodes
        room -= sum(
            (one.zone, one.market) == (body.zone, Market.SPOT) and one.state is not InstanceState.ENDED
            for one in self.instances(InstancesRequest()).instances
        )
        if room < body.min_nodes:
            raise CapacityError(f"{body.zone} has no spot {body.instance_type} now")
        return min(room, body.num_nodes)

    def _machines(self) -> list[MachineDirectory]:
        self._check_home()
        try:
            names = sorted(entry.name for entry in os.scandir(self._machines_home()))
        except FileNotFoundError:
            return []
        return [MachineDirectory(self._machines_home() / name) for name in names if name.startswith("m-")]

    def _find(self, instance_id: str) -> MachineDirectory | None:
        return next((machine for machine in self._machines() if machine.id == instance_id), None)

    def _prune(self) -> None:
        """Delete the machines that ended long ago; the caller must hold the lock."""
        for machine in self._machines():
            ended_at = machine.state().ended_at
            if ended_at is not None and now_utc() - ended_at > KEPT:
                erase(machine.path)


def _record(body: LocalRequest, rank: int, num_nodes: int, machine_id: str, digest: str) -> MachineRecord:
    terms = {name: getattr(body, name) for name in LaunchTerms.__struct_fields__}
    return MachineRecord(
        **{**terms, "num_nodes": num_nodes},
        id=machine_id,
        request_sha256=digest,
        rank=rank,
        address=_address(machine_id),
        reclaims=body.reclaims[rank],
        launched_at=now_utc(),
        launched_boot=this_boot(),
        launched_uptime=boot_seconds(),
    )


def _passed_on(names: Sequence[str]) -> dict[str, str]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise AuthError(
            f"providers.local.pass_environment: {', '.join(missing)} is not set in the environment; export it"
        )
    return {name: os.environ[name] for name in names}


def _address(machine_id: str) -> str:
    """Return the machine's loopback address: an address in 127/8 on Linux, always the same on macOS."""
    if sys.platform != "linux":
        return "127.0.0.1"
    # Two machines may get the same one of 16 million addresses; their ports still differ.
    first, second, third = hashlib.sha256(machine_id.encode()).digest()[:3]
    return f"127.{first % 254 + 1}.{second}.{third % 254 + 1}"


def _start_supervisors(machines: Sequence[MachineDirectory]) -> None:
    """Start a supervisor for each machine that lacks one and has not ended; wait until they are ready."""
    starting = {}
    for machine in machines:
        with try_lock(machine.lock) as is_free:
            pass
        if is_free and machine.supervisor() is None and machine.state().state is not InstanceState.ENDED:
            starting[machine.id] = start_supervisor(machine)
    failed = []
    for machine in machines:
        if machine.id in starting:
            try:
                starting[machine.id].wait(_START_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                _log.warning("machine %s: its supervisor is slow to start", machine.id)
        if machine.supervisor() is None and machine.state().state is not InstanceState.ENDED:
            failed.append(machine)
    if failed:
        log = failed[0].path / "supervisor.log"
        raise TransientError(f"the supervisor of machine {failed[0].id} did not start; see {log}")
