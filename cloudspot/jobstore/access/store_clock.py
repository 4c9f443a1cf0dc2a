"""The time by the store's clock, by which every process writes and judges a job's records.

A computer's own clock may be wrong, or be set while it is read. So a process asks the store for the time of
an object that it has just put. That bounds what the store's clock shows now, by the seconds since this host's
boot. Within these bounds, which are a second or so apart, the computer's own clock counts; beyond them, the
nearer bound does.
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
"""How often a process asks for the store's time while its own clock runs as evenly as its host's uptime."""
SHIFT_SECONDS = 1.0
"""It asks again where its own clock has moved against the uptime by more than this."""
MAX_ASKED_SECONDS = 10.0
"""An answer that took longer than this is asked for again."""
STAMP_SECONDS = 1.0
"""Stores tell time in whole seconds, rounded down."""
WARN_SECONDS = 60.0
"""By how much a computer's clock differs from the store's when its user is told."""


def utc_now() -> datetime:
    """Return the time by this computer's clock."""
    return datetime.now(timezone.utc)


class StoreClock:
    """A process's knowledge of one store's clock. Thread-safe."""

    def __init__(
        self, *, wall: Callable[[], datetime] = utc_now, uptime: Callable[[], float] = boot_seconds
    ) -> None:
        self._wall = wall
        self._uptime = uptime
        self._bounds = -math.inf, math.inf
        """Of the store's time less the uptime, in seconds."""
        self._compared: tuple[float, float] | None = None
        """When the store was asked last (uptime), and this computer's time less the uptime by then."""
        self._asking = threading.Lock()
        self._failures: tuple[int, CloudspotError | None] = (0, None)
        """How often the store did not answer, and the last error."""

    def compare(self, store: ObjectStore) -> None:
        """Ask the store for its time if that is due, at the cost of three requests.

        One thread asks for all: the others wait for its answer if nothing is known, and else go on.

        Raises:
            TransientError: it does not answer; what was known before still counts.
        """
        num_failures = self._failures[0]
        if not self._is_due() or not self._asking.acquire(blocking=self._compared is None):
            return
        try:
            if not self._is_due():
                return
            num_known, error = self._failures
            if error is not None and num_known > num_failures:
                raise error  # the store was asked while this thread waited
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
        # The object was put between these two moments.
        low, high = moment - answered, moment + STAMP_SECONDS - began
        is_close = answered - began < MAX_ASKED_SECONDS
        known = max(low, self._bounds[0]), min(high, self._bounds[1])
        # A process that was suspended in between learns little: what it knew still counts, and it asks again.
        self._bounds = known if not is_close and known[0] <= known[1] else (low, high)
        self._compared = (began, own) if is_close else None

    def now(self) -> datetime:
        """Return the time by the store's clock; by this computer's, as long as no store was asked."""
        wall = self._wall()
        own = wall.timestamp() - self._uptime()
        low, high = self._bounds
        return wall + timedelta(seconds=min(max(own, low), high) - own)

    @property
    def warning(self) -> str:
        """Say that this computer's clock differs from the store's; empty if it does not, or nobody knows."""
        shift = (self._wall() - self.now()).total_seconds()
        if abs(shift) < WARN_SECONDS:
            return ""
        side = "ahead of" if shift > 0 else "behind"
        return (
            f"this computer's clock is {abs(shift):.0f} s {side} the store's: the store's counts; "
            "set this one, for example by NTP"
        )

    def _own_offset(self) -> float:
        return self._wall().timestamp() - self._uptime()

    def _is_due(self) -> bool:
        if self._compared is None:
            return True
        at, own = self._compared
        return self._uptime() - at >= COMPARE_SECONDS or abs(self._own_offset() - own) > SHIFT_SECONDS


def store_time(store: ObjectStore) -> datetime:
    """Return the time by the store's clock, which is asked for it if that is due.

    Raises:
        TransientError: the store does not answer.
    """
    clock = clock_of(store)
    clock.compare(store)
    return clock.now()


def _time_of_put(store: ObjectStore) -> datetime:
    """Return when the store says that an object was put that is put now, and deleted again.

    Its key is new, so no cache on the way knows an older answer.
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
    """Return what this process knows of the store's clock, however often it has opened the store."""
    url = store.canonical_url
    with _lock:
        return _clocks.setdefault(url, StoreClock())
