"""This node's ear for the other nodes of its launch: heartbeats, notices and last words."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from cloudspot.agent.peers import LEAVING_STATES, PeerClock, Standing, appraise
from cloudspot.errors import CloudspotError, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.records import Exit, Heartbeat, Notice

if TYPE_CHECKING:
    from cloudspot.agent.life import Life

_log = logging.getLogger(__name__)

LISTEN_SECONDS = 1.0
"""How often the others' heartbeats are read while the training runs."""
REGROUP_SECONDS = 0.1
"""The same while the next generation is being agreed on."""
DRAIN_SECONDS = 120.0
"""How long at most the drain of a node that is gone may go on here: what it saves is worth waiting for."""


class Hearing:
    """A thread that reads the others' heartbeats, and what is known of each other node."""

    def __init__(self, life: Life) -> None:
        self._life = life
        rank = life.job.identity.rank
        self.others = tuple(other for other in range(life.job.spec.nodes.max) if other != rank)
        """The launch's other nodes."""
        self._lock = threading.Lock()
        """Guards what the thread writes: the clock and the heartbeats."""
        self._clock = PeerClock()
        self._beats: dict[int, Heartbeat | None] = {}
        self._lost: dict[int, float] = {}
        """Who has fallen silent or has said the last word, and since when (monotonic)."""
        # Create-only records never change: each is read until it is there, and kept.
        self._words: dict[int, Exit] = {}
        self._deadlines: dict[int, float] = {}
        """Of the nodes that have a notice; monotonic, an upper bound."""
        self._listening = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._listen, name="peers", daemon=True)

    def start(self) -> None:
        """Begin to listen; a job of one node has nobody to listen to."""
        if self.others:
            self._thread.start()

    def stop(self) -> None:
        """End the thread after its current pass."""
        self._stopped = True
        self._listening.set()

    @property
    def heard_seconds(self) -> float:
        """How long this node has been able to hear, in all."""
        with self._lock:
            return self._clock.heard_seconds

    def ask(self) -> None:
        """Ask anew who lives; the heartbeats come faster until that is settled."""
        with self._lock:
            self._clock.mark(time.monotonic())
        self._life.status.is_regrouping = True
        self._listening.set()

    def pause(self) -> None:
        """Wait for about as long as it takes to hear everyone once; an order ends it early."""
        self._listening.set()
        self._life.orders.wait(REGROUP_SECONDS)

    def beats(self) -> dict[int, Heartbeat | None]:
        """Return the others' newest heartbeats; asks no store."""
        with self._lock:
            return dict(self._beats)

    def lost(self, ranks: Collection[int], *, generation: int) -> frozenset[int]:
        """Return who among the ranks is gone without having finished; asks no store.

        A node that had a notice is not missed while the drain that it has asked for may go on.
        """
        now = time.monotonic()
        with self._lock:
            lost = dict(self._lost)
        gone = set()
        for rank, since in lost.items():
            word = self._words.get(rank)
            took_part = word is None or word.generation == generation
            wait_until = min(self._deadlines.get(rank, -math.inf), since + DRAIN_SECONDS)
            if not took_part or now >= wait_until:
                gone.add(rank)
        return frozenset(gone & set(ranks) - self.finished(generation))

    def finished(self, generation: int) -> frozenset[int]:
        """Return who is known to have finished the training in this generation; asks no store."""
        words = list(self._words.items())  # another thread may add one
        return frozenset(
            rank for rank, word in words if word.outcome == "succeeded" and word.generation == generation
        )

    def standing(self, rank: int, *, has_come: bool = False) -> Standing:
        """Return how another node stands, with a look for its last word and its notice.

        ``has_come``: that it has spoken at all is proof enough that it lives.
        """
        with self._lock:
            heard, beat = self._clock.standing(rank), self._beats.get(rank)
        has_to_go = self.last_word(rank) is not None or self.has_notice(rank)
        return appraise(heard, beat, has_to_go=has_to_go, has_come=has_come)

    def is_gone(self, rank: int) -> bool:
        """Say whether a node has said its last word, or is silent."""
        with self._lock:
            is_silent = self._clock.standing(rank) is Standing.SUSPECT
        return is_silent or self.last_word(rank) is not None

    def last_word(self, rank: int) -> Exit | None:
        """Return a node's exit record, or None while there is none."""
        self._life.insist(lambda: self._read_word(rank))
        return self._words.get(rank)

    def has_notice(self, rank: int) -> bool:
        """Say whether a node will be taken."""
        self._life.insist(lambda: self._read_notice(rank))
        return rank in self._deadlines

    def _read_word(self, rank: int) -> None:
        key = keys.exit_record(self._life.node.job_id, self._life.node.launch, rank)
        data = None if rank in self._words else _read(self._life.store, key)
        if data is not None:
            self._words[rank] = codec.decode(data, Exit, key=key)

    def _read_notice(self, rank: int) -> None:
        key = keys.notice(self._life.node.job_id, self._life.node.launch, rank)
        data = None if rank in self._deadlines else _read(self._life.store, key)
        if data is not None:
            notice = codec.decode(data, Notice, key=key)
            # Both moments are by the other node's clock; how long ago it wrote them nobody knows here.
            left = (notice.deadline - notice.at).total_seconds()
            self._deadlines[rank] = time.monotonic() + left

    # --- the thread -----------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._stopped:
            self._hear()
            regrouping = self._life.status.is_regrouping
            self._listening.wait(REGROUP_SECONDS if regrouping else LISTEN_SECONDS)
            self._listening.clear()

    def _hear(self) -> None:
        """Read the others' heartbeats once, and the records of those who leave or are silent."""
        asked_at = time.monotonic()
        try:
            beats = {rank: self._beat(rank) for rank in self.others}
            counters = {rank: None if beat is None else beat.counter for rank, beat in beats.items()}
            with self._lock:
                self._beats.update(beats)
                self._clock.hear(time.monotonic(), counters, asked_at=asked_at)
                suspects = self._clock.suspects(self.others)
            leaving = {rank for rank, beat in beats.items() if beat and beat.state in LEAVING_STATES}
            for rank in suspects | leaving:
                self._read_notice(rank)
                self._read_word(rank)
        except CloudspotError as error:
            _log.warning("the other nodes are not heard: %s", error)
            with self._lock:
                self._clock.hear(time.monotonic(), None)
            return
        now = time.monotonic()
        with self._lock:
            self._lost = {rank: self._lost.get(rank, now) for rank in suspects | self._words.keys()}

    def _beat(self, rank: int) -> Heartbeat | None:
        key = keys.heartbeat(self._life.node.job_id, self._life.node.launch, rank)
        data = _read(self._life.store, key)
        return None if data is None else codec.decode(data, Heartbeat, key=key)


def _read(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except ObjectMissing:
        return None
