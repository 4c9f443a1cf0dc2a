"""Every few seconds: says how the node stands, and reads what others have decided for it."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from datetime import datetime, timezone

from cloudspot.agent.reach import free_port
from cloudspot.agent.status import Orders, Status
from cloudspot.errors import CloudspotError, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.records import Generation, Heartbeat, StopRequest
from cloudspot.model import NodeIdentity

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
REGROUP_SECONDS = 0.2
"""The same while the nodes agree on the next generation, and wait for each other's signs of life."""
LAST_BEAT_SECONDS = 2.0
"""How long the last beat is waited for: nothing depends on it, and the exit record is to come."""
LOOK_SECONDS = 1.0
"""How often the requests of others are looked for: a stop should feel prompt."""


class HeartbeatWriter:
    """A thread that overwrites the node's heartbeat and looks for a stop or a newer launch.

    It beats at once when the node's state changes.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        job_id: str,
        launch: int,
        identity: NodeIdentity,
        status: Status,
        orders: Orders,
    ) -> None:
        self._store = store
        self._job_id = job_id
        self._launch = launch
        self._identity = identity
        self._status = status
        self._orders = orders
        # A later agent of this machine begins higher: for the peers any change is a sign of life.
        self._counter = time.monotonic_ns() // 1_000_000
        self._passed = 0
        """The newest generation known that is an older launch's."""
        self._stopped = threading.Event()
        self._tells_end = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current beat."""
        self._stopped.set()
        self._status.state_changed.set()

    def finish(self) -> None:
        """End the thread with a last beat, which tells how the node stands now; wait for it a little."""
        self._tells_end = True
        self.stop()
        if self._thread.is_alive():
            self._thread.join(LAST_BEAT_SECONDS)

    def beat(self) -> None:
        """Overwrite the heartbeat once.

        Raises:
            TransientError: the store failed.
        """
        self._counter += 1
        step, total = self._status.progress()
        beat = Heartbeat(
            counter=self._counter,
            instance_id=self._identity.instance_id,
            address=self._identity.address,
            port=free_port(),
            state=self._status.state,
            generation=self._status.generation,
            restored_step=self._status.restored_step,
            step=step,
            steps_total=total,
            has_session=self._status.has_session,
            metrics=self._status.metrics(),
            committed=self._status.committed,
            stall_seconds=self._status.stall_seconds,
            upload_seconds=self._status.upload_seconds,
            notice_seconds=self._status.notice_seconds,
            transfer=self._status.transfer,
            log=self._status.log_standing(),
            warnings=self._status.warnings,
            phases=self._status.phases,
            failed=self._status.failed,
            at=datetime.now(timezone.utc),
        )
        key = keys.heartbeat(self._job_id, self._launch, self._identity.rank)
        self._store.put(key, codec.encode(beat))

    def look(self) -> None:
        """Read what others have decided: a request to stop, a generation of a newer launch.

        Raises:
            TransientError: the store failed; nothing is known.
        """
        if self._orders.stop is None:
            try:
                data = self._store.get(keys.stop(self._job_id))
            except ObjectMissing:
                pass
            else:
                self._orders.give(stop=codec.decode(data, StopRequest))
        generation = self._generation_after(max(self._status.generation, self._passed))
        while generation is not None and generation.launch < self._launch:
            self._passed = generation.number  # an older launch's, however late, only takes a number
            generation = self._generation_after(self._passed)
        if generation is None:
            return
        if generation.launch > self._launch:
            self._orders.give(superseded=True)
        else:
            self._orders.propose(generation)

    def _generation_after(self, number: int) -> Generation | None:
        key = keys.generation(self._job_id, number + 1)
        try:
            return codec.decode(self._store.get(key), Generation, key=key)
        except ObjectMissing:
            return None

    def _run(self) -> None:
        beat_at = look_at = 0.0
        changed = self._status.state_changed
        while not self._stopped.is_set():
            now = time.monotonic()
            try:
                if changed.is_set() or now >= beat_at:
                    changed.clear()
                    regrouping = self._status.is_regrouping
                    beat_at = now + (REGROUP_SECONDS if regrouping else HEARTBEAT_SECONDS)
                    self.beat()
                if now >= look_at:
                    look_at = now + LOOK_SECONDS
                    self.look()
            except CloudspotError as error:
                _log.warning("no heartbeat: %s", error)
                beat_at = min(beat_at, time.monotonic() + LOOK_SECONDS)  # the others count its absence
            # Asked again, as what ``stop`` has set may have been cleared above with an earlier change.
            if not self._stopped.is_set():
                changed.wait(max(0.05, min(beat_at, look_at) - time.monotonic()))
        if self._tells_end:
            with suppress(CloudspotError):
                self.beat()
