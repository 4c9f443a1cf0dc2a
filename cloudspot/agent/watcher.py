"""Watches for the end that others decide: the provider's notice, a request to stop, a newer generation."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from cloudspot.errors import CloudspotError
from cloudspot.interfaces import PreemptionSource
from cloudspot.model import PreemptionNotice

_log = logging.getLogger(__name__)

WAIT_SECONDS = 20.0
"""One call of ``PreemptionSource.wait``."""
LONG_NOTICE_SECONDS = 60.0
"""A longer notice than this is partly trained through."""
CLOCK_SECONDS = 0.5
"""The same notice, understood again, moves by less: the wall clock is slewed."""


@dataclass(frozen=True)
class Reclaim:
    """A notice as this node understood it."""

    notice: PreemptionNotice
    deadline: float
    """Monotonic: the earlier of the stated time and (first seen here) + notice_seconds."""
    deadline_at: datetime
    """The same moment by the wall clock, for people."""
    seen: float
    """Monotonic."""


def understand(notice: PreemptionNotice, *, notice_seconds: float, now: float, wall: datetime) -> Reclaim:
    """Return the notice with its deadline on the monotonic clock.

    A stated time is believed only when it is the earlier one: a wall clock that lags would otherwise
    promise time that the machine does not have.
    """
    left = notice_seconds
    if notice.deadline is not None:
        left = min(left, (notice.deadline - wall).total_seconds())
    left = max(0.0, left)
    return Reclaim(notice=notice, deadline=now + left, deadline_at=wall + timedelta(seconds=left), seen=now)


def guard_of(deadline: float, *, now: float, upload_seconds: float) -> float:
    """Return the monotonic moment after which a new save can no longer be uploaded in time.

    Keeps back one and a half times what the last upload took, plus a second for the commit, the last
    log lines and the exit record; but never more than 60 % of the time there is.
    """
    return deadline - min(1.5 * upload_seconds + 1.0, 0.6 * max(0.0, deadline - now))


def drain_at(deadline: float, *, now: float, save_seconds: float) -> float:
    """Return the monotonic moment at which to start the drain.

    At once for a notice of up to a minute. A longer one is trained through until three times a
    measured save and upload are left, and a minute at the least.
    """
    return max(now, deadline - max(LONG_NOTICE_SECONDS, 3.0 * save_seconds))


class NoticeWatcher:
    """A thread on ``PreemptionSource.wait``; after the first notice only one of an earlier end counts."""

    def __init__(self, source: PreemptionSource, on_notice: Callable[[Reclaim], None]) -> None:
        self._source = source
        self._on_notice = on_notice
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notice", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
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
