"""Waits for the provider's notice."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone

from cloudspot.agent.reclaim import CLOCK_SECONDS, Reclaim, understand
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import PreemptionSource

_log = logging.getLogger(__name__)

WAIT_SECONDS = 20.0
"""One call of ``PreemptionSource.wait``."""


class NoticePoller:
    """A thread on ``PreemptionSource.wait``; after the first notice only one of an earlier end counts."""

    def __init__(self, source: PreemptionSource, on_notice: Callable[[Reclaim], None]) -> None:
        self._source = source
        self._on_notice = on_notice
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notice", daemon=True)

    def start(self) -> None:
        """Begin to wait for a notice."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it may take up to one ``wait``."""
        self._stopped.set()

    def _run(self) -> None:
        standing = math.inf
        while not self._stopped.is_set():
            try:
                notice = self._source.wait(WAIT_SECONDS)
            except CloudspotError as error:
                _log.warning("the metadata service did not answer: %s", error)
                self._stopped.wait(1.0)
                continue
            if notice is None:
                continue
            reclaim = understand(
                notice,
                notice_seconds=self._source.notice_seconds,
                now=time.monotonic(),
                wall=datetime.now(timezone.utc),
            )
            if reclaim.deadline < standing - CLOCK_SECONDS:
                standing = reclaim.deadline
                self._on_notice(reclaim)
            # While a notice stands, wait() returns at once.
            self._stopped.wait(self._source.poll_seconds)
