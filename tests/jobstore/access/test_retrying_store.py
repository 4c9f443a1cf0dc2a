"""Requests that failed in passing."""

import pytest
from support.stores.faultstore import FaultPlan, FaultyStore, Outage
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import ObjectExists, ObjectMissing, TransientError
from cloudspot.jobstore.access.retrying_store import RetryingStore, with_retries


class FirstFails(FaultyStore):
    """Each request fails once."""

    def _enter(self, method, key):
        super()._enter(method, key)
        if self.calls[method] == 1:
            raise TransientError(f"first {method}")


def test_each_request_that_may_be_repeated_is(tmp_path):
    slept = []
    inner = FirstFails(InMemoryStore("s3://b"), FaultPlan(), tmp_path)
    store = RetryingStore(inner, sleep=slept.append)
    store.put("k", b"abc")
    assert store.get("k") == b"abc"
    assert store.get_range("k", 1, 1) == b"b"
    assert store.head("k").size == 3
    assert [meta.key for meta in store.list_objects("")] == ["k"]
    store.delete("k")
    assert slept == [0.1] * 6
    assert store.url == "s3://b"


def test_a_create_is_made_once_since_its_second_try_could_meet_its_first(tmp_path):
    inner = FirstFails(InMemoryStore(), FaultPlan(), tmp_path)
    store = RetryingStore(inner, sleep=pytest.fail)
    with pytest.raises(TransientError):
        store.put("k", b"", if_absent=True)
    assert inner.calls == {"put": 1}


def test_an_outage_and_a_definite_answer_are_passed_on(tmp_path):
    slept = []
    down = FaultyStore(InMemoryStore(), FaultPlan(outages=(Outage(start=0, end=9e18),)), tmp_path)
    with pytest.raises(TransientError):
        RetryingStore(down, sleep=slept.append).get("k")
    assert slept == [0.1, 0.2, 0.4, 0.8]
    store = RetryingStore(InMemoryStore(), sleep=pytest.fail)
    with pytest.raises(ObjectMissing):
        store.get("k")
    store.put("k", b"", if_absent=True)
    with pytest.raises(ObjectExists):
        store.put("k", b"", if_absent=True)


def test_patience_is_not_doubled():
    store = with_retries(InMemoryStore())
    assert with_retries(store) is store


def test_uploads_and_urls_pass_through():
    inner = InMemoryStore()
    store = with_retries(inner)
    with store.open_upload("k") as upload:
        upload.write(b"1")
        upload.commit()
    assert inner.get("k") == b"1"
