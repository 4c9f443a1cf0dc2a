"""Proves, before a job relies on it, that a store refuses a second create of a key."""

from __future__ import annotations

import time
from collections.abc import Callable

from cloudspot.errors import AuthError, ObjectExists, ObjectMissing, StoreRefused
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import keys
from cloudspot.jobstore.creation import WAITS, create
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import new_nonce
from cloudspot.retrying import retry


def probe(store: ObjectStore, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Create a random key twice: the second time must be refused and must change nothing.

    Some servers ignore the condition and overwrite, others do so only on a bucket with versioning. There two
    controllers would both win, and a job would train twice. The key is deleted again.

    Raises:
        StoreRefused: the store breaks its promise; the message says what it did.
        AuthError: the rights to write, read or delete are missing.
        TransientError: it does not answer; nothing is known.
    """
    key = keys.probe(new_nonce())
    first, second = new_nonce().encode(), new_nonce().encode()
    store = patient(store, sleep=sleep)
    try:
        if create(store, key, first, sleep=sleep) is not None:
            raise StoreRefused(f"{store.url}: a key that nobody has used holds other bytes than were put")
    except AuthError as error:
        raise AuthError(f"{store.url} cannot be written to: {error}") from error
    try:
        if _second_create_is_accepted(store, key, second, sleep):
            raise StoreRefused(
                f"{store.url}: a second create of the same key was accepted, so that two writers could both "
                "win; use another store, or a bucket that never had versioning"
            )
        found = _get(store, key)
        if found != first:
            what = "is gone" if found is None else "was overwritten, although the store said that it refused"
            raise StoreRefused(
                f"{store.url}: after a second create the first object {what}; use another store"
            )
    finally:
        store.delete(key)


def _second_create_is_accepted(
    store: ObjectStore, key: str, data: bytes, sleep: Callable[[float], None]
) -> bool:
    try:
        retry(lambda: store.put(key, data, if_absent=True), waits=WAITS, sleep=sleep)
    except ObjectExists:
        return False
    return True


def _get(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except ObjectMissing:
        return None
