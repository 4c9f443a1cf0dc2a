"""How ranks hand over their own states at each boundary, in case a rank is lost (P8).

A rank's own state is the part of the state that no other rank has. A thread sends the changes since the
previous boundary to the rank's keeper over its own connection; the main thread never waits for it.
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
"""The share of the time that handing over may use."""
NUM_COUNTED = 32
"""The number of boundaries between two checks of this share. The first check is skipped, because its time
includes the connection and the first transfer of all pieces."""
BYTES_PER_SECOND = 1e9
"""The assumed speed of the network between the ranks."""
CONNECT_SECONDS = 60.0
_POLL_SECONDS = 0.1
_REACHED_SECONDS = 0.002


class OwnStates:
    """Gives this rank's own state to one other rank, and keeps the own state of another."""

    def __init__(
        self,
        secret_and_address: str,
        store: Store,
        marks: BoundaryMarks,
        *,
        world: World,
        report: Callable[[str], None],
    ) -> None:
        """Listen, and publish the address in ``store``; call this before another thread uses the store.

        ``secret_and_address``, which the agent provides, is the generation's secret and this machine's
        address, joined by an ``@``. If giving ends early, ``report`` is called with the reason.
        """
        secret, _, address = secret_and_address.partition("@")
        ranks = range(world.world_size)
        self._giver_rank = next(rank for rank in ranks if _keeper_of(rank, world) == world.rank)
        self._keeper = Keeper(address, secret=secret, giver=self._giver_rank)
        store.set(_key(world.rank), self._keeper.endpoint)
        self._giver = Giver(secret, marks, world=world, keeper=self._keeper, report=report)
        self._rank = world.rank
        self._newest: Mark | None = None

    def offer(self, mark: Mark | None, *, draws: bool) -> None:
        """Give the own state at a mark if steps draw random numbers (``draws``) or rank 0 has buffers."""
        if mark is None or mark is self._newest or self._giver.has_ended:
            return
        if draws or (self._rank == 0 and any(each.buffers for each in mark.models.values())):
            self._newest = mark
            self._giver.offer(mark)

    def at(self, mark: Mark) -> dict[int, OwnState]:
        """Return the own states of other ranks at a mark's boundary, by rank, where they are kept here."""
        given = self._keeper.given_at(mark.number, mark.step)
        own = None if given is None else own_pieces.rebuild(given.pieces, mark, rank=self._giver_rank)
        return {} if own is None else {self._giver_rank: own}

    def close(self) -> None:
        """End the threads."""
        self._giver.close()
        self._keeper.close()


class Giver:
    """Gives this rank's own state to its keeper."""

    def __init__(
        self,
        secret: str,
        marks: BoundaryMarks,
        *,
        world: World,
        keeper: Keeper,
        report: Callable[[str], None],
    ) -> None:
        """Do nothing until the first ``offer``. The time used by this rank's own ``keeper`` also counts."""
        self._secret = secret
        self._marks = marks
        self._world = world
        self._keeper = keeper
        self._report = report
        self.has_ended = False
        """Whether giving has ended for good."""
        self._offered: Mark | None = None
        self._woken: SimpleQueue[None] = (
            SimpleQueue()
        )  # putting costs the main thread only 2 µs, unlike an Event
        self._stopped = False
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def offer(self, mark: Mark) -> None:
        """Give the own state at a mark, unless a newer mark is offered before it can be given."""
        self._offered = mark
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="cloudspot-giver", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there are too many threads
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
        except Exception as error:  # the training continues without this
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
                raise TimeoutError("the keeper has not published its address")
            time.sleep(_POLL_SECONDS)
        address, _, port = store.get(key).decode().rpartition(":")
        connection = socket.create_connection((address, int(port)), timeout=CONNECT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection.makefile("rb") as source:  # the keeper may accept another connection first
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
        """Give the offered states as long as this takes no more than ``SHARE`` of the time.

        Raises:
            ValueError: giving takes more time than that, or is impossible.
            OSError: the connection was lost.
        """
        before: Mapping[Name, Any] = {}
        spent, num_bytes, spent_before, checked_at = 0.0, 0, 0.0, 0.0
        for count, mark in enumerate(self._next(), 1):
            while not mark.is_reached and self._offered is None and not self._stopped:
                time.sleep(_REACHED_SECONDS)  # waiting for a device would use a core and may never end
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
                    raise ValueError(f"handing over {len(sent)} bytes takes too long: {share:.2%} of a step")
                spent_before, checked_at = whole, now


def _keeper_of(rank: int, world: World) -> int:
    return keeper_of(rank, world_size=world.world_size, local_world_size=world.local_world_size)


def _key(rank: int) -> str:
    return f"keeper/{rank}"
