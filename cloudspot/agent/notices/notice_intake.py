"""Combine the notices from all sources into one order, one file on the disk and one record."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.notices.notice_file import NoticeFile
from cloudspot.agent.notices.notice_pipe import NoticePipe, PipeByte, as_notice, wake_agent
from cloudspot.agent.notices.notice_poller import poll_notices
from cloudspot.agent.reclaim import CLOCK_SECONDS, Reclaim
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import PreemptionSource
from cloudspot.jobstore.access.stored_records import create_record
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Notice, new_nonce

_log = logging.getLogger(__name__)


class NoticeIntake:
    """Takes notices from the provider, from SIGTERM and from the machine's notice file, in any order."""

    def __init__(
        self,
        context: NodeContext,
        source: PreemptionSource,
        pipe: NoticePipe,
        *,
        on_recorded: Callable[[], None] = lambda: None,
    ) -> None:
        """Create it; ``on_recorded`` is called in another thread once the notice is in the job's records."""
        self._context = context
        self._on_recorded = on_recorded
        self._file = NoticeFile(context.node.directory)
        self._source = source
        self._pipe = pipe
        self._stopped = threading.Event()
        self._logging = threading.Lock()
        self._logged_deadline = math.inf
        """The deadline of the notice that was last logged."""

    def recall(self) -> None:
        """Immediately obey a notice that was written before this agent started."""
        standing = self._file.read()
        if standing is not None:
            self._context.orders.is_shutting_down = True  # assume it, because the notice's source is unknown
            self._context.orders.give(reclaim=standing)

    def start(self) -> None:
        """Start to listen."""
        polled = (self._source, self.take, self._heed, self._stopped)
        polling = partial(poll_notices, *polled, wall=self._context.now)
        threading.Thread(target=polling, name="notice", daemon=True).start()
        threading.Thread(target=self._read_pipe, name="notice pipe", daemon=True).start()

    def stop(self) -> None:
        """Ask the threads to end, which may take some time."""
        self._stopped.set()
        wake_agent(self._context.node.directory)

    def take(self, reclaim: Reclaim) -> None:
        """Process a notice; the first is recorded, and a later one matters only with an earlier deadline."""
        orders = self._context.orders
        orders.give(reclaim=reclaim)  # before anything that can fail
        try:
            reclaim = self._file.give(reclaim)
        except OSError as error:
            _log.error("the notice could not be written to the disk: %s", error)
        orders.give(reclaim=reclaim)
        with self._logging:
            is_first, is_news = (
                math.isinf(self._logged_deadline),
                reclaim.deadline < self._logged_deadline - CLOCK_SECONDS,
            )
            self._logged_deadline = min(self._logged_deadline, reclaim.deadline)
        if is_news:
            left = reclaim.deadline - time.monotonic()
            _log.warning("notice: this machine will %s in %.1f s", reclaim.notice.action, left)
        if is_first:
            # In a thread, so that a later notice with an earlier deadline is processed even if the store is
            # down.
            threading.Thread(target=self._record, args=(reclaim,), name="notice record", daemon=True).start()

    def _heed(self) -> None:
        self._context.status.is_at_risk = True

    def _read_pipe(self) -> None:
        # Read the file first, because an earlier agent may have died before it recorded that notice.
        pipe_byte = PipeByte.NOTICE
        while not self._stopped.is_set():
            if pipe_byte is PipeByte.STOP:
                _log.warning("SIGTERM: this machine is being shut down, or its agent is being stopped")
                self.take(as_notice(now=time.monotonic(), wall=self._context.now()))
            else:
                standing = self._file.read()
                if standing is not None:
                    self.take(standing)
            pipe_byte = self._pipe.read()
            self._context.orders.is_shutting_down = True

    def _record(self, reclaim: Reclaim) -> None:
        context, now = self._context, self._context.now()
        record = Notice(
            launch=context.node.launch,
            rank=context.rank,
            deadline=now + timedelta(seconds=reclaim.deadline - time.monotonic()),
            action=reclaim.notice.action,
            source=reclaim.notice.source,
            step=context.status.progress()[0],
            at=now,
            writer=new_nonce(),
        )
        key = keys.notice(context.job_id, context.node.launch, context.rank)
        try:
            context.retry_until(lambda: create_record(context.store, key, record), deadline=reclaim.deadline)
        except CloudspotError as error:
            _log.warning("the notice was not recorded: %s", error)
            return
        self._on_recorded()
