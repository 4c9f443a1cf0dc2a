"""Start a program below a keeper process, so that all its descendants can be found.

Run it as ``python -IS process_keeper.py RECORDS ENDED PROGRAM ...``. A process can leave its parent, its
group and its session, and overwrite its arguments and environment. On Linux it cannot leave the tree of a
process that adopts the orphans among its descendants, as the keeper does. The keeper outlives its parent. If
allowed, the keeper also creates a control group, which identifies the descendants if the keeper is killed.
RECORDS is a directory with a file for each keeper: the file's name holds the keeper's process id and start
time, and its content is the control group. ``kept_processes`` reads these files. If the file ENDED exists,
nothing is started.

This module needs only the standard library, because a container may run it with its own Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys

KEEPER, WATCHER, OVER = "k", "w", ".over"
"""The prefixes of a record's name, and the suffix that marks that the keeper's program has ended."""
GROUP = "cloudspot-kept-"
"""The prefix of a control group's name."""
_GROUPING = ("pids", "freezer", "name=systemd")
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_KILLED = 137


def adopt_orphans() -> None:
    """Adopt the orphans among this process's descendants, so that none leaves the tree; only on Linux."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _own_groups() -> list[str]:
    """Return the directories of this process's control groups in which a child group can be created."""
    try:
        with open("/proc/self/cgroup") as file:  # noqa: PTH123
            lines = [line.rstrip("\n").split(":", 2) for line in file]
        with open("/proc/self/mountinfo") as file:  # noqa: PTH123
            mounts = [line.split() for line in file]
    except OSError:
        return []
    groups = []
    for fields in mounts:
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        for _, controllers, path in lines:
            # In version 1, only hierarchies without limits count: others would change the processes'
            # resources.
            is_v1 = kind == "cgroup" and controllers in _GROUPING and controllers in options
            if is_v1 or (kind == "cgroup2" and not controllers):
                inside = os.path.relpath(path, fields[3])
                if not inside.startswith(".."):
                    groups.append(os.path.normpath(os.path.join(fields[4], inside)))  # noqa: PTH118
    return groups


def make_group() -> str:
    """Move this process into a new control group; return the group's directory, or "" if none can be created.

    ``leave_group`` removes the group; if this keeper is killed with its processes, the next keeper does.
    """
    for parent in _own_groups():
        path = f"{parent}/{GROUP}{os.getpid()}-{start_of(os.getpid())}"
        try:
            for name in os.listdir(parent):  # noqa: PTH208
                if name.startswith(GROUP):
                    with contextlib.suppress(OSError):  # the group has processes
                        os.rmdir(f"{parent}/{name}")  # noqa: PTH106
            os.mkdir(path)  # noqa: PTH102
            enter_group(path)
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(path)  # noqa: PTH106
            continue
        return path
    return ""


def enter_group(path: str) -> None:
    """Move this process into a control group."""
    with open(f"{path}/cgroup.procs", "w") as file:  # noqa: PTH123
        file.write(str(os.getpid()))


def join_group(records: str) -> None:
    """Move this process into the control group of the keeper whose record is in ``records``."""
    with contextlib.suppress(OSError):
        for name in os.listdir(records):  # noqa: PTH208
            if name.startswith(KEEPER):
                with open(f"{records}/{name}") as file:  # noqa: PTH123
                    enter_group(file.read())


def leave_group(path: str) -> None:
    """Move this process, the last in its control group, to the parent group, and remove its own group."""
    with contextlib.suppress(OSError):
        enter_group(os.path.dirname(path))  # noqa: PTH120
        os.rmdir(path)  # noqa: PTH106


def start_of(pid: int) -> str | None:
    """Return the start time of a process, in letters and digits, or None if the process has ended.

    The start time distinguishes the process from a later process with the same id.
    """
    if sys.platform != "linux":
        told = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return re.sub(r"\W+", "_", told.stdout.strip()) or None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is slow to import
            # The process name, in parentheses, may contain any characters. Field 3 is the state, field 20 the
            # number of threads, and field 22 the start time; see proc(5). A process whose first thread has
            # ended looks like a zombie.
            fields = file.read().rpartition(b")")[2].split()
            return None if fields[0] in b"ZX" and fields[17] == b"1" else fields[19].decode()
    except OSError:
        return None


def record(records: str, kind: str, group: str = "") -> str:
    """Write a record with which the agent finds the descendants of this process; return its path."""
    os.makedirs(records, exist_ok=True)  # noqa: PTH103
    path = f"{records}/{kind}{os.getpid()}-{start_of(os.getpid())}"
    with open(path, "w") as file:  # noqa: PTH123
        file.write(group)
    return path


def _keep(records: str, ended: str, argv: list[str], report: int) -> None:
    """Run the keeper of a program until the program's last descendant has ended."""
    adopt_orphans()
    group = make_group()
    begin, go = os.pipe()
    program = os.fork()
    if program == 0:
        os.close(go)
        if not os.read(begin, 1):
            os._exit(_KILLED)
        os.close(begin)
        os.setsid()
        try:
            os.execvp(argv[0], argv)  # noqa: S606 - the very program that was asked for
        except OSError as error:
            sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
            sys.stderr.flush()
            os._exit(127)
    # The keeper must not keep the program's streams open.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    _stay()
    # The record is written before the check, because whoever ends the program first creates the file ENDED
    # and then looks for records.
    path = record(records, KEEPER, group)
    if not os.path.exists(ended):  # noqa: PTH110
        os.write(go, b"!")
    os.close(go)
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            leave_group(group)
            return
        if pid == program:
            os.rename(path, path + OVER)  # noqa: PTH104
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            os.write(report, b"%d" % code)
            os.close(report)


def _stay() -> None:
    """Ignore signals that are sent to all processes of a machine; only the program handles them."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def main() -> None:
    """Start the program below a keeper, and exit with the program's status."""
    records, ended, *argv = sys.argv[1:]
    reader, report = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        _keep(records, ended, argv, report)
        os._exit(0)
    os.close(report)
    _stay()
    os._exit(int(os.read(reader, 8) or _KILLED))


if __name__ == "__main__":
    main()
