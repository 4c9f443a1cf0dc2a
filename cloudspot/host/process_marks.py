"""Find and kill processes by a marker variable in their environment.

A process can leave its group and its session, but it can only overwrite its environment, which few do.
Processes that must be found with certainty have a keeper (``kept_processes``). On Linux, ``/proc`` shows the
environment with which a process was started; on macOS, ``ps -E`` shows it for one's own processes.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

_PROC = Path("/proc")


def marked_processes(name: str, value: str) -> tuple[int, ...]:
    """Return the ids of living processes started with ``name=value`` in their environment.

    The calling process, zombies and the processes of other users are not included.
    """
    mark = f"{name}={value}".encode()
    if sys.platform != "linux":
        return _scan_ps(mark)
    own = os.getpid()
    pids = [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit()]
    return tuple(pid for pid in pids if pid != own and mark in _environment(pid))


def _environment(pid: int) -> list[bytes]:
    """Return the environment with which a process was started; for a zombie it is empty."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # ended in the meantime, or not ours
        return []


def cpu_seconds(pids: Collection[int]) -> float | None:
    """Return the CPU time of these processes and of their ended children; None on systems other than Linux.

    A process that has ended in the meantime counts as 0.
    """
    if sys.platform != "linux":
        return None
    ticks = sum(_cpu_ticks(pid) for pid in pids)
    return ticks / os.sysconf("SC_CLK_TCK")


def _cpu_ticks(pid: int) -> int:
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return 0
    # The process name, in parentheses, may contain any characters. Fields 14 to 17: utime, stime, cutime,
    # cstime; see proc(5).
    return sum(map(int, stat.rpartition(b")")[2].split()[11:15]))


def _scan_ps(mark: bytes) -> tuple[int, ...]:
    listing = subprocess.run(["ps", "-axwwE", "-o", "pid=,command="], capture_output=True, check=False).stdout
    pids = []
    for line in listing.splitlines():
        words = line.split()
        if words and mark in words[1:] and int(words[0]) != os.getpid():
            pids.append(int(words[0]))
    return tuple(pids)


def kill_all(find: Callable[[], Collection[int]], *, timeout_seconds: float = math.inf) -> bool:
    """Send SIGKILL to the processes from ``find``; return whether it twice returned none in time.

    One empty result is not enough: a process may fork during the search, and during an exec it has no
    environment.
    """
    end = time.monotonic() + timeout_seconds
    delay = 0.005
    num_empty = 0
    while True:
        pids = find()
        for pid in pids:
            signal_process(pid, signal.SIGKILL)
        num_empty = 0 if pids else num_empty + 1
        if num_empty == 2:
            return True
        if pids and time.monotonic() > end:
            return False
        time.sleep(delay)
        delay = min(delay * 2, 0.1)


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process; a process that has ended is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
