"""A machine's processes: every descendant of its supervisor, and every process that has its mark.

On Linux, a process that calls setsid or forks twice remains a descendant, because the supervisor is the
subreaper of its tree. It also keeps the mark in its environment, which identifies it if the supervisor was
killed. Only a process that has dropped its environment *and* lost its supervisor is not found.

macOS has no subreaper, so a process that has left its session, its parent and its environment is not found.
Nodes run Linux; on macOS the local provider is meant only for trying cloudspot out.
"""

from __future__ import annotations

import os
import signal

from cloudspot.host.process_marks import kill_all, marked_processes, signal_process
from cloudspot.host.process_trees import descendants

MARK = "CLOUDSPOT_MACHINE"
"""The environment variable that holds ``MachineDirectory.mark`` in every process of a machine."""


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

    ``root`` is the supervisor, which is not included; None if the supervisor has ended. The calling process
    is not included either.
    """
    found = set(marked_processes(MARK, mark))
    found |= descendants(found if root is None else {root, *found})
    return found - {root, os.getpid()}


def end_machine_processes(mark: str, *, root: int | None = None) -> None:
    """Kill every process of the machine with SIGKILL, and return when none is left.

    All processes are stopped first, so that none sees another process die and reacts; it is as if the machine
    lost power. This waits for a process in uninterruptible sleep.
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
