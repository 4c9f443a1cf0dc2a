"""The host of emulated machines, which uses ``cloudspot.local`` and isolates the machines if possible."""

from __future__ import annotations

import compileall
import errno
import ipaddress
import os
import re
import shutil
import site
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from cloudspot.emulation.cloud import EmulatedCloud, EmulatedMachine, MachineHost, MachineStatus
from cloudspot.emulation.image_packages import missing_files, own_distributions
from cloudspot.emulation.package_index import PackageIndex
from cloudspot.errors import CloudspotError
from cloudspot.host.boot_clock import boot_seconds, this_boot
from cloudspot.host.locks import lock
from cloudspot.local.forms import num_cores
from cloudspot.local.guest import copy_disk
from cloudspot.local.machine_records import Guest, MachineRecord, Network, PlannedReclaim, ReclaimRequest
from cloudspot.local.machines import MachineDirectory, now_utc
from cloudspot.local.network import make_bridge
from cloudspot.local.supervisor_start import start_supervisor
from cloudspot.model import EndReason, InstanceState

LOOPBACK_NETWORK = "127.64.0.0/10"
"""The range of the machines' addresses without namespaces; each cloud has its own part of it."""
LOOPBACK_PORT = 16925
"""The port of the metadata services without namespaces; each service has its own address."""
_LOOPBACK_PREFIX_LENGTH = 16
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NUM_RESERVED = 10
"""The number of reserved addresses at the start of the network, as in clouds."""
_END_SECONDS = 60.0
_FOR_EVER_SECONDS = 1e9

Plan = Callable[[EmulatedMachine], tuple[PlannedReclaim, ...]]


class LocalMachineHost(MachineHost):
    """Emulated machines below a directory; they end with this process, even if it is killed."""

    def __init__(
        self, directory: Path, cloud: EmulatedCloud, *, is_isolated: bool, plan: Plan | None = None
    ) -> None:
        """Create the resources that the machines share; an isolated host must run inside ``run_enclosed``.

        ``plan`` returns the planned reclaims of a spot machine.
        """
        self._cloud = cloud
        self._is_isolated = is_isolated
        self._plan = plan or (lambda _: ())
        self._directory = directory
        self._owner = ExitStack()
        self._held: tuple[int, ...] = ()
        """The open files that the supervisors also keep open."""
        if is_isolated:
            network = ipaddress.IPv4Network(cloud.network)
        else:
            network, claim = _claim_loopback_network()
            self._held = (self._owner.enter_context(claim).fileno(),)
        self.network = str(network)
        self.address = str(network[1])
        """The host's own address, at which the cloud serves its APIs."""
        self._ip_network = network
        self._machines: dict[str, MachineDirectory] = {}
        self._allocated: set[str] = set()
        self._num_disks = 0
        self._lock = threading.RLock()
        (directory / "machines").mkdir(parents=True)
        self._owner.enter_context(lock(directory / "owner.lock"))
        self._sources = directory / "image"
        ignored = shutil.ignore_patterns("*.tmp")
        for package in _editable_packages():
            # Otherwise, each machine would compile the package again.
            compileall.compile_dir(package, quiet=2)
            # Like an image, the copy is unaffected by later edits.
            shutil.copytree(package, self._sources / package.name, ignore=ignored)
        self._hosts = directory / "hosts"
        names = [("localhost", "127.0.0.1"), *cloud.host_names.items()]
        self._hosts.write_text("".join(f"{address} {name}\n" for name, address in names), encoding="ascii")
        self._index_environment: Mapping[str, str] = {}
        if is_isolated:
            make_bridge(self.address, network.prefixlen)
            index = PackageIndex(self.address, directory / "wheels")
            self._owner.callback(index.close)
            self._index_environment = index.environment()

    def allocate_address(self) -> str:
        """Return an address that no machine has had; see MachineHost."""
        with self._lock:
            for number in range(_NUM_RESERVED, self._ip_network.num_addresses - 1):
                address = str(self._ip_network[number])
                if address not in self._allocated:
                    self._allocated.add(address)
                    return address
        raise CloudspotError(f"all addresses of {self.network} are in use")

    def start(self, machine: EmulatedMachine) -> None:
        """See MachineHost; the cloud first furnishes the machine."""
        machine = self._cloud.furnish(machine)
        with self._lock:
            if not _ID.fullmatch(machine.id):
                raise ValueError(f"{machine.id!r} is not a valid machine id")
            if machine.id in self._machines:
                raise ValueError(f"the machine id {machine.id} was already used")
            address = machine.address or self.allocate_address()
            self._check_address(address)
            self._allocated.add(address)
            host_name = machine.host_name or f"ip-{address.replace('.', '-')}"
            with self._hosts.open("a", encoding="ascii") as hosts:
                # The lines are written at once, because machines may read the file at the same time.
                names = f"{host_name} {host_name.partition('.')[0]}"
                # A server on IPv6 looks up its callers by their IPv4-mapped addresses.
                hosts.write(f"{address} {names}\n::ffff:{address} {names}\n")
            made = MachineDirectory.create(
                self._directory / "machines" / machine.id,
                self._record(machine, address, host_name),
                user_data=machine.user_data,
            )
            made.set_tags(machine.tags)
            self._machines[machine.id] = made
        # The supervisor gets the whole path of this process, because a plugin contains the metadata service.
        python_path = os.pathsep.join(filter(None, sys.path))
        starter = start_supervisor(made, python_path=python_path, held=self._held)
        # No other code waits for the starter, but it must be reaped.
        threading.Thread(target=starter.wait, name=f"start {machine.id}", daemon=True).start()

    def terminate(self, machine_id: str) -> None:
        machine = self._machines.get(machine_id)
        if machine is not None:
            machine.request_termination()
            machine.settle(reason=EndReason.TERMINATED)

    def reclaim(self, machine_id: str, *, notice_seconds: float) -> None:
        machine = self._machines.get(machine_id)
        if machine is not None:
            machine.request_reclaim(ReclaimRequest(notice_seconds=notice_seconds))

    def set_tags(self, machine_id: str, tags: Mapping[str, str]) -> None:
        machine = self._machines.get(machine_id)
        if machine is not None:
            with self._lock:
                machine.set_tags(tags)

    def states(self) -> Mapping[str, MachineStatus]:
        statuses = {}
        for machine_id, machine in list(self._machines.items()):
            machine.settle()
            state = msgspec.structs.asdict(machine.state())
            statuses[machine_id] = MachineStatus(address=machine.record().address, **state)
        return statuses

    def save_disk(self, machine_id: str) -> str:
        machine = self._machines.get(machine_id)
        if machine is None:
            raise CloudspotError(f"there is no machine {machine_id}")
        if not self._is_isolated:
            raise CloudspotError(f"machine {machine_id} is not isolated, so it has no disk of its own")
        with self._lock:
            self._num_disks += 1
            target = self._directory / "disks" / str(self._num_disks)
        copy_disk(machine, target)
        return str(target)

    def console(self, machine_id: str) -> str:
        try:
            return self._machines[machine_id].read_console()
        except (FileNotFoundError, KeyError):
            return ""

    def directory(self, machine_id: str) -> MachineDirectory:
        """Return the directory of the machine's files."""
        return self._machines[machine_id]

    def close(self) -> None:
        """End all machines and wait until they have ended; safe to repeat.

        Raises:
            CloudspotError: a machine does not end.
        """
        for machine_id in list(self._machines):
            self.terminate(machine_id)
        end = time.monotonic() + _END_SECONDS
        while True:
            living = [
                name for name, status in self.states().items() if status.state is not InstanceState.ENDED
            ]
            if not living:
                break
            if time.monotonic() > end:
                raise CloudspotError(f"machine {living[0]} has not ended; see its log in {self._directory}")
            time.sleep(0.02)
        self._owner.close()

    def _check_address(self, address: str) -> None:
        if ipaddress.IPv4Address(address) not in self._ip_network or address == self.address:
            raise ValueError(f"no machine can have the address {address} in the network {self.network}")
        for machine in self._machines.values():
            is_its = machine.record().address == address
            if is_its and machine.state().state is not InstanceState.ENDED:
                raise ValueError(f"the address {address} already belongs to machine {machine.id}")

    def _record(self, machine: EmulatedMachine, address: str, host_name: str) -> MachineRecord:
        job, cloud = machine.job, self._cloud
        network = None
        port = 80
        addresses = cloud.metadata_addresses
        environment = {**cloud.machine_environment()}
        if self._is_isolated:
            network = Network(prefix_length=self._ip_network.prefixlen, hosts=str(self._hosts))
            environment |= self._index_environment
        else:
            port, addresses = LOOPBACK_PORT, (address,)
            environment |= cloud.metadata_environment(f"http://{address}:{port}")
        environment["CLOUDSPOT_CORES"] = num_cores(1 if job is None else job.num_nodes)
        if self._sources.is_dir() and not machine.is_bare:
            environment["PYTHONPATH"] = str(self._sources)
        environment.update(machine.environment)
        packages = (*machine.packages, *(() if machine.is_bare else own_distributions()))
        return MachineRecord(
            id=machine.id,
            request_sha256="",
            job_id="" if job is None else job.job_id,
            launch=0 if job is None else job.launch,
            rank=0 if job is None else job.rank,
            num_nodes=1 if job is None else job.num_nodes,
            address=address,
            zone=cloud.name,
            instance_type="",
            market=machine.market,
            boot_delay_seconds=machine.boot_delay_seconds,
            max_seconds=_FOR_EVER_SECONDS,
            reclaims=self._plan(machine),
            notice_seconds=0.0,
            launched_at=now_utc(),
            launched_boot=this_boot(),
            launched_uptime=boot_seconds(),
            guest=Guest(
                service=cloud.metadata_service,
                service_addresses=addresses,
                service_port=port,
                fetch_user_data=cloud.fetch_user_data,
                fetch_shutdown_script=cloud.fetch_shutdown_script,
                shutdown_seconds=cloud.shutdown_seconds,
                facts=machine.metadata,
                host_name=host_name,
                environment=environment,
                image_path=() if machine.is_bare else (str(Path(sys.executable).parent),),
                visible=(*_installation(), *(() if machine.is_bare else (str(self._sources),))),
                hidden=missing_files(packages) if self._is_isolated else (),
                programs=machine.programs,
                shared=machine.shared,
                disk=machine.disk,
                network=network,
                owner_lock=str(self._directory / "owner.lock"),
            ),
        )


@contextmanager
def emulated(
    cloud: EmulatedCloud, directory: Path, *, is_isolated: bool, plan: Plan | None = None
) -> Iterator[LocalMachineHost]:
    """Start the cloud with its own host below the directory, and stop both at the end of the block."""
    host = LocalMachineHost(directory, cloud, is_isolated=is_isolated, plan=plan)
    try:
        (directory / "cloud").mkdir()
        cloud.start(host, address=host.address, directory=directory / "cloud")
        yield host
    finally:
        with suppress(Exception):
            cloud.stop()
        host.close()


def _claim_loopback_network() -> tuple[ipaddress.IPv4Network, socket.socket]:
    """Return a part of ``LOOPBACK_NETWORK``, and the socket that reserves it while any process keeps it open.

    Two clouds with the same addresses would serve metadata at the same address and port. A socket works
    across users, and the kernel closes it when the last process that has it open ends, even if that process
    is killed.

    Raises:
        CloudspotError: all parts are in use.
    """
    for network in ipaddress.IPv4Network(LOOPBACK_NETWORK).subnets(new_prefix=_LOOPBACK_PREFIX_LENGTH):
        # It is a UDP socket, because nothing is served there.
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind((str(network[1]), LOOPBACK_PORT))
        except OSError as error:
            claim.close()
            if error.errno != errno.EADDRINUSE:
                raise CloudspotError(f"this host has no address {network[1]}: {error.strerror}") from error
        else:
            return network, claim
    raise CloudspotError(
        f"other emulated clouds on this host use all addresses of {LOOPBACK_NETWORK}; end one of them"
    )


def _installation() -> tuple[str, ...]:
    """Return the directories of this Python and of its packages."""
    found = [sys.prefix, sys.base_prefix]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return tuple(dict.fromkeys(found))


def _editable_packages() -> tuple[Path, ...]:
    """Return the directories of cloudspot's packages that are installed as editable."""
    installed = [Path(name).resolve() for name in _installation()]
    first: dict[str, Path] = {}
    for package in _packages():
        if not any(where in package.resolve().parents for where in installed):
            first.setdefault(package.name, package)
    return tuple(first.values())


def _packages() -> tuple[Path, ...]:
    """Return the directories of all of cloudspot's packages that this Python finds."""
    paths = [Path(name) for name in dict.fromkeys(sys.path)]
    found = [package for path in paths if path.is_absolute() for package in sorted(path.glob("cloudspot*"))]
    return tuple(package for package in found if (package / "__init__.py").exists())
