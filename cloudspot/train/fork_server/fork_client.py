"""Stands in for a Python program that the fork server runs: passes signals on, and ends as the program does.

Run as ``python -IS fork_client.py SOCKET PYTHON [-u] (SCRIPT | -m MODULE) ...``. Where the server does not
run the program, this process becomes it. It needs only the standard library, and little of that: each start
of a rank waits for it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Sequence

FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
KILLED = 128 + signal.SIGKILL
ANSWER = b"%16d"
"""How the fork that watches over the program tells its process, and then its status."""
GO = b"!"
"""What the client answers to the first; until then the program does not begin, so it never runs twice."""
START_SECONDS = 60.0
"""How long the server may take to import torch and fork; after that, the program is started without it."""


def at_socket(path: str, do: str) -> socket.socket:
    """Return a socket after ``bind`` or ``connect`` at the path, which may be longer than sockets take.

    Raises:
        OSError: nobody listens there.
    """
    directory, _, name = path.rpartition("/")
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        getattr(connection, do)(f"/proc/self/fd/{descriptor}/{name}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(descriptor)
    return connection


def listen_at(path: str) -> socket.socket:
    """Return a socket that listens at the path, for this user alone, who runs code there.

    Raises:
        OSError: it cannot be made.
    """
    listener = at_socket(path, "bind")
    try:
        os.chmod(path, 0o600)  # noqa: PTH101 - pathlib is slow to import
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def request(words: Sequence[str]) -> bytes:
    """Return what the server is sent: the directory, the words and the environment, with their lengths."""
    variables = [name + b"=" + value for name, value in os.environb.items()]
    here = os.getcwdb()  # noqa: PTH109 - pathlib is slow to import
    parts = [here, str(len(words)).encode(), *map(os.fsencode, words), *variables]
    packed = b"\0".join(parts)
    return len(packed).to_bytes(4, "big") + packed


def _start(path: str, words: Sequence[str]) -> tuple[socket.socket, int]:
    """Return the connection and the id of the program's process; 0: the server does not run it."""
    connection = at_socket(path, "connect")
    connection.settimeout(START_SECONDS)
    asked = request(words)
    socket.send_fds(connection, [asked[:4]], [0, 1, 2])
    connection.sendall(asked[4:])
    pid = int(_answer(connection) or 0)
    connection.settimeout(None)
    return connection, pid


def _answer(connection: socket.socket) -> bytes:
    """Return the next answer; nothing if nobody is left to give it, or the program is not run."""
    return connection.recv(len(ANSWER % 0), socket.MSG_WAITALL)


def _forward(pid: int) -> socket.socket:
    """Pass signals on to the process from now on; return a socket that can be read after each of them.

    A signal that comes just before a process blocks is told to it only when it wakes up.
    """
    waking, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.detach())
    for number in FORWARDED:
        signal.signal(number, lambda received, _frame: _signal(pid, received))
    return waking


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has just ended
        return


def main() -> None:
    """See the module."""
    path, *words = sys.argv[1:]
    try:
        connection, pid = _start(path, words)
        if pid != 0:
            waking = _forward(pid)  # before the program begins
            connection.sendall(GO)
    except OSError:
        pid = 0
    if pid == 0:
        os.execvp(words[0], words)  # noqa: S606 - the very program that was asked for
    while connection not in select.select([connection, waking], [], [])[0]:
        waking.recv(64)
    try:
        status = _answer(connection)
    except OSError:
        status = b""
    if not status:  # the program's parent is gone, and nobody else learns the status
        _signal(pid, signal.SIGKILL)
    os._exit(int(status or KILLED))


if __name__ == "__main__":
    main()
