"""Keeps what a program starts within reach.

Run as ``python -IS process_keeper.py RECORDS ENDED PROGRAM ...``. A process can leave its parent, its group
and its session, and overwrite its arguments and its environment. On Linux it cannot leave the tree of a
process that adopts the orphans among its descendants. Such a keeper outlives whoever started it. RECORDS is a
directory in which the name of an empty file says which process it is, and when that was started;
``kept_processes`` reads it. If the file ENDED exists, nothing is started.

It needs only the standard library: a container may run it with a Python of its own.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys

KEEPER, WATCHER, OVER = "k", "w", ".over"
"""How a record's name begins, or ends once the program that the keeper has started is over."""
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_KILLED = 137


def adopt_orphans() -> None:
    """Adopt the orphans among our descendants, so that none leaves the tree; Linux only."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def start_of(pid: int) -> str | None:
    """Return what tells a process from a later one of its id, in letters and digits; None: it has ended."""
    if sys.platform != "linux":
        told = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return re.sub(r"\W+", "_", told.stdout.strip()) or None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is slow to import
            # The name, in parentheses, may hold anything. The 3rd field is the state, the 20th the threads,
            # the 22nd the start; proc(5). A process whose first thread has ended looks like a zombie.
            fields = file.read().rpartition(b")")[2].split()
            return None if fields[0] in b"ZX" and fields[17] == b"1" else fields[19].decode()
    except OSError:
        return None


def record(records: str, kind: str) -> str:
    """Let the agent find the descendants of this process; return the path of the record."""
    os.makedirs(records, exist_ok=True)  # noqa: PTH103
    path = f"{records}/{kind}{os.getpid()}-{start_of(os.getpid())}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    return path


def _keep(records: str, ended: str, words: list[str], report: int) -> None:
    """Be the keeper of a program, until the last of its descendants has ended."""
    adopt_orphans()
    begin, go = os.pipe()
    program = os.fork()
    if program == 0:
        os.close(go)
        if not os.read(begin, 1):
            os._exit(_KILLED)
        os.close(begin)
        os.setsid()
        try:
            os.execvp(words[0], words)  # noqa: S606 - the very program that was asked for
        except OSError as error:
            sys.stderr.write(f"{words[0]}: {error.strerror}\n")
            sys.stderr.flush()
            os._exit(127)
    # What the program was given to listen at or to write to ends with the program.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # In this order: whoever ends the program makes the file first, and then looks for records.
    path = record(records, KEEPER)
    if not os.path.exists(ended):  # noqa: PTH110
        os.write(go, b"!")
    os.close(go)
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return
        if pid == program:
            os.rename(path, path + OVER)  # noqa: PTH104
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            os.write(report, b"%d" % code)
            os.close(report)


def main() -> None:
    """Start the program below a keeper, and end as the program does."""
    records, ended, *words = sys.argv[1:]
    told, report = os.pipe()
    if os.fork() == 0:
        os.close(told)
        _keep(records, ended, words, report)
        os._exit(0)
    os.close(report)
    os._exit(int(os.read(told, 8) or _KILLED))


if __name__ == "__main__":
    main()
