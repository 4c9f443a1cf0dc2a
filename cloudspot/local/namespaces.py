"""Create and enter Linux namespaces with system calls.

They are available to root, and to other users if the kernel lets them create user namespaces.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# clone(2), mount(2), mount_setattr(2), pivot_root(2), umount2(2), prctl(2)
NEW_MOUNTS = 0x00020000
NEW_HOST_NAME = 0x04000000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 0x2
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 0x1, 0x2, 0x4
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_SETATTR = 442
_PIVOT_ROOT = 155 if platform.machine() == "x86_64" else 41  # asm-generic/unistd.h
_PR_SET_PDEATHSIG = 1


def unshare(flags: int) -> None:
    """Move the calling thread to new namespaces; a new pid namespace applies only to its later children.

    Raises:
        OSError: the kernel refuses.
    """
    _check(_libc().unshare(flags), "unshare")


def become_root() -> None:
    """Enter a new user namespace as its root; the process must have only one thread.

    The host's root keeps its power over files, and other users gain that power over their own files. No user
    keeps any power over the objects of the former user namespace: its mounts, networks and processes, and the
    kernel's clock and modules.

    Raises:
        OSError: the kernel does not allow this user to do so.
    """
    user, group = os.geteuid(), os.getegid()
    reader, writer = os.pipe()
    # Only a process in the namespace that we leave can map more ids than our own.
    mapper = os.fork()
    if mapper == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(_map_all_ids_of(os.getppid()))
    os.close(reader)
    try:
        unshare(NEW_USER)
    finally:
        os.close(writer)
        _, status = os.waitpid(mapper, 0)
    if status != 0:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")


def _map_all_ids_of(pid: int) -> int:
    """Map all ids of our user namespace into that of the process; return 0, or 1 without permission."""
    try:
        for name in ("gid_map", "uid_map"):
            ours = Path("/proc/self", name).read_text(encoding="ascii").splitlines()
            ranges = [(first, count) for first, _, count in map(str.split, ours)]
            lines = "".join(f"{first} {first} {count}\n" for first, count in ranges)
            Path(f"/proc/{pid}", name).write_text(lines, encoding="ascii")
    except OSError:
        return 1
    return 0


def enter(descriptor: int, kind: int) -> None:
    """Move the calling thread to the namespace that the descriptor refers to."""
    _check(_libc().setns(descriptor, kind), "setns")


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent thread ends; children do not inherit this."""
    parent = os.getppid()
    _check(_libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the call


def keep_mounts_to_ourselves() -> None:
    """Stop sharing mounts with other namespaces, in both directions; call ``unshare(NEW_MOUNTS)`` before."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE, "/")


def bind(source: Path, target: Path) -> None:
    """Show ``source`` and its submounts at ``target``, which must exist."""
    _mount(str(source), str(target), None, _MS_BIND | _MS_REC, f"{source} at {target}")


def restrict(target: Path, *, read_only: bool = True, no_devices: bool = True) -> None:
    """Make a mount and its submounts read-only, and disable setuid files and devices; needs Linux 5.12.

    Existing restrictions remain. A device in a read-only mount can still be written to.
    """
    # struct mount_attr: attr_set, attr_clr, propagation, userns_fd
    attributes = (ctypes.c_uint64 * 4)(_ATTR_NOSUID | read_only * _ATTR_RDONLY | no_devices * _ATTR_NODEV)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    path = os.fsencode(target)
    _call(_MOUNT_SETATTR, _AT_FDCWD, path, _AT_RECURSIVE, attributes, size, what=f"restrict {target}")


def mount_overlay(target: Path, layers: Sequence[Path], *, upper: Path) -> None:
    """Show several directories as one, the first on top; changes go to ``upper``.

    ``upper`` contains two empty directories, ``files`` and ``work``.

    Raises:
        OSError: the file system of ``upper`` does not support this, the kernel is older than 5.11, or one of
            ``layers`` contains a mount that this user namespace did not create.
    """
    with ExitStack() as opened:

        def at(path: Path) -> str:
            # Descriptors are used because a path may contain the option separators.
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            return f"/proc/self/fd/{descriptor}"

        options = f"userxattr,lowerdir={':'.join(map(at, layers))}"
        options += f",upperdir={at(upper / 'files')},workdir={at(upper / 'work')}"
        what = f"overlay at {target}"
        _mount("overlay", str(target), "overlay", _MS_NOSUID | _MS_NODEV, what, options)


def mount_proc(target: Path = Path("/proc")) -> None:
    """Show the processes of the pid namespace; its first process must call this."""
    _mount("proc", str(target), "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, str(target))


def seal_proc(target: Path = Path("/proc")) -> None:
    """Make the kernel's settings in ``/proc`` read-only, because they apply to the whole host."""
    for entry in os.scandir(target):
        if entry.name.isdigit() or entry.is_symlink():
            continue
        if entry.is_dir() or entry.stat().st_mode & 0o222:
            bind(Path(entry.path), Path(entry.path))
            restrict(Path(entry.path))


def mount_sys(target: Path) -> None:
    """Show the host's hardware and the network namespace's interfaces, read-only."""
    _mount("sysfs", str(target), "sysfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, str(target))


def mount_terminals(target: Path) -> None:
    """Mount a separate instance of pseudo-terminals, without those of the host."""
    flags, options = _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    _mount("devpts", str(target), "devpts", flags, str(target), options)


def mount_memory(target: Path) -> None:
    """Mount an empty in-memory file system."""
    _mount("tmpfs", str(target), "tmpfs", _MS_NOSUID | _MS_NODEV, str(target))


def change_root(root: Path) -> None:
    """Make the mount ``root`` the root of our mount namespace, and detach the old root."""
    os.chdir(root)
    _call(_PIVOT_ROOT, b".", b".", what=f"pivot_root {root}")
    # Both roots are at "/" now, with the old root on top.
    _check(_libc().umount2(b".", _MNT_DETACH), "umount the old root")
    os.chdir("/")


def new_network() -> int:
    """Create a network namespace and return a descriptor for it; the caller stays in its own namespace."""

    def make() -> int:
        unshare(NEW_NETWORK)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(make)


def in_network(descriptor: int, call: Callable[[], T]) -> T:
    """Return the result of ``call``, which a temporary thread runs in the network namespace.

    Sockets and processes that it creates stay in that namespace.
    """

    def run() -> T:
        enter(descriptor, NEW_NETWORK)
        return call()

    return _in_thread(run)


def _in_thread(call: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1, thread_name_prefix="namespace") as threads:
        return threads.submit(call).result()


def _mount(source: str, target: str, kind: str | None, flags: int, what: str, options: str = "") -> None:
    # Paths are passed as bytes, because they use the file system's encoding, not the locale's.
    name = None if kind is None else kind.encode()
    status = _libc().mount(
        os.fsencode(source), os.fsencode(target), name, ctypes.c_ulong(flags), options.encode()
    )
    _check(status, f"mount {what}")


def _call(number: int, *arguments: object, what: str) -> None:
    """Make a system call that has no function in the C library."""
    _check(_libc().syscall(ctypes.c_long(number), *arguments), what)


def _libc() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise OSError("namespaces need Linux")
    return ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
