"""The supervisor of one machine: boots it, serves its metadata, and takes it away whole.

``python -m cloudspot.local.supervisor <machine directory>`` returns 0 as soon as the machine's
supervisor is ready and goes on in a process of its own, which outlives the caller and its terminal.
It returns 1 where the machine has a supervisor already, or has ended.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import msgspec

from cloudspot.local.home import try_lock
from cloudspot.local.machines import MachineDirectory, now_utc
from cloudspot.local.metadata import METADATA, MetadataServer, StandingNotice
from cloudspot.local.processes import MARK, become_subreaper, end_machine_processes, reap_children
from cloudspot.local.records import MachineState, SupervisorRecord
from cloudspot.model import EndReason, InstanceState, NodeIdentity
from cloudspot.train.handoff import read_progress

_log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
"""How often requests and the training's progress are looked at."""

_SHUTDOWN_SHIM = """\
#!/bin/sh
# The machine's power switch: asks its supervisor, which ends this process too.
: > {request}
# Where the supervisor was killed, the machine must end all the same.
(
    trap '' HUP
    sleep 10
    exec env PYTHONPATH={python_path} {python} -m cloudspot.local.abandoned {directory}
) </dev/null >/dev/null 2>&1 &
"""


class Supervisor:
    """One machine's life, from boot to end. The caller holds the machine's lock."""

    def __init__(self, machine: MachineDirectory) -> None:
        self.machine = machine
        self.record = machine.record()
        self._boot_at = time.monotonic() + self.record.boot_delay_seconds
        self._booted_at: float | None = None
        self._boot: subprocess.Popen[bytes] | None = None
        self._metadata: MetadataServer | None = None
        self._deadline: float | None = None
        self._seen_requests: set[str] = set()
        self._told_to_stop = False

    def start(self) -> None:
        """Make the machine's disk and memory, serve its metadata, and say that we are ready."""
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            # A handler, not SIG_IGN: exec resets it, so that the machine's processes start clean.
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        become_subreaper()
        self.machine.make_disk()
        self._write_shims()
        identity = NodeIdentity(
            instance_id=self.record.id,
            rank=self.record.rank,
            address=self.record.address,
            zone=self.record.zone,
            instance_type=self.record.instance_type,
            market=self.record.market,
        )
        self._metadata = MetadataServer(
            self.record.address,
            identity={
                **msgspec.to_builtins(identity),
                "job_id": self.record.job_id,
                "launch": self.record.launch,
            },
            tags=self.machine.tags,
        )
        self.machine.write_supervisor(SupervisorRecord(pid=os.getpid(), metadata_url=self._metadata.url))
        _log.info(
            "machine %s: supervisor %d, metadata at %s", self.record.id, os.getpid(), self._metadata.url
        )

    def run(self) -> None:
        """Live through the machine's life; returns when it has ended."""
        while True:
            now = time.monotonic()
            reap_children()
            try:
                reason = self._end_reason(now)
            except FileNotFoundError:
                # Someone deleted the machine's directory: nothing may go on without it.
                _log.warning("machine %s: its directory is gone", self.record.id)
                self._end_processes()
                self.machine.erase_disk()
                return
            if reason is not None:
                self.end(reason)
                return
            if self._booted_at is None and now >= self._boot_at:
                self._start_boot(now)
            time.sleep(self._pause(time.monotonic()))

    def end(self, reason: EndReason) -> None:
        """End the machine and say so."""
        _log.info("machine %s: ends (%s)", self.record.id, reason.value)
        self.machine.finish(reason, end_processes=self._end_processes)
        _log.info("machine %s: ended", self.record.id)

    def _pause(self, now: float) -> float:
        moments = [now + TICK_SECONDS]
        if self._deadline is not None:
            moments.append(self._deadline)
        return max(0.0, min(moments) - now)

    def _end_reason(self, now: float) -> EndReason | None:
        """Return why the machine must end now, or None; starts the reclaims that are due."""
        if self._told_to_stop:
            return EndReason.LOST
        requests = self.machine.requests()
        if requests.terminate:
            return EndReason.TERMINATED
        for name, request in requests.reclaims.items():
            if name not in self._seen_requests:
                self._seen_requests.add(name)
                self._reclaim(now, request.notice_seconds)
        self._start_planned_reclaims(now)
        if self._deadline is not None and now >= self._deadline:
            return EndReason.RECLAIMED
        if requests.shutdown:
            # Clouds call it a reclaim too when the machine leaves after the notice.
            return EndReason.SELF if self._deadline is None else EndReason.RECLAIMED
        if self._booted_at is not None and now >= self._booted_at + self.record.max_seconds:
            return EndReason.TERMINATED
        return None

    def _start_planned_reclaims(self, now: float) -> None:
        if self._booted_at is None:
            return
        for number, reclaim in enumerate(self.record.reclaims):
            name = f"planned-{number}"
            if name in self._seen_requests:
                continue
            by_time = reclaim.after_seconds is not None and now >= self._booted_at + reclaim.after_seconds
            if by_time or (reclaim.after_steps is not None and self._step() >= reclaim.after_steps):
                self._seen_requests.add(name)
                self._reclaim(now, reclaim.notice_seconds)

    def _step(self) -> int:
        """Return the newest step that any rank on this machine has begun; -1 before the first."""
        steps = [-1]
        for path in self.machine.node_directory.glob("generations/*/progress-*"):
            rank = path.name.rpartition("-")[2]
            progress = read_progress(path.parent, int(rank)) if rank.isdigit() else None
            if progress is not None:
                steps.append(progress[0])
        return max(steps)

    def _reclaim(self, now: float, notice_seconds: float) -> None:
        """Give the notice; a second one can only bring the end nearer."""
        deadline = now + notice_seconds
        if self._deadline is not None and self._deadline <= deadline:
            return
        self._deadline = deadline
        _log.info("machine %s: reclaimed in %.3f s", self.record.id, notice_seconds)
        if notice_seconds > 0 and self._metadata is not None:
            self._metadata.publish(StandingNotice(deadline=now_utc() + timedelta(seconds=notice_seconds)))

    def _start_boot(self, now: float) -> None:
        self._booted_at = now
        # First, so that whoever hears from the machine finds it running.
        self.machine.write_state(MachineState(state=InstanceState.RUNNING))
        with self.machine.console.open("ab") as console:
            self._boot = subprocess.Popen(
                ["bash", str(self.machine.path / "user-data")],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                cwd=self.machine.path,
                env=self._environment(),
                start_new_session=True,
            )
        _log.info("machine %s: booted", self.record.id)

    def _environment(self) -> dict[str, str]:
        """Return what a machine starts with: nothing of ours, so no credentials of the submitter."""
        assert self._metadata is not None
        environment = {
            "PATH": f"{self.machine.programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.machine.home),
            "TMPDIR": str(self.machine.temporary),
            "LANG": "C.UTF-8",
            "CLOUDSPOT_NODE_DIR": str(self.machine.node_directory),
            METADATA: self._metadata.url,
            MARK: self.record.id,
            # Its share of this host: with all cores each, the nodes of a job would fight for them.
            "CLOUDSPOT_CORES": str(max(1, (os.cpu_count() or 1) // self.record.num_nodes)),
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
        for name in ("shutdown", "poweroff"):
            shim = self.machine.programs / name
            shim.write_text(text, encoding="utf-8")
            shim.chmod(0o755)

    def _stop(self, *_: object) -> None:
        self._told_to_stop = True

    def _end_processes(self) -> None:
        end_machine_processes(self.record.id, root=os.getpid())
        if self._boot is not None:
            self._boot.poll()


def main(directory: Path) -> int:
    """Start the supervisor of the machine in ``directory`` and return when it is ready."""
    reader, writer = os.pipe()
    if os.fork():
        # The caller waits for us, so that no zombie of the supervisor stays with it.
        os.close(writer)
        with os.fdopen(reader, "rb") as ready:
            return 0 if ready.read() else 1
    os.close(reader)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    machine = MachineDirectory(directory)
    with try_lock(machine.lock) as is_ours:
        # A machine whose supervisor was killed is lost; it never gets a second one.
        if is_ours and machine.supervisor() is None and machine.state().state is not InstanceState.ENDED:
            _supervise(machine, writer)
    return 1


def _supervise(machine: MachineDirectory, ready: int) -> None:
    supervisor = Supervisor(machine)
    try:
        supervisor.start()
        os.write(ready, b"ready")
        os.close(ready)
        supervisor.run()
    except Exception:  # noqa: BLE001 # whatever it is:
        # The machine must not go on without its supervisor.
        _log.exception("machine %s: the supervisor failed", machine.id)
        supervisor.end(EndReason.LOST)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
