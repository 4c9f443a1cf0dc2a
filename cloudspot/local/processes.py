"""A machine's processes: every descendant of its supervisor, and every process with its mark.

On Linux, a process that calls setsid or forks twice stays a descendant, because the supervisor is the
subreaper of its tree. It also keeps the mark in its environment, by which it is found if the supervisor was
killed. Only a process that dropped its environment *and* lost its supervisor is not found.

macOS has no subreaper, so a process that left its session, its parent and its environment is not found.
Nodes run Linux; on macOS the local provider is meant for trying things out.
"""

from __future__ import annotations

import os
import signal

from cloudspot.host.process_marks import kill_all, marked_processes, signal_process
from cloudspot.host.process_trees import descendants

MARK = "CLOUDSPOT_MACHINE"
"""The environment variable with ``MachineDirectory.mark`` that every process of a machine has."""


def reap_children() -> None:
    """Reap every ended child of this process, including adopted children."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def machine_processes(mark: str, *, root: int | None = None) -> set[int]:
    """Return the ids of the machine's living processes.

    ``root`` is the supervisor, which is not included; None if it is gone. The calling process is not included
    either.
    """
    found = set(marked_processes(MARK, mark))
    found |= descendants(found if root is None else {root, *found})
    return found - {root, os.getpid()}


def end_machine_processes(mark: str, *, root: int | None = None) -> None:
    """Kill every process of the machine with SIGKILL, and return when none is left.

    All are stopped first, so that none sees another process die and reacts, as on a machine that loses its
    power. A process in an uninterruptible wait is waited for.
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
