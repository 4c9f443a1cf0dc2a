"""What the agent has moved between its machine and the bucket is counted, whichever way it went."""

import pytest
from support.stores.directorystore import directory_store
from support.stores.faultstore import DenyingStore

from cloudspot.agent.metered_store import MeteredStore
from cloudspot.errors import AuthError, ObjectMissing


@pytest.fixture
def store(tmp_path):
    store = directory_store(tmp_path / "bucket")
    store.put("there", b"0123456789")
    return store


def stream(store, *blocks):
    with store.open_upload("streamed") as upload:
        for block in blocks:
            upload.write(block)
        upload.commit()
    assert store.get_range("streamed", 0, 99) == b"".join(blocks)


@pytest.mark.parametrize(
    ("move", "num_bytes"),
    [
        (lambda store: store.put("new", b"12345"), 5),
        (lambda store: store.put("new", memoryview(b"12345678").cast("I")), 8),
        (lambda store: store.put("new", b"12345", if_absent=True), 5),
        (lambda store: store.get("there"), 10),
        (lambda store: store.get_range("there", 7, 100), 3),
        (lambda store: store.get_range_into("there", 8, bytearray(9)), 2),
        (lambda store: stream(store, b"123", b"4567"), 14),
        (lambda store: (store.head("there"), store.list_page(""), store.delete("there")), 0),
    ],
)
def test_each_way_counts(store, move, num_bytes):
    metered = MeteredStore(store)
    move(metered)
    assert metered.moved_bytes == num_bytes


def test_what_fails_moves_nothing(store):
    metered = MeteredStore(store)
    with pytest.raises(ObjectMissing):
        metered.get("missing")
    denied = MeteredStore(DenyingStore(store, lambda method, _key: method == "put"))
    with pytest.raises(AuthError):
        denied.put("new", b"12345")
    assert (metered.moved_bytes, denied.moved_bytes) == (0, 0)
