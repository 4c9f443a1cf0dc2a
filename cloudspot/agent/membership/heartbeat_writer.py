"""Write the node's heartbeat every few seconds, and read the decisions of other nodes and of drivers."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress

from cloudspot.agent.membership.reachability import free_port
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.worker import Worker
from cloudspot.errors import CloudspotError, CorruptData
from cloudspot.jobstore.access.store_clock import clock_of
from cloudspot.jobstore.access.stored_records import find_bytes
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import HEARTBEAT_DIAGNOSTICS, Heartbeat
from cloudspot.jobstore.nodes.heartbeat_size import change_count, fill_up

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 8.0
"""At this interval, a node's silence is noticed after 20 s."""
REGROUP_SECONDS = 0.2
"""The time between beats while the nodes agree on the next generation and wait for signs of life."""
REGROUP_SECONDS_PER_NODE = 0.02
"""If there are many nodes, the time between beats is at least this per node, to limit the nodes' requests."""
LAST_BEAT_SECONDS = 2.0
"""How long to wait for the last beat: nothing depends on it, and the exit record must still be written."""
LOOK_SECONDS = 1.0
"""How often a node looks for decisions of others while the nodes agree on the next generation."""
LONE_LOOK_SECONDS = 5.0
"""How often a node that listens to no others looks at other times: it should soon obey a stop request."""
QUIET_LOOK_SECONDS = 60.0
"""How often a node that listens to others looks at other times: they report a stop and most other news."""


class HeartbeatWriter(Worker):
    """A thread that overwrites the node's heartbeat and checks for a stop, a new generation or the job's end.

    It beats at once when the node's state changes.
    """

    def __init__(self, context: NodeContext) -> None:
        super().__init__("heartbeat")
        self._context = context
        self._status = context.status
        # A later agent of this machine starts with a higher count, because its peers take any change as a
        # sign of life.
        self._counter = time.monotonic_ns() // 1_000_000
        self._num_changes: int | None = None
        """The count of changes; None until the count of an earlier agent has been read."""
        self._moved_before = 0
        """``Heartbeat.moved_bytes`` of the previous agent."""
        self._last_for_peers: object = None
        """The content of the last beat that is needed by the peers."""
        self._is_finishing = False
        self._fault = ""
        """The values of the last beat that no reader would accept; empty if there were none."""

    def stop(self) -> None:
        """End the thread after its current beat."""
        super().stop()
        self._status.state_changed.set()

    def finish(self) -> None:
        """End the thread with a last beat that has the current status, and wait briefly for the thread."""
        self._is_finishing = True
        self.stop()
        self._join(LAST_BEAT_SECONDS)

    @property
    def beat_seconds(self) -> float:
        """The longest time until the next beat."""
        if self._status.is_regrouping:
            seconds = REGROUP_SECONDS_PER_NODE * self._status.num_live
            return min(max(REGROUP_SECONDS, seconds), HEARTBEAT_SECONDS)
        return HEARTBEAT_SECONDS

    @property
    def look_seconds(self) -> float:
        """The time until the next look."""
        if self._status.is_regrouping:
            return LOOK_SECONDS
        return QUIET_LOOK_SECONDS if self._status.hears_others else LONE_LOOK_SECONDS

    def beat(self) -> None:
        """Overwrite the heartbeat once."""
        context, status = self._context, self._status
        key = keys.heartbeat(context.job_id, context.node.launch, context.rank)
        num_changes = self._go_on_counting(key) if self._num_changes is None else self._num_changes
        self._counter += 1
        step, total = status.progress()
        beat = Heartbeat(
            counter=self._counter,
            instance_id=context.job.identity.instance_id,
            address=context.job.identity.address,
            port=free_port(),
            state=status.state,
            generation=status.generation,
            restored_step=status.restored_step,
            step=step,
            steps_total=total,
            has_session=status.has_session,
            metrics=status.metrics(),
            committed=status.committed,
            stall_seconds=status.stall_seconds,
            save_cost=status.save_cost,
            upload_seconds=status.upload_seconds,
            notice_seconds=status.notice_seconds,
            at_risk=status.is_at_risk,
            transfer=status.transfer,
            moved_bytes=self._moved_before + status.moved_bytes(),
            staged=status.staged,
            log=status.log_standing(),
            idle=status.idle,
            utilization=status.utilization,
            warnings=status.warnings,
            phases=status.phases,
            failed=status.failed,
            survivors=status.survivors,
            likeness=status.likeness,
            agent=context.agent if context.job.spec.run.exec else "",
            at=context.now(),
        )
        try:
            beat, invalid = codec.without_invalid(beat, HEARTBEAT_DIAGNOSTICS)
            fault = (
                "the heartbeat lacks values that are out of bounds: " + ", ".join(invalid) if invalid else ""
            )
        except CorruptData as error:  # it is written all the same: that it changes is a sign of life
            fault = f"no reader accepts the heartbeat: {error}"
        if fault != self._fault:
            self._fault = fault
            if fault:
                _log.warning("%s", fault)
        for_peers = beat.state, beat.generation, beat.failed, beat.survivors, beat.likeness, beat.idle is None
        if for_peers != self._last_for_peers:
            self._last_for_peers, num_changes = for_peers, num_changes + 1
        self._num_changes = num_changes
        context.store.put(key, fill_up(codec.encode(beat), num_beats=self._counter, num_changes=num_changes))

    def look(self) -> None:
        """Read others' decisions, except those that this node learns from other nodes."""
        if not self._status.hears_others:
            self._context.read_stop()
        self._context.read_journal()

    def _go_on_counting(self, key: str) -> int:
        """Take an earlier agent's transferred bytes from its last heartbeat; return its count of changes."""
        data = find_bytes(self._context.store, key)
        if data is None:
            return 0
        with suppress(CorruptData):  # its size still shows the count
            self._moved_before = codec.decode(data, Heartbeat, key=key).moved_bytes
        return change_count(len(data))

    def _run(self) -> None:
        beat_at, looked_at = 0.0, -math.inf
        changed = self._status.state_changed
        while not self._stopped.is_set():
            now = time.monotonic()
            try:
                if changed.is_set() or now >= beat_at:
                    changed.clear()
                    beat_at = now + self.beat_seconds
                    self.beat()
                if now >= looked_at + self.look_seconds:
                    looked_at = now
                    self.look()
                # Compare the clocks last, so that a failure delays neither beats nor looks; the last known
                # time of the store's clock remains valid.
                clock_of(self._context.store).compare(self._context.store)
            except CloudspotError as error:
                _log.warning("no heartbeat: %s", error)
                beat_at = min(beat_at, time.monotonic() + LOOK_SECONDS)  # soon: the peers count the silence
            # Check again, because clearing an earlier change may also have cleared the event of ``stop``.
            if not self._stopped.is_set():
                next_at = min(beat_at, looked_at + self.look_seconds)
                changed.wait(max(0.05, next_at - time.monotonic()))
        if self._is_finishing:
            with suppress(CloudspotError):
                self.beat()
