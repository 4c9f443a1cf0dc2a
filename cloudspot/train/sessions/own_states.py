"""How ranks hand over what each of them alone has, at each boundary, in case one is lost (P8).

Each rank gives it to its keeper, over a connection of its own, from a thread: the main thread waits for
nothing. Messages hold what has changed since the boundary before; the keeper knows the last two boundaries.

A connection begins with 32 random bytes from the keeper. The giver answers with an HMAC of these and of its
rank by the secret of the generation. A message is the length of its header in 8 bytes, the header, which is
JSON of {"boundary", "step", "pieces": [[name, its bytes, or null as before], ...]}, and these bytes.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

from cloudspot.train.distributed import Store, World, open_store
from cloudspot.train.state import own_pieces
from cloudspot.train.state.boundary_marks import BoundaryMarks, Mark
from cloudspot.train.state.own_pieces import Name, OwnState

SHARE = 0.005
"""The share of the time that handing over may take."""
NUM_COUNTED = 32
"""It is looked at after so many boundaries; the first ones, with the connection and all pieces, are free."""
BYTES_PER_SECOND = 1e9
"""What a network carries that ranks train over."""
MAX_BYTES = 16 << 20
"""The pieces of one state are no larger, nor is a header."""
WAIT_SECONDS = 5.0
"""How long a peer that does not read, or says nothing at first, is waited for."""
CONNECT_SECONDS = 60.0
_POLL_SECONDS = 0.1
_PROOF_BYTES = 32


class Given(NamedTuple):
    """What a rank has given at a boundary."""

    boundary: int
    step: int
    pieces: Mapping[Name, bytes]


def keeper_of(rank: int, world: World) -> int:
    """Return the rank that keeps what another alone has: on the next machine, if there is more than one."""
    num_local, num_all = world.local_world_size, world.world_size
    return (rank + (num_local if num_local < num_all else 1)) % num_all


class OwnStates:
    """Gives what this rank alone has to one other, and keeps what another gives."""

    def __init__(
        self, told: str, store: Store, marks: BoundaryMarks, *, world: World, report: Callable[[str], None]
    ) -> None:
        """Listen, and tell the other ranks through ``store``, before another thread uses it.

        The agent has ``told`` the secret of the generation and the address of this machine. If nothing is
        given any more, ``report`` gets the reason.
        """
        secret, _, address = told.partition("@")
        self._giver_rank = next(
            each for each in range(world.world_size) if keeper_of(each, world) == world.rank
        )
        self._keeper = Keeper(address, secret=secret, giver=self._giver_rank)
        store.set(_key(world.rank), self._keeper.endpoint)
        self._giver = Giver(secret, marks, world=world, keeper=self._keeper, report=report)
        self._rank = world.rank
        self._newest: Mark | None = None

    def offer(self, mark: Mark | None, *, draws: bool) -> None:
        """Give what this rank has at a mark: if it ``draws`` random numbers, or on rank 0 has buffers."""
        if mark is None or mark is self._newest or self._giver.has_ended:
            return
        if draws or (self._rank == 0 and any(each.buffers for each in mark.models.values())):
            self._newest = mark
            self._giver.offer(mark)

    def at(self, mark: Mark) -> dict[int, OwnState]:
        """Return what other ranks had at the boundary of a mark, by rank, as far as it is here."""
        given = self._keeper.given_at(mark.number, mark.step)
        own = None if given is None else own_pieces.rebuild(given.pieces, mark, rank=self._giver_rank)
        return {} if own is None else {self._giver_rank: own}

    def close(self) -> None:
        """End the threads."""
        self._giver.close()
        self._keeper.close()


class Keeper:
    """Listens for one other rank, and keeps what that gives."""

    def __init__(self, address: str, *, secret: str, giver: int) -> None:
        """Listen at an address of this machine.

        Raises:
            OSError: that is impossible.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        self.endpoint = f"{address}:{self._socket.getsockname()[1]}"
        self.seconds = 0.0
        """How long the thread has worked."""
        self._secret = secret
        self._giver = giver
        self._given: deque[Given] = deque(maxlen=2)
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="cloudspot-keeper", daemon=True)
        self._thread.start()

    def given_at(self, boundary: int, step: int) -> Given | None:
        """Return what was given at a boundary, or None."""
        there = (each for each in tuple(self._given) if (each.boundary, each.step) == (boundary, step))
        return next(there, None)

    def close(self) -> None:
        """End the thread."""
        _close(self._socket)
        _close(self._connection)
        self._thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        # Whoever connects, and whatever comes, ends that connection and nothing else.
        bad = (OSError, EOFError, ValueError, TypeError, LookupError, RecursionError)
        with suppress(OSError):  # closed
            while True:
                self._connection, _ = self._socket.accept()
                with self._connection, suppress(*bad):
                    self._keep(self._connection)

    def _keep(self, connection: socket.socket) -> None:
        connection.settimeout(WAIT_SECONDS)
        challenge = secrets.token_bytes(_PROOF_BYTES)
        connection.sendall(challenge)
        with connection.makefile("rb") as source:
            proof = _read(source, _PROOF_BYTES)
            if not hmac.compare_digest(proof, _proof(self._secret, challenge, self._giver)):
                return
            connection.settimeout(None)
            pieces: Mapping[Name, bytes] = {}
            while True:
                num_bytes = int.from_bytes(_read(source, 8), "big")
                began = time.thread_time()
                given = _receive(source, num_bytes, pieces)
                pieces = given.pieces
                self._given.append(given)
                self.seconds += time.thread_time() - began


class Giver:
    """Gives what this rank alone has to its keeper."""

    def __init__(
        self,
        secret: str,
        marks: BoundaryMarks,
        *,
        world: World,
        keeper: Keeper,
        report: Callable[[str], None],
    ) -> None:
        """Do nothing before the first ``offer``; what this rank's own ``keeper`` costs counts, too."""
        self._secret = secret
        self._marks = marks
        self._world = world
        self._keeper = keeper
        self._report = report
        self.has_ended = False
        """Whether nothing more is given."""
        self._offered: Mark | None = None
        self._woken = threading.Event()
        self._stopped = False
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def offer(self, mark: Mark) -> None:
        """Give what this rank has at a mark, unless a newer one is offered before that is possible."""
        self._offered = mark
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cloudspot-giver", daemon=True)
            self._thread.start()
        self._woken.set()

    def close(self) -> None:
        """End the thread."""
        self._stopped = True
        self._woken.set()
        _close(self._connection)
        if self._thread is not None:
            self._thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        try:
            with self._connect() as self._connection:
                self._give(self._connection)
        except Exception as error:  # the training goes on without this
            self.has_ended = True
            if not self._stopped:
                self._report(str(error) or type(error).__name__)

    def _connect(self) -> socket.socket:
        store, _kept = open_store(self._world)
        key = _key(keeper_of(self._world.rank, self._world))
        until = time.monotonic() + CONNECT_SECONDS
        while not store.check([key]):
            if self._stopped or time.monotonic() > until:
                raise TimeoutError("the rank that is to keep it has not said where it listens")
            time.sleep(_POLL_SECONDS)
        address, _, port = store.get(key).decode().rpartition(":")
        connection = socket.create_connection((address, int(port)), timeout=WAIT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection.makefile("rb") as source:
            connection.sendall(_proof(self._secret, _read(source, _PROOF_BYTES), self._world.rank))
        return connection

    def _next(self) -> Iterator[Mark]:
        while True:
            self._woken.wait()
            self._woken.clear()
            mark, self._offered = self._offered, None
            if self._stopped:
                return
            if mark is not None:
                yield mark

    def _give(self, connection: socket.socket) -> None:
        """Give what is offered, as long as that is cheap.

        Raises:
            ValueError: it is not, or impossible.
            OSError: the connection is lost.
        """
        before: Mapping[Name, Any] = {}
        spent, num_bytes, spent_before, checked_at = 0.0, 0, 0.0, 0.0
        for count, mark in enumerate(self._next(), 1):
            began = time.thread_time()
            if (problem := own_pieces.obstacle(mark, rank=self._world.rank)) is not None:
                raise ValueError(problem)
            with self._marks.after(mark):
                pieces = own_pieces.take(mark, rank=self._world.rank)
            message = _message(mark, pieces, before)
            connection.sendall(message)
            before = pieces
            spent += time.thread_time() - began
            num_bytes += len(message)
            if count % NUM_COUNTED == 0:
                now, whole = time.monotonic(), spent + self._keeper.seconds + num_bytes / BYTES_PER_SECOND
                share = (whole - spent_before) / max(now - checked_at, 1e-9)
                if count > NUM_COUNTED and share > SHARE:
                    raise ValueError(f"it would take {share:.2%} of each step, for {len(message)} bytes")
                spent_before, checked_at = whole, now


def _message(mark: Mark, pieces: Mapping[Name, Any], before: Mapping[Name, Any]) -> bytes:
    changed = {
        name: own_pieces.encode(name, each)
        for name, each in pieces.items()
        if name not in before or not own_pieces.is_same(before[name], each)
    }
    if sum(map(len, changed.values())) > MAX_BYTES:
        raise ValueError(f"it is more than {MAX_BYTES >> 20} MiB")
    sizes = [[name, len(changed[name]) if name in changed else None] for name in pieces]
    header = json.dumps({"boundary": mark.number, "step": mark.step, "pieces": sizes}).encode()
    return b"".join((len(header).to_bytes(8, "big"), header, *changed.values()))


def _receive(source: BinaryIO, num_bytes: int, before: Mapping[Name, bytes]) -> Given:
    """Read a message with a header of so many bytes.

    Raises:
        ValueError, TypeError, LookupError, RecursionError: it is malformed.
        OSError, EOFError: the connection is lost.
    """
    if num_bytes > MAX_BYTES:
        raise ValueError("the header is too large")
    header = json.loads(_read(source, num_bytes))
    pieces: dict[Name, bytes] = {}
    room = 2 * MAX_BYTES  # what has not changed counts, too
    for each, size in header["pieces"]:
        name = tuple(map(str, each))
        if size is not None and not (isinstance(size, int) and 0 <= size <= room):
            raise ValueError("it is too large")
        pieces[name] = before[name] if size is None else _read(source, size)
        room -= len(pieces[name])
    return Given(header["boundary"], header["step"], pieces)


def _read(source: BinaryIO, num_bytes: int) -> bytes:
    data = source.read(num_bytes)
    if len(data) < num_bytes:
        raise EOFError("the connection has ended")
    return data


def _proof(secret: str, challenge: bytes, rank: int) -> bytes:
    return hmac.digest(secret.encode(), b"%d " % rank + challenge, "sha256")


def _key(rank: int) -> str:
    return f"keeper/{rank}"


def _close(connection: socket.socket | None) -> None:
    if connection is not None:
        with suppress(OSError):  # it is not connected any more
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
