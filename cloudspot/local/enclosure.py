"""Run a function in its own namespaces, so that all processes it starts end with it.

The function gets its own network with only a loopback interface, its own process tree and its own mounts.
When the function returns, or any process between it and the caller is killed, the kernel kills every process
inside; networks and mounts disappear with the last process.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cloudspot.errors import CloudspotError
from cloudspot.local import namespaces
from cloudspot.local.network import ip, system_path

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are passed on to the function."""
_WAITED = {*FORWARDED, signal.SIGCHLD}
_CANNOT_ENCLOSE = 119
"""The exit status of a process that could not create the namespaces."""


def why_not(*, shares_network: bool = False) -> str | None:
    """Try to enclose a function; return the reason if this host cannot, or None if it can."""
    if sys.platform != "linux":
        return "namespaces need Linux"
    if shutil.which("ip", path=system_path()) is None:
        return "the program ip (package iproute2) is missing"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _exit_with(lambda: _probe(writer, shares_network=shares_network))
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as answer:
        reason = answer.read()
    os.waitpid(child, 0)
    return reason or None


def run_enclosed(main: Callable[[], int], *, shares_network: bool = False) -> int:
    """Run ``main`` in an enclosed process, and return its exit status once all processes inside have ended.

    ``main`` may fork and start threads. Signals sent to this process are passed on to it; signals from the
    terminal reach it directly. If ``main`` raises, the traceback is printed and the status is 1. A status of
    128 + N means that signal N killed it. If ``shares_network``, the function uses the network of the caller,
    who must be enclosed.

    Raises:
        OSError: the namespaces cannot be created; see ``why_not``.
    """
    reader, writer = os.pipe()
    child = fork(lambda: _outer(main, writer, shares_network=shares_network))
    os.close(writer)
    status = stand_in_for(child)
    with os.fdopen(reader, encoding="utf-8") as failure:
        reason = failure.read()
    if status == _CANNOT_ENCLOSE and reason:
        raise OSError(errno.EPERM, reason)
    return status


def _outer(main: Callable[[], int], writer: int, *, shares_network: bool) -> int:
    """Create the namespaces; the next process that this one forks is their init."""
    namespaces.die_with_parent()
    try:
        _unshare(shares_network=shares_network)
    except OSError as error:
        os.write(writer, str(error).encode())
        return _CANNOT_ENCLOSE
    os.close(writer)
    return stand_in_for(fork(lambda: _init(main)))


def _init(main: Callable[[], int]) -> int:
    """Run as process 1: set up the mounts and reap orphans; all other processes end with this one."""
    namespaces.die_with_parent()
    _set_scene()
    return stand_in_for(fork(main))


def _unshare(*, shares_network: bool = False) -> None:
    kinds = namespaces.NEW_MOUNTS | namespaces.NEW_PIDS | namespaces.NEW_IPC
    if not shares_network:
        # Root does this too, to give up its power over the host.
        namespaces.become_root()
        kinds |= namespaces.NEW_NETWORK
    namespaces.unshare(kinds)


def _set_scene() -> None:
    namespaces.keep_mounts_to_ourselves()
    namespaces.mount_proc()
    # In a control group namespace, a process could mount the host's control groups, which our user may
    # change.
    Path("/proc/sys/user/max_cgroup_namespaces").write_text("0", encoding="ascii")
    namespaces.seal_proc()
    # Machines keep their memory there, which must disappear with this process tree.
    namespaces.mount_memory(Path("/dev/shm"))  # noqa: S108 # the kernel's memory file system
    ip("link", "set", "lo", "up")


def _probe(writer: int, *, shares_network: bool) -> int:
    try:
        _unshare(shares_network=shares_network)
    except OSError as error:
        os.write(writer, f"the kernel does not let this user make namespaces ({error})".encode())
        return 1
    child = os.fork()
    if child == 0:
        _exit_with(lambda: _probe_scene(writer))
    os.waitpid(child, 0)
    return 0


def _probe_scene(writer: int) -> int:
    try:
        _set_scene()
        _try_machine()
    except (OSError, CloudspotError) as error:
        os.write(writer, f"its namespaces cannot be set up ({error})".encode())
        return 1
    return 0


def _try_machine() -> None:
    """Try the kinds of mounts that a machine's view of the host needs."""
    place = Path("/dev/shm")  # noqa: S108 # as above
    namespaces.bind(Path("/etc"), place)
    namespaces.restrict(place)
    namespaces.mount_terminals(place)
    namespaces.mount_sys(place)
    namespaces.become_root()


def fork(main: Callable[[], int]) -> int:
    """Return the id of a new process that runs ``main`` and exits with its status.

    From now on, signals to this process are blocked until ``stand_in_for``.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous - _WAITED)
        _exit_with(main)
    return child


def _exit_with(main: Callable[[], int]) -> None:
    """Run ``main`` and exit this process with its status; no code of the caller runs in it."""
    status = 1
    try:
        status = main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 # printed here, because no caller does
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def stand_in_for(child: int) -> int:
    """Pass signals on to the child until it ends, reap all other children, and return the child's status."""
    try:
        while True:
            status = _reap(child)
            if status is not None:
                return status
            found = signal.sigwaitinfo(_WAITED)
            # Signals from the terminal (si_code > 0) go to all its processes, including the child.
            if found.si_signo != signal.SIGCHLD and found.si_code <= 0:
                with suppress(ProcessLookupError):
                    os.kill(child, found.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)


def _reap(child: int) -> int | None:
    """Reap ended children; return the exit status of ``child``, or None if it has not ended."""
    while True:
        # Process 1 reaps orphans too; in any other process, other code may wait for its own children.
        pid, status = os.waitpid(-1 if os.getpid() == 1 else child, os.WNOHANG)
        if pid == 0:
            return None
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
