"""The promises of an object store as tests, which a plugin's author subclasses.

::

    from cloudspot.testing.storekit import ObjectStoreTests

    class TestMyStore(ObjectStoreTests):
        @pytest.fixture
        def store(self):
            return MyStore("my://an-empty-place")

Each test gets its own empty store. A store that breaks a promise fails the tests named after it.
"""

from __future__ import annotations

import array
import mmap
import multiprocessing
import random
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import ClassVar

from cloudspot import registry
from cloudspot.errors import CloudspotError, ObjectExists, ObjectMissing
from cloudspot.interfaces import ObjectStore
from cloudspot.model import ObjectPage
from cloudspot.testing.kit import Kit, cases

NUM_WRITERS = 32
NUM_PROCESSES = 4
NUM_ROUNDS = 3
SECONDS_TO_START = 120.0
"""The time limit for all processes of a race."""

GOOD_KEYS = (
    "plain",
    "with space/and  two",
    "plus+and-and_and.dot",
    "percent%2Fslash%20%",
    "query?a=b&c=d#fragment",
    "quotes'\"`",
    "marks!*();:@=$,~|^",
    "brackets[]{}<>",
    "back\\slash",
    "...three/..two/.one",
    "CASE/case/Case",
    "deep/" * 20 + "end",
    "x" * 255,
)
BAD_KEYS = ("", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "é", "a\nb", "a\0b")


class ObjectStoreTests(Kit):
    """A test for each promise of ObjectStore."""

    can_presign: ClassVar[bool] = True
    """Whether ``presign_get`` returns a URL that ``urllib`` can read; if not, it raises CloudspotError."""
    stream_bytes: ClassVar[int] = 21 << 20
    """The size of a stream that has more than two parts."""
    num_listed: ClassVar[int] = 1203
    """More objects than fit on one page of the store's own protocol."""

    def fill(self, store: ObjectStore, keys: Sequence[str]) -> None:
        """Store many empty objects; override it if an emulated store has a faster way."""
        _put_all(store, keys)

    # --- put, get, head ---------------------------------------------------------------------------

    def test_what_was_put_is_read_back_whole(self, store: ObjectStore) -> None:
        store.put("a/b", b"hello")
        store.put("empty", b"")
        assert store.get("a/b") == b"hello"
        assert store.get("empty") == b""

    def test_a_put_replaces_what_was_there_for_every_way_of_reading(self, store: ObjectStore) -> None:
        store.put("k", b"first")
        store.put("k", b"the second")
        assert store.get("k") == b"the second"
        assert store.get_range("k", 4, 6) == b"second"
        assert store.head("k").size == 10
        assert [(meta.key, meta.size) for meta in store.list_objects("")] == [("k", 10)]

    def test_a_put_takes_any_buffer(self, store: ObjectStore) -> None:
        store.put("bytearray", bytearray(b"one"))
        store.put("view", memoryview(b"-two-")[1:-1])
        store.put("wide", memoryview(array.array("I", [1, 2])))
        assert store.get("bytearray") == b"one"
        assert store.get("view") == b"two"
        assert store.get("wide") == array.array("I", [1, 2]).tobytes()

    def test_a_put_keeps_no_hold_of_the_callers_buffer(self, store: ObjectStore) -> None:
        mapped = mmap.mmap(-1, 4096)
        for if_absent in (True, False):
            mapped[:4] = b"good"
            with memoryview(mapped) as view, view[:4] as part:
                store.put("k", part, if_absent=if_absent)
                mapped[:4] = b"evil"
            assert store.get("k") == b"good"
        with memoryview(mapped) as view, raising(ObjectExists, "k"):
            store.put("k", view, if_absent=True)
        mapped.close()  # raises BufferError while a view exists

    def test_an_object_may_be_large(self, store: ObjectStore) -> None:
        data = _noise(self.stream_bytes)
        store.put("large", data)
        assert store.head("large").size == len(data)
        assert store.get("large") == data
        assert store.get_range("large", len(data) - 5, 100) == data[-5:]

    def test_a_range_is_from_its_start_inclusive_as_long_as_asked(self, store: ObjectStore) -> None:
        store.put("k", b"0123456789")
        assert store.get_range("k", 0, 1) == b"0"
        assert store.get_range("k", 2, 3) == b"234"
        assert store.get_range("k", 0, 10) == b"0123456789"
        assert store.get_range("k", 9, 1) == b"9"
        assert store.get_range("k", 4, 0) == b""

    def test_a_range_ends_with_the_object(self, store: ObjectStore) -> None:
        store.put("k", b"0123456789")
        store.put("empty", b"")
        assert store.get_range("k", 8, 100) == b"89"
        assert store.get_range("k", 10, 1) == b""
        assert store.get_range("k", 99, 1) == b""
        assert store.get_range("empty", 0, 1) == b""

    def test_a_range_is_read_into_a_buffer_and_no_hold_of_it_is_kept(self, store: ObjectStore) -> None:
        store.put("k", b"0123456789")
        buffer = bytearray(b"????????")
        assert store.get_range_into("k", 1, buffer) == 8
        assert buffer == b"12345678"
        with memoryview(buffer) as view, view[2:5] as middle:
            assert store.get_range_into("k", 7, middle) == 3
        assert buffer == b"12789678"
        buffer.append(0)  # raises BufferError while a view exists
        large = _noise(self.stream_bytes)
        store.put("large", large)
        target = bytearray(len(large) - 3)
        assert store.get_range_into("large", 3, target) == len(target)
        assert target == large[3:]

    def test_a_range_read_into_a_buffer_ends_with_the_object(self, store: ObjectStore) -> None:
        store.put("k", b"0123456789")
        store.put("empty", b"")
        buffer = bytearray(5)
        assert store.get_range_into("k", 8, buffer) == 2
        assert buffer[:2] == b"89"
        for key, start in (("k", 10), ("k", 99), ("empty", 0)):
            assert store.get_range_into(key, start, buffer) == 0
        assert store.get_range_into("k", 4, bytearray()) == 0

    def test_a_range_of_less_than_nothing_is_a_callers_bug(self, store: ObjectStore) -> None:
        store.put("k", b"0123456789")
        for start, length in ((-1, 1), (0, -1)):
            with raising(ValueError):
                store.get_range("k", start, length)
        with raising(ValueError):
            store.get_range_into("k", -1, bytearray(1))

    def test_head_tells_key_size_and_time(self, store: ObjectStore) -> None:
        before = datetime.now(timezone.utc)
        store.put("a/b", b"hello")
        meta = store.head("a/b")
        assert (meta.key, meta.size) == ("a/b", 5)
        assert meta.modified_at.utcoffset() is not None
        assert abs(meta.modified_at - before) < timedelta(hours=1)
        (listed,) = store.list_page("").objects
        assert (listed.key, listed.size) == ("a/b", 5)
        assert abs(listed.modified_at - meta.modified_at) < timedelta(seconds=2)

    def test_an_etag_is_the_same_in_a_listing_and_another_for_other_bytes(self, store: ObjectStore) -> None:
        """A store need not have etags. A reader of ranges detects a changed object by its etag."""
        etags = []
        for data in (b"one", b"two"):
            store.put("a/b", data)
            (listed,) = store.list_page("").objects
            assert listed.etag == store.head("a/b").etag
            etags.append(listed.etag)
        assert etags[0] != etags[1] or etags == ["", ""]

    def test_a_missing_object_is_said_to_be_missing(self, store: ObjectStore) -> None:
        store.put("a/b", b"x")
        for key in ("none", "a", "a/b/c", "x/y/z"):
            calls: Sequence[Callable[[str], object]] = (
                store.get,
                store.head,
                lambda key: store.get_range(key, 0, 1),
                lambda key: store.get_range(key, 0, 0),
                lambda key: store.get_range_into(key, 0, bytearray(1)),
                lambda key: store.get_range_into(key, 0, bytearray()),
            )
            for call in calls:
                with raising(ObjectMissing, key):
                    call(key)

    # --- keys -------------------------------------------------------------------------------------

    def test_a_key_is_any_printable_ascii(self, store: ObjectStore) -> None:
        for key in GOOD_KEYS:
            store.put(key, key.encode(), if_absent=True)
        assert [meta.key for meta in store.list_objects("")] == sorted(GOOD_KEYS)
        for key in GOOD_KEYS:
            assert store.get(key) == key.encode()
            assert store.head(key).key == key
            assert [meta.key for meta in store.list_page(key).objects] == [key]
            store.delete(key)
        assert list(store.list_objects("")) == []

    @cases("key", {key if len(key) < 40 else f"{key[:8]}...": key for key in GOOD_KEYS})
    def test_a_key_is_the_same_for_every_call(self, store: ObjectStore, key: str) -> None:
        with store.open_upload(key) as upload:
            upload.write(b"hello")
            upload.commit()
        buffer = bytearray(4)
        assert store.get(key) == b"hello"
        assert store.get_range(key, 1, 4) == b"ello"
        assert store.get_range_into(key, 1, buffer) == 4
        assert buffer == b"ello"
        assert store.head(key).key == key
        assert _keys(store, key) == [key]
        assert _keys(store, "", after=key) == []
        with raising(ObjectExists, key):
            store.put(key, b"", if_absent=True)
        if self.can_presign:
            with urllib.request.urlopen(store.presign_get(key, seconds=60)) as answer:  # noqa: S310
                assert answer.read() == b"hello"
        store.delete(key)
        assert _keys(store, "") == []

    def test_a_key_that_is_none_is_a_callers_bug(self, store: ObjectStore) -> None:
        for key in BAD_KEYS:
            calls: Sequence[Callable[[str], object]] = (
                store.get,
                store.head,
                store.delete,
                store.open_upload,
                lambda key: store.put(key, b""),
                lambda key: store.get_range(key, 0, 1),
                lambda key: store.get_range_into(key, 0, bytearray(1)),
                lambda key: store.presign_get(key, seconds=60),
            )
            for call in calls if self.can_presign else calls[:-1]:
                with raising(ValueError):
                    call(key)

    # --- create-only puts -------------------------------------------------------------------------

    def test_if_absent_creates_what_is_not_there(self, store: ObjectStore) -> None:
        store.put("k", b"first", if_absent=True)
        assert store.get("k") == b"first"
        store.delete("k")
        store.put("k", b"again", if_absent=True)
        assert store.get("k") == b"again"

    def test_if_absent_refuses_an_existing_key_and_changes_nothing(self, store: ObjectStore) -> None:
        store.put("a/b", b"first")
        for data in (b"second", b"first", b""):
            with raising(ObjectExists, "a/b"):
                store.put("a/b", data, if_absent=True)
        assert store.get("a/b") == b"first"

    def test_if_absent_refuses_an_empty_object_too(self, store: ObjectStore) -> None:
        store.put("k", b"", if_absent=True)
        with raising(ObjectExists, "k"):
            store.put("k", b"second", if_absent=True)
        assert store.get("k") == b""

    def test_of_many_threads_that_create_a_key_exactly_one_wins(self, store: ObjectStore) -> None:
        for number in range(NUM_ROUNDS):
            key = f"race/{number}"
            winners = _create_together(store, key, range(NUM_WRITERS), threading.Barrier(NUM_WRITERS))
            assert len(winners) == 1, f"{len(winners)} of {NUM_WRITERS} writers created {key}"
            assert store.get(key) == b"writer %d" % winners[0]

    def test_of_many_processes_that_create_a_key_exactly_one_wins(self, store: ObjectStore) -> None:
        registry.open_store(store.url)  # as each of the processes will
        context = multiprocessing.get_context("spawn")
        barrier, answers = context.Barrier(NUM_WRITERS), context.Queue()
        processes = [
            context.Process(target=_create_in_process, args=(store.url, number, barrier, answers))
            for number in range(NUM_PROCESSES)
        ]
        for process in processes:
            process.start()
        try:
            found = [answers.get(timeout=SECONDS_TO_START) for _ in processes]
        finally:
            for process in processes:
                process.join()
        assert [answer for answer in found if isinstance(answer, str)] == []
        for number in range(NUM_ROUNDS):
            winners = [winner for rounds in found for winner in rounds[number]]
            assert len(winners) == 1, f"{len(winners)} writers in {NUM_PROCESSES} processes created a key"
            assert store.get(f"race/{number}") == b"writer %d" % winners[0]

    def test_a_reader_sees_an_object_whole_while_it_is_replaced(self, store: ObjectStore) -> None:
        contents = [bytes([letter]) * (1 << 20) for letter in b"ab"]
        store.put("k", contents[0])
        is_over = threading.Event()

        def read() -> bool:
            is_whole = True
            while not is_over.is_set():
                is_whole = is_whole and store.get("k") in contents
            return is_whole

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read) for _ in range(3)]
            try:
                for number in range(20):
                    store.put("k", contents[number % 2])
            finally:
                is_over.set()
            assert [reader.result() for reader in readers] == [True] * 3

    def test_threads_do_not_disturb_each_other(self, store: ObjectStore) -> None:
        def keys(number: int) -> list[str]:
            return [f"d/{number}/{count}" for count in range(10)]

        def write(number: int) -> None:
            for key in keys(number):
                store.put(key, key.encode(), if_absent=True)
                assert store.get(key) == key.encode()

        def list_and_delete(number: int) -> list[str]:
            listed = [meta.key for meta in store.list_objects(f"d/{number}/")]
            for key in keys(number):
                store.delete(key)
            return listed

        # There are two steps, so that each thread lists while the objects of all the others exist.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
            listed = list(pool.map(list_and_delete, range(8)))
        assert listed == [keys(number) for number in range(8)]
        assert list(store.list_objects("")) == []

    # --- listing ----------------------------------------------------------------------------------

    def test_a_listing_is_in_the_order_of_the_keys_bytes(self, store: ObjectStore) -> None:
        keys = ["a-b", "a.c/x", "a/b", "a/b-c", "a/b0/z", "a0", "aa", "A", "a b", "Z", "~"]
        _put_all(store, keys)
        assert _keys(store, "") == sorted(keys)
        assert _keys(store, "a/") == ["a/b", "a/b-c", "a/b0/z"]
        assert _keys(store, "a/b") == ["a/b", "a/b-c", "a/b0/z"]
        assert _keys(store, "nothing/here") == []

    def test_a_listing_holds_nothing_but_what_begins_with_its_prefix(self, store: ObjectStore) -> None:
        """All objects listed under a job's prefix are deleted with that job."""
        _put_all(store, ["jobs/a/spec", "jobs/ab/spec", "jobs/b/spec", "others/data", "jobs-old"])
        assert [meta.key for meta in store.list_page("jobs/a/").objects] == ["jobs/a/spec"]
        assert _keys(store, "jobs/a/", after="jobs") == ["jobs/a/spec"]
        assert _keys(store, "jobs/b", after="jobs/a/spec") == ["jobs/b/spec"]

    def test_a_listing_goes_on_after_a_key(self, store: ObjectStore) -> None:
        _put_all(store, ["a-b", "a/b", "a/b0/z", "a0", "b"])
        assert _keys(store, "a", after="a-b") == ["a/b", "a/b0/z", "a0"]
        assert _keys(store, "a", after="a/b0") == ["a/b0/z", "a0"]
        assert _keys(store, "a", after="A") == ["a-b", "a/b", "a/b0/z", "a0"]
        assert _keys(store, "a", after="a0") == []
        assert _keys(store, "a", after="z") == []

    def test_a_listing_comes_in_pages(self, store: ObjectStore) -> None:
        keys = [f"p/{number}" for number in range(7)]
        _put_all(store, [*keys, "o", "q"])
        for limit in (1, 2, 3):
            pages = [[meta.key for meta in page.objects] for page in _pages(store, "p/", limit=limit)]
            assert [key for page_keys in pages for key in page_keys] == keys
            assert max(len(page_keys) for page_keys in pages) == limit

    def test_the_last_page_says_that_it_is_the_last(self, store: ObjectStore) -> None:
        _put_all(store, ["a", "b", "c"])
        assert store.list_page("", limit=2).next_after is not None
        assert store.list_page("", limit=3).next_after is None
        assert store.list_page("", limit=4).next_after is None
        assert store.list_page("none", limit=1).next_after is None

    def test_a_page_of_nothing_is_a_callers_bug(self, store: ObjectStore) -> None:
        with raising(ValueError):
            store.list_page("", limit=0)

    def test_pages_of_a_random_tree_are_its_sorted_keys(self, store: ObjectStore) -> None:
        rng = random.Random(0)
        # All segments have the same length, so that no key is below another.
        keys = {"/".join(rng.choice(("a ", "a-", "a.", "a0", "a~")) for _ in range(3)) for _ in range(60)}
        _put_all(store, sorted(keys))
        for _ in range(40):
            prefix = rng.choice(sorted(keys))[: rng.randint(0, 8)]
            after = rng.choice([None, "a", rng.choice(sorted(keys))[: rng.randint(1, 8)]])
            limit = rng.randint(1, 9)
            found = _keys(store, prefix, after=after, limit=limit)
            wanted = [key for key in keys if key.startswith(prefix) and (after is None or key > after)]
            assert found == sorted(wanted), (prefix, after, limit)

    def test_a_large_listing_is_complete(self, store: ObjectStore) -> None:
        keys = [f"many/{number:05}" for number in range(self.num_listed)]
        self.fill(store, keys)
        assert [meta.key for meta in store.list_objects("many/")] == keys
        assert _keys(store, "many/", limit=2 * self.num_listed) == keys
        page = store.list_page("many/", limit=2 * self.num_listed)
        assert page.next_after in {None, page.objects[-1].key}

    # --- delete -----------------------------------------------------------------------------------

    def test_delete_removes_this_object_and_no_other(self, store: ObjectStore) -> None:
        _put_all(store, ["a/b", "a/bc", "a/c"])
        store.delete("a/b")
        with raising(ObjectMissing, "a/b"):
            store.get("a/b")
        assert _keys(store, "") == ["a/bc", "a/c"]

    def test_many_are_deleted_at_once_and_no_other(self, store: ObjectStore) -> None:
        keys = [f"many/{number:05}" for number in range(self.num_listed)]
        self.fill(store, keys)
        store.put("many-others", b"stays")
        store.delete_many(keys[:-1])
        for key in (keys[0], keys[999], keys[1000], keys[-2]):
            with raising(ObjectMissing, key):
                store.head(key)
        assert store.head(keys[-1]).size == 0
        assert store.get("many-others") == b"stays"
        store.delete_many([])

    def test_to_delete_many_of_which_some_are_missing_is_no_error(self, store: ObjectStore) -> None:
        store.put("there", b"")
        store.delete_many(["missing/1", "there", "missing/2"])
        with raising(ObjectMissing, "there"):
            store.head("there")

    def test_a_store_that_is_closed_can_be_closed_again(self, store: ObjectStore) -> None:
        store.put("k", b"")
        for _ in range(2):
            store.close()

    def test_to_delete_what_is_missing_is_no_error(self, store: ObjectStore) -> None:
        store.put("a/b", b"")
        store.delete("a/b")
        store.delete("a/b")
        store.delete("a")
        store.delete("never/was")
        assert _keys(store, "") == []

    # --- streams ----------------------------------------------------------------------------------

    def test_a_stream_appears_whole_with_its_commit_and_not_before(self, store: ObjectStore) -> None:
        with store.open_upload("big/one") as upload:
            upload.write(b"ab")
            upload.write(memoryview(b"-cd-")[1:-1])
            upload.write(bytearray())
            assert _keys(store, "") == []
            upload.commit()
            assert store.get("big/one") == b"abcd"
        assert store.get("big/one") == b"abcd"

    def test_a_stream_may_be_empty(self, store: ObjectStore) -> None:
        with store.open_upload("empty") as upload:
            upload.commit()
        assert store.get("empty") == b""
        assert store.head("empty").size == 0

    def test_a_stream_may_be_larger_than_a_part(self, store: ObjectStore) -> None:
        data, rng, position = _noise(self.stream_bytes), random.Random(1), 0
        with store.open_upload("large") as upload:
            while position < len(data):
                length = rng.choice((1, 1000, 1 << 20, 7 << 20))
                buffer = bytearray(data[position : position + length])
                upload.write(buffer)
                buffer[:] = bytes(len(buffer))  # The caller may change the buffer after the write.
                position += length
            assert _keys(store, "") == []
            upload.commit()
        assert store.head("large").size == len(data)
        assert store.get("large") == data

    def test_a_stream_that_is_not_committed_leaves_nothing(self, store: ObjectStore) -> None:
        for num_bytes in (2, self.stream_bytes):
            with store.open_upload("k") as upload:
                upload.write(bytes(num_bytes))
            failure = RuntimeError("in the middle")
            with raising(RuntimeError, "in the middle"), store.open_upload("k") as upload:
                upload.write(bytes(num_bytes))
                raise failure
            upload = store.open_upload("k")
            upload.write(bytes(num_bytes))
            upload.abort()
            upload.abort()
        assert _keys(store, "") == []

    def test_abort_after_commit_does_nothing(self, store: ObjectStore) -> None:
        upload = store.open_upload("k")
        upload.write(b"x")
        upload.commit()
        upload.abort()
        assert store.get("k") == b"x"

    def test_a_stream_that_has_ended_takes_no_more(self, store: ObjectStore) -> None:
        aborted, committed = store.open_upload("a"), store.open_upload("c")
        aborted.abort()
        committed.commit()
        for upload in (aborted, committed):
            with raising(ValueError):
                upload.write(b"x")
            with raising(ValueError):
                upload.commit()
        assert _keys(store, "") == ["c"]

    def test_a_stream_replaces_what_was_there_with_its_commit(self, store: ObjectStore) -> None:
        for num_bytes in (3, self.stream_bytes):
            store.put("k", b"old")
            with store.open_upload("k") as upload:
                upload.write(bytes(num_bytes))
                assert store.get("k") == b"old"
                upload.commit()
            assert store.head("k").size == num_bytes

    def test_a_create_only_stream_refuses_an_existing_key(self, store: ObjectStore) -> None:
        store.put("k", b"first")
        for num_bytes in (0, 3, self.stream_bytes):
            with raising(ObjectExists, "k"), store.open_upload("k", if_absent=True) as upload:
                upload.write(bytes(num_bytes))
                upload.commit()
        assert store.get("k") == b"first"

    def test_of_two_create_only_streams_the_second_to_commit_is_refused(self, store: ObjectStore) -> None:
        for key, num_bytes in (("small", 1), ("large", self.stream_bytes)):
            with (
                store.open_upload(key, if_absent=True) as first,
                store.open_upload(key, if_absent=True) as second,
            ):
                first.write(b"1" * num_bytes)
                second.write(b"2" * num_bytes)
                second.commit()
                with raising(ObjectExists, key):
                    first.commit()
            assert store.get(key) == b"2" * num_bytes
        assert _keys(store, "") == ["large", "small"]

    # --- presigned URLs ---------------------------------------------------------------------------

    def test_a_presigned_url_is_read_without_other_credentials(self, store: ObjectStore) -> None:
        store.put("a/b c+d", b"hello")
        if not self.can_presign:
            with raising(CloudspotError):
                store.presign_get("a/b c+d", seconds=60)
            return
        with urllib.request.urlopen(store.presign_get("a/b c+d", seconds=60)) as answer:  # noqa: S310
            assert answer.read() == b"hello"

    # --- the store itself -------------------------------------------------------------------------

    def test_another_who_opens_the_same_url_sees_the_same(self, store: ObjectStore) -> None:
        store.put("k", b"x")
        other = registry.open_store(store.url)
        assert other.get("k") == b"x"
        other.put("k", b"y")
        assert store.get("k") == b"y"
        other.delete("k")
        assert _keys(store, "") == []


@contextmanager
def raising(kind: type[Exception], *mentions: str) -> Iterator[None]:
    """Fail unless the body raises ``kind`` with a message that contains each of ``mentions``."""
    try:
        yield
    except kind as error:
        missing = [mention for mention in mentions if mention not in str(error)]
        if missing:
            raise AssertionError(f"the message {str(error)!r} does not contain {missing}") from error
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def _keys(store: ObjectStore, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
    return [meta.key for page in _pages(store, prefix, after=after, limit=limit) for meta in page.objects]


def _pages(store: ObjectStore, prefix: str, *, after: str | None = None, limit: int) -> Iterator[ObjectPage]:
    cursor = ""
    while True:
        page = store.list_page(prefix, after=after, limit=limit, cursor=cursor)
        yield page
        if page.next_after is None:
            return
        assert after is None or page.next_after > after, f"after {after} the listing is at {page.next_after}"
        after, cursor = page.next_after, page.cursor


def _put_all(store: ObjectStore, keys: Sequence[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))


def _noise(num_bytes: int) -> bytes:
    return random.Random(num_bytes).randbytes(num_bytes)


def _create_together(store: ObjectStore, key: str, writers: range, barrier: threading.Barrier) -> list[int]:
    """Let all writers create the key at the same moment, each in a thread; return those that succeeded."""

    def create(writer: int) -> bool:
        barrier.wait(SECONDS_TO_START)
        try:
            store.put(key, b"writer %d" % writer, if_absent=True)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(len(writers)) as pool:
        return [writer for writer, has_won in zip(writers, pool.map(create, writers), strict=True) if has_won]


def _create_in_process(
    url: str, number: int, barrier: threading.Barrier, answers: multiprocessing.Queue[list[list[int]] | str]
) -> None:
    """Run some of the writers in each race; send the winners, or the error, to ``answers``."""
    per_process = NUM_WRITERS // NUM_PROCESSES
    writers = range(number * per_process, (number + 1) * per_process)
    try:
        store = registry.open_store(url)
        answers.put(
            [_create_together(store, f"race/{count}", writers, barrier) for count in range(NUM_ROUNDS)]
        )
    except BaseException as error:
        barrier.abort()  # so that the others need not wait
        answers.put(f"{type(error).__name__}: {error}")
        raise
