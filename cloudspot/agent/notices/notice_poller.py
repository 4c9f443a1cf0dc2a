"""Wait for the provider's notice."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import datetime

from cloudspot.agent.reclaim import CLOCK_SECONDS, Reclaim, understand
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import PreemptionSource
from cloudspot.jobstore.access.store_clock import utc_now

_log = logging.getLogger(__name__)

WAIT_SECONDS = 20.0
"""The time of one call of ``PreemptionSource.wait``."""


def poll_notices(
    source: PreemptionSource,
    on_notice: Callable[[Reclaim], None],
    on_hint: Callable[[], None],
    stopped: threading.Event,
    *,
    wall: Callable[[], datetime] = utc_now,
) -> None:
    """Pass on notices until ``stopped`` is set, which is checked between calls of ``PreemptionSource.wait``.

    After the first notice, another one counts only if its deadline is earlier. ``on_hint`` is called while
    the provider reports that a notice is likelier than usual.
    """
    standing = math.inf
    while not stopped.is_set():
        try:
            notice = source.wait(WAIT_SECONDS)
        except CloudspotError as error:
            _log.warning("the metadata service did not answer: %s", error)
            stopped.wait(1.0)
            continue
        if source.is_at_risk():
            on_hint()
        if notice is None:
            continue
        reclaim = understand(
            notice,
            notice_seconds=source.notice_seconds,
            now=time.monotonic(),
            wall=wall(),
        )
        if reclaim.deadline < standing - CLOCK_SECONDS:
            standing = reclaim.deadline
            on_notice(reclaim)
        # After a notice, wait() returns immediately.
        stopped.wait(source.poll_seconds)
