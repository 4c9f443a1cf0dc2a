"""Drivers that regularly serve a store's jobs without a person: a cron job, a service, a function.

Each driver puts a small object under its name, which shows people that their jobs have a driver. The object
is advice: the protocol does not depend on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_record, read_record
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import StandingDriver
from cloudspot.model import ObjectMeta

MAX_EVERY = timedelta(hours=1)
"""A driver with a longer interval is too slow for any job."""
SLACK = timedelta(minutes=2)
"""A pass may be this late, and the clocks of a store and its reader may differ by this much."""
FORGOTTEN_AFTER = timedelta(days=1)


def note_driver(
    store: ObjectStore,
    driver: str,
    now: datetime,
    *,
    providers: Sequence[str],
    every: timedelta | None = None,
) -> None:
    """Note that ``driver`` drives the store's jobs on these providers, with a pass every ``every``.

    If that is None, the note states the interval since the previous pass, and none at the first pass.
    """
    store, key = with_retries(store), keys.driver(re.sub(r"[^A-Za-z0-9]+", "-", driver)[:64])
    try:
        before = find_record(store, key, StandingDriver)
    except CorruptData:
        before = None
    if before is None:
        _forget_old(store, now)
    elif every is None:
        every = max(now - before.at, timedelta())
    seconds = None if every is None else every.total_seconds()
    store.put(
        key, codec.encode(StandingDriver(who=driver, every=seconds, providers=tuple(providers), at=now))
    )


def list_drivers(store: ObjectStore, now: datetime, provider: str) -> tuple[StandingDriver, ...]:
    """Return the drivers that serve the provider and whose next pass is expected within an hour.

    The time of a driver's last pass is taken from the store, because the driver's own clock may be wrong.
    """
    store = with_retries(store)

    def read(meta: ObjectMeta) -> StandingDriver | None:
        try:
            return read_record(store, meta.key, StandingDriver)
        except (CorruptData, ObjectMissing):
            return None

    listed = _list(store)
    return tuple(
        one
        for meta, one in zip(listed, map_parallel(read, listed), strict=True)
        if one is not None and provider in one.providers and _is_expected(one, meta.modified_at, now)
    )


def _list(store: ObjectStore) -> list[ObjectMeta]:
    listed = store.list_page(keys.drivers_prefix()).objects
    return [meta for meta in listed if keys.driver.match(meta.key) is not None]


def _is_expected(driver: StandingDriver, came_at: datetime, now: datetime) -> bool:
    if driver.every is None or driver.every > MAX_EVERY.total_seconds():
        return False
    return abs(now - came_at) <= 2 * timedelta(seconds=driver.every) + SLACK


def _forget_old(store: ObjectStore, now: datetime) -> None:
    """Delete old notes, because each host that lives for only one pass leaves a name.

    ``now`` may come from a wrong clock. A driver whose note is deleted too early writes it again at its next
    pass.
    """
    for meta in _list(store):
        if now - meta.modified_at > FORGOTTEN_AFTER:
            store.delete(meta.key)
