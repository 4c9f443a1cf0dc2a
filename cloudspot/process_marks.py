"""Find and end every process that carries a mark in its environment, wherever it hides.

A process can leave its group and its session, but not its environment: on Linux ``/proc`` shows the one it
was started with, on macOS ``ps -E`` does for one's own processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_PROC = Path("/proc")


def marked_processes(name: str, value: str) -> tuple[int, ...]:
    """Return the ids of living processes started with ``name=value`` in their environment.

    Leaves out the calling process and zombies, and cannot see the processes of other users.
    """
    mark = f"{name}={value}".encode()
    if sys.platform == "linux":
        return _scan_proc(mark)
    return _scan_ps(mark)


def is_marked(pid: int, name: str, value: str) -> bool:
    """Return whether the process lives and was started with ``name=value`` in its environment."""
    if sys.platform == "linux":
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return False
        return f"{name}={value}".encode() in environment.split(b"\0")
    return pid in marked_processes(name, value)


def _scan_proc(mark: bytes) -> tuple[int, ...]:
    found = []
    own = os.getpid()
    for entry in os.scandir(_PROC):
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        try:
            environment = (_PROC / entry.name / "environ").read_bytes()
        except OSError:  # ended meanwhile, or not ours
            continue
        # A zombie's environment reads as empty, so it is left out without another look.
        if mark in environment.split(b"\0"):
            found.append(int(entry.name))
    return tuple(found)


def _scan_ps(mark: bytes) -> tuple[int, ...]:
    listing = subprocess.run(["ps", "-axwwE", "-o", "pid=,command="], capture_output=True, check=False).stdout
    found = []
    for line in listing.splitlines():
        words = line.split()
        if words and mark in words[1:] and int(words[0]) != os.getpid():
            found.append(int(words[0]))
    return tuple(found)


def kill_marked(name: str, value: str, *, timeout_seconds: float = 30.0) -> bool:
    """SIGKILL marked processes until two looks in a row find none; return whether that came in time.

    One look is not enough: a process may fork meanwhile, and in the middle of an exec it has no environment.
    """
    end = time.monotonic() + timeout_seconds
    num_empty = 0
    while True:
        pids = marked_processes(name, value)
        for pid in pids:
            signal_process(pid, signal.SIGKILL)
        num_empty = 0 if pids else num_empty + 1
        if num_empty == 2:
            return True
        if pids and time.monotonic() > end:
            return False
        time.sleep(0.005)


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that has ended is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
