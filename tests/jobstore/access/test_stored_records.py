"""Records under their keys."""

from datetime import datetime, timezone

import pytest
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.jobstore.access.stored_records import (
    create_record,
    find_bytes,
    find_meta,
    find_record,
    first_names,
    read_record,
)
from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.layout.records import StopRequest
from cloudspot.model import ObjectPage

AT = datetime(2026, 11, 20, 6, 30, tzinfo=timezone.utc)
FIRST = StopRequest(reason="user", at=AT, writer="a")
SECOND = StopRequest(reason="max_cost", at=AT, writer="b")


@pytest.fixture
def store():
    return InMemoryStore()


def test_the_first_record_stands_and_is_what_every_later_writer_gets(store):
    assert create_record(store, "k", FIRST) == FIRST
    assert create_record(store, "k", SECOND) == FIRST
    assert create_record(store, "k", FIRST) == FIRST
    assert read_record(store, "k", StopRequest) == find_record(store, "k", StopRequest) == FIRST


def test_what_is_missing_is_none_to_whoever_looks_for_it_and_an_error_to_whoever_reads_it(store):
    assert find_record(store, "k", StopRequest) is None
    assert find_bytes(store, "k") is None
    assert find_meta(store, "k") is None
    with pytest.raises(ObjectMissing):
        read_record(store, "k", StopRequest)


def test_a_malformed_record_is_corrupt_under_its_key(store):
    store.put("jobs/x/stop", b"{")
    for look in (read_record, find_record):
        with pytest.raises(CorruptData, match="jobs/x/stop is malformed"):
            look(store, "jobs/x/stop", StopRequest)
    with pytest.raises(CorruptData, match="jobs/x/stop is malformed"):
        create_record(store, "jobs/x/stop", FIRST)
    assert find_bytes(store, "jobs/x/stop") == b"{"
    assert find_meta(store, "jobs/x/stop").size == 1


def test_a_listing_may_begin_after_a_key(store):
    for name in "abc":
        store.put(f"p/{name}", b"")
    assert [meta.key for meta in store.list_objects("p/", after="p/a")] == ["p/b", "p/c"]


class WithFolder(WrappedStore):
    """A bucket in whose console somebody has made a folder: a page that would hold only its name is empty."""

    def list_page(self, prefix, *, after=None, limit=1000):
        if limit == 1 and prefix == "a/" and after is None:
            return ObjectPage(objects=(), next_after="a/")
        return self.inner.list_page(prefix, after=after, limit=limit)


def test_first_names_are_found_with_a_request_for_each_whatever_others_keep_there(store):
    for key in ("a/1/x", "a/1/y", "a/1-0/x", "a/2", "a/2-0/x", "a/3/x/y", "ab/4/x"):
        store.put(key, b"")
    found = ["1-0/", "1/", "2", "2-0/", "3/"]
    assert list(first_names(store, "a/")) == list(first_names(WithFolder(store), "a/")) == found
    assert list(first_names(store, "none/")) == []
