"""Detect that the training leaves its machine idle, and stop the job if its job file requests that.

GPU use is measured with ``nvidia-smi``; if that is missing or fails, the CPU time of the training's processes
is measured instead. A GPU or a process that spins in a collective counts as busy, because it cannot be
distinguished from one that works.
"""

from __future__ import annotations

import logging
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from cloudspot.agent.membership.agreement import Membership
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.training.launching.trainer import processes_of
from cloudspot.agent.worker import Worker
from cloudspot.errors import CloudspotError
from cloudspot.host.kept_processes import KeptProcesses
from cloudspot.host.process_marks import cpu_seconds
from cloudspot.jobstore.layout.records import Idle

_log = logging.getLogger(__name__)

MEASURE_SECONDS = 30.0
"""The interval at which use is measured."""
LEAST_MEASURES = 5
"""The minimum number of measurements within ``limits.idle_after``."""
GPU_PERCENT = 5
"""A GPU that is busy for a smaller share of the time counts as idle; a desktop takes one or two percent."""
CORES_PER_PROCESS = 0.05
"""A training process that uses a smaller share of a core counts as idle. A session's own threads use 0.01,
and a process that computes or launches kernels uses a whole core."""
ANSWER_SECONDS = 10.0
"""The time limit for nvidia-smi, which takes seconds if it must first load the driver for many GPUs."""
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")


class IdleClock:
    """Counts how long the machine has been idle; no I/O."""

    def __init__(self, interval_seconds: float) -> None:
        """Expect a look every ``interval_seconds``; a longer gap, which was not observed, counts as two."""
        self._most = 2 * interval_seconds
        self._last: float | None = None
        self._seconds = 0.0

    def note(self, now: float, *, is_used: bool) -> float:
        """Process a look at ``now`` (monotonic); return the idle time so far in seconds."""
        passed = 0.0 if self._last is None else min(now - self._last, self._most)
        self._last = now
        self._seconds = 0.0 if is_used else self._seconds + passed
        return self._seconds


class Meter:
    """Measures the training's use of this machine."""

    def __init__(
        self,
        num_processes: int,
        *,
        fork_server: Path | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Expect ``num_processes`` training processes; nvidia-smi may take ``answer_seconds``."""
        self._fork_server = fork_server
        self._cores = CORES_PER_PROCESS * num_processes
        self._answer_seconds = answer_seconds
        self._nvidia_smi: subprocess.Popen[bytes] | None = None
        """The newest nvidia-smi process; one that hangs in the kernel is not waited for."""
        self._asks_gpus = True
        self._before: tuple[Path, float, float] | None = None
        """The hand-off directory, the time and the CPU time of the last look."""

    def why_idle(self, handoff: Path, now: float, *, is_in_loop: bool) -> str | None:
        """Return the evidence that the training is idle, or None if it is busy or its use is unknown.

        ``handoff`` identifies the processes of the current generation. Work on the CPUs also counts unless
        ``is_in_loop``, where each step is seen: before the loop, a script may prepare its data, and an
        occasional look may miss a GPU's work.
        """
        cores = self._cores_used(handoff, now)
        percent = self._gpu_percent()
        if percent is not None and percent >= GPU_PERCENT:
            return None
        if cores is None:
            return None
        counts_cpus = percent is None or not is_in_loop
        if counts_cpus and cores >= self._cores:
            return None
        return f"CPUs at {100 * cores:.0f} % of a core" if percent is None else f"GPUs at {percent} %"

    def _cores_used(self, handoff: Path, now: float) -> float | None:
        """Return how many cores the processes used since the last look, or None at the first look."""
        # The fork server's imports count as the training's work, because the training may wait for them.
        server = () if self._fork_server is None else KeptProcesses(self._fork_server).pids()
        seconds = cpu_seconds({*processes_of(handoff).pids(), *server})
        before, self._before = self._before, None if seconds is None else (handoff, now, seconds)
        if seconds is None or before is None or before[0] != handoff or now <= before[1]:
            return None
        return max(0.0, seconds - before[2]) / (now - before[1])

    def _gpu_percent(self) -> int | None:
        """Return the use of the busiest GPU in percent; None, with a log line, if it cannot be measured."""
        if not self._asks_gpus:
            return None
        try:
            return max(int(line) for line in self._ask_nvidia_smi().splitlines())
        except FileNotFoundError:
            level, problem = logging.INFO, "is not there"  # normal on a machine without a GPU
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            level, problem = logging.WARNING, f"gave no answer ({error})"
        self._asks_gpus = False
        _log.log(level, "nvidia-smi %s: limits.idle_after uses the CPU time of the training instead", problem)
        return None

    def _ask_nvidia_smi(self) -> bytes:
        """Return the output of nvidia-smi.

        Raises:
            OSError: nvidia-smi cannot be started.
            subprocess.SubprocessError: nvidia-smi failed or did not answer in time.
        """
        self._nvidia_smi = process = subprocess.Popen(
            _NVIDIA_SMI, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            answer, _ = process.communicate(timeout=self._answer_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            assert process.stdout is not None
            process.stdout.close()
            raise
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, "nvidia-smi")
        return answer


class IdleWatch(Worker):
    """A thread that measures use while the training runs, in a job with ``limits.idle_after``."""

    def __init__(self, context: NodeContext, membership: Membership) -> None:
        super().__init__("idle")
        spec = context.job.spec
        self._context = context
        self._membership = membership
        self._limit = spec.limits.idle_after
        self._interval = min(MEASURE_SECONDS, (self._limit or 0.0) / LEAST_MEASURES)
        self._clock = IdleClock(self._interval)
        self._meter = Meter(spec.procs_per_node, fork_server=context.node.fork_server_processes)
        self._progress: object = None

    def start(self) -> None:
        """Begin to measure, if the job requests it."""
        if self._limit is not None:
            super().start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._look(time.monotonic())
            except CloudspotError as error:
                _log.warning("the job was not asked to stop: %s", error)
            except Exception:  # noqa: BLE001 - a failed measurement must not end the agent
                _log.exception("limits.idle_after: a measurement has failed")

    def _look(self, now: float) -> None:
        cause, status, limits = self._why_idle(now), self._context.status, self._context.job.spec.limits
        seconds = self._clock.note(now, is_used=cause is None)
        if cause is None or self._limit is None or seconds < self._limit:
            status.idle = None
            return
        idle = Idle(seconds=seconds, cause=cause)
        if status.idle is None:
            _log.warning("%s", idle.text)
        status.idle = idle
        if limits.on_idle == "stop":
            self._ask_to_stop(idle)

    def _why_idle(self, now: float) -> str | None:
        """Return the evidence that the training is idle, or None if it is busy or cannot be measured now."""
        status = self._context.status
        progress = status.generation, status.has_session, *status.progress(), status.committed
        has_moved, self._progress = progress != self._progress, progress
        if status.state != "running" or status.handoff is None:
            return None  # the node is starting, waiting for others, or delivering
        is_in_loop = self._context.memory.training_began_at > 0.0
        cause = self._meter.why_idle(status.handoff, now, is_in_loop=is_in_loop)
        return None if has_moved or status.transfer is not None else cause

    def _ask_to_stop(self, idle: Idle) -> None:
        """Ask the whole job to stop if the other members are idle too; only the first request counts."""
        context, membership = self._context, self._membership
        if not membership.others_are_idle():
            return
        context.read_journal()  # this machine may have been suspended while the others went on
        if context.orders.pending or membership.why_regroup() is not None:
            return
        is_one = context.job.spec.nodes.max == 1
        detail = idle.text if is_one else f"{idle.text} on node {context.seat}, and all others too"
        context.request_stop("idle_after", detail)
