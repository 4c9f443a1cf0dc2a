"""The keeper of another rank's own state, in case that rank is lost, and the messages sent to it (P8).

The keeper begins a connection with 32 random bytes. The giver answers with an HMAC of these bytes and its
rank, keyed with the generation's secret. A message consists of the header's length in 8 bytes, the header,
and the bytes of all changed pieces. The header is JSON: {"boundary", "step", "pieces": [[name, number of
bytes, or null if unchanged], ...]}.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import BinaryIO, NamedTuple

MAX_BYTES = 16 << 20
"""The maximum sizes of a header, and of the changed pieces in one message."""
WAIT_SECONDS = 5.0
"""How long to wait for a peer to read, or to prove its rank at the beginning."""
_RETRY_SECONDS = 0.1
PROOF_BYTES = 32

Name = tuple[str, ...]
"""The name of a piece of state."""


def keeper_of(rank: int, *, world_size: int, local_world_size: int) -> int:
    """Return the rank that keeps the own state of ``rank``: on the next machine, if there is one."""
    return (rank + (local_world_size if local_world_size < world_size else 1)) % world_size


class Given(NamedTuple):
    """The state that a rank gave for a boundary."""

    boundary: int
    step: int
    pieces: Mapping[Name, bytes]


class Keeper:
    """Listens for one other rank, and keeps the states that this rank gives."""

    def __init__(self, address: str, *, secret: str, giver: int) -> None:
        """Listen at an address of this machine.

        Raises:
            OSError: the address cannot be used.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        self.endpoint = f"{address}:{self._socket.getsockname()[1]}"
        self.seconds = 0.0
        """The processor time that the thread has used."""
        self._secret = secret
        self._giver = giver
        self._given: deque[Given] = deque(maxlen=2)
        self._connection: socket.socket | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="cloudspot-keeper", daemon=True)
        self._thread.start()

    def given_at(self, boundary: int, step: int) -> Given | None:
        """Return the state that was given for a boundary, or None."""
        there = (each for each in tuple(self._given) if (each.boundary, each.step) == (boundary, step))
        return next(there, None)

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        close_socket(self._socket)
        close_socket(self._connection)
        self._thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        # Bad peers and bad data end their own connection, but nothing else.
        bad = (OSError, EOFError, ValueError, TypeError, LookupError, RecursionError)
        while not self._is_closed:
            try:
                self._connection, _ = self._socket.accept()
            except OSError:  # closed, or too many files are open
                time.sleep(_RETRY_SECONDS)
                continue
            with self._connection, suppress(*bad):
                self._keep(self._connection)

    def _keep(self, connection: socket.socket) -> None:
        connection.settimeout(WAIT_SECONDS)
        challenge = secrets.token_bytes(PROOF_BYTES)
        connection.sendall(challenge)
        with connection.makefile("rb") as source:
            # Read only once: a stranger that sends a byte now and then must not block the giver.
            answer = connection.recv(PROOF_BYTES)
            if not hmac.compare_digest(answer, proof_of(self._secret, challenge, self._giver)):
                return
            connection.settimeout(None)
            pieces: Mapping[Name, bytes] = {}
            while True:
                num_bytes = int.from_bytes(read_exactly(source, 8), "big")
                began = time.thread_time()
                given = _receive(source, num_bytes, pieces)
                pieces = given.pieces
                self._given.append(given)
                self.seconds += time.thread_time() - began


def message(boundary: int, step: int, pieces: Collection[Name], changed: Mapping[Name, bytes]) -> bytes:
    """Return a message that names all ``pieces`` and contains those that ``changed`` since the last message.

    Raises:
        ValueError: the changed pieces are too large.
    """
    if (size := sum(map(len, changed.values()))) > MAX_BYTES:
        raise ValueError(
            f"the changed part of its own state has {size} bytes, more than {MAX_BYTES >> 20} MiB"
        )
    sizes = [[name, len(changed[name]) if name in changed else None] for name in pieces]
    header = json.dumps({"boundary": boundary, "step": step, "pieces": sizes}).encode()
    return b"".join((len(header).to_bytes(8, "big"), header, *changed.values()))


def _receive(source: BinaryIO, num_bytes: int, before: Mapping[Name, bytes]) -> Given:
    """Read a message whose header has ``num_bytes`` bytes.

    Raises:
        ValueError, TypeError, LookupError, RecursionError: the message is malformed.
        OSError, EOFError: the connection was lost.
    """
    if num_bytes > MAX_BYTES:
        raise ValueError(f"the header has {num_bytes} bytes, more than {MAX_BYTES}")
    header = json.loads(read_exactly(source, num_bytes))
    pieces: dict[Name, bytes] = {}
    room = 2 * MAX_BYTES  # unchanged pieces count too
    for each, size in header["pieces"]:
        name = tuple(map(str, each))
        if size is not None and not (isinstance(size, int) and 0 <= size <= room):
            raise ValueError(f"a piece has size {size!r}, but {room} bytes are left")
        pieces[name] = before[name] if size is None else read_exactly(source, size)
        room -= len(pieces[name])
    return Given(header["boundary"], header["step"], pieces)


def read_exactly(source: BinaryIO, num_bytes: int) -> bytes:
    """Return the next ``num_bytes`` bytes.

    Raises:
        EOFError: the connection ended before that.
    """
    data = source.read(num_bytes)
    if len(data) < num_bytes:
        raise EOFError("the connection has ended")
    return data


def proof_of(secret: str, challenge: bytes, rank: int) -> bytes:
    """Return the giver's answer to a challenge."""
    return hmac.digest(secret.encode(), b"%d " % rank + challenge, "sha256")


def close_socket(connection: socket.socket | None) -> None:
    """Close a socket; another thread that is using the socket gets an error."""
    if connection is not None:
        with suppress(OSError):  # it may already be disconnected
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
