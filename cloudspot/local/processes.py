"""A machine's processes: every descendant of its supervisor, and every process that carries its mark.

On Linux a process that calls setsid or forks twice stays a descendant, because the supervisor is the
subreaper of its tree, and it keeps the mark in its environment, by which it is found if the supervisor
itself was killed. Only a process that dropped its environment *and* lost its supervisor is not found.

macOS has no subreaper: a process that left its session, its parent and its environment is not found.
Nodes run Linux; on macOS the local provider is for trying things out.
"""

from __future__ import annotations

import os
import signal

from cloudspot.host.process_marks import kill_all, marked_processes, signal_process
from cloudspot.host.process_trees import descendants

MARK = "CLOUDSPOT_MACHINE"
"""The environment variable that every process of a machine carries, with ``MachineDirectory.mark``."""


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
    found |= descendants(found if root is None else {root, *found})
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
