"""A machine's processes: every descendant of its supervisor, and every process that carries its mark.

On Linux a process that calls setsid or forks twice stays a descendant, because the supervisor is the
subreaper of its tree, and it keeps the mark in its environment, by which it is found if the supervisor
itself was killed. Only a process that dropped its environment *and* lost its supervisor is not found.

macOS has no subreaper: a process that left its session, its parent and its environment is not found.
Nodes run Linux; on macOS the local provider is for trying things out.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from cloudspot.host.process_marks import kill_all, marked_processes, signal_process

MARK = "CLOUDSPOT_MACHINE"
"""The environment variable that every process of a machine carries, with ``MachineDirectory.mark``."""

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    group: int


def become_subreaper() -> None:
    """Adopt the orphans among our descendants, so that none leaves the tree; Linux only."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_children() -> None:
    """Reap every ended child of this process, adopted ones too."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def machine_processes(mark: str, *, root: int | None = None) -> set[int]:
    """Return the ids of the machine's living processes.

    ``root`` is the supervisor, which is not one of them; None when it is gone. The calling process is
    left out.
    """
    found = set(marked_processes(MARK, mark))
    found |= _descendants(found if root is None else {root, *found})
    return found - {root, os.getpid()}


def end_machine_processes(mark: str, *, root: int | None = None) -> None:
    """SIGKILL every process of the machine, and return when none is left.

    All are stopped first, so that none sees another die and acts on it, as on a machine that loses
    its power. A process in an uninterruptible wait is waited for.
    """
    stopped: set[int] = set()
    while new := machine_processes(mark, root=root) - stopped:
        for pid in new:
            signal_process(pid, signal.SIGSTOP)
        stopped |= new

    def find() -> set[int]:
        if root == os.getpid():
            reap_children()
        return machine_processes(mark, root=root)

    kill_all(find)


def _descendants(roots: set[int]) -> set[int]:
    """Return the roots' living descendants and, where there is no subreaper, their process groups."""
    processes = _linux_processes() if sys.platform == "linux" else _ps_processes()
    children: dict[int, list[_Process]] = defaultdict(list)
    groups: dict[int, list[_Process]] = defaultdict(list)
    for process in processes:
        children[process.parent].append(process)
        if sys.platform != "linux":
            groups[process.group].append(process)
    found: set[int] = set()
    waiting = [child for root in roots for child in children[root]]
    while waiting:
        process = waiting.pop()
        if process.pid in found:
            continue
        found.add(process.pid)
        waiting += children[process.pid]
        waiting += groups[process.group]
    return found


def _linux_processes() -> list[_Process]:
    """Return the processes that still run something."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended meanwhile
            continue
        # proc_pid_stat(5): pid (comm) state ppid pgrp ... num_threads is the 20th; comm may hold anything.
        fields = text.rpartition(")")[2].split()
        state, parent, group = fields[:3]
        # A process whose first thread has ended looks like a zombie, but its other threads run.
        if state not in "ZX" or int(fields[17]) > 1:
            found.append(_Process(int(entry.name), int(parent), int(group)))
    return found


def _ps_processes() -> list[_Process]:
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid=,state="], capture_output=True, check=True, text=True
    ).stdout
    found = []
    for line in listing.splitlines():
        pid, parent, group, state = line.split()
        if not state.startswith("Z"):
            found.append(_Process(int(pid), int(parent), int(group)))
    return found
