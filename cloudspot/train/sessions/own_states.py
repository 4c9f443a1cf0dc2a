"""How ranks hand over what each of them alone has, at each boundary, in case one is lost (P8).

Each rank gives it to its keeper, over a connection of its own, from a thread: the main thread waits for
nothing. It sends what has changed since the boundary before.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any

from cloudspot.train.distributed import Store, World, open_store
from cloudspot.train.rounds.keeper import (
    PROOF_BYTES,
    WAIT_SECONDS,
    Keeper,
    Name,
    close_socket,
    keeper_of,
    message,
    proof_of,
    read_exactly,
)
from cloudspot.train.state import own_pieces
from cloudspot.train.state.boundary_marks import BoundaryMarks, Mark
from cloudspot.train.state.own_pieces import OwnState

SHARE = 0.005
"""The share of the time that handing over may take."""
NUM_COUNTED = 32
"""It is looked at after so many boundaries; the first ones, with the connection and all pieces, are free."""
BYTES_PER_SECOND = 1e9
"""What a network carries that ranks train over."""
CONNECT_SECONDS = 60.0
_POLL_SECONDS = 0.1
_REACHED_SECONDS = 0.002


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
        ranks = range(world.world_size)
        self._giver_rank = next(rank for rank in ranks if _keeper_of(rank, world) == world.rank)
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
        self._woken: SimpleQueue[None] = SimpleQueue()  # unlike an Event, that costs the main thread 2 µs
        self._stopped = False
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def offer(self, mark: Mark) -> None:
        """Give what this rank has at a mark, unless a newer one is offered before that is possible."""
        self._offered = mark
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="cloudspot-giver", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there are too many
                self._end(str(error))
                return
            self._thread = thread
        self._woken.put(None)

    def close(self) -> None:
        """End the thread."""
        self._stopped = True
        self._woken.put(None)
        close_socket(self._connection)
        if self._thread is not None:
            self._thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        try:
            with self._connect() as self._connection:
                self._give(self._connection)
        except (OSError, EOFError) as error:
            self._end(f"no connection to rank {_keeper_of(self._world.rank, self._world)}: {error}")
        except Exception as error:  # the training goes on without this
            self._end(str(error) or type(error).__name__)

    def _end(self, why: str) -> None:
        self.has_ended = True
        if not self._stopped:
            self._report(why)

    def _connect(self) -> socket.socket:
        store, _kept = open_store(self._world)
        key = _key(_keeper_of(self._world.rank, self._world))
        until = time.monotonic() + CONNECT_SECONDS
        while not store.check([key]):
            if self._stopped or time.monotonic() > until:
                raise TimeoutError("it has not said where it listens")
            time.sleep(_POLL_SECONDS)
        address, _, port = store.get(key).decode().rpartition(":")
        connection = socket.create_connection((address, int(port)), timeout=CONNECT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection.makefile("rb") as source:  # which may listen to another one first
            connection.sendall(proof_of(self._secret, read_exactly(source, PROOF_BYTES), self._world.rank))
        connection.settimeout(WAIT_SECONDS)
        return connection

    def _next(self) -> Iterator[Mark]:
        while True:
            self._woken.get()
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
            while not mark.is_reached and self._offered is None and not self._stopped:
                time.sleep(_REACHED_SECONDS)  # a device that is waited for takes a core, or never comes
            if not mark.is_reached:
                continue
            began = time.thread_time()
            if (problem := own_pieces.obstacle(mark, rank=self._world.rank)) is not None:
                raise ValueError(problem)
            with self._marks.after(mark):
                pieces = own_pieces.take(mark, rank=self._world.rank)
            changed = {
                name: own_pieces.encode(name, each)
                for name, each in pieces.items()
                if name not in before or not own_pieces.is_same(before[name], each)
            }
            sent = message(mark.number, mark.step, pieces, changed)
            connection.sendall(sent)
            before = pieces
            spent += time.thread_time() - began
            num_bytes += len(sent)
            if count % NUM_COUNTED == 0:
                now, whole = time.monotonic(), spent + self._keeper.seconds + num_bytes / BYTES_PER_SECOND
                share = (whole - spent_before) / max(now - checked_at, 1e-9)
                if count > NUM_COUNTED and share > SHARE:
                    raise ValueError(f"it would take {share:.2%} of each step, for {len(sent)} bytes")
                spent_before, checked_at = whole, now


def _keeper_of(rank: int, world: World) -> int:
    return keeper_of(rank, world_size=world.world_size, local_world_size=world.local_world_size)


def _key(rank: int) -> str:
    return f"keeper/{rank}"
