"""A machine's directory: the files that hold its properties, its state, and the requests to it.

::

    machine.json     the machine as it was created; never changes
    state.json       its state, by the supervisor (or by a process that finds the supervisor dead)
    supervisor.json  the supervisor's process id and the metadata server's URL
    lock             held by the supervisor for its lifetime; if it is free, the supervisor is dead
    requests/        requests to the supervisor, a file each: terminate, shutdown, reclaim-*
    tags.json        facts announced by the controller
    user-data        the boot script
    environment.json the machine's variables, perhaps credentials; deleted when it ends
    console.log      its output        supervisor.log  the supervisor's output
    home/ node/ bin/ system/  the machine's disk, deleted when it ends

Two more directories end with the machine: its directory in memory, and its TMPDIR, which is elsewhere because
the path of a Unix socket in it (multiprocessing creates some) is limited to about a hundred bytes. They are
named after the machine's mark, because an id is unique only within a cloud: two emulated clouds may both have
an instance ``train-1-0``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from cloudspot.host.boot_clock import boot_seconds, this_boot
from cloudspot.host.bounded_reads import read_end
from cloudspot.host.job_containers import remove_recorded_container
from cloudspot.host.locks import try_lock
from cloudspot.host.partial_files import partial_directory, write_whole
from cloudspot.jobstore.layout import codec
from cloudspot.local.machine_records import MachineRecord, MachineState, ReclaimRequest, SupervisorRecord
from cloudspot.local.processes import end_machine_processes
from cloudspot.model import EndReason, Instance, InstanceState

T = TypeVar("T")

CONSOLE_BYTES = 64 << 10
UNBORN_SECONDS = 30.0
"""A machine that still has no supervisor this long after its creation will never have one."""


class MachineDirectory:
    """The files of one machine.

    Any process may use them; only the process that holds the lock may write the state.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.mark = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
        """The mark that identifies its processes and names its other directories; unique on this host."""
        self.user_data = path / "user-data"
        """The machine's boot script."""
        self.console = path / "console.log"
        """The boot script's output."""
        self.lock = path / "lock"
        """The supervisor holds this lock."""
        self.home = path / "home"
        """HOME on this machine."""
        self.programs = path / "bin"
        """The first directory of PATH on this machine."""
        self.node_directory = path / "node"
        """``CLOUDSPOT_NODE_DIR`` on this machine."""
        self.system = path / "system"
        """An isolated machine's root directory, and its changes to the host's directories."""
        self.temporary = Path(f"/tmp/cloudspot-{self.mark}")  # noqa: S108 # made for the machine, closed to others
        """TMPDIR on this machine, independent of the caller's own TMPDIR."""
        memory = Path(f"/dev/shm/cloudspot-{self.mark}")  # noqa: S108 # as above
        self.arena = memory if sys.platform == "linux" else None
        """The machine's directory in memory; None if the host does not support one."""
        disk = (self.home, self.programs, self.node_directory, self.system, self.temporary)
        self.disk: tuple[Path, ...] = (*disk, memory) if self.arena else disk
        """The directories that are deleted when the machine ends, including the one in memory."""

    @classmethod
    def create(
        cls,
        path: Path,
        record: MachineRecord,
        *,
        user_data: bytes,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> MachineDirectory:
        """Create the directory atomically; an existing directory is left unchanged."""
        machine = cls(path)
        if path.exists():
            return machine
        # It is closed to other users from the start, because the environment may contain credentials.
        with partial_directory(path.parent, mode=0o700) as partial:
            (partial / "requests").mkdir()
            (partial / "user-data").write_bytes(user_data)
            if environment:
                (partial / "environment.json").write_bytes(msgspec.json.encode(environment))
            (partial / "machine.json").write_bytes(msgspec.json.encode(record))
            partial.rename(path)
        return machine

    def record(self) -> MachineRecord:
        """Return the machine's properties at its creation.

        Raises:
            CorruptData: the file is malformed.
            FileNotFoundError: the machine was pruned in the meantime.
        """
        path = self.path / "machine.json"
        return codec.decode(path.read_bytes(), MachineRecord, key=str(path))

    def state(self) -> MachineState:
        """Return the last state that was written."""
        return self._read("state.json", MachineState) or MachineState(state=InstanceState.PENDING)

    def write_state(self, state: MachineState) -> None:
        """Write the state; the caller must hold the lock."""
        self._write("state.json", state)

    def environment(self) -> dict[str, str]:
        """Return the variables that were passed to this machine."""
        return self._read("environment.json", dict[str, str]) or {}

    def supervisor(self) -> SupervisorRecord | None:
        """Return the supervisor's record, or None if the supervisor is not ready yet."""
        return self._read("supervisor.json", SupervisorRecord)

    def write_supervisor(self, record: SupervisorRecord) -> None:
        """Record that the supervisor is ready."""
        self._write("supervisor.json", record)

    def tags(self) -> dict[str, str]:
        """Return the facts announced to this machine."""
        return self._read("tags.json", dict[str, str]) or {}

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Replace all announced facts."""
        self._write("tags.json", tags)

    def request_termination(self) -> None:
        """Request the machine's end; safe to repeat."""
        (self.path / "requests" / "terminate").touch()

    def request_reclaim(self, request: ReclaimRequest) -> None:
        """Request a reclaim; each request counts."""
        self._write(f"requests/reclaim-{time.time_ns()}-{os.getpid()}", request)

    def requests(self) -> dict[str, ReclaimRequest | None]:
        """Return all requests so far, in the order of their file names; None for requests without content."""
        names = sorted(entry.name for entry in os.scandir(self.path / "requests"))
        return {
            name: self._read(f"requests/{name}", ReclaimRequest) if name.startswith("reclaim-") else None
            for name in names
        }

    def read_console(self) -> str:
        """Return the last 64 KiB of the machine's output since its boot, as clouds do.

        Raises:
            FileNotFoundError: the machine has printed nothing.
        """
        return read_end(self.console, CONSOLE_BYTES).decode("utf-8", errors="replace")

    def instance(self) -> Instance:
        """Return the machine as the provider reports it."""
        record = self.record()
        state = self.state()
        return Instance(
            id=record.id,
            state=state.state,
            job_id=record.job_id,
            launch=record.launch,
            rank=record.rank,
            end_reason=state.end_reason if state.state is InstanceState.ENDED else None,
            address=record.address,
            zone=record.zone,
            instance_type=record.instance_type,
            market=record.market,
            launched_at=record.launched_at,
            ended_at=state.ended_at,
            store_url=record.store_url,
        )

    def settle(self, *, reason: EndReason = EndReason.LOST, unborn_seconds: float = UNBORN_SECONDS) -> None:
        """End a machine that has lost its supervisor, as a cloud does when a host fails.

        Do nothing while the supervisor is alive, or while a new machine may still get a supervisor. Otherwise
        no process of the machine is left when this returns, and its state is ENDED. The reason is the one on
        which the supervisor had begun to act, or else ``reason``.
        """
        if self.state().state is InstanceState.ENDED:
            return
        with try_lock(self.lock) as is_free:
            if not is_free:
                return
            state = self.state()
            if state.state is InstanceState.ENDED:
                return
            record = self.record()
            is_young = boot_seconds() - record.launched_uptime < unborn_seconds
            if self.supervisor() is None and is_young and record.launched_boot == this_boot():
                return
            self.finish(state.end_reason or reason, end_processes=lambda: end_machine_processes(self.mark))

    def finish(self, reason: EndReason, *, end_processes: Callable[[], None]) -> None:
        """Kill the processes, delete the disk and write the final state; the caller must hold the lock.

        The reason is written first, so that a process that takes over reports the same reason.
        """
        try:
            notice_deadline = self.state().notice_deadline
            ending = MachineState(
                state=InstanceState.SHUTTING_DOWN, end_reason=reason, notice_deadline=notice_deadline
            )
            self.write_state(ending)
        finally:
            # Even a full disk must not keep a machine alive.
            end_processes()
        ended_at = now_utc()
        self.erase_disk()
        (self.path / "environment.json").unlink(missing_ok=True)
        self.write_state(msgspec.structs.replace(ending, state=InstanceState.ENDED, ended_at=ended_at))

    def make_disk(self, *, is_isolated: bool = False) -> None:
        """Create the directories that are deleted when the machine ends; they are empty."""
        self.erase_disk()
        for path in self.disk:
            if not (is_isolated and path == self.temporary):  # an isolated machine has its own /tmp
                path.mkdir(mode=0o700)

    def erase_disk(self) -> None:
        """Delete the machine's disk and memory, and remove its container."""
        remove_recorded_container(self.node_directory)
        for path in self.disk:
            erase(path)

    def _read(self, name: str, kind: type[T]) -> T | None:
        path = self.path / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        return codec.decode(data, kind, key=str(path))

    def _write(self, name: str, value: Any) -> None:
        """Write the file atomically, so that readers see either all of it or nothing."""
        write_whole(self.path / name, msgspec.json.encode(value))


def now_utc() -> datetime:
    """Return the current time by this host's clock."""
    return datetime.now(timezone.utc)


def erase(path: Path) -> None:
    """Delete a directory tree, including write-protected directories; a missing tree is no error."""
    if path.is_symlink():
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except PermissionError:
        path.chmod(stat.S_IRWXU)
        for parent, names, _ in os.walk(path):
            for name in names:
                if not Path(parent, name).is_symlink():
                    Path(parent, name).chmod(stat.S_IRWXU)
        shutil.rmtree(path)


if __name__ == "__main__":
    # The machine's ``shutdown`` program runs this if the supervisor was killed and does not respond.
    MachineDirectory(Path(sys.argv[1])).settle(reason=EndReason.SELF, unborn_seconds=0)
