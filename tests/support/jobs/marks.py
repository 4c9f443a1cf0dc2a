"""Finds processes of a test by their environment, which none of them overwrites."""

from __future__ import annotations

from cloudspot.host.process_marks import kill_all, marked_processes


def is_marked(pid: int, name: str, value: str) -> bool:
    """Return whether the process lives and was started with ``name=value`` in its environment."""
    return pid in marked_processes(name, value)


def kill_marked(name: str, value: str) -> bool:
    """SIGKILL the marked processes; return whether all have ended within half a minute."""
    return kill_all(lambda: marked_processes(name, value), timeout_seconds=30.0)
