"""All the ways by which a node hears of its end, made one: one order, one file on its disk, one record."""

from __future__ import annotations

import logging
import math
import threading
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from cloudspot.agent.noticefile import NoticeFile
from cloudspot.agent.orderedstop import OrderedStop, as_notice
from cloudspot.agent.watcher import CLOCK_SECONDS, NoticeWatcher, Reclaim
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import PreemptionSource
from cloudspot.jobstore import codec, creation, keys
from cloudspot.jobstore.records import Notice, new_nonce

if TYPE_CHECKING:
    from cloudspot.agent.life import Life

_log = logging.getLogger(__name__)


class Notices:
    """Hears the provider, SIGTERM, and whoever writes the machine's notice file; in any order."""

    def __init__(self, life: Life, source: PreemptionSource, stop: OrderedStop | None) -> None:
        self._life = life
        self._file = NoticeFile(life.node.directory)
        self._watcher = NoticeWatcher(source, self.hear)
        self._stop = stop
        self._stopped = threading.Event()
        self._telling = threading.Lock()
        self._told = math.inf
        """The deadline that the log knows."""

    def recall(self) -> None:
        """Obey a notice that came before this agent did, at once."""
        standing = self._file.read()
        if standing is not None:
            self._life.orders.give(reclaim=standing)

    def start(self) -> None:
        """Listen from now on."""
        self._watcher.start()
        # What ``recall`` has found is recorded by this: the agent that heard of it may not have come to it.
        self._file.watch(self.hear, self._stopped)
        if self._stop is not None:
            self._stop.tell(self._stop_in_order)

    def stop(self) -> None:
        """Ask the threads to end; it may take a while."""
        self._watcher.stop()
        self._stopped.set()

    def hear(self, reclaim: Reclaim) -> None:
        """Take a notice in; the first is recorded, and after that only an earlier end is news."""
        self._life.orders.give(reclaim=reclaim)  # before all that can fail
        try:
            reclaim = self._file.give(reclaim)
        except OSError as error:
            _log.error("the notice is not remembered: %s", error)
        self._life.orders.give(reclaim=reclaim)
        with self._telling:
            is_first, is_news = math.isinf(self._told), reclaim.deadline < self._told - CLOCK_SECONDS
            self._told = min(self._told, reclaim.deadline)
        if is_news:
            left = reclaim.deadline - time.monotonic()
            _log.warning("notice: this machine will %s in %.1f s", reclaim.notice.action, left)
        if is_first:
            self._record(reclaim)

    def _stop_in_order(self) -> None:
        _log.warning("SIGTERM: this machine is being shut down, or its agent is to stop")
        self.hear(as_notice(now=time.monotonic(), wall=datetime.now(timezone.utc)))

    def _record(self, reclaim: Reclaim) -> None:
        life = self._life
        rank = life.job.identity.rank
        record = Notice(
            launch=life.node.launch,
            rank=rank,
            deadline=reclaim.deadline_at,
            action=reclaim.notice.action,
            source=reclaim.notice.source,
            step=life.status.progress()[0],
            at=datetime.now(timezone.utc),
            writer=new_nonce(),
        )
        key = keys.notice(life.node.job_id, life.node.launch, rank)
        try:
            life.insist(
                lambda: creation.create(life.store, key, codec.encode(record)), deadline=reclaim.deadline
            )
        except CloudspotError as error:
            _log.warning("the notice was not recorded: %s", error)
