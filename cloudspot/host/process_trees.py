"""Find the descendants of processes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    group: int


def descendants(roots: Collection[int]) -> set[int]:
    """Return the living descendants of the roots; on systems other than Linux, with their groups."""
    processes = _linux_processes() if sys.platform == "linux" else _ps_processes()
    children: dict[int, list[_Process]] = defaultdict(list)
    groups: dict[int, list[_Process]] = defaultdict(list)
    for process in processes:
        children[process.parent].append(process)
        if sys.platform != "linux":
            groups[process.group].append(process)
    pids: set[int] = set()
    waiting = [child for root in roots for child in children[root]]
    while waiting:
        process = waiting.pop()
        if process.pid in pids:
            continue
        pids.add(process.pid)
        waiting += children[process.pid]
        waiting += groups[process.group]
    return pids


def _linux_processes() -> list[_Process]:
    """Return the processes that have a running thread."""
    processes = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # ended in the meantime
            continue
        # proc_pid_stat(5): pid (comm) state ppid pgrp ... num_threads is field 20; comm may contain any
        # characters.
        fields = text.rpartition(")")[2].split()
        state, parent, group = fields[:3]
        # A process whose first thread has ended looks like a zombie, but its other threads run.
        if state not in "ZX" or int(fields[17]) > 1:
            processes.append(_Process(int(entry.name), int(parent), int(group)))
    return processes


def _ps_processes() -> list[_Process]:
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid=,state="], capture_output=True, check=True, text=True
    ).stdout
    processes = []
    for line in listing.splitlines():
        pid, parent, group, state = line.split()
        if not state.startswith("Z"):
            processes.append(_Process(int(pid), int(parent), int(group)))
    return processes
