"""Stores and log sinks that break one promise each where a service fails or a name is odd; their docstrings say."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote, unquote

import msgspec
from support.stores.memorybucket import BucketError, MemoryBucketStore, MemoryBucketUpload
from support.worlds.broken_machines import breaks

from cloudspot.errors import AuthError, CloudspotError, ObjectExists, ObjectMissing, TransientError
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import ObjectPage
from cloudspot.testing.storekit import GOOD_KEYS

FAULTS = ("denied", "unwell", "throttled")


def failing(*names, faults=FAULTS):
    """Return the cases in which these calls fail."""
    return tuple(
        f"what_fails_is_neither_missing_nor_empty_nor_done[{name}, {fault}]"
        for name in names
        for fault in faults
    )


def cut(*names):
    return tuple(f"an_answer_that_breaks_off_is_no_object[{name}]" for name in names)


READS = ("get", "range", "range into")
CALLS = (*READS, "head", "list", "put", "create", "delete", "stream", "part", "end of a stream")
LATER = "a_later_page_that_fails_is_not_the_end_of_a_listing"
ONCE = "a_create_whose_answer_is_lost_is_made_once"
SECOND = "a_create_that_comes_second_has_not_won_because_its_answer_is_lost"
SECOND_STREAM = "a_create_only_stream_that_comes_second_has_not_won_because_its_answer_is_lost"
PUT = "a_put_whose_answer_is_lost_is_whole"
ORDER = "a_stream_of_many_parts_has_them_in_order"
ABORT = "an_abort_that_fails_hides_no_error_and_can_be_made_good"
LAST = tuple(f"a_stream_whose_last_answer_is_lost_is_whole[{one}]" for one in ("create-only", "replacing"))
ABORTED = "an_aborted_stream_leaves_no_parts"
PART = "a_part_that_fails_leaves_nothing"
ENDS = "a_link_ends_with_its_time"
READS_ALONE = "a_link_reads_its_object_and_does_nothing_else"


# --- rights and outages ---------------------------------------------------------------------------


@breaks(*failing("get", faults=["denied"]))
class TakesADenialForMissing(MemoryBucketStore):
    """an object that may not be read is missing"""

    def get(self, key):
        try:
            return super().get(key)
        except AuthError as error:
            raise ObjectMissing(str(error)) from error


@breaks(*failing("get", faults=["throttled", "unwell"]), *cut("get"))
class TakesAnOutageForMissing(MemoryBucketStore):
    """an object that cannot be read now is missing"""

    def get(self, key):
        try:
            return super().get(key)
        except TransientError as error:
            raise ObjectMissing(str(error)) from error


@breaks(*failing("head"))
class TakesAnyErrorOfHeadForMissing(MemoryBucketStore):
    """a size that cannot be told is that of a missing object, as a HEAD has no body to tell why"""

    def head(self, key):
        try:
            return super().head(key)
        except (AuthError, TransientError) as error:
            raise ObjectMissing(str(error)) from error


@breaks(*failing("list", faults=["denied"]), f"{LATER}[denied]")
class ListsNothingWithoutTheRight(MemoryBucketStore):
    """a listing that is denied is empty"""

    def list_page(self, prefix, *, after=None, limit=1000):
        try:
            return super().list_page(prefix, after=after, limit=limit)
        except AuthError:
            return ObjectPage(objects=(), next_after=None)


@breaks(
    *failing("list", faults=["throttled", "unwell"]), *(f"{LATER}[{one}]" for one in ("throttled", "unwell"))
)
class ListsNothingInAnOutage(MemoryBucketStore):
    """a listing of objects that fails is empty"""

    def list_page(self, prefix, *, after=None, limit=1000):
        try:
            return super().list_page(prefix, after=after, limit=limit)
        except TransientError:
            return ObjectPage(objects=(), next_after=None)


@breaks(*(f"{LATER}[{fault}]" for fault in FAULTS))
class EndsAListingAtAFailedPage(MemoryBucketStore):
    """a listing ends with the page before the one that fails"""

    def list_page(self, prefix, *, after=None, limit=1000):
        try:
            return super().list_page(prefix, after=after, limit=limit)
        except CloudspotError:
            if after is None:
                raise
            return ObjectPage(objects=(), next_after=None)


@breaks(*failing("delete"))
class DeletesInSilence(MemoryBucketStore):
    """a deletion that fails says nothing"""

    def delete(self, key):
        with suppress(AuthError, TransientError):
            super().delete(key)


@breaks(*failing("put", "create", faults=["throttled", "unwell"]), SECOND)
class PutsInSilence(MemoryBucketStore):
    """a put that fails says nothing"""

    def put(self, key, data, *, if_absent=False):
        with suppress(TransientError):
            super().put(key, data, if_absent=if_absent)


@breaks(*failing(*CALLS, faults=["denied"]), f"{LATER}[denied]")
class CallsADenialTransient(MemoryBucketStore):
    """a missing permission to an object is tried again for ever"""

    def translated(self, code, key):
        return super().translated("unwell" if code == "denied" else code, key)


@breaks(*failing(*CALLS, faults=["throttled"]), f"{LATER}[throttled]")
class CallsThrottlingADenial(MemoryBucketStore):
    """a service that is asked too often has taken a right away"""

    def translated(self, code, key):
        return super().translated("denied" if code == "throttled" else code, key)


@breaks(
    *failing(*CALLS, faults=["unwell"]), f"{LATER}[unwell]", SECOND_STREAM, SECOND, ONCE, PART, PUT, *LAST
)
class GivesUpInAnOutage(MemoryBucketStore):
    """an outage ends the job"""

    def translated(self, code, key):
        return CloudspotError(code) if code == "unwell" else super().translated(code, key)


@breaks(
    *failing(*CALLS),
    *(f"{LATER}[{fault}]" for fault in FAULTS),
    ONCE,
    SECOND,
    PUT,
    SECOND_STREAM,
    PART,
    ABORT,
    *LAST,
)
class LetsTheSdksErrorsOut(MemoryBucketStore):
    """the SDK's own errors are let out"""

    def ask(self, act, *arguments, key="", **options):
        try:
            return act(*arguments, **options)
        except BucketError as error:
            if str(error) in FAULTS:
                raise
            raise self.translated(str(error), key) from error


@breaks(*failing("create"))
class TakesAnyErrorForTaken(MemoryBucketStore):
    """a create-only put that fails has met another's object"""

    def put(self, key, data, *, if_absent=False):
        try:
            super().put(key, data, if_absent=if_absent)
        except (AuthError, TransientError) as error:
            if if_absent:
                raise ObjectExists(key) from error
            raise


# --- bytes on the way -----------------------------------------------------------------------------


@breaks(*cut(*READS))
class ReturnsWhatArrives(MemoryBucketStore):
    """an answer that breaks off is returned as far as it came"""

    def whole(self, length, data):
        return data


@breaks(*cut(*READS))
class FillsWhatIsMissing(MemoryBucketStore):
    """an answer that breaks off is filled up with zeros"""

    def whole(self, length, data):
        return data.ljust(length, b"\0")


@breaks(*cut("range", "range into"))
class TrustsRanges(MemoryBucketStore):
    """the length of a part of an object is not looked at"""

    def get_range(self, key, start, length):
        name = self.name(key)
        if start < 0 or length < 0:
            raise ValueError("start and length must not be negative")
        return self.ask(self.bucket.get, name, start, start + length, key=key)[1]


@breaks(*cut("get"))
class TrustsWholeObjects(MemoryBucketStore):
    """the length of a whole object is not looked at"""

    def get(self, key):
        return self.ask(self.bucket.get, self.name(key), key=key)[1]


# --- lost answers ---------------------------------------------------------------------------------


@breaks(SECOND)
class CreatesAgainWithoutTheCondition(MemoryBucketStore):
    """a create-only put is repeated as one that replaces"""

    def put(self, key, data, *, if_absent=False):
        try:
            super().put(key, data, if_absent=if_absent)
        except TransientError:
            super().put(key, data)


@breaks(SECOND)
class TakesATakenKeyForItsOwn(MemoryBucketStore):
    """a create-only put that is repeated and refused has met itself"""

    def put(self, key, data, *, if_absent=False):
        try:
            super().put(key, data, if_absent=if_absent)
        except TransientError:
            with suppress(ObjectExists):
                super().put(key, data, if_absent=if_absent)


@breaks(*failing("put", faults=["throttled", "unwell"]), ONCE, SECOND, PUT)
class CleansUpAfterALostAnswer(MemoryBucketStore):
    """a put whose answer is lost is undone"""

    def put(self, key, data, *, if_absent=False):
        try:
            super().put(key, data, if_absent=if_absent)
        except TransientError:
            self.bucket.objects.pop(key, None)
            raise


@breaks(ONCE, SECOND)
class TakesNoAnswerForDone(MemoryBucketStore):
    """a put that gets no answer is tried as a new object, for good"""

    def put(self, key, data, *, if_absent=False):
        try:
            super().put(key, data, if_absent=if_absent)
        except TransientError:
            if if_absent and key in self.bucket.objects:
                self.bucket.objects.pop(key)
            raise


# --- streams --------------------------------------------------------------------------------------


class _Streams(MemoryBucketStore):
    upload: type[MemoryBucketUpload]

    def open_upload(self, key, *, if_absent=False):
        return self.upload(self, self.name(key), if_absent=if_absent)


@breaks(ORDER)
class SortsPartsAsText(_Streams):
    """parts are put together in the order of their numbers as text: 1, 10, 11, 2"""

    class upload(MemoryBucketUpload):  # noqa: N801 - as the field
        def numbers(self):
            return sorted(super().numbers(), key=str)


@breaks(ORDER)
class CompletesTenParts(_Streams):
    """parts beyond the first page of ten are left out"""

    class upload(MemoryBucketUpload):  # noqa: N801 - as the field
        def numbers(self):
            return list(super().numbers())[:10]


@breaks(*failing("part", "stream"), PART)
class SendsPartsInSilence(_Streams):
    """a part that fails is left out"""

    class upload(MemoryBucketUpload):  # noqa: N801 - as the field
        def send(self, part):
            try:
                super().send(part)
            except CloudspotError:
                self.number -= 1


@breaks(*failing("end of a stream", faults=["throttled", "unwell"]), SECOND_STREAM)
class TakesALostCommitForDone(_Streams):
    """a commit without an answer is taken for done"""

    class upload(MemoryBucketUpload):  # noqa: N801 - as the field
        def commit(self):
            with suppress(TransientError):
                super().commit()


@breaks(SECOND_STREAM)
class CommitsAgainWithoutTheCondition(_Streams):
    """a create-only commit is repeated as one that replaces"""

    class upload(MemoryBucketUpload):  # noqa: N801 - as the field
        def commit(self):
            try:
                super().commit()
            except TransientError:
                bucket = self.store.bucket
                if self.id in bucket.uploads:
                    self.store.ask(bucket.complete, self.id, self.numbers(), key=self.key)


@breaks(ABORTED, PART)
class NeverAborts(_Streams):
    """the parts of an aborted stream stay, and are billed"""

    class upload(MemoryBucketUpload):  # noqa: N801 - as the field
        def abort(self):
            self.is_over = True


@breaks(ABORT)
class HidesTheErrorByTheAborts(_Streams):
    """an abort that fails hides why the stream was aborted"""

    class upload(MemoryBucketUpload):  # noqa: N801 - as the field
        def abort(self):
            if not self.is_over and self.id is not None:
                self.is_over = True
                self.store.ask(self.store.bucket.abort, self.id, key=self.key)


@breaks(ABORT)
class ForgetsItsUploads(MemoryBucketStore):
    """uploads that were left cannot be listed"""

    def unfinished_uploads(self):
        return iter(())


@breaks(ABORT)
class CannotDropUploads(MemoryBucketStore):
    """uploads that were left cannot be dropped"""

    def abort_upload(self, upload):
        return None


# --- links ----------------------------------------------------------------------------------------


@breaks(ENDS)
class LinksForTenYears(MemoryBucketStore):
    """a link is good for ten years"""

    def link(self, name, *, seconds, method, names=None):
        return super().link(name, seconds=3.2e8, method=method, names=names)


@breaks(ENDS)
class LinksForMinutes(MemoryBucketStore):
    """a link's seconds are taken for minutes"""

    def link(self, name, *, seconds, method, names=None):
        return super().link(name, seconds=60 * seconds, method=method, names=names)


@breaks(READS_ALONE)
class LinksThatWrite(MemoryBucketStore):
    """a link lets its reader write and delete"""

    def link(self, name, *, seconds, method, names=None):
        return super().link(name, seconds=seconds, method="*", names=names)


@breaks(READS_ALONE)
class LinksThatReadAll(MemoryBucketStore):
    """a link to an object reads all others as well"""

    def link(self, name, *, seconds, method, names=None):
        return super().link(name, seconds=seconds, method=method, names="*")


@breaks(ENDS)
class LinksThatHaveEnded(MemoryBucketStore):
    """a link has ended when it is made"""

    def link(self, name, *, seconds, method, names=None):
        return super().link(name, seconds=0.0, method=method, names=names)


# --- names, by ObjectStoreTests -------------------------------------------------------------------


NO_KEY = "a_key_that_is_none_is_a_callers_bug"
ANY_KEY = "a_key_is_any_printable_ascii"


def odd(is_wrong):
    """Return the cases of the keys that are wrong."""
    names = [key if len(key) < 40 else f"{key[:8]}..." for key in GOOD_KEYS if is_wrong(key)]
    return tuple(f"a_key_is_the_same_for_every_call[{name}]" for name in names)


class _Odd(MemoryBucketStore):
    """Is wrong where names are odd or many: ObjectStoreTests show it."""


@breaks(NO_KEY, *odd(lambda key: quote(key) != key))
class EscapesStreamsTwice(_Odd):
    """the name of a stream is escaped twice"""

    def open_upload(self, key, *, if_absent=False):
        return super().open_upload(quote(key), if_absent=if_absent)


@breaks(*odd(lambda key: unquote(key) != key))
class DoesNotEscapeLinks(_Odd):
    """the name in a link is not escaped"""

    def link(self, name, *, seconds, method, names=None):
        return super().link(unquote(name), seconds=seconds, method=method, names=names)


@breaks(ANY_KEY, *odd(lambda key: "+" in key))
class TakesPlusForASpaceInListings(_Odd):
    """a plus in a listing's prefix is taken for a space"""

    def list_page(self, prefix, *, after=None, limit=1000):
        return super().list_page(prefix.replace("+", " "), after=after, limit=limit)


@breaks(ANY_KEY, "a_listing_is_in_the_order_of_the_keys_bytes", *odd(lambda key: key.lower() != key))
class FoldsCases(_Odd):
    """names that differ in their case alone are one"""

    def name(self, key):
        return super().name(key).lower()


@breaks(ANY_KEY, *odd(lambda key: len(key) > 64))
class CutsLongNames(_Odd):
    """long names are cut"""

    def name(self, key):
        return super().name(key)[:64]


@breaks(ANY_KEY, *odd(lambda key: "?" in key))
class EndsNamesAtAQuestionMark(_Odd):
    """what follows a question mark is no part of a name"""

    def name(self, key):
        return super().name(key).partition("?")[0]


@breaks("a_large_listing_is_complete")
class ListsOnePage(_Odd):
    """a listing ends with its first page"""

    def list_page(self, prefix, *, after=None, limit=1000):
        page = super().list_page(prefix, after=after, limit=limit)
        return msgspec.structs.replace(page, next_after=None) if len(page.objects) == 1000 else page


# --- logs -----------------------------------------------------------------------------------------

NOT_EMPTY = "a_log_that_cannot_be_read_is_not_empty"
SAYS_SO = "a_delivery_that_fails_says_so_and_is_made_good"
OWN_LINES = "each_job_sees_its_own_lines_alone"
KEEPS = "what_one_job_removes_the_others_keep"


def unread(*names, faults=FAULTS):
    return tuple(f"{NOT_EMPTY}[{name}, {fault}]" for name in names for fault in faults)


@breaks(OWN_LINES, KEEPS)
class KeepsOneLogForAll(ObjectStoreLogSink):
    """all jobs have one log"""

    def __init__(self, store, job_id):
        super().__init__(store, "kit")


@breaks(OWN_LINES, KEEPS)
class CutsTheJobsId(ObjectStoreLogSink):
    """jobs whose ids begin alike have one log"""

    def __init__(self, store, job_id):
        super().__init__(store, job_id[:5])


@breaks(KEEPS)
class RemovesWhatBeginsAlike(ObjectStoreLogSink):
    """with a job's log those go whose ids begin with its id"""

    def remove(self, pieces):
        for piece in pieces:
            for one in list(self._store.list_objects(f"jobs/{self._job_id}")):
                if f"/{piece.stream}/" in one.key:
                    self._store.delete(one.key)


@breaks(*unread("read", faults=["denied"]))
class ReadsNothingWithoutTheRight(ObjectStoreLogSink):
    """a log that may not be read is empty"""

    def read(self, stream, *, after=-1):
        with suppress(AuthError):
            yield from super().read(stream, after=after)


@breaks(*unread("read", "read back", faults=["throttled", "unwell"]))
class ReadsNothingInAnOutage(ObjectStoreLogSink):
    """a log that cannot be read now is empty"""

    def read(self, stream, *, after=-1):
        with suppress(TransientError):
            yield from super().read(stream, after=after)

    def read_back(self, stream):
        yield from reversed(list(self.read(stream)))


@breaks(*unread("streams", "pieces"))
class HasNoStreamsInTrouble(ObjectStoreLogSink):
    """a log whose streams cannot be listed has none"""

    def streams(self):
        try:
            return super().streams()
        except CloudspotError:
            return ()


@breaks(*unread("pieces"))
class HasNoPiecesInTrouble(ObjectStoreLogSink):
    """a log whose pieces cannot be listed has none"""

    def pieces(self):
        try:
            return super().pieces()
        except CloudspotError:
            return ()


@breaks(*(f"{SAYS_SO}[{fault}]" for fault in FAULTS))
class DropsWhatIsNotDelivered(ObjectStoreLogSink):
    """lines that cannot be delivered are dropped"""

    def write(self, records):
        with suppress(CloudspotError):
            super().write(records)


@breaks(*(f"{SAYS_SO}[{fault}]" for fault in FAULTS))
class DropsWhatItTriedOnce(ObjectStoreLogSink):
    """lines that were tried once are not delivered again"""

    tried = -1

    def write(self, records):
        left = [one for one in records if one.seq > self.tried]
        self.tried = max((one.seq for one in records), default=self.tried)
        super().write(left)


@breaks(f"{SAYS_SO}[denied]")
class TriesForEver(ObjectStoreLogSink):
    """a missing permission to write is an outage"""

    def write(self, records):
        try:
            super().write(records)
        except AuthError as error:
            raise TransientError(str(error)) from error


@breaks("a_machine_that_may_not_read_can_write")
class LooksBeforeItWrites(ObjectStoreLogSink):
    """whoever writes has to read first"""

    def write(self, records):
        self.streams()
        super().write(records)


@breaks("a_delivery_whose_answer_is_lost_is_shown_once")
class NamesSegmentsAnew(ObjectStoreLogSink):
    """lines that are delivered again are kept and shown again"""

    num_writes = 0

    def _write_segment(self, date, records):
        self.num_writes += 1
        super()._write_segment(f"2026-01-{self.num_writes:02}", records)

    def read(self, stream, *, after=-1):
        for segment in self._segments(stream):
            yield from (one for one in self._read_segment(segment.key) if one.seq > after)


STORES = [
    each
    for each in list(vars().values())
    if isinstance(each, type) and issubclass(each, MemoryBucketStore) and "broken" in vars(each)
]
ODD = [each for each in STORES if issubclass(each, _Odd)]
SINKS = [
    each
    for each in list(vars().values())
    if isinstance(each, type) and issubclass(each, ObjectStoreLogSink) and "broken" in vars(each)
]
