"""Find the processes that carry a mark in their environment, and end any, wherever they hide.

A process can leave its group and its session. Its environment it can only overwrite, as few do: what must be
found for certain has a keeper (``kept_processes``). On Linux ``/proc`` shows the one it was started with, on
macOS ``ps -E`` does for one's own processes.
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

    Leaves out the calling process and zombies, and cannot see the processes of other users.
    """
    mark = f"{name}={value}".encode()
    if sys.platform != "linux":
        return _scan_ps(mark)
    own = os.getpid()
    pids = [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit()]
    return tuple(pid for pid in pids if pid != own and mark in _environment(pid))


def _environment(pid: int) -> list[bytes]:
    """Return the environment that a process was started with; a zombie's reads as empty."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or not ours
        return []


def cpu_seconds(pids: Collection[int]) -> float | None:
    """Return the CPU time of these processes and of their children that have ended; None: not on Linux.

    What has ended meanwhile counts nothing itself.
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
    # The name, in parentheses, may hold anything. Then: utime, stime, cutime, cstime; see proc(5).
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
    """SIGKILL what ``find`` returns until two looks in a row find nothing; return whether that came in time.

    One look is not enough: a process may fork meanwhile, and in the middle of an exec it has no environment.
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
    """Send a signal; a process that has ended is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
