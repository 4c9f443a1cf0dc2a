"""The forms of a machine: a process tree on this host, or one that is isolated from the host."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from cloudspot.errors import CloudspotError
from cloudspot.local import namespaces
from cloudspot.local.guest import SCRIPTS, init_arguments, write_programs
from cloudspot.local.machine_records import Guest, MachineRecord
from cloudspot.local.machines import MachineDirectory
from cloudspot.local.metadata import METADATA, LocalMetadata
from cloudspot.local.metadataservice import MachineView, MetadataServer, MetadataService
from cloudspot.local.network import MachineNetwork
from cloudspot.local.processes import MARK, end_machine_processes
from cloudspot.model import NodeIdentity

_SHUTDOWN_SHIM = """\
#!/bin/sh
# The machine's power switch: it asks the supervisor, which ends this process too.
: > {request}
# If the supervisor was killed, the machine must still end.
(
    trap '' HUP
    sleep 10
    exec env PYTHONPATH={python_path} {python} -m cloudspot.local.machines {directory}
) </dev/null >/dev/null 2>&1 &
"""
# A machine must not start units on its host, even if the host runs systemd.
_NO_SYSTEMD = """\
#!/bin/sh
echo "systemctl: System has not been booted with systemd as init system." >&2
exit 1
"""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_form(machine: MachineDirectory) -> Form:
    """Return the form of the machine; its ``prepare`` then sets the machine up."""
    guest = machine.record().guest
    if guest is None:
        return PlainForm(machine)
    if guest.network is None:
        return LoopbackForm(machine, guest)
    return IsolatedForm(machine, guest)


class Form(ABC):
    """A machine's environment on its host, and the operations that boot and end the machine.

    Only one thread may use it.
    """

    view: MachineView
    """The data of the machine's metadata service; setting its notice announces a reclaim."""
    metadata_url: str
    """The URL of the metadata service, which ``prepare`` sets."""

    def __init__(self, machine: MachineDirectory) -> None:
        self.machine = machine
        self.record: MachineRecord = machine.record()
        self._boot: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def prepare(self) -> None:
        """Create the machine's disk, memory and network, and start its metadata service."""

    def boot(self) -> None:
        """Start the machine's boot program."""
        with self.machine.console.open("ab") as console:
            self._boot = self._start_boot(console.fileno())

    def press_power_button(self) -> None:
        """Ask the machine to shut down, if it has a power button."""
        return

    def has_powered_off(self) -> bool:
        """Return whether the machine has visibly shut itself down."""
        return False

    def end_processes(self) -> None:
        """Kill every process of the machine; none is left when this returns."""
        end_machine_processes(self.machine.mark, root=os.getpid())
        if self._boot is not None:
            self._boot.poll()

    @abstractmethod
    def _start_boot(self, console: int) -> subprocess.Popen[bytes]: ...

    def _make_service(self) -> MetadataService:
        guest = self.record.guest
        self.view = MachineView(
            address=self.record.address,
            facts=_local_facts(self.record) if guest is None else guest.facts,
            user_data=self.machine.user_data.read_bytes(),
            tags=self.machine.tags,
        )
        if guest is None:
            return LocalMetadata(self.view)
        module, _, name = guest.service.partition(":")
        service = getattr(importlib.import_module(module), name)(self.view)
        assert isinstance(service, MetadataService)
        return service


class PlainForm(Form):
    """A machine of the provider ``local``: a process tree."""

    def prepare(self) -> None:
        """Create the disk and the power switch, and start the metadata service at the machine's address."""
        self.machine.make_disk()
        self._write_shims()
        service = self._make_service()
        guest = self.record.guest
        port = 0 if guest is None else guest.service_port
        self.metadata_url = MetadataServer(service, self.record.address, port).url

    def _start_boot(self, console: int) -> subprocess.Popen[bytes]:
        return self._run(["bash", str(self.machine.user_data)], console, {METADATA: self.metadata_url})

    def _run(self, command: list[str], console: int, extra: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            cwd=self.machine.path,
            env={**self._environment(), **extra, MARK: self.machine.mark},
            start_new_session=True,
        )

    def _environment(self) -> dict[str, str]:
        """Return the machine's initial variables; of this process's own, only those passed to it."""
        environment = {
            **self.machine.environment(),
            "PATH": f"{self.machine.programs}:{_SYSTEM_PATH}",
            "HOME": str(self.machine.home),
            "TMPDIR": str(self.machine.temporary),
            "LANG": "C.UTF-8",
            "CLOUDSPOT_NODE_DIR": str(self.machine.node_directory),
            "CLOUDSPOT_CORES": num_cores(self.record.job_nodes),
        }
        if self.machine.arena is not None:
            environment["CLOUDSPOT_ARENA"] = str(self.machine.arena)
        return environment

    def _write_shims(self) -> None:
        text = _SHUTDOWN_SHIM.format(
            request=shlex.quote(str(self.machine.path / "requests" / "shutdown")),
            python_path=shlex.quote(os.environ.get("PYTHONPATH", "")),
            python=shlex.quote(sys.executable),
            directory=shlex.quote(str(self.machine.path)),
        )
        for name, program in (("shutdown", text), ("poweroff", text), ("systemctl", _NO_SYSTEMD)):
            shim = self.machine.programs / name
            shim.write_text(program, encoding="utf-8")
            shim.chmod(0o755)


class LoopbackForm(PlainForm):
    """A machine of an emulated cloud on a host without namespaces; its metadata service has another port."""

    def __init__(self, machine: MachineDirectory, guest: Guest) -> None:
        super().__init__(machine)
        self._guest = guest

    def _start_boot(self, console: int) -> subprocess.Popen[bytes]:
        programs = self.machine.programs
        write_programs(programs, self._guest)
        # The machine has no /opt of its own, so the image's programs in /opt are called by their real paths.
        edits = programs / "edits.sed"
        edits.write_text("".join(map(_edit, self._guest.programs.items())), encoding="utf-8")
        path = os.pathsep.join((str(programs), *self._guest.image_path, _SYSTEM_PATH))
        scripts = self.machine.system / SCRIPTS.relative_to("/var")
        arguments = init_arguments(
            programs, self._guest, url=self.metadata_url, scripts=scripts, edits=str(edits)
        )
        return self._run(["bash", *arguments], console, {**self._guest.environment, "PATH": path})

    def press_power_button(self) -> None:
        """Make the machine's init run the shutdown script; then the supervisor ends the machine."""
        if self._boot is not None and self._boot.poll() is None:
            self._boot.send_signal(signal.SIGUSR1)


class IsolatedForm(Form):
    """A machine of an emulated cloud in its own namespaces, with its metadata service at the real address."""

    def __init__(self, machine: MachineDirectory, guest: Guest) -> None:
        super().__init__(machine)
        self._guest = guest
        self._network: MachineNetwork | None = None

    def prepare(self) -> None:
        """Create the disk and the network, and start the metadata service inside the network."""
        guest = self._guest
        assert guest.network is not None
        self.machine.make_disk(is_isolated=True)
        self._network = MachineNetwork(
            self.record.address, guest.network.prefix_length, guest.service_addresses
        )
        service = self._make_service()
        for address in guest.service_addresses:
            serve = partial(MetadataServer, service, address, guest.service_port)
            namespaces.in_network(self._network.descriptor, serve)
        self.metadata_url = f"http://{guest.service_addresses[0]}:{guest.service_port}"

    def press_power_button(self) -> None:
        """Send SIGPWR to the machine's process 1."""
        if self._boot is not None and self._boot.poll() is None:
            self._boot.send_signal(signal.SIGPWR)

    def has_powered_off(self) -> bool:
        """Return whether the machine's process 1 has ended."""
        return self._boot is not None and self._boot.poll() is not None

    def end_processes(self) -> None:
        """Cut the network, because a vanished machine closes no connections; then kill the processes."""
        if self._network is not None:
            with suppress(CloudspotError):
                self._network.cut()
        super().end_processes()
        if self._network is not None:
            with suppress(CloudspotError):
                self._network.close()
            self._network = None

    def _start_boot(self, console: int) -> subprocess.Popen[bytes]:
        assert self._network is not None
        network = self._network.descriptor
        return subprocess.Popen(
            [sys.executable, "-m", "cloudspot.local.guest", str(self.machine.path), str(network)],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={**os.environ, MARK: self.machine.mark},
            pass_fds=(network,),
            start_new_session=True,
        )


def num_cores(num_nodes: int) -> str:
    """Return a machine's share of this host's cores, so that a job's nodes do not compete for cores.

    All nodes, including replacements, have the same share, because torch's results differ in their last bits
    if the number of threads changes.
    """
    return str(max(1, (os.cpu_count() or 1) // num_nodes))


def _edit(program: tuple[str, str]) -> str:
    """Return the line of sed -E that replaces the path of a program on the image with its real path."""
    path, target = program
    replacement = re.sub(r"([\\&#])", r"\\\1", shlex.quote(target))
    return f"s#{re.escape(path)}([^[:alnum:]_./-]|$)#{replacement}\\1#g\n"


def _local_facts(record: MachineRecord) -> dict[str, Any]:
    identity = NodeIdentity(
        instance_id=record.id,
        rank=record.rank,
        address=record.address,
        zone=record.zone,
        instance_type=record.instance_type,
        market=record.market,
    )
    return {**msgspec.to_builtins(identity), "job_id": record.job_id, "launch": record.launch}
