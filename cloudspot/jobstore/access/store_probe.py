"""A check before a store is used: the store must refuse to create the same key twice."""

from __future__ import annotations

from cloudspot.calls.retrying import retry
from cloudspot.errors import AuthError, ObjectExists, StoreRefused
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.creation import WAITS, create
from cloudspot.jobstore.access.retrying_store import RetryingStore, with_retries
from cloudspot.jobstore.access.stored_records import find_bytes
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import new_nonce


def probe(store: ObjectStore) -> None:
    """Create a random key twice: the second attempt must be refused and must change nothing.

    Some servers ignore the condition and overwrite the object; others do so only if the bucket has
    versioning. On such stores, two controllers would both win, and a job would train twice. The probe deletes
    its key afterwards.

    Raises:
        StoreRefused: the store breaks this promise; the message describes how.
        AuthError: the permission to write, read or delete is missing.
    """
    key = keys.probe(new_nonce())
    first, second = new_nonce().encode(), new_nonce().encode()
    store = with_retries(store)
    try:
        if create(store, key, first) is not None:
            raise StoreRefused(f"{store.url}: a new object does not hold the bytes that were put")
    except AuthError as error:
        raise AuthError(f"{store.url} cannot be written to: {error}") from error
    try:
        if _second_create_is_accepted(store, key, second):
            raise StoreRefused(
                f"{store.url}: a second create of the same key was accepted, so two writers could both "
                "succeed; use another store, or a bucket that never had versioning"
            )
        found = find_bytes(store, key)
        if found != first:
            what = "is gone" if found is None else "was overwritten although the store reported a refusal"
            raise StoreRefused(
                f"{store.url}: after a second create the first object {what}; use another store"
            )
    finally:
        store.delete(key)


def _second_create_is_accepted(store: RetryingStore, key: str, data: bytes) -> bool:
    try:
        retry(lambda: store.put(key, data, if_absent=True), waits=WAITS, sleep=store.sleep)
    except ObjectExists:
        return False
    return True
