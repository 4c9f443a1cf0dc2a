"""Linux namespaces, by system calls.

They work for root, and for other users where the kernel lets them make user namespaces.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# clone(2), mount(2), prctl(2)
NEW_MOUNTS = 0x00020000
NEW_HOST_NAME = 0x04000000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x2, 0x4, 0x8
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1


def unshare(flags: int) -> None:
    """Give the calling thread new namespaces; a new pid namespace is for the children it makes from now on.

    Raises:
        OSError: the kernel refuses.
    """
    _check(_libc().unshare(flags), "unshare")


def become_root() -> None:
    """Enter a user namespace of our own in which we are root; the process must have one thread.

    Raises:
        OSError: the kernel does not let this user do that.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(NEW_USER)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")


def enter(descriptor: int, kind: int) -> None:
    """Let the calling thread enter the namespace that the descriptor stands for."""
    _check(_libc().setns(descriptor, kind), "setns")


def die_with_parent() -> None:
    """Be killed when the thread that made this process ends; not inherited by our children."""
    parent = os.getppid()
    _check(_libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)  # it ended before the call


def keep_mounts_to_ourselves() -> None:
    """Share no mounts with other namespaces, in either direction; after ``unshare(NEW_MOUNTS)``."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE, "/")


def bind(source: Path, target: Path) -> None:
    """Show ``source``, with what is mounted in it, at ``target``, which exists."""
    _mount(str(source), str(target), None, _MS_BIND | _MS_REC, f"{source} at {target}")


def mount_proc() -> None:
    """Show the processes of the pid namespace at ``/proc``; called by its first process."""
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "/proc")


def mount_memory(target: Path) -> None:
    """Mount an empty file system in memory."""
    _mount("tmpfs", str(target), "tmpfs", _MS_NOSUID | _MS_NODEV, str(target))


def new_network() -> int:
    """Make a network namespace and return a descriptor of it; the caller stays in its own."""

    def make() -> int:
        unshare(NEW_NETWORK)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(make)


def in_network(descriptor: int, call: Callable[[], T]) -> T:
    """Return what ``call`` returns, run in the network namespace by a temporary thread.

    Sockets and processes that it makes stay in that namespace.
    """

    def run() -> T:
        enter(descriptor, NEW_NETWORK)
        return call()

    return _in_thread(run)


def _in_thread(call: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1, thread_name_prefix="namespace") as threads:
        return threads.submit(call).result()


def _mount(source: str, target: str, kind: str | None, flags: int, what: str) -> None:
    # Bytes, because paths have the file system's encoding, not the locale's.
    name = None if kind is None else kind.encode()
    status = _libc().mount(os.fsencode(source), os.fsencode(target), name, ctypes.c_ulong(flags), None)
    _check(status, f"mount {what}")


def _libc() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise OSError("namespaces need Linux")
    return ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
