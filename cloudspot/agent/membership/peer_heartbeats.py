"""Listen to the other members and the newcomers: their heartbeats, notices and exit records.

One listing shows the nodes of all launches, so the number of requests grows with the number of nodes, not
with its square. The listing shows which nodes live; a heartbeat is read only if its size shows that its node
has changed (``heartbeat_size``). Each notice and exit record is read once. Nodes that a generation has left
out are ignored, and so are launches from before the job was last resumed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import Any

from cloudspot.agent.membership.open_seats import OpenSeats
from cloudspot.agent.membership.peers import Liveness, PeerClock, Roster, appraise, roster_of
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.worker import Worker
from cloudspot.errors import CloudspotError
from cloudspot.jobstore.access.stored_records import find_meta
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Exit, Heartbeat, Notice, Seat
from cloudspot.jobstore.nodes.delivering import DRAIN_SECONDS
from cloudspot.jobstore.nodes.heartbeat_size import change_count
from cloudspot.jobstore.nodes.node_records import find_node_record

_log = logging.getLogger(__name__)

LISTEN_SECONDS = 5.0
"""How often the nodes are listed while the training runs; silence is measured between listings."""
REGROUP_SECONDS = 0.1
"""The interval at which the nodes are listed while they agree on the next generation."""
REGROUP_SECONDS_PER_NODE = 0.02
"""With many nodes, the time between listings is at least this per node, to limit the nodes' requests."""
CLOSE_SECONDS = 10.0
"""How long a node listens closely after a new check of which nodes live, or after another node's change."""
MAX_READS = 16
"""The maximum number of heartbeats that one pass reads; later passes read the others."""
CERTIFICATE_SECONDS = 3.0
"""How often a newcomer checks whether silent members are proven to have ended."""

_Version = tuple[datetime, int]
"""The time and the size of a heartbeat object; the pair changes with each beat."""
_NEVER: _Version = (datetime.min.replace(tzinfo=timezone.utc), 0)


class PeerHeartbeats(Worker):
    """Listens to the other nodes, both in a thread and whenever ``refresh`` is called."""

    def __init__(self, context: NodeContext) -> None:
        super().__init__("peers")
        self._context = context
        self._passing = threading.Lock()
        """Held during a pass."""
        self._lock = threading.Lock()
        """Guards the clock and the heartbeats, which a pass writes."""
        self._roster = roster_of(())
        self._num_known = 0
        """The number of journal records that the roster was computed from."""
        self.open_seats = OpenSeats(context)
        """The seats without a heartbeat; looked at only while the nodes agree."""
        self._clock = PeerClock()
        self._beats: dict[Seat, Heartbeat | None] = {}
        self._read: dict[Seat, _Version] = {}
        """The versions of the heartbeats that were read."""
        self._unread: frozenset[Seat] = frozenset()
        """The nodes that have changed since their heartbeat was read."""
        self._lost: dict[Seat, float] = {}
        """The nodes that are silent or have written their exit record, and since when (monotonic)."""
        # Create-only records never change, so each is read only once.
        self._exits: dict[Seat, Exit] = {}
        self._deadlines: dict[Seat, float] = {}
        """The deadlines (monotonic, upper bounds) of the nodes that have a notice."""
        self._certified: frozenset[Seat] = frozenset()
        """The nodes whose machine is proven to have ended."""
        self._certificates_at = -math.inf
        self._strangers: frozenset[Seat] = frozenset()
        """The listed nodes that are not in the journal or were left out."""
        self._is_news = False
        """Whether a listing had news, so the journal must be read."""
        self._close_until = -math.inf
        self._asked_at = -math.inf
        self._listening = threading.Event()

    def stop(self) -> None:
        """End the thread after its current pass."""
        super().stop()
        self._listening.set()

    @property
    def roster(self) -> Roster:
        """The nodes that may be in the next generation, by the known journal records; no request is made."""
        known = self._context.journal.known
        if len(known) != self._num_known:
            self._roster, self._num_known = roster_of(known), len(known)
        return self._roster

    @property
    def others(self) -> frozenset[Seat]:
        """The other members, and the other newcomers that have a heartbeat or have claimed their seat."""
        roster = self.roster
        here = roster.candidates & (self.heard | self.open_seats.claimed) | set(roster.members)
        return here - {self._context.seat}

    @property
    def heard(self) -> frozenset[Seat]:
        """The nodes that have a heartbeat."""
        with self._lock:
            return self._unread.union(self._read)

    @property
    def _num_live(self) -> int:
        return self._context.status.num_live

    @property
    def heard_seconds(self) -> float:
        """The total time during which this node could listen."""
        with self._lock:
            return self._clock.heard_seconds

    def ask(self) -> None:
        """Check again which nodes live; heartbeats come faster until this is known."""
        self._asked_at = self._certificates_at = time.monotonic()
        with self._lock:
            self._clock.mark(self._asked_at)
        self._close_until = self._asked_at + CLOSE_SECONDS
        self._context.status.is_regrouping = True
        self._listening.set()

    @property
    def asked_seconds(self) -> float:
        """The time since the last check of which nodes live was begun."""
        return time.monotonic() - self._asked_at

    def pause(self, *, despite_orders: bool = False) -> None:
        """Wait before the next ``refresh``, until an order or, with ``despite_orders``, a new order."""
        orders = self._context.orders
        (orders.wait_for_news if despite_orders else orders.wait)(self._pause_seconds)

    def refresh(self) -> None:
        """Look at the other nodes now; retry until it succeeds."""
        self._context.retry_until(self._pass)

    def look_for_certificates(self) -> None:
        """Check which silent members are proven to have ended, so that this node need not wait for them.

        This makes one request per silent member every few seconds, but none at first, because heartbeats
        arrive soon.
        """
        context, newest = self._context, self.roster.newest
        if newest is None or time.monotonic() < self._certificates_at + CERTIFICATE_SECONDS:
            return
        self._certificates_at = time.monotonic()
        with self._lock:
            unheard = {one for one in newest.seats if self._clock.liveness(one) is not Liveness.FRESH}
        for member in newest.members:
            if member.seat in unheard - self._certified - self._exits.keys():
                key = keys.certificate(context.job_id, member.launch, member.instance_id)
                if context.retry_until(lambda k=key: find_meta(context.store, k)) is not None:  # type: ignore[misc]
                    self._certified |= {member.seat}

    def read_beat(self, seat: Seat) -> Heartbeat | None:
        """Read a node's newest heartbeat from the store; return None if it has none."""
        beat: Heartbeat | None = self._find(keys.heartbeat, seat)
        return beat

    # --- what is known, without requests -----------------------------------------------------------

    def beats(self) -> dict[Seat, Heartbeat | None]:
        """Return the heartbeats of the others that were read last."""
        with self._lock:
            return dict(self._beats)

    @property
    def unread(self) -> frozenset[Seat]:
        """The other nodes whose newest heartbeat has news that was not read."""
        with self._lock:
            return self._unread

    def lost(self, seats: Collection[Seat], *, generation: int) -> frozenset[Seat]:
        """Return which of the nodes are gone without having finished.

        A node that had a notice does not count as lost while its drain may still be in progress.
        """
        now = time.monotonic()
        with self._lock:
            lost = dict(self._lost)
        gone = set()
        for seat, since in lost.items():
            record = self._exits.get(seat)
            took_part = record is None or record.generation == generation
            wait_until = min(self._deadlines.get(seat, -math.inf), since + DRAIN_SECONDS)
            if not took_part or now >= wait_until:
                gone.add(seat)
        return frozenset(gone & set(seats) - self.finished(generation))

    def finished(self, generation: int) -> frozenset[Seat]:
        """Return the nodes that are known to have finished the training in this generation."""
        exits = list(self._exits.items())  # another thread may add one
        return frozenset(
            seat
            for seat, record in exits
            if record.outcome == "succeeded" and record.generation == generation
        )

    def liveness(self, seat: Seat, *, has_come: bool = False) -> Liveness:
        """Return another node's liveness; with ``has_come``, any heartbeat at all proves it alive."""
        with self._lock:
            heard, beat = self._clock.liveness(seat), self._beats.get(seat)
            if seat in self._unread and heard is not Liveness.SUSPECT:
                heard, beat = Liveness.UNKNOWN, None
        return appraise(heard, beat, has_to_go=self._has_to_go(seat), has_come=has_come)

    def _has_to_go(self, seat: Seat) -> bool:
        return seat in self._exits or seat in self._deadlines or seat in self._certified

    def ready_newcomers(self) -> frozenset[Seat]:
        """Return the newcomers that report that they are ready, except silent and leaving ones."""
        with self._lock:
            beats = dict(self._beats)
            silent = self._clock.suspects(beats)
        newcomers = self.roster.candidates.difference(self.roster.members, silent, [self._context.seat])
        return frozenset(
            seat
            for seat in newcomers
            if (beat := beats.get(seat)) is not None and beat.state == "ready" and not self._has_to_go(seat)
        )

    def is_gone(self, seat: Seat) -> bool:
        """Return whether a node has written its exit record, is proven to have ended, or is silent."""
        with self._lock:
            is_silent = self._clock.liveness(seat) is Liveness.SUSPECT
        return is_silent or seat in self._exits or seat in self._certified

    def exit_record(self, seat: Seat) -> Exit | None:
        """Return a node's exit record, or None if it was not read."""
        return self._exits.get(seat)

    def has_notice(self, seat: Seat) -> bool:
        """Return whether a node has a notice."""
        return seat in self._deadlines

    def notice_deadline(self, seats: Collection[Seat]) -> float | None:
        """Return the earliest deadline of the nodes with a notice (monotonic, an upper bound), or None."""
        deadlines = dict(self._deadlines)
        return min((deadlines[seat] for seat in seats if seat in deadlines), default=None)

    # --- listening ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._pass()
            except CloudspotError as error:
                _log.warning("the heartbeats of the other nodes cannot be read: %s", error)
            self._listening.wait(self._pause_seconds)
            self._listening.clear()
        self._context.status.hears_others = self._context.status.hears_calls = False

    @property
    def _pause_seconds(self) -> float:
        if self.is_close:
            return max(REGROUP_SECONDS, REGROUP_SECONDS_PER_NODE * self._num_live)
        return LISTEN_SECONDS

    @property
    def is_close(self) -> bool:
        """Whether this node listens closely, because of a recent change."""
        return time.monotonic() < self._close_until

    def _pass(self) -> None:
        """Look at the other nodes once.

        Raises:
            TransientError: the store failed; no silence is counted. The results of earlier requests are kept,
                so that a pass eventually succeeds even if the store fails often.
        """
        with self._passing:
            asked_at = time.monotonic()
            roster = self.roster
            try:
                listed, is_stopped, strangers = self._list(roster)
                versions = listed[keys.heartbeat]
                changed = self._changed(versions)
                self._is_news = self._is_news or bool(changed or strangers - self._strangers)
                self._strangers = strangers
                with self._lock:
                    self._unread = frozenset(changed)
                for seat in changed[:MAX_READS]:
                    beat = self.read_beat(seat)
                    with self._lock:  # store it at once: if the pass fails later, it need not be read again
                        self._beats[seat], self._read[seat] = beat, versions[seat]
                        self._unread -= {seat}
                    self._close_until = time.monotonic() + CLOSE_SECONDS
                for seat in listed[keys.notice].keys() - self._deadlines.keys():
                    self._read_notice(seat)
                for seat in listed[keys.exit_record].keys() - self._exits.keys():
                    exit_record = self._find(keys.exit_record, seat)
                    if exit_record is not None:
                        self._exits[seat] = exit_record
            except CloudspotError:
                with self._lock:
                    self._clock.hear(time.monotonic(), None)
                raise
            now = time.monotonic()
            others = (versions.keys() | self.open_seats.claimed | set(roster.members)) & roster.candidates
            others -= {self._context.seat}
            with self._lock:
                self._clock.hear(now, {seat: versions.get(seat) for seat in others}, asked_at=asked_at)
                gone = self._clock.suspects(others) | (self._exits.keys() & others)
                self._lost = {seat: self._lost.get(seat, now) for seat in gone}
            self._context.status.num_live = len(others - gone) + 1
            if is_stopped:
                self._context.read_stop()
            # A node that is regrouping reads the journal every second anyway.
            if self._is_news and not self._context.status.is_regrouping:
                self._context.read_journal()
                self._is_news = False

    def _list(self, roster: Roster) -> tuple[dict[keys.Form, dict[Seat, _Version]], bool, frozenset[Seat]]:
        """Return the versions of the other nodes' records in the store, by kind and node.

        Also return whether a stop is requested, and the listed nodes that cannot be in the next generation.
        """
        found: dict[keys.Form, dict[Seat, _Version]] = {form: {} for form in keys.REPORTS}
        context = self._context
        others = roster.candidates - self.open_seats.void - {context.seat}
        may_live = others - self._exits.keys()
        context.status.hears_others = bool(may_live)
        context.status.hears_calls = False
        if not may_live:
            return found, False, frozenset()  # for example, a job with one node has no others
        is_stopped, strangers = False, set[Seat]()
        stop = keys.stop(context.job_id, context.job.submission.resumption)
        call = keys.remote_call(context.job_id, *context.seat)
        first = min(seat.launch for seat in may_live)
        context.status.hears_calls = context.seat.launch >= first
        after = keys.launch_nodes_prefix(context.job_id, first)
        for meta in context.store.list_objects(keys.nodes_prefix(context.job_id), after=after):
            report = keys.recognize(meta.key, keys.REPORTS)
            if report is None:
                is_stopped = is_stopped or meta.key == stop
                if meta.key == call:
                    context.is_called.set()
            elif (seat := Seat(*report[1][1:])) in others:
                found[report[0]][seat] = meta.modified_at, meta.size
            elif seat != context.seat:
                strangers.add(seat)
        return found, is_stopped, frozenset(strangers)

    def _changed(self, versions: Mapping[Seat, _Version]) -> list[Seat]:
        """Return the nodes whose heartbeats have news, starting with the one that was read longest ago."""
        changed = []
        for seat, version in versions.items():
            read = self._read.get(seat)
            if read is None:
                changed.append((_NEVER, seat))
            elif change_count(version[1]) != change_count(read[1]):
                changed.append((read, seat))
        return [seat for _, seat in sorted(changed)]

    def _read_notice(self, seat: Seat) -> None:
        notice: Notice | None = self._find(keys.notice, seat)
        if notice is None:
            return
        # Both times are by the other node's clock; it is unknown how long ago the notice was written.
        left = (notice.deadline - notice.at).total_seconds()
        self._deadlines[seat] = time.monotonic() + left

    def _find(self, form: keys.Form, seat: Seat) -> Any:
        return find_node_record(self._context.store, form, self._context.job_id, *seat)
