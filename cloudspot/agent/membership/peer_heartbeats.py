"""What this node knows of the other nodes of its launch: heartbeats, notices and exit records.

One listing shows all of them, so the requests of a launch grow with its nodes and not with their square. It
shows who lives; a heartbeat itself is read only when its size says that its node has changed
(``heartbeat_size``). Notices and exit records are read once each.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Collection, Mapping
from datetime import datetime, timezone

from cloudspot.agent.membership.peers import PeerClock, Standing, appraise
from cloudspot.agent.node_context import NodeContext
from cloudspot.errors import CloudspotError
from cloudspot.jobstore import keys
from cloudspot.jobstore.delivering import DRAIN_SECONDS
from cloudspot.jobstore.heartbeat_size import change_count
from cloudspot.jobstore.records import Exit, Heartbeat, Notice
from cloudspot.jobstore.stored_records import find_record, read_record

_log = logging.getLogger(__name__)

LISTEN_SECONDS = 2.0
"""How often the nodes are listed while the training runs."""
LISTENS_PER_SECOND = 12.5
"""How often all nodes together do so at the most, up to one listing of each in ``MAX_LISTEN_SECONDS``."""
MAX_LISTEN_SECONDS = 5.0
"""No node listens less often, however many there are: silence is counted from listing to listing."""
REGROUP_SECONDS = 0.1
"""How often the nodes are listed while they agree on the next generation."""
REGROUP_SECONDS_PER_NODE = 0.02
"""With many nodes that takes longer, so that their requests stay few."""
CLOSE_SECONDS = 10.0
"""How long a node listens closely after it has asked who lives, or has seen another change."""
MAX_READS = 16
"""How many heartbeats one pass reads; the rest waits for the next passes."""
_NAME = re.compile(r"(\d{4,})/(heartbeat|notice|exit\.json)")

_Version = tuple[datetime, int]
"""When a heartbeat was put, and its size: another with each beat."""
_NEVER: _Version = (datetime.min.replace(tzinfo=timezone.utc), 0)


class PeerHeartbeats:
    """Listens to the other nodes in a thread, and at once for whoever calls ``refresh``."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        num_nodes = context.job.spec.nodes.max
        self.others = tuple(other for other in range(num_nodes) if other != context.rank)
        """The launch's other nodes."""
        self.listen_seconds = min(max(LISTEN_SECONDS, num_nodes / LISTENS_PER_SECOND), MAX_LISTEN_SECONDS)
        self._regroup_seconds = max(REGROUP_SECONDS, REGROUP_SECONDS_PER_NODE * num_nodes)
        self._passing = threading.Lock()
        """Held during a pass."""
        self._lock = threading.Lock()
        """Guards what a pass writes: the clock and the heartbeats."""
        self._clock = PeerClock()
        self._beats: dict[int, Heartbeat | None] = {}
        self._read: dict[int, _Version] = {}
        """The versions of the heartbeats that were read."""
        self._unread: frozenset[int] = frozenset()
        """Who has changed since its heartbeat was read."""
        self._lost: dict[int, float] = {}
        """Who has fallen silent or has written its exit record, and since when (monotonic)."""
        # Create-only records never change: each is read once, and kept.
        self._exits: dict[int, Exit] = {}
        self._deadlines: dict[int, float] = {}
        """Of the nodes that have a notice; monotonic, an upper bound."""
        self._close_until = -math.inf
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
        self._close_until = time.monotonic() + CLOSE_SECONDS
        self._context.status.is_regrouping = True
        self._listening.set()

    def pause(self) -> None:
        """Wait before the next ``refresh``; an order ends it early."""
        self._context.orders.wait(self._regroup_seconds if self._is_close else self.listen_seconds)

    def refresh(self) -> None:
        """Look at the other nodes now; return when that has succeeded."""
        if self.others:
            self._context.insist(self._pass)

    def read_beat(self, rank: int) -> Heartbeat | None:
        """Read a node's newest heartbeat from the store; None: it has none."""
        context = self._context
        key = keys.heartbeat(context.job_id, context.node.launch, rank)
        return find_record(context.store, key, Heartbeat)

    # --- what is known; none of it asks the store --------------------------------------------------

    def beats(self) -> dict[int, Heartbeat | None]:
        """Return the others' newest heartbeats, as far as they were read."""
        with self._lock:
            return dict(self._beats)

    def lost(self, ranks: Collection[int], *, generation: int) -> frozenset[int]:
        """Return who among the ranks is gone without having finished.

        A node that had a notice is not missed while the drain that it has asked for may go on.
        """
        now = time.monotonic()
        with self._lock:
            lost = dict(self._lost)
        gone = set()
        for rank, since in lost.items():
            record = self._exits.get(rank)
            took_part = record is None or record.generation == generation
            wait_until = min(self._deadlines.get(rank, -math.inf), since + DRAIN_SECONDS)
            if not took_part or now >= wait_until:
                gone.add(rank)
        return frozenset(gone & set(ranks) - self.finished(generation))

    def finished(self, generation: int) -> frozenset[int]:
        """Return who is known to have finished the training in this generation."""
        exits = list(self._exits.items())  # another thread may add one
        return frozenset(
            rank
            for rank, record in exits
            if record.outcome == "succeeded" and record.generation == generation
        )

    def standing(self, rank: int, *, has_come: bool = False) -> Standing:
        """Return how another node stands.

        ``has_come``: that it has spoken at all proves well enough that it lives.
        """
        with self._lock:
            heard, beat = self._clock.standing(rank), self._beats.get(rank)
            if rank in self._unread and heard is not Standing.SUSPECT:
                heard, beat = Standing.UNKNOWN, None
        has_to_go = rank in self._exits or rank in self._deadlines
        return appraise(heard, beat, has_to_go=has_to_go, has_come=has_come)

    def is_gone(self, rank: int) -> bool:
        """Return whether a node has written its exit record, or is silent."""
        with self._lock:
            is_silent = self._clock.standing(rank) is Standing.SUSPECT
        return is_silent or rank in self._exits

    def exit_record(self, rank: int) -> Exit | None:
        """Return a node's exit record, or None."""
        return self._exits.get(rank)

    def has_notice(self, rank: int) -> bool:
        """Return whether a node has a notice."""
        return rank in self._deadlines

    def notice_deadline(self, ranks: Collection[int]) -> float | None:
        """Return when (monotonic, at the latest) the first of these that has a notice goes, or None."""
        deadlines = dict(self._deadlines)
        return min((deadlines[rank] for rank in ranks if rank in deadlines), default=None)

    # --- listening ----------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._stopped:
            try:
                self._pass()
            except CloudspotError as error:
                _log.warning("the other nodes are not heard: %s", error)
            self._listening.wait(self._regroup_seconds if self._is_close else self.listen_seconds)
            self._listening.clear()

    @property
    def _is_close(self) -> bool:
        return time.monotonic() < self._close_until

    def _pass(self) -> None:
        """Look at the other nodes once.

        Raises:
            TransientError: the store failed; no silence is counted.
        """
        with self._passing:
            asked_at = time.monotonic()
            try:
                listed = self._list()
                versions = listed["heartbeat"]
                changed = self._changed(versions)
                beats = {rank: self.read_beat(rank) for rank in changed[:MAX_READS]}
                for rank in listed["notice"].keys() - self._deadlines.keys():
                    self._read_notice(rank)
                for rank in listed["exit.json"].keys() - self._exits.keys():
                    self._read_exit(rank)
            except CloudspotError:
                with self._lock:
                    self._clock.hear(time.monotonic(), None)
                raise
            now = time.monotonic()
            if changed:
                self._close_until = now + CLOSE_SECONDS
            with self._lock:
                self._beats.update(beats)
                self._read.update({rank: versions[rank] for rank in beats})
                self._unread = frozenset(changed[MAX_READS:])
                self._clock.hear(now, {rank: versions.get(rank) for rank in self.others}, asked_at=asked_at)
                gone = self._clock.suspects(self.others) | self._exits.keys()
                self._lost = {rank: self._lost.get(rank, now) for rank in gone}

    def _list(self) -> dict[str, dict[int, _Version]]:
        """Return what the other nodes have in the store: by kind and rank, its version."""
        found: dict[str, dict[int, _Version]] = {"heartbeat": {}, "notice": {}, "exit.json": {}}
        context = self._context
        prefix = keys.launch_nodes_prefix(context.job_id, context.node.launch)
        for meta in context.store.list_objects(prefix):
            match = _NAME.fullmatch(meta.key.removeprefix(prefix))
            if match is not None and int(match[1]) in self.others:
                found[match[2]][int(match[1])] = meta.modified_at, meta.size
        return found

    def _changed(self, versions: Mapping[int, _Version]) -> list[int]:
        """Return whose heartbeats tell something new, who was read longest ago first."""
        changed = []
        for rank, version in versions.items():
            read = self._read.get(rank)
            if read is None:
                changed.append((_NEVER, rank))
            elif change_count(version[1]) != change_count(read[1]):
                changed.append((read, rank))
        return [rank for _, rank in sorted(changed)]

    def _read_notice(self, rank: int) -> None:
        context = self._context
        key = keys.notice(context.job_id, context.node.launch, rank)
        notice = read_record(context.store, key, Notice)
        # Both moments are by the other node's clock; how long ago it wrote them nobody knows here.
        left = (notice.deadline - notice.at).total_seconds()
        self._deadlines[rank] = time.monotonic() + left

    def _read_exit(self, rank: int) -> None:
        context = self._context
        key = keys.exit_record(context.job_id, context.node.launch, rank)
        self._exits[rank] = read_record(context.store, key, Exit)
