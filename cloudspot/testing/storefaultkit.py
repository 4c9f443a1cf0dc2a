"""Tests of the promises of an object store whose service fails, which a plugin's author subclasses.

::

    from cloudspot.testing.account import StoreAccount
    from cloudspot.testing.storefaultkit import StoreFaultTests

    class MyPlace(StoreAccount):
        ...  # how to make the emulated service deny, fail and lose an answer

    class TestMyStoresFaults(StoreFaultTests):
        @pytest.fixture
        def place(self):
            return MyPlace()

If a store treats a missing permission or an outage as an empty store, a job starts over and its checkpoints
may be deleted.
"""

from __future__ import annotations

import random
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import pytest

from cloudspot.errors import AuthError, CloudspotError, ObjectExists, TransientError
from cloudspot.interfaces import ObjectStore
from cloudspot.testing.account import Call, Fault, StoreAccount
from cloudspot.testing.kit import Kit, cases, wait_until
from cloudspot.testing.storekit import raising

Act = Callable[[ObjectStore, StoreAccount], object]

_BYTES = random.Random(7).randbytes(1 << 20)
_KINDS = {
    Fault.DENIED: AuthError,
    Fault.UNWELL: TransientError,
    Fault.THROTTLED: TransientError,
}


def upload(store: ObjectStore, key: str, data: bytes, *, if_absent: bool = False) -> None:
    """Store an object as a stream."""
    with store.open_upload(key, if_absent=if_absent) as stream:
        stream.write(data)
        stream.commit()


_READS: dict[str, Act] = {
    "get": lambda store, _: store.get("k"),
    "range": lambda store, _: store.get_range("k", 10, 600_000),
    "range into": lambda store, _: store.get_range_into("k", 10, bytearray(600_000)),
}
_ACTS: dict[str, tuple[Call, Act]] = {
    **{name: (Call.GET, act) for name, act in _READS.items()},
    "head": (Call.GET, lambda store, _: store.head("k")),
    "list": (Call.LIST_OBJECTS, lambda store, _: store.list_page("")),
    "put": (Call.PUT, lambda store, _: store.put("k", b"new")),
    "create": (Call.PUT, lambda store, _: store.put("new", b"new", if_absent=True)),
    "delete": (Call.DELETE, lambda store, _: store.delete("k")),
    "stream": (Call.BEGIN, lambda store, place: upload(store, "new", bytes(place.few_parts_bytes))),
    "part": (Call.PART, lambda store, place: upload(store, "new", bytes(place.few_parts_bytes))),
    "end of a stream": (
        Call.COMPLETE,
        lambda store, place: upload(store, "new", bytes(place.few_parts_bytes)),
    ),
}


class StoreFaultTests(Kit):
    """A test for each promise of ObjectStore about a service that fails; ``place`` is a StoreAccount."""

    can_presign: ClassVar[bool] = True
    """See :class:`~cloudspot.testing.storekit.ObjectStoreTests`."""

    # --- rights and outages -----------------------------------------------------------------------

    @cases(
        "call, act, fault",
        {
            f"{name}, {fault.value}": (call, act, fault)
            for name, (call, act) in _ACTS.items()
            for fault in _KINDS
        },
    )
    def test_what_fails_is_neither_missing_nor_empty_nor_done(
        self, place: StoreAccount, call: Call, act: Act, fault: Fault
    ) -> None:
        place.open().put("k", _BYTES)
        store = place.open()
        place.inject(call, fault)
        with pytest.raises(CloudspotError) as caught:
            act(store, place)
        assert isinstance(caught.value, _KINDS[fault])
        place.heal()
        assert place.open().get("k") == _BYTES
        assert _keys(place) == ["k"]

    @cases("fault", {fault.value: fault for fault in _KINDS})
    def test_a_later_page_that_fails_is_not_the_end_of_a_listing(
        self, place: StoreAccount, fault: Fault
    ) -> None:
        store = place.open()
        for number in range(5):
            store.put(f"k/{number}", b"")
        page = store.list_page("", limit=2)
        place.inject(Call.LIST_OBJECTS, fault)
        with pytest.raises(CloudspotError) as caught:
            store.list_page("", after=page.next_after, limit=2)
        assert isinstance(caught.value, _KINDS[fault])

    @cases("act", _READS)
    def test_an_answer_that_breaks_off_is_no_object(self, place: StoreAccount, act: Act) -> None:
        place.open().put("k", _BYTES)
        store = place.open()
        place.inject(Call.GET, Fault.CUT)
        with pytest.raises(CloudspotError) as caught:
            act(store, place)
        assert isinstance(caught.value, TransientError)

    # --- lost answers -----------------------------------------------------------------------------

    def test_a_create_whose_answer_is_lost_is_made_once(self, place: StoreAccount) -> None:
        place.inject(Call.PUT, Fault.LOST_ANSWER)
        with suppress(TransientError, ObjectExists):
            place.open().put("k", b"mine", if_absent=True)
        place.heal()
        assert place.open().get("k") == b"mine"
        with pytest.raises(ObjectExists):
            place.open().put("k", b"another's", if_absent=True)
        assert place.open().get("k") == b"mine"

    def test_a_create_that_comes_second_has_not_won_because_its_answer_is_lost(
        self, place: StoreAccount
    ) -> None:
        place.open().put("k", b"another's")
        place.inject(Call.PUT, Fault.LOST_ANSWER)
        with pytest.raises((TransientError, ObjectExists)):
            place.open().put("k", b"mine", if_absent=True)
        place.heal()
        assert place.open().get("k") == b"another's"

    def test_a_put_whose_answer_is_lost_is_whole(self, place: StoreAccount) -> None:
        place.open().put("k", b"old")
        place.inject(Call.PUT, Fault.LOST_ANSWER)
        with suppress(TransientError):
            place.open().put("k", _BYTES)
        place.heal()
        assert place.open().get("k") == _BYTES

    @cases("if_absent", {"create-only": True, "replacing": False})
    def test_a_stream_whose_last_answer_is_lost_is_whole(
        self, place: StoreAccount, *, if_absent: bool
    ) -> None:
        data = bytes(place.few_parts_bytes)
        place.inject(Call.COMPLETE, Fault.LOST_ANSWER)
        with suppress(TransientError, ObjectExists):
            upload(place.open(), "k", data, if_absent=if_absent)
        place.heal()
        assert place.open().head("k").size == len(data)
        assert _left(place) == []

    def test_a_create_only_stream_that_comes_second_has_not_won_because_its_answer_is_lost(
        self, place: StoreAccount
    ) -> None:
        with place.open().open_upload("k", if_absent=True) as stream:
            stream.write(bytes(place.few_parts_bytes))
            place.open().put("k", b"another's")
            place.inject(Call.COMPLETE, Fault.LOST_ANSWER)
            with pytest.raises((TransientError, ObjectExists)):
                stream.commit()
            place.heal()
        assert place.open().get("k") == b"another's"

    # --- streams ----------------------------------------------------------------------------------

    def test_a_stream_of_many_parts_has_them_in_order(self, place: StoreAccount) -> None:
        data = random.Random(1).randbytes(place.many_parts_bytes)
        upload(place.open(), "k", data)
        assert place.open().get("k") == data

    def test_a_part_that_fails_leaves_nothing(self, place: StoreAccount) -> None:
        place.inject(Call.PART, Fault.UNWELL)
        with pytest.raises(TransientError):
            upload(place.open(), "k", bytes(place.few_parts_bytes))
        place.heal()
        assert _keys(place) == []
        assert list(place.pending()) == []

    def test_an_aborted_stream_leaves_no_parts(self, place: StoreAccount) -> None:
        with place.open().open_upload("k") as stream:
            stream.write(bytes(place.few_parts_bytes))
            # A part may not have arrived yet.
            wait_until(lambda: list(place.pending()) == ["k"], "the upload's parts are pending", seconds=10.0)
        wait_until(lambda: list(place.pending()) == [], "no part is pending after the abort", seconds=10.0)

    def test_an_abort_that_fails_hides_no_error_and_can_be_made_good(self, place: StoreAccount) -> None:
        place.inject(Call.ABORT, Fault.UNWELL)
        failure = RuntimeError("in the middle")
        with raising(RuntimeError, "in the middle"), place.open().open_upload("k") as stream:
            stream.write(bytes(place.few_parts_bytes))
            raise failure
        place.heal()
        assert _keys(place) == []
        assert _left(place) == []

    # --- links ------------------------------------------------------------------------------------

    def test_a_link_ends_with_its_time(self, place: StoreAccount) -> None:
        store = place.open()
        store.put("k", b"hello")
        if not self.can_presign:
            with pytest.raises(CloudspotError):
                store.presign_get("k", seconds=60)
            return
        url = store.presign_get("k", seconds=60)
        assert _ask(url) == b"hello"
        place.pass_time(61.0)
        assert _ask(url) is None, "the link still works"

    def test_a_link_reads_its_object_and_does_nothing_else(self, place: StoreAccount) -> None:
        store = place.open()
        store.put("k", b"hello")
        store.put("other", b"secret")
        if not self.can_presign:
            return
        url = store.presign_get("k", seconds=60)
        for method in ("PUT", "POST", "DELETE"):
            _ask(url, method)
        head, _, query = url.partition("?")
        assert _ask(head.removesuffix("k") + "other?" + query) is None, "the link reads another object"
        assert place.open().get("k") == b"hello"
        assert _keys(place) == ["k", "other"]


def _keys(place: StoreAccount) -> list[str]:
    return [one.key for one in place.open().list_objects("")]


def _left(place: StoreAccount) -> list[str]:
    """Abort the uploads that the store lists, as ``cloudspot reap`` does; return those that remain."""
    store = place.open()
    for one in list(store.unfinished_uploads()):
        store.abort_upload(one)
    return list(place.pending())


def _ask(url: str, method: str = "GET") -> bytes | None:
    """Return the response to a request for the link, or None if it is refused."""
    request = urllib.request.Request(url, method=method, data=None if method == "GET" else b"evil")  # noqa: S310
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError:
        return None
