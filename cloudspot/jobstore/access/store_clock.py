"""The time by the store's clock, by which every process dates and judges a job's records.

A computer's own clock may be wrong or be set at any moment. So a process puts an object and asks the store
for the time of that put. The answer bounds the difference between the store's clock and the seconds since
this host's boot. The computer's own clock is used while it is within these bounds, which are about a second
apart; otherwise the nearer bound is.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from cloudspot.errors import CloudspotError
from cloudspot.host.boot_clock import boot_seconds
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import new_nonce

COMPARE_SECONDS = 3600.0
"""The seconds between two comparisons with the store's clock, as long as this computer's clock keeps pace
with its uptime.
"""
SHIFT_SECONDS = 1.0
"""A new comparison is due when this computer's clock has shifted by more than this against the uptime."""
MAX_ASKED_SECONDS = 10.0
"""If an answer took longer than this, the comparison is repeated."""
STAMP_SECONDS = 1.0
"""The resolution of stores' times, which are rounded down to whole seconds."""
WARN_SECONDS = 60.0
"""The difference between a computer's clock and the store's from which on the user is warned."""


def utc_now() -> datetime:
    """Return the time by this computer's clock."""
    return datetime.now(timezone.utc)


class StoreClock:
    """The store's clock as far as this process knows it. Thread-safe."""

    def __init__(
        self, *, wall: Callable[[], datetime] = utc_now, uptime: Callable[[], float] = boot_seconds
    ) -> None:
        self._wall = wall
        self._uptime = uptime
        self._bounds = -math.inf, math.inf
        """Lower and upper bound of the store's time minus the uptime, in seconds."""
        self._compared: tuple[float, float] | None = None
        """The uptime at the last comparison, and this computer's time minus that uptime."""
        self._asking = threading.Lock()
        self._failures: tuple[int, CloudspotError | None] = (0, None)
        """The number of failed requests for the store's time, and the last error."""

    def compare(self, store: ObjectStore) -> None:
        """Ask the store for its time if a comparison is due; this takes three requests.

        One thread asks for all; the other threads wait for the answer if nothing is known yet, and otherwise
        do not wait.

        Raises:
            TransientError: the store does not answer; earlier bounds still apply.
        """
        num_failures = self._failures[0]
        if not self._is_due() or not self._asking.acquire(blocking=self._compared is None):
            return
        try:
            if not self._is_due():
                return
            num_known, error = self._failures
            if error is not None and num_known > num_failures:
                raise error  # another thread asked the store while this one waited
            try:
                self._ask(store)
            except CloudspotError as failure:
                self._failures = (num_known + 1, failure)
                raise
        finally:
            self._asking.release()

    def _ask(self, store: ObjectStore) -> None:
        began, own = self._uptime(), self._own_offset()
        moment = _time_of_put(store).timestamp()
        answered = self._uptime()
        # The put was made between these two moments.
        low, high = moment - answered, moment + STAMP_SECONDS - began
        is_close = answered - began < MAX_ASKED_SECONDS
        known = max(low, self._bounds[0]), min(high, self._bounds[1])
        # If the process was suspended during the request, the bounds are wide: keep the old ones and ask
        # again.
        self._bounds = known if not is_close and known[0] <= known[1] else (low, high)
        self._compared = (began, own) if is_close else None

    def now(self) -> datetime:
        """Return the time by the store's clock, or by this computer's until the first comparison."""
        wall = self._wall()
        own = wall.timestamp() - self._uptime()
        low, high = self._bounds
        return wall + timedelta(seconds=min(max(own, low), high) - own)

    @property
    def warning(self) -> str:
        """A warning if this computer's clock differs from the store's; otherwise an empty string."""
        shift = (self._wall() - self.now()).total_seconds()
        if abs(shift) < WARN_SECONDS:
            return ""
        side = "ahead of" if shift > 0 else "behind"
        return (
            f"this computer's clock is {abs(shift):.0f} s {side} the store's, so the store's clock is used; "
            "set this computer's clock, for example by NTP"
        )

    def _own_offset(self) -> float:
        return self._wall().timestamp() - self._uptime()

    def _is_due(self) -> bool:
        if self._compared is None:
            return True
        at, own = self._compared
        return self._uptime() - at >= COMPARE_SECONDS or abs(self._own_offset() - own) > SHIFT_SECONDS


def store_time(store: ObjectStore) -> datetime:
    """Return the time by the store's clock, after a new comparison if one is due.

    Raises:
        TransientError: the store does not answer.
    """
    clock = clock_of(store)
    clock.compare(store)
    return clock.now()


def _time_of_put(store: ObjectStore) -> datetime:
    """Put an object and delete it again; return the time of the put by the store's clock.

    The object's key is new, so no cache can return an older answer.
    """
    key = keys.probe(new_nonce())
    store = with_retries(store)
    try:
        store.put(key, b"")
        return store.head(key).modified_at
    finally:
        store.delete(key)


_clocks: dict[str, StoreClock] = {}
_lock = threading.Lock()


def clock_of(store: ObjectStore) -> StoreClock:
    """Return the StoreClock that all users of this store share in this process."""
    url = store.canonical_url
    with _lock:
        return _clocks.setdefault(url, StoreClock())
