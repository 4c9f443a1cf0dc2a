"""The supervisor of one machine, which boots it, serves its metadata, and ends it with all its processes.

``python -m cloudspot.local.supervisor <machine directory>`` exits with 0 as soon as the machine's supervisor
is ready. The supervisor runs in another process, which outlives the caller and its terminal. The command
exits with 1 if the machine already has a supervisor, or has ended.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import msgspec

from cloudspot.host.locks import try_lock
from cloudspot.host.process_keeper import adopt_orphans
from cloudspot.local.forms import make_form
from cloudspot.local.machine_records import PlannedReclaim, SupervisorRecord
from cloudspot.local.machines import MachineDirectory, now_utc
from cloudspot.local.metadataservice import StandingNotice
from cloudspot.local.processes import reap_children
from cloudspot.model import EndReason, InstanceState
from cloudspot.train.handoff import read_progress

_log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
"""How often requests and the training's progress are checked."""
_OWNER_SECONDS = 0.5
"""How often the supervisor checks whether the owner of an emulated machine is still alive."""


class Supervisor:
    """Runs one machine, from boot to end. The caller must hold the machine's lock."""

    def __init__(self, machine: MachineDirectory) -> None:
        self.machine = machine
        self.record = machine.record()
        self._boot_at = time.monotonic() + self.record.boot_delay_seconds
        self._booted_at: float | None = None
        self._form = make_form(machine)
        self._deadline: float | None = None
        self._button_at: float | None = None
        """When the power button of a reclaimed machine will be pressed."""
        self._seen_requests: set[str] = set()
        self._owner_seen_at = time.monotonic()
        self._must_stop = False

    def start(self) -> None:
        """Create the machine's disk and memory, serve its metadata, and record that all is ready."""
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            # This is a handler and not SIG_IGN, because exec resets handlers for the machine's processes.
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        adopt_orphans()
        self._form.prepare()
        url = self._form.metadata_url
        self.machine.write_supervisor(SupervisorRecord(pid=os.getpid(), metadata_url=url))
        _log.info("machine %s: supervisor %d, metadata at %s", self.record.id, os.getpid(), url)

    def run(self) -> None:
        """Run the machine until it has ended."""
        while True:
            now = time.monotonic()
            reap_children()
            try:
                reason = self._end_reason(now)
            except FileNotFoundError:
                # The machine's directory was deleted, so its processes must end.
                _log.warning("machine %s: its directory is gone", self.record.id)
                self._form.end_processes()
                self.machine.erase_disk()
                return
            if reason is not None:
                self.end(reason)
                return
            if self._booted_at is None and now >= self._boot_at:
                self._start_boot(now)
            time.sleep(self._pause(time.monotonic()))

    def end(self, reason: EndReason) -> None:
        """End the machine and record its end."""
        _log.info("machine %s: ends (%s)", self.record.id, reason.value)
        self.machine.finish(reason, end_processes=self._form.end_processes)
        _log.info("machine %s: ended", self.record.id)

    def _pause(self, now: float) -> float:
        moments = [now + TICK_SECONDS]
        moments += [moment for moment in (self._deadline, self._button_at) if moment is not None]
        return max(0.0, min(moments) - now)

    def _end_reason(self, now: float) -> EndReason | None:
        """Return why the machine must end now, or None; start any reclaims that are due."""
        if self._must_stop or self._is_orphaned(now):
            return EndReason.LOST
        requests = self.machine.requests()
        if "terminate" in requests:
            return EndReason.TERMINATED
        for name, request in requests.items():
            if request is not None and name not in self._seen_requests:
                self._seen_requests.add(name)
                self._reclaim(now, request.notice_seconds)
        self._start_planned_reclaims(now)
        if self._deadline is not None and now >= self._deadline:
            return EndReason.RECLAIMED
        if self._button_at is not None and now >= self._button_at:
            self._button_at = None
            _log.info("machine %s: its power button is pressed", self.record.id)
            self._form.press_power_button()
        if "shutdown" in requests or self._form.has_powered_off():
            # Clouds also report a reclaim if the machine shuts down after the notice.
            return EndReason.SELF if self._deadline is None else EndReason.RECLAIMED
        if self._booted_at is not None and now >= self._booted_at + self.record.max_seconds:
            return EndReason.TERMINATED
        return None

    def _is_orphaned(self, now: float) -> bool:
        """Return whether the owner of this emulated machine has ended."""
        guest = self.record.guest
        if guest is None or now < self._owner_seen_at + _OWNER_SECONDS:
            return False
        self._owner_seen_at = now
        with try_lock(Path(guest.owner_lock)) as is_free:
            return is_free

    def _start_planned_reclaims(self, now: float) -> None:
        if self._booted_at is None:
            return
        for number, reclaim in enumerate(self.record.reclaims):
            name = f"planned-{number}"
            if name in self._seen_requests:
                continue
            by_time = reclaim.after_seconds is not None and now >= self._booted_at + reclaim.after_seconds
            if by_time or self._has_come(reclaim):
                self._seen_requests.add(name)
                self._reclaim(now, reclaim.notice_seconds)

    def _has_come(self, reclaim: PlannedReclaim) -> bool:
        """Return whether the training on this machine has reached the planned reclaim's step or share."""
        if reclaim.after_steps is None and reclaim.after_share is None:
            return False
        step, total = self._progress()
        by_steps = reclaim.after_steps is not None and step >= reclaim.after_steps
        return by_steps or (
            reclaim.after_share is not None and total is not None and step >= reclaim.after_share * total
        )

    def _progress(self) -> tuple[int, int | None]:
        """Return the newest step begun by a rank on this machine (-1 if none), and the total if known."""
        newest: tuple[int, int | None] = (-1, None)
        for path in self.machine.node_directory.glob("generations/*/progress-*"):
            rank = path.name.rpartition("-")[2]
            progress = read_progress(path.parent, int(rank)) if rank.isdigit() else None
            if progress is not None and progress.step > newest[0]:
                newest = progress.step, progress.total
        return newest

    def _reclaim(self, now: float, notice_seconds: float) -> None:
        """Give the notice; a second notice can only bring the machine's end forward."""
        deadline = now + notice_seconds
        if self._deadline is not None and self._deadline <= deadline:
            return
        self._deadline = deadline
        _log.info("machine %s: reclaimed in %.3f s", self.record.id, notice_seconds)
        if notice_seconds > 0:
            at = now_utc() + timedelta(seconds=notice_seconds)
            notice = StandingNotice(deadline=at, deadline_monotonic=deadline)
            state = msgspec.structs.replace(self.machine.state(), notice_deadline=notice.deadline)
            self.machine.write_state(state)
            self._form.view.notice = notice
            guest = self.record.guest
            if guest is not None and guest.shutdown_seconds > 0:
                self._button_at = max(now, deadline - guest.shutdown_seconds)

    def _start_boot(self, now: float) -> None:
        self._booted_at = now
        # The state is written before the boot, so that it is already RUNNING at the machine's first request.
        state = msgspec.structs.replace(self.machine.state(), state=InstanceState.RUNNING)
        self.machine.write_state(state)
        self._form.boot()
        _log.info("machine %s: booted", self.record.id)

    def _stop(self, *_: object) -> None:
        self._must_stop = True


def main(directory: Path) -> int:
    """Start the supervisor of the machine in ``directory`` and return when it is ready."""
    reader, writer = os.pipe()
    if os.fork():
        # The caller waits for this process, so that this process does not become a zombie.
        os.close(writer)
        with os.fdopen(reader, "rb") as ready:
            return 0 if ready.read() else 1
    os.close(reader)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    machine = MachineDirectory(directory)
    while True:
        with try_lock(machine.lock) as is_ours:
            # A machine whose supervisor was killed is lost; it never gets a second supervisor.
            if machine.supervisor() is not None or machine.state().state is InstanceState.ENDED:
                return 1
            if is_ours:
                _supervise(machine, writer)
                return 1
        # Another supervisor is starting, or another process was only checking the lock.
        time.sleep(TICK_SECONDS)


def _supervise(machine: MachineDirectory, ready: int) -> None:
    supervisor = Supervisor(machine)
    try:
        supervisor.start()
        os.write(ready, b"ready")
        os.close(ready)
        supervisor.run()
    except Exception:  # noqa: BLE001 # the machine must not go on without its supervisor
        _log.exception("machine %s: the supervisor failed", machine.id)
        supervisor.end(EndReason.LOST)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
