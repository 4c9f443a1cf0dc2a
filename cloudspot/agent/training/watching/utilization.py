"""Sample the machine's utilization while it trains: CPU, memory, GPUs, disks, network and steps."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.worker import Worker
from cloudspot.jobstore.layout.records import Utilization
from cloudspot.jobstore.logs.log_streams import UTILIZATION

_log = logging.getLogger(__name__)

SAMPLE_SECONDS = 5.0
"""The time between two samples; a GPU's counter covers at most one second."""
LINE_SECONDS = 30.0
"""How often an average is reported to the log and the heartbeat: each log line may cost a put."""
_SECTOR_BYTES = 512
_PROC, _SYS = Path("/proc"), Path("/sys")


@dataclass(frozen=True)
class Counters:
    """The kernel's counters since the machine's start; None if they are unknown."""

    busy_and_all: tuple[int, int] | None = None
    """The busy ticks of all cores, and all their ticks."""
    disk: tuple[int, int] | None = None
    """The bytes read and written."""
    network: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The bytes received and sent, by interface."""
    memory: float | None = None
    """The share of the memory that is in use now."""


def read_counters(proc: Path = _PROC, sys: Path = _SYS) -> Counters:
    """Return the counters of a Linux machine; on other systems, all are None."""
    return Counters(_cpu(proc), _disk(proc, sys), _network(proc), _memory(proc))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _cpu(proc: Path) -> tuple[int, int] | None:
    try:
        with (proc / "stat").open() as file:
            fields = [int(one) for one in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; guests' time is included in user. See proc(5).
    return (sum(fields) - fields[3] - fields[4], sum(fields)) if len(fields) == 8 else None


def _memory(proc: Path) -> float | None:
    found = dict(line.split(":", 1) for line in _lines(proc / "meminfo")[:4] if ":" in line)
    try:
        total, free = (int(found[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError, IndexError):
        return None
    return min(1.0, max(0.0, 1 - free / total)) if total > 0 else None


def _disk(proc: Path, sys: Path) -> tuple[int, int] | None:
    lines = [line.split() for line in _lines(proc / "diskstats")]
    # A partition has no directory there, and a virtual disk made of other disks has no device.
    own = [one for one in lines if len(one) >= 10 and (sys / "block" / one[2] / "device").exists()]
    if not own:
        return None
    return tuple(_SECTOR_BYTES * sum(int(one[column]) for one in own) for column in (5, 9))  # type: ignore[return-value]  # a pair


def _network(proc: Path) -> Mapping[str, tuple[int, int]]:
    found = {}
    for line in _lines(proc / "net" / "dev")[2:]:
        name, _, counts = line.partition(":")
        fields = counts.split()
        if name.strip() != "lo" and len(fields) >= 9:
            found[name.strip()] = int(fields[0]), int(fields[8])
    return found


def link_speed(interface: str, sys: Path = _SYS) -> float | None:
    """Return the speed of a network interface in bytes per second, or None if unknown."""
    try:
        megabits = int((sys / "class" / "net" / interface / "speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 125_000.0 if megabits > 0 else None


class Gpus:
    """NVIDIA's GPUs, through NVIDIA's management library, which comes with the driver; none without it."""

    def __init__(self) -> None:
        self._handles: list[ctypes.c_void_p] = []
        self._nvml: ctypes.CDLL | None = None
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        count = ctypes.c_uint()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            _log.info("NVIDIA's management library gives no answer: GPUs are not sampled")
            return
        self._nvml = nvml
        for number in range(count.value):
            handle = ctypes.c_void_p()
            if nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) == 0:
                self._handles.append(handle)

    def sample(self) -> Sequence[tuple[float, float]]:
        """Return, for each GPU, the share of recent time in which it was busy, and of its memory in use."""
        found = []
        for handle in self._handles if self._nvml is not None else ():
            busy, memory = (ctypes.c_uint * 2)(), (ctypes.c_ulonglong * 3)()
            assert self._nvml is not None
            # According to NVML's reference, nvmlUtilization_t has gpu, memory; nvmlMemory_t has total, free,
            # used.
            if self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy)):
                continue
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) or not memory[0]:
                continue
            found.append((min(1.0, busy[0] / 100), min(1.0, memory[2] / memory[0])))
        return found


@dataclass(frozen=True)
class Look:
    """One look at the machine and its ranks."""

    monotonic: float
    counters: Counters
    gpus: Sequence[tuple[float, float]]
    generation: int
    step: int
    data_waits: Mapping[int, int]
    """How long each rank has waited for data (ns)."""


def average(looks: Sequence[Look], at: datetime, *, speed: Callable[[str], float | None]) -> Utilization:
    """Return the average utilization between the first and the last of two or more looks; no side effects.

    All looks must belong to one generation.
    """
    first, last = looks[0], looks[-1]
    seconds = last.monotonic - first.monotonic
    cpu = disk_read = disk_written = None
    if first.counters.busy_and_all is not None and last.counters.busy_and_all is not None:
        cpu = _share(*_growth(first.counters.busy_and_all, last.counters.busy_and_all))
    if first.counters.disk is not None and last.counters.disk is not None:
        disk_read, disk_written = _growth(first.counters.disk, last.counters.disk, seconds)
    rates = {
        name: _growth(first.counters.network[name], now, seconds)
        for name, now in last.counters.network.items()
        if name in first.counters.network
    }
    shares = [max(both) / limit for name, both in rates.items() if (limit := speed(name)) is not None]
    num_gpus = min((len(one.gpus) for one in looks[1:]), default=0)
    # A rank that had not used a loader at the first look had not waited before then.
    waits = [waited - first.data_waits.get(rank, 0) for rank, waited in last.data_waits.items()]
    num_steps = last.step - first.step
    return Utilization(
        at=at,
        seconds=round(seconds, 3),
        step=last.step,
        cpu=cpu,
        memory=None if last.counters.memory is None else round(last.counters.memory, 4),
        # msgspec omits a default only if it is the same object; Python 3.10 has several empty tuples.
        gpus=tuple(
            round(sum(one.gpus[number][0] for one in looks[1:]) / (len(looks) - 1), 4)
            for number in range(num_gpus)
        )
        or (),
        gpu_memory=tuple(round(last.gpus[number][1], 4) for number in range(num_gpus)) or (),
        disk_read=_rounded(disk_read),
        disk_written=_rounded(disk_written),
        received=_rounded(sum(one[0] for one in rates.values())) if rates else None,
        sent=_rounded(sum(one[1] for one in rates.values())) if rates else None,
        network=round(min(1.0, max(shares)), 4) if shares else None,
        step_seconds=round(seconds / num_steps, 6) if num_steps > 0 else None,
        data_wait=_share(max(waits), seconds * 1e9) if waits else None,
    )


def _growth(before: tuple[int, int], after: tuple[int, int], by: float = 1.0) -> tuple[float, float]:
    """Return the growth of both counters, each divided by ``by``; a counter that was reset counts as 0."""
    return max(0, after[0] - before[0]) / by, max(0, after[1] - before[1]) / by


def _share(part: float, whole: float) -> float | None:
    return round(min(1.0, max(0.0, part / whole)), 4) if whole > 0 else None


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else float(round(rate))


class UtilizationWatch(Worker):
    """A thread that takes samples while the training runs.

    Each half minute, the average goes to the heartbeat, and to the log as a line.
    """

    def __init__(self, context: NodeContext, follow: Callable[[Path, str], None]) -> None:
        """Create it; ``follow`` starts to deliver the lines of a file to the log under a source."""
        super().__init__("utilization")
        self._context = context
        self._follow = follow
        self._looks: list[Look] = []
        """The looks of the current half minute; the first look marks its beginning."""
        self._line_at = 0.0

    def start(self) -> None:
        """Deliver the measurements of an earlier agent of this machine, then begin to measure."""
        for path in sorted(self._context.node.logs.glob("utilization-*.jsonl")):
            self._follow(path, UTILIZATION)
        super().start()

    def _run(self) -> None:
        gpus = Gpus()
        while not self._stopped.wait(SAMPLE_SECONDS):
            try:
                self.look(gpus, time.monotonic())
            except Exception:  # noqa: BLE001 - a failed measurement must not end the agent
                _log.exception("this machine's utilization is not sampled any more")
                return

    def look(self, gpus: Gpus, now: float) -> None:
        """Look at the machine once; ``now`` is monotonic."""
        status = self._context.status
        if status.state != "running" or not status.generation:
            self._looks = []
            return
        step, waits = status.progress()[0], status.data_waits()
        newest = Look(now, read_counters(), gpus.sample(), status.generation, step, waits)
        if self._looks and self._looks[0].generation != newest.generation:
            self._looks = []
        if not self._looks:
            self._line_at = now + LINE_SECONDS
        self._looks.append(newest)
        while len(self._looks) > 2 and self._looks[1].monotonic <= now - LINE_SECONDS:
            del self._looks[0]
        if len(self._looks) < 2:
            return
        status.utilization = average(self._looks, self._context.now(), speed=link_speed)
        if now >= self._line_at:
            self._line_at = now + LINE_SECONDS
            self._write(status.utilization, newest.generation)

    def _write(self, measured: Utilization, generation: int) -> None:
        path = self._context.node.logs / f"utilization-{generation}.jsonl"
        self._follow(path, UTILIZATION)
        with suppress(OSError), path.open("ab") as file:  # if the disk is full, the heartbeat still gets it
            file.write(msgspec.json.encode(measured) + b"\n")
