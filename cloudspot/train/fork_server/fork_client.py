"""Runs in place of a program that the fork server runs: passes signals on, and ends as the program does.

The command is ``python -IS fork_client.py SOCKET PYTHON [-u] (SCRIPT | -m MODULE) ...``. If the server does
not run the program, this process becomes the program. It imports only a little of the standard library,
because each start of a rank waits for it.
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
"""The format in which the watcher, a fork, sends the program's process id and later its exit status."""
GO = b"!"
"""The client's reply to the process id. The program begins only after this reply, and so never runs twice."""
START_SECONDS = 60.0
"""How long the server may take to import torch and fork; after that, the program is started normally."""


def at_socket(path: str, do: str) -> socket.socket:
    """Return a socket after ``bind`` or ``connect`` (``do``) at a path, which may exceed a socket's limit.

    Raises:
        OSError: the operation failed, for example because no process is listening there.
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
    """Return a socket that listens at the path, accessible only to this user, because its clients run code.

    Raises:
        OSError: the socket cannot be created.
    """
    listener = at_socket(path, "bind")
    try:
        os.chmod(path, 0o600)  # noqa: PTH101 - pathlib is slow to import
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def request(argv: Sequence[str]) -> bytes:
    """Return the request to the server: the directory, the words and the environment, with lengths."""
    variables = [name + b"=" + value for name, value in os.environb.items()]
    here = os.getcwdb()  # noqa: PTH109 - pathlib is slow to import
    parts = [here, str(len(argv)).encode(), *map(os.fsencode, argv), *variables]
    packed = b"\0".join(parts)
    return len(packed).to_bytes(4, "big") + packed


def _start(path: str, argv: Sequence[str]) -> tuple[socket.socket, int]:
    """Return the connection and the program's process id, or 0 if the server does not run the program."""
    connection = at_socket(path, "connect")
    connection.settimeout(START_SECONDS)
    asked = request(argv)
    socket.send_fds(connection, [asked[:4]], [0, 1, 2])
    connection.sendall(asked[4:])
    pid = int(_answer(connection) or 0)
    connection.settimeout(None)
    return connection, pid


def _answer(connection: socket.socket) -> bytes:
    """Return the next answer, which is empty if the watcher is gone or the program is not run."""
    return connection.recv(len(ANSWER % 0), socket.MSG_WAITALL)


def _forward(pid: int) -> socket.socket:
    """From now on, pass signals on to the process; return a socket that becomes readable at each signal.

    Without the socket, a signal that arrives just before ``select`` would be handled only after it returns.
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
    """Run the program through the server, or become the program: see the module."""
    path, *argv = sys.argv[1:]
    try:
        connection, pid = _start(path, argv)
        if pid != 0:
            waking = _forward(pid)  # before the program begins
            connection.sendall(GO)
    except OSError:
        pid = 0
    if pid == 0:
        os.execvp(argv[0], argv)  # noqa: S606 - the very program that was asked for
    while connection not in select.select([connection, waking], [], [])[0]:
        waking.recv(64)
    try:
        status = _answer(connection)
    except OSError:
        status = b""
    if not status:  # the watcher is gone, and only it could learn the status
        _signal(pid, signal.SIGKILL)
    os._exit(int(status or KILLED))


if __name__ == "__main__":
    main()
