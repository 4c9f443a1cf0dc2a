"""Create-only records that are numbered from 1 without a gap: the journal, the generations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.parallel import each
from cloudspot.jobstore.stored_records import find_bytes

Record = TypeVar("Record")


def read_after(
    store: ObjectStore,
    prefix: str,
    key_of: Callable[[int], str],
    decode: Callable[[bytes, int, str], Record],
    *,
    known: int,
) -> list[Record]:
    """Return the records after number ``known``, in order.

    A writer of number n has read n - 1, so the first missing number is the end. This asks for the next one
    until it is missing, which costs a single cheap request where nothing is new. A caller that knows none
    lists what follows the first record, and reads it in parallel.
    """
    records: list[Record] = []
    while True:
        number = known + len(records) + 1
        key = key_of(number)
        data = find_bytes(store, key)
        if data is None:
            return records
        records.append(decode(data, number, key))
        if known == 0 and len(records) == 1:
            records += _read_listed(store, prefix, key_of, decode)


def _read_listed(
    store: ObjectStore, prefix: str, key_of: Callable[[int], str], decode: Callable[[bytes, int, str], Record]
) -> list[Record]:
    """Return the records from number 2 on that a listing shows, up to the first gap.

    A listing may miss a record that is written meanwhile and show a later one, so its length is only a hint;
    the caller asks for what it missed.
    """
    num_listed = sum(1 for _ in store.list_objects(prefix))
    numbers = range(2, num_listed + 1)
    records = []
    for number, data in zip(
        numbers, each(lambda number: find_bytes(store, key_of(number)), numbers), strict=True
    ):
        if data is None:
            break
        records.append(decode(data, number, key_of(number)))
    return records
