"""Create-only records that are numbered from 1 without a gap: the journal, the generations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cloudspot.errors import ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.parallel import each

Record = TypeVar("Record")


def read_after(
    store: ObjectStore,
    prefix: str,
    key_of: Callable[[int], str],
    decode: Callable[[bytes, str], Record],
    *,
    known: int,
) -> list[Record]:
    """Return the records after number ``known``, in order.

    Who writes number n has read n - 1, so the first missing number is the end. A reader that knows
    some asks for the next one until it is missing: one request where nothing is new, of the cheap
    kind. Who knows none lists first, and then reads side by side.

    Raises:
        CorruptData: a record is malformed.
    """
    records: list[Record] = []
    if known == 0:
        # A listing may be older than its last entry (records come while it is made); its length
        # is only a hint, and what it missed is read below.
        listed = sum(1 for _ in store.list_objects(prefix))
        names = [key_of(number) for number in range(1, listed + 1)]
        for key, data in zip(names, each(lambda key: _get(store, key), names), strict=True):
            if data is None:
                break
            records.append(decode(data, key))
    while True:
        key = key_of(known + len(records) + 1)
        data = _get(store, key)
        if data is None:
            return records
        records.append(decode(data, key))


def _get(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except ObjectMissing:
        return None
