"""Records under their keys: read one, look for one that may be missing, create one permanently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from cloudspot.errors import ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.creation import create, read_large
from cloudspot.jobstore.layout import codec
from cloudspot.jobstore.layout.records import Manifest, Part
from cloudspot.model import ObjectMeta

Created = TypeVar("Created", bound=msgspec.Struct)
_LARGE = (Manifest, Part)
"""The types whose records grow with the number of ranks and tensors."""


def read_record(store: ObjectStore, key: str, record_type: type[codec.Record]) -> codec.Record:
    """Return the record under ``key``.

    Raises:
        ObjectMissing: no object has that key.
    """
    data = read_large(store, key) if record_type in _LARGE else store.get(key)
    return codec.decode(data, record_type, key=key)


def find_record(store: ObjectStore, key: str, record_type: type[codec.Record]) -> codec.Record | None:
    """Return the record under ``key``, or None if there is no such object."""
    try:
        return read_record(store, key, record_type)
    except ObjectMissing:
        return None


def find_bytes(store: ObjectStore, key: str) -> bytes | None:
    """Return the bytes under ``key``, or None if there is no such object."""
    try:
        return store.get(key)
    except ObjectMissing:
        return None


def find_meta(store: ObjectStore, key: str) -> ObjectMeta | None:
    """Return the metadata of the object under ``key``, or None if there is no such object."""
    try:
        return store.head(key)
    except ObjectMissing:
        return None


def first_names(store: ObjectStore, prefix: str) -> Iterator[str]:
    """Yield the distinct first segments of the names below a prefix, in order, each with its slash if any.

    Each segment takes one request.
    """
    after: str | None = None
    while True:
        page = store.list_page(prefix, after=after, limit=1)
        if page.objects:
            key = page.objects[0].key
            name, slash, _ = key.removeprefix(prefix).partition("/")
            yield name + slash
            after = f"{prefix}{name}/~" if slash else key  # Sorts after all our keys below this name.
        elif page.next_after is None:
            return
        else:  # the page has only foreign names, which are not valid keys
            after = page.next_after


def create_record(store: ObjectStore, key: str, record: Created) -> Created:
    """Put the record under ``key`` unless the key is taken; return the record that is then stored there.

    Raises:
        TransientError: the outcome is unknown; call again with the same record.
    """
    winner = create(store, key, codec.encode(record))
    return record if winner is None else codec.decode(winner, type(record), key=key)
