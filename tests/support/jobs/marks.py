"""Finds processes of a test by their environment, which none of them overwrites."""

from __future__ import annotations

from pathlib import Path

from cloudspot.host.kept_processes import KeptProcesses
from cloudspot.host.process_marks import kill_all, marked_processes
from cloudspot.train.fork_server.fork_server import MARK


def is_marked(pid: int, name: str, value: str) -> bool:
    """Return whether the process lives and was started with ``name=value`` in its environment."""
    return pid in marked_processes(name, value)


def kill_marked(name: str, value: str) -> bool:
    """SIGKILL the marked processes; return whether all have ended within half a minute."""
    return kill_all(lambda: marked_processes(name, value), timeout_seconds=30.0)


def fork_servers(node: Path) -> tuple[int, ...]:
    """Return the fork server of a node's directory, if it lives, without the programs that it has forked."""
    kept = KeptProcesses(node / "fork-server.processes").pids()
    return tuple(kept.intersection(marked_processes(MARK, str(node / "fork-server.socket"))))
