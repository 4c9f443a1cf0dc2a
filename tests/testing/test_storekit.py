"""The kit of store tests: a store that is broken on purpose fails the tests that are meant for it, alone."""

import itertools
import time
from contextlib import suppress
from urllib.parse import unquote

import msgspec
import pytest
from support.stores.memorystore import NOT_SHARED, InMemoryStore
from support.worlds import kitruns

from cloudspot.errors import ObjectExists, ObjectMissing
from cloudspot.model import ObjectPage
from cloudspot.testing.storekit import ObjectStoreTests


class InMemoryTests(ObjectStoreTests):
    deviations = NOT_SHARED
    can_presign = False
    stream_bytes = 1 << 20


def failures(make_store):
    """Run each test of the kit on a store of its own; return the names of those that fail.

    Stores that are broken where names are odd are in test_faultkits.py.
    """
    names = {name for name in dir(InMemoryTests) if name.startswith("test_")} - NOT_SHARED.keys()
    return kitruns.failures(
        InMemoryTests, only=names - {"test_a_key_is_the_same_for_every_call"}, store=make_store
    )


class Wrapped(InMemoryStore):
    """Its uploads go through a hook."""

    def open_upload(self, key, *, if_absent=False):
        return self.changed(super().open_upload(key, if_absent=if_absent), key)

    def changed(self, upload, key):
        return upload


class NamesAllBytesAlike(InMemoryStore):
    def head(self, key):
        return msgspec.structs.replace(super().head(key), etag="same")

    def list_page(self, prefix, *, after=None, limit=1000):
        page = super().list_page(prefix, after=after, limit=limit)
        objects = tuple(msgspec.structs.replace(one, etag="same") for one in page.objects)
        return msgspec.structs.replace(page, objects=objects)


class QuotesEtagsInListings(InMemoryStore):
    def list_page(self, prefix, *, after=None, limit=1000):
        page = super().list_page(prefix, after=after, limit=limit)
        objects = tuple(msgspec.structs.replace(one, etag=f'"{one.etag}"') for one in page.objects)
        return msgspec.structs.replace(page, objects=objects)


class IgnoresConditions(InMemoryStore):
    """As s3rver and rclone do."""

    def put(self, key, data, *, if_absent=False):
        super().put(key, data)


class LooksBeforeItPuts(InMemoryStore):
    def put(self, key, data, *, if_absent=False):
        if if_absent and key in self._objects:
            raise ObjectExists(key)
        time.sleep(0.002)
        super().put(key, data)


class IgnoresConditionsOfStreams(InMemoryStore):
    def open_upload(self, key, *, if_absent=False):
        return super().open_upload(key)


class ChecksStreamsWhenOpened(InMemoryStore):
    def open_upload(self, key, *, if_absent=False):
        if if_absent and key in self._objects:
            raise ObjectExists(key)
        return super().open_upload(key)


class TakesTheSameBytesForItsOwn(InMemoryStore):
    """A store that reads back and compares: two writers of the same bytes would both have won."""

    def put(self, key, data, *, if_absent=False):
        try:
            super().put(key, data, if_absent=if_absent)
        except ObjectExists:
            if self._objects[key][0] != bytes(data):
                raise


class HasInclusiveRanges(InMemoryStore):
    def get_range(self, key, start, length):
        return super().get_range(key, start, length + (length >= 0))


class RefusesRangesPastTheEnd(InMemoryStore):
    def get_range(self, key, start, length):
        data = super().get_range(key, start, length)
        if length and not data:
            raise ObjectMissing(key)
        return data


class HoldsTheReadersBuffer(InMemoryStore):
    def get_range_into(self, key, start, buffer):
        self.held = memoryview(buffer)
        return super().get_range_into(key, start, buffer)


class CountsTheWholeBuffer(InMemoryStore):
    def get_range_into(self, key, start, buffer):
        super().get_range_into(key, start, buffer)
        return len(buffer)


class ListsAfterInclusively(InMemoryStore):
    def list_page(self, prefix, *, after=None, limit=1000):
        page = super().list_page(prefix, after=after, limit=limit)
        if after is not None and after in self._objects and after.startswith(prefix):
            return ObjectPage(objects=(self.head(after), *page.objects)[:limit], next_after=page.next_after)
        return page


class IgnoresThePrefix(InMemoryStore):
    """As a proxy does that drops the query."""

    def list_page(self, prefix, *, after=None, limit=1000):
        return super().list_page("", after=after, limit=limit)


class ListsOnePageOnly(InMemoryStore):
    def list_page(self, prefix, *, after=None, limit=1000):
        page = super().list_page(prefix, after=after, limit=min(limit, 1000))
        return msgspec.structs.replace(page, next_after=None) if limit >= 1000 else page


class ListsFoldersFirst(InMemoryStore):
    def list_page(self, prefix, *, after=None, limit=1000):
        page = super().list_page(prefix, after=after, limit=limit)
        return msgspec.structs.replace(
            page, objects=tuple(sorted(page.objects, key=lambda meta: ("/" not in meta.key, meta.key)))
        )


class ListsFromTheStartAgain(InMemoryStore):
    """A listing that repeats its first page for ever."""

    def list_page(self, prefix, *, after=None, limit=1000):
        return super().list_page(prefix, limit=limit)


class NeverSaysThatAPageIsTheLast(InMemoryStore):
    def list_page(self, prefix, *, after=None, limit=1000):
        page = super().list_page(prefix, after=after, limit=limit)
        if page.objects and len(page.objects) == limit:
            return msgspec.structs.replace(page, next_after=page.objects[-1].key)
        return page


class ListsLate(InMemoryStore):
    """A listing that shows a new object only the second time, as eventually consistent ones do."""

    def __init__(self):
        super().__init__()
        self._shown = set()

    def list_page(self, prefix, *, after=None, limit=1000):
        page = super().list_page(prefix, after=after, limit=limit)
        new = {meta.key for meta in page.objects} - self._shown
        self._shown |= new
        return msgspec.structs.replace(
            page, objects=tuple(meta for meta in page.objects if meta.key not in new)
        )


class RefusesToDeleteTheMissing(InMemoryStore):
    def delete(self, key):
        self.head(key)
        super().delete(key)


class DeletesByPrefix(InMemoryStore):
    def delete(self, key):
        super().delete(key)
        for meta in list(self.list_objects(key)):
            super().delete(meta.key)


class DeletesAThousandAtMost(InMemoryStore):
    def delete_many(self, keys):
        super().delete_many(keys[:1000])


class HoldsWhatItClosedOnce(InMemoryStore):
    def close(self):
        assert not self.__dict__.setdefault("closed", [])
        self.closed.append(True)


class ListsByAToken(InMemoryStore):
    """As Azure's: the service goes on by its own token alone, which holds for one listing."""

    def __init__(self):
        super().__init__()
        self.tokens, self.numbers = {}, itertools.count(1)

    def list_page(self, prefix, *, after=None, limit=1000, cursor=""):
        if cursor:
            assert self.tokens.pop(cursor) == (prefix, after)
        page = super().list_page(prefix, after=after, limit=limit)
        if page.next_after is None:
            return page
        token = f"token {next(self.numbers)}"
        self.tokens[token] = (prefix, page.next_after)
        return msgspec.structs.replace(page, cursor=token)


class UnquotesKeys(InMemoryStore):
    def put(self, key, data, *, if_absent=False):
        super().put(unquote(key), data, if_absent=if_absent)


class TakesAnyKey(InMemoryStore):
    def put(self, key, data, *, if_absent=False):
        with suppress(ValueError):
            super().put(key, data, if_absent=if_absent)


class KeepsTheCallersBuffer(InMemoryStore):
    def put(self, key, data, *, if_absent=False):
        super().put(key, data, if_absent=if_absent)
        self._held = memoryview(data)


class TearsPuts(InMemoryStore):
    def put(self, key, data, *, if_absent=False):
        if len(data) == 1 << 20 and not if_absent:
            super().put(key, data[: len(data) // 2])
            time.sleep(0.002)
        super().put(key, data, if_absent=if_absent)


class ForgetsTheZone(InMemoryStore):
    def head(self, key):
        meta = super().head(key)
        return msgspec.structs.replace(meta, modified_at=meta.modified_at.replace(tzinfo=None))


class ShowsStreamsAtOnce(Wrapped):
    def changed(self, upload, key):
        def write(data, write=upload.write):
            write(data)
            self.put(key, b"half")

        upload.write = write
        return upload


class CommitsOnAbort(Wrapped):
    def changed(self, upload, key):
        upload.abort = lambda: upload._parts is not None and upload.commit()
        return upload


class DropsTheCommittedOnAbort(Wrapped):
    def changed(self, upload, key):
        upload.abort = lambda: self.delete(key)
        return upload


class KeepsWhatWasWritten(Wrapped):
    """The caller's buffer is sent at the commit, when other bytes are in it."""

    def changed(self, upload, key):
        upload.write = lambda data: upload._open_parts().append(data)
        return upload


class TakesMoreAfterTheEnd(Wrapped):
    def changed(self, upload, key):
        write = upload.write

        def lenient(data):
            with suppress(ValueError):
                write(data)

        upload.write = lenient
        return upload


@pytest.mark.full
@pytest.mark.parametrize(
    ("make_store", "expected"),
    [
        (InMemoryStore, set()),
        (
            IgnoresConditions,
            {
                "test_a_create_only_stream_refuses_an_existing_key",
                "test_a_put_keeps_no_hold_of_the_callers_buffer",
                "test_if_absent_refuses_an_empty_object_too",
                "test_if_absent_refuses_an_existing_key_and_changes_nothing",
                "test_of_many_threads_that_create_a_key_exactly_one_wins",
                "test_of_two_create_only_streams_the_second_to_commit_is_refused",
            },
        ),
        (LooksBeforeItPuts, {"test_of_many_threads_that_create_a_key_exactly_one_wins"}),
        (
            IgnoresConditionsOfStreams,
            {
                "test_a_create_only_stream_refuses_an_existing_key",
                "test_of_two_create_only_streams_the_second_to_commit_is_refused",
            },
        ),
        (ChecksStreamsWhenOpened, {"test_of_two_create_only_streams_the_second_to_commit_is_refused"}),
        (
            TakesTheSameBytesForItsOwn,
            {"test_if_absent_refuses_an_existing_key_and_changes_nothing"},
        ),
        (
            HasInclusiveRanges,
            {
                "test_a_range_is_from_its_start_inclusive_as_long_as_asked",
                "test_a_range_is_read_into_a_buffer_and_no_hold_of_it_is_kept",
                "test_a_range_read_into_a_buffer_ends_with_the_object",
            },
        ),
        (
            RefusesRangesPastTheEnd,
            {"test_a_range_ends_with_the_object", "test_a_range_read_into_a_buffer_ends_with_the_object"},
        ),
        (HoldsTheReadersBuffer, {"test_a_range_is_read_into_a_buffer_and_no_hold_of_it_is_kept"}),
        (CountsTheWholeBuffer, {"test_a_range_read_into_a_buffer_ends_with_the_object"}),
        (
            ListsAfterInclusively,
            {
                "test_a_large_listing_is_complete",
                "test_a_listing_comes_in_pages",
                "test_a_listing_goes_on_after_a_key",
                "test_pages_of_a_random_tree_are_its_sorted_keys",
            },
        ),
        (ListsOnePageOnly, {"test_a_large_listing_is_complete"}),
        (
            ListsFromTheStartAgain,
            {
                "test_a_large_listing_is_complete",
                "test_a_listing_comes_in_pages",
                "test_a_listing_goes_on_after_a_key",
                "test_pages_of_a_random_tree_are_its_sorted_keys",
            },
        ),
        (
            ListsFoldersFirst,
            {
                "test_a_key_is_any_printable_ascii",
                "test_a_listing_goes_on_after_a_key",
                "test_a_listing_is_in_the_order_of_the_keys_bytes",
            },
        ),
        (NeverSaysThatAPageIsTheLast, {"test_the_last_page_says_that_it_is_the_last"}),
        (ListsByAToken, set()),
        (DeletesAThousandAtMost, {"test_many_are_deleted_at_once_and_no_other"}),
        (HoldsWhatItClosedOnce, {"test_a_store_that_is_closed_can_be_closed_again"}),
        (
            RefusesToDeleteTheMissing,
            {
                "test_to_delete_many_of_which_some_are_missing_is_no_error",
                "test_to_delete_what_is_missing_is_no_error",
            },
        ),
        (
            DeletesByPrefix,
            {"test_delete_removes_this_object_and_no_other"},
        ),
        (UnquotesKeys, {"test_a_key_is_any_printable_ascii"}),
        (TakesAnyKey, {"test_a_key_that_is_none_is_a_callers_bug"}),
        (KeepsTheCallersBuffer, {"test_a_put_keeps_no_hold_of_the_callers_buffer"}),
        (TearsPuts, {"test_a_reader_sees_an_object_whole_while_it_is_replaced"}),
        (NamesAllBytesAlike, {"test_an_etag_is_the_same_in_a_listing_and_another_for_other_bytes"}),
        (QuotesEtagsInListings, {"test_an_etag_is_the_same_in_a_listing_and_another_for_other_bytes"}),
        (
            IgnoresThePrefix,
            {
                "test_a_key_is_any_printable_ascii",
                "test_a_listing_comes_in_pages",
                "test_a_listing_goes_on_after_a_key",
                "test_a_listing_holds_nothing_but_what_begins_with_its_prefix",
                "test_a_listing_is_in_the_order_of_the_keys_bytes",
                "test_pages_of_a_random_tree_are_its_sorted_keys",
                "test_the_last_page_says_that_it_is_the_last",
                "test_threads_do_not_disturb_each_other",
            },
        ),
        (
            ShowsStreamsAtOnce,
            {
                "test_a_stream_appears_whole_with_its_commit_and_not_before",
                "test_a_stream_may_be_larger_than_a_part",
                "test_a_stream_replaces_what_was_there_with_its_commit",
                "test_a_stream_that_is_not_committed_leaves_nothing",
                "test_a_create_only_stream_refuses_an_existing_key",
                "test_of_two_create_only_streams_the_second_to_commit_is_refused",
            },
        ),
        (
            CommitsOnAbort,
            {
                "test_a_stream_that_is_not_committed_leaves_nothing",
                "test_a_stream_that_has_ended_takes_no_more",
            },
        ),
        (
            DropsTheCommittedOnAbort,
            {
                "test_abort_after_commit_does_nothing",
                "test_a_stream_appears_whole_with_its_commit_and_not_before",
                "test_a_stream_that_has_ended_takes_no_more",
                "test_a_stream_may_be_empty",
                "test_a_stream_may_be_larger_than_a_part",
                "test_a_stream_replaces_what_was_there_with_its_commit",
                "test_a_create_only_stream_refuses_an_existing_key",
                "test_of_two_create_only_streams_the_second_to_commit_is_refused",
            },
        ),
        (KeepsWhatWasWritten, {"test_a_stream_may_be_larger_than_a_part"}),
        (TakesMoreAfterTheEnd, {"test_a_stream_that_has_ended_takes_no_more"}),
    ],
)
def test_a_broken_store_fails_what_is_named_after_its_fault_and_nothing_else(make_store, expected):
    assert failures(make_store) == expected


@pytest.mark.full
def test_a_time_without_a_zone_fails_every_test_that_asks_for_it():
    assert {"test_head_tells_key_size_and_time", "test_an_object_may_be_large"} <= failures(ForgetsTheZone)


@pytest.mark.full
def test_a_listing_that_lags_fails_every_test_that_lists():
    assert {
        "test_a_put_replaces_what_was_there_for_every_way_of_reading",
        "test_a_large_listing_is_complete",
    } <= failures(ListsLate)
