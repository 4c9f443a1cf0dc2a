"""The background thread of a session: it reads the agent's orders and takes part in the rounds."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from cloudspot.train.distributed import Store, World
from cloudspot.train.handoff import read_drain
from cloudspot.train.rounds.interval import Pace
from cloudspot.train.rounds.rewind import Rewindable
from cloudspot.train.rounds.rounds import Rounds
from cloudspot.train.rounds.save_order import SaveOrder
from cloudspot.train.uncaught_errors import leave_at_once

PART_SECONDS = 10.0
"""How long rank 0, which hosts the store, waits for the other ranks before it leaves."""
REWOUND_SECONDS = 2.0
"""How long a main thread, which may be waiting for another rank, has to reach a point where it can leave."""
_JOIN_SECONDS = 5.0
_PART_POLL_SECONDS = 0.005
_LEAVE_POLL_SECONDS = 0.05


class Link:
    """The connection of a rank's main thread with its agent and the other ranks."""

    def __init__(
        self,
        handoff: Path,
        store: Store,
        server: Any,
        *,
        world: World,
        can_save: Callable[[], bool],
        room: Callable[[], int],
        rewindable: Rewindable,
    ) -> None:
        """Take part from the first boundary on, and keep ``server`` alive."""
        self.handoff = handoff
        self.rounds = Rounds(
            store,
            rank=world.rank,
            world_size=world.world_size,
            start=0,
            clock=time.monotonic,
            can_save=can_save,
            room=room,
            node=world.rank // world.local_world_size,
            rewindable=rewindable,
        )
        self.is_draining = False
        self.drain_guard = math.inf
        """The moment (monotonic) after which a save no longer helps; infinite without a drain."""
        self._server = server
        self._world = world
        self._drain_path = handoff / "drain.json"
        self._drain_seen: tuple[int, int] | None = None
        self._pace = Pace(handoff, now=time.monotonic()) if world.rank == 0 else None
        self._stopping = False
        self._complete = False
        self._thread = threading.Thread(target=self._run, name="cloudspot-link", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def saved(self, stall_seconds: float | None) -> None:
        """Record an interval save and its stall in rank 0's pace; None means that no slot was free."""
        if self._pace is not None and stall_seconds is not None:
            self._pace.saved(time.monotonic(), stall_seconds=stall_seconds)

    def save_again(self) -> None:
        """Request another interval save soon, because the last one failed on this rank."""
        if self._pace is None:
            self.rounds.wants_interval = True
        else:
            self._pace.hasten()

    def complete(self) -> SaveOrder | None:
        """Report the end of the loop: this rank serves no more rounds. Return an order to leave, if any."""
        order = self.rounds.finish()
        self._complete = order is None
        return order

    def part(self, *, agreed: bool, relieved: Collection[int] = ()) -> None:
        """End the thread; after an agreed drain, rank 0 waits until the other ranks have left.

        The ranks that take the states of the ranks in ``relieved`` may need the store until the guard.
        """
        if not self._stop() or not agreed or self._world.world_size == 1 or self.rounds.is_lost:
            return
        if relieved:
            self._await_others("parted", until=self.rounds.guard, but=relieved)
        self._await_others("parted", until=min(time.monotonic() + PART_SECONDS, self.rounds.guard))

    def close(self) -> None:
        """End the thread; after the end of the loop, rank 0 waits until the other ranks have finished."""
        if not self._thread.is_alive():
            return
        if self._stop() and self._complete and self._world.world_size > 1 and not self.rounds.is_lost:
            self._await_others("finished", until=time.monotonic() + PART_SECONDS)

    def _stop(self) -> bool:
        self._stopping = True
        self.rounds.wake()
        self._thread.join(_JOIN_SECONDS)
        return not self._thread.is_alive()

    def _await_others(self, what: str, *, until: float, but: Collection[int] = ()) -> None:
        # Rank 0's process hosts the store, so it must not end while other ranks still need the store.
        store, rank = self.rounds.store, self._world.rank
        keys = [f"{what}/{other}" for other in range(self._world.world_size) if other not in but]
        try:
            store.set(f"{what}/{rank}", "1")
            while rank == 0 and not store.check(keys) and time.monotonic() < until:
                time.sleep(_PART_POLL_SECONDS)
        except (RuntimeError, OSError):
            return  # the others have already left

    def _run(self) -> None:
        while not self._stopping:
            self._look_for_drain()
            if self._pace is not None and self.rounds.is_idle and self._pace.is_due(time.monotonic()):
                self._pace.asked(time.monotonic())
                self.rounds.request_interval()
            self.rounds.wait(self.rounds.poll())
            if self.rounds.is_rewound:
                self._leave_for_main()

    def _leave_for_main(self) -> None:
        """End the process if its main thread does not, for example because it waits for a rank that left."""
        until = min(time.monotonic() + REWOUND_SECONDS, self.drain_guard)
        while not self._stopping and time.monotonic() < until:
            self.rounds.wait(_LEAVE_POLL_SECONDS)
        if not self._stopping:
            self._await_others("parted", until=min(time.monotonic() + PART_SECONDS, self.drain_guard))
            leave_at_once()

    def _look_for_drain(self) -> None:
        try:
            status = self._drain_path.stat()
            seen = (status.st_ino, status.st_mtime_ns)
            if seen == self._drain_seen:
                return
            drain = read_drain(self.handoff)
        except (OSError, json.JSONDecodeError, TypeError):
            return  # missing or incomplete: look again later
        if drain is None:
            return
        self._drain_seen = seen
        self.is_draining = True
        self.drain_guard = drain.guard
        self.rounds.request_drain(guard=drain.guard, notice=drain.kind == "notice")
