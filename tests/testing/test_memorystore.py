import pytest

from cloudspot.errors import CloudspotError, ObjectExists, ObjectMissing
from cloudspot.testing.memorystore import InMemoryStore


@pytest.fixture
def store():
    return InMemoryStore()


def test_what_was_put_is_read_back_whole_and_in_part(store):
    store.put("a/b", bytearray(b"0123456789"))
    assert store.get("a/b") == b"0123456789"
    assert store.get_range("a/b", 2, 3) == b"234"
    assert store.get_range("a/b", 8, 100) == b"89"
    assert store.get_range("a/b", 10, 1) == b""
    assert store.head("a/b").size == 10


def test_if_absent_refuses_an_existing_key_and_changes_nothing(store):
    store.put("k", b"first", if_absent=True)
    with pytest.raises(ObjectExists):
        store.put("k", b"second", if_absent=True)
    assert store.get("k") == b"first"
    store.put("k", b"third")
    assert store.get("k") == b"third"


@pytest.mark.parametrize(
    "call", [lambda s: s.get("k"), lambda s: s.head("k"), lambda s: s.get_range("k", 0, 1)]
)
def test_a_missing_object_is_an_error(store, call):
    with pytest.raises(ObjectMissing):
        call(store)


def test_a_listing_is_ordered_by_key_and_comes_in_pages(store):
    for key in ("b/2", "a/1", "b/10", "b/1", "c"):
        store.put(key, b"x")
    page = store.list_page("b/", limit=2)
    assert [one.key for one in page.objects] == ["b/1", "b/10"]
    assert page.next_after == "b/10"
    rest = store.list_page("b/", after=page.next_after, limit=2)
    assert ([one.key for one in rest.objects], rest.next_after) == (["b/2"], None)
    assert [one.key for one in store.list_objects("")] == ["a/1", "b/1", "b/10", "b/2", "c"]
    assert [one.key for one in store.list_page("b/", after="a").objects] == ["b/1", "b/10", "b/2"]


def test_delete_may_be_repeated(store):
    store.put("k", b"x")
    store.delete("k")
    store.delete("k")
    assert list(store.list_objects("")) == []


def test_an_upload_shows_nothing_before_its_commit(store):
    with store.open_upload("k", if_absent=True) as upload:
        upload.write(b"ab")
        assert list(store.list_objects("")) == []
        upload.write(b"cd")
        upload.commit()
    assert store.get("k") == b"abcd"
    with store.open_upload("other") as aborted:
        aborted.write(b"x")
    assert [one.key for one in store.list_objects("")] == ["k"]
    with pytest.raises(ObjectExists), store.open_upload("k", if_absent=True) as late:
        late.commit()


def test_memory_cannot_be_presigned(store):
    with pytest.raises(CloudspotError, match="cannot presign"):
        store.presign_get("k", seconds=1.0)
