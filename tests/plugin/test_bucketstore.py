"""What a fourth cloud's store takes: a bucket's requests, here over a dictionary, and no more."""

import dataclasses
import io
import re
import secrets
import tracemalloc
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from support.stores.memorystore import NOT_SHARED

from cloudspot.errors import (
    AuthError,
    CloudspotError,
    CorruptData,
    ObjectExists,
    ObjectMissing,
    SpecError,
    StoreRefused,
    TransientError,
)
from cloudspot.interfaces import MAX_GET_BYTES
from cloudspot.plugin.bucket import Bucket, Chunks, Described, Download, Listed, RangeBeyondEnd
from cloudspot.plugin.bucketstore import BucketStore
from cloudspot.plugin.multipart import PartedRequests, Passing, UploadGone
from cloudspot.plugin.sdkerrors import NO_CODES, SdkErrors
from cloudspot.testing import plaincalls
from cloudspot.testing.storekit import ObjectStoreTests

NOW = datetime.now(timezone.utc)


class Refused(Exception):
    """The SDK's error."""


class DictErrors(SdkErrors):
    raised = (Refused,)
    denied = frozenset({"denied"})
    throttled = frozenset({"busy"})

    def translation(self, error, what, codes=NO_CODES):
        return CloudspotError(f"{what}: the dictionary says: {error}")

    def code_of(self, error):
        return str(error)

    def status_of(self, error):
        return 400

    def message_of(self, error):
        return str(error)


class DictBucket(Bucket):
    scheme = "dict"
    names = re.compile(r"[a-z]{2,}")
    errors = DictErrors()
    rights = {"read": "dict:Get"}  # noqa: RUF012 - as a plugin might write it
    how_to_create = "mkdict dict://"
    kinds = {  # noqa: RUF012
        "exists": ObjectExists,
        "missing": ObjectMissing,
        "beyond": RangeBeyondEnd,
        "no bucket": SpecError,
        "gone": UploadGone,
        "lacking": StoreRefused,
    }

    def __init__(self, url, clients, sleep):
        self.slept = []
        super().__init__(url, self.slept.append)
        self.held, self.uploads = {}, {}
        self.refusals = []
        self.num_connected = 0
        self.change = lambda download: download

    def connect(self):
        self.num_connected += 1
        return self.held

    def head(self, client, name):
        data, writer = self.find(client, name)
        return Described(len(data), NOW, writer)

    def download(self, client, name, span):
        data, _ = self.find(client, name)
        if span is not None:
            if span[0] >= len(data):
                raise Refused("beyond")
            data = data[span[0] : span[1] + 1]
        return self.change(Download(io.BytesIO(data), len(data), span is not None))

    def list_names(self, client, prefix, *, after, token, limit):
        names = sorted(name for name in client if name.startswith(prefix) and name > (after or ""))
        found = [Listed(name, len(client[name][0]), NOW) for name in names[:limit]]
        return found, "more" if len(names) > limit else None

    def delete(self, client, name):
        self.find(client, name)
        del client[name]

    def sign_get(self, client, name, seconds):
        raise CloudspotError("a dictionary cannot presign")

    def find(self, client, name):
        if self.refusals:
            raise Refused(self.refusals.pop())
        try:
            return client[name]
        except KeyError:
            raise Refused("missing") from None


class DictUpload(PartedRequests):
    def begin(self, writer):
        upload_id = secrets.token_hex(8)
        self.bucket.uploads[upload_id] = (writer, {})
        return upload_id

    def send(self, upload_id, number, part):
        self.bucket.uploads[upload_id][1][number] = bytes(part)

    def complete(self, upload_id, parts):
        writer, held = self.bucket.uploads[upload_id]
        self.put(writer, b"".join(held[number] for number in sorted(held)))
        del self.bucket.uploads[upload_id]

    def put(self, writer, data):
        with self.bucket.asking(self.verb, self.key) as client:
            made = (bytes(data), writer)
            if self.verb == "create":
                if client.setdefault(self.name, made) is not made:
                    raise Refused("exists")
            else:
                client[self.name] = made

    def drop(self, upload_id):
        self.bucket.uploads.pop(upload_id, None)


class DictStore(BucketStore):
    bucket_type = DictBucket
    upload_type = DictUpload


class TestPromises(ObjectStoreTests):
    """As any store."""

    deviations = NOT_SHARED
    can_presign = False
    stream_bytes = 1 << 20

    @pytest.fixture
    def store(self):
        return DictStore("dict://bucket/some/prefix", part_bytes=300_000)


@pytest.fixture
def store():
    store = DictStore("dict://bucket/some/prefix")
    store.put("k", b"0123456789")
    return store


@pytest.fixture
def bucket(store):
    return store.bucket


def test_names_in_the_bucket_have_the_prefix_and_no_upload_is_left(bucket, store):
    with store.open_upload("s") as upload:
        upload.write(b"x")
        upload.commit()
    assert sorted(bucket.held) == ["some/prefix/k", "some/prefix/s"]
    assert bucket.uploads == {}
    assert bucket.num_connected == 1


@pytest.mark.parametrize(
    ("refusal", "kind", "message"),
    [
        ("missing", ObjectMissing, "dict://bucket/some/prefix: no object k"),
        (
            "no bucket",
            SpecError,
            "store dict://bucket/some/prefix: there is no bucket 'bucket'; create it (mkdict dict://bucket) or correct the name",
        ),
        (
            "denied",
            AuthError,
            "dict://bucket/some/prefix: cannot read k: the dictionary says: denied; this needs dict:Get",
        ),
        (
            "lacking",
            StoreRefused,
            "dict://bucket/some/prefix: cannot read k: the dictionary says: lacking; the server lacks a feature that cloudspot needs: use another store",
        ),
        (
            "strange",
            CloudspotError,
            "dict://bucket/some/prefix: cannot read k: the dictionary says: strange",
        ),
    ],
)
def test_an_error_becomes_cloudspots_by_its_kind(bucket, store, refusal, kind, message):
    bucket.refusals = [refusal]
    with pytest.raises(CloudspotError) as caught:
        store.get("k")
    assert (type(caught.value), str(caught.value)) == (kind, message)
    assert bucket.slept == []


def test_an_object_that_is_said_to_be_huge_is_not_read(bucket, store):
    store.put("k", b"x")

    class Endless(io.BytesIO):
        def read(self, num_bytes=-1):
            raise AssertionError(f"{num_bytes} bytes were asked for")

    bucket.change = lambda download: dataclasses.replace(download, body=Endless(), num_bytes=1 << 50)
    with pytest.raises(
        CorruptData, match=r"^dict://bucket/some/prefix: k: it is longer than 134217728 bytes$"
    ):
        store.get("k")


def test_a_whole_object_for_a_range_is_final_only_the_second_time(bucket, store):
    """A cache in between answered a range with all that it held, and a good store was refused for it."""
    store.put("k", b"0123456789")
    for call in (lambda: store.get_range("k", 2, 3), lambda: store.get_range_into("k", 2, bytearray(3))):
        answers = iter([False, True])
        bucket.change = lambda found, answers=answers: Download(
            found.body, found.num_bytes, is_partial=next(answers)
        )
        assert call() in (b"234", 3)
        assert list(answers) == []


def test_what_did_nothing_is_asked_again_five_times_in_all(bucket, store):
    for call in (
        lambda: store.get("k"),
        lambda: store.get_range_into("k", 0, bytearray(1)),
        lambda: store.head("k"),
        lambda: store.delete("k"),
    ):
        bucket.refusals = ["busy"] * 5
        bucket.slept.clear()
        with pytest.raises(Passing, match="the dictionary says: busy"):
            call()
        assert bucket.slept == [0.1, 0.2, 0.4, 0.8]
        bucket.refusals = ["busy"] * 4
        call()
        store.put("k", b"0123456789")


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            lambda found: Download(found.body, None, found.is_partial),
            StoreRefused,
            "an answer does not say how long it is",
        ),
        (
            lambda found: Download(found.body, found.num_bytes, is_partial=False),
            StoreRefused,
            "the server ignores ranges",
        ),
        (
            lambda found: Download(io.BytesIO(found.body.read()[:2]), found.num_bytes, found.is_partial),
            CloudspotError,
            "cannot read k: the connection broke after 2 of 3 bytes",
        ),
        (
            lambda found: Download(found.body, 4, found.is_partial),
            StoreRefused,
            "the answer for k announces 4 bytes, more than were requested",
        ),
        (
            lambda found: Download(Endless(), found.num_bytes, found.is_partial),
            TransientError,
            "the answer for k has more bytes than it announces",
        ),
    ],
)
def test_an_answer_that_cannot_be_trusted_is_no_object(bucket, store, change, kind, message):
    bucket.change = change
    for call in (lambda: store.get_range("k", 2, 3), lambda: store.get_range_into("k", 2, bytearray(3))):
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize("num_bytes", [10**16, 1 << 60, MAX_GET_BYTES + 1])
def test_no_claim_of_a_whole_objects_size_takes_memory(bucket, store, num_bytes):
    bucket.change = lambda found: Download(Endless(), num_bytes, found.is_partial)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData, match=f"k: it is longer than {MAX_GET_BYTES} bytes"):
            store.get("k")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_whole_object_with_more_bytes_than_it_says_is_no_object(bucket, store):
    for num_bytes in (0, 5):
        bucket.change = lambda found, n=num_bytes: Download(found.body, n, found.is_partial)
        with pytest.raises(TransientError, match="more bytes than it announces"):
            store.get("k")


class Endless(io.RawIOBase):
    """A body without an end."""

    def readinto(self, buffer):
        return len(buffer)

    def read(self, size=-1):
        return bytes(size)


def test_a_body_is_closed_and_its_checksum_is_compared(bucket, store):
    seen, bodies = [], []

    def watched(found):
        bodies.append(found.body)
        return Download(found.body, found.num_bytes, found.is_partial, lambda data: seen.append(bytes(data)))

    bucket.change = watched
    store.get("k")
    store.get_range("k", 1, 2)
    store.get_range_into("k", 3, bytearray(4))
    assert seen == [b"0123456789", b"12", b"3456"]
    assert [body.closed for body in bodies] == [True] * 3


@pytest.mark.parametrize(
    ("pages", "outcome"),
    [
        # A page may be empty although more follow.
        ([([], "one"), ([], "two"), (["a"], None)], ["a"]),
        ([([], "one"), (["a"], "two"), (["b"], None)], ["a", "b"]),
        ([([], "one"), ([], "one")], StoreRefused),
        ([([], "one"), ([], "two"), ([], "one")], StoreRefused),
        ([(["b", "a"], None)], StoreRefused),
        ([(["a"], "one"), (["a"], "one")], StoreRefused),
    ],
)
def test_a_listing_moves_forward_or_is_refused(bucket, store, monkeypatch, pages, outcome):
    left, tokens = list(pages), []

    def list_names(client, prefix, *, after, token, limit):
        tokens.append(token)
        names, following = left.pop(0)
        return [Listed(prefix + name, 0, NOW) for name in names], following

    monkeypatch.setattr(bucket, "list_names", list_names)
    if outcome is StoreRefused:
        with pytest.raises(StoreRefused, match="the listing of all objects does not move forward"):
            list(store.list_objects(""))
    else:
        assert [meta.key for meta in store.list_objects("")] == outcome
    assert left == []
    assert tokens[:2] == [None, pages[0][1] if not pages[0][0] else None][: len(tokens)]


def test_check_has_a_line_for_the_bucket_and_one_for_each_setting(bucket, store):
    assert [(one.name, one.ok, one.detail) for one in plaincalls.check(store)] == [
        ("bucket", True, bucket.url)
    ]

    def refuse(client):
        raise Refused("strange")

    assert [
        (one.ok, one.detail, one.remedy)
        for one in (
            bucket.check_setting("x", lambda client: ("on, and billed", "turn it off")),
            bucket.check_setting("x", refuse),
        )
    ] == [
        (True, "on, and billed", "turn it off"),
        (False, f"{bucket.url}: cannot list: the dictionary says: strange", ""),
    ]


class TakesManyBucket(DictBucket):
    deletes_many = True
    rights = {"delete": "dict:Delete"}  # noqa: RUF012

    def delete_names(self, client, names):
        self.deleted = [*getattr(self, "deleted", ()), len(names)]
        if self.refusals:
            raise Refused(self.refusals.pop())
        for name in names:
            client.pop(name, None)

    def disconnect(self, client):
        self.closed = [*getattr(self, "closed", ()), client]


class TakesManyStore(DictStore):
    bucket_type = TakesManyBucket


def test_where_the_cloud_takes_many_a_thousand_are_deleted_with_each_request():
    store = TakesManyStore("dict://bucket/some/prefix")
    keys = [f"k/{number}" for number in range(1203)]
    store.bucket.held.update({f"some/prefix/{key}": (b"", "") for key in [*keys, "stays"]})
    store.delete_many(keys)
    assert store.bucket.deleted == [1000, 203]
    assert list(store.bucket.held) == ["some/prefix/stays"]
    store.bucket.refusals = ["denied"]
    with pytest.raises(AuthError, match=r"cannot delete 2 objects: .*; this needs dict:Delete$"):
        store.delete_many(["a", "b"])
    with pytest.raises(ValueError, match="key"):
        store.delete_many(["a", "../b"])


def test_a_store_that_is_closed_disconnects_once_and_connects_again_if_it_is_asked(store):
    never = TakesManyStore("dict://bucket")
    never.close()
    assert not hasattr(never.bucket, "closed")
    used = TakesManyStore("dict://bucket")
    used.put("k", b"v")
    used.close()
    used.close()
    assert used.bucket.closed == [used.bucket.held]
    assert used.get("k") == b"v"
    store.close()  # a bucket whose SDK holds nothing


@pytest.mark.parametrize(
    "pieces", [[], [b"0123456789"], [b"01", b"234567", b"89"], [b"%d" % one for one in range(10)]]
)
def test_a_download_may_come_as_an_iterator_of_pieces(store, bucket, pieces):
    closed = []
    data = b"".join(pieces)
    store.put("k", data)
    bucket.change = lambda download: replace(download, body=Chunks(list(pieces), lambda: closed.append(True)))
    assert store.get("k") == data
    buffer = bytearray(b"?" * 12)
    assert store.get_range_into("k", 0, buffer) == len(data)
    assert buffer[: len(data)] == data
    assert closed == [True, True] if data else [True]
    bucket.change = lambda download: replace(download, body=Chunks([b"01"]), num_bytes=10)
    with pytest.raises(TransientError, match="the connection broke after 2 of 10 bytes"):
        store.get("k")


class TokenBucket(DictBucket):
    """As Azure's containers: a listing goes on from a token that only the service can read."""

    lists_by_token = True

    def __init__(self, url, clients, sleep):
        super().__init__(url, clients, sleep)
        self.asked = []

    def list_names(self, client, prefix, *, after, token, limit):
        self.asked.append(token)
        names = sorted(name for name in client if name.startswith(prefix))
        at = int(token or "0", 16)
        found = [Listed(name, len(client[name][0]), NOW) for name in names[at : at + limit]]
        return found, f"{at + limit:x}" if len(names) > at + limit else None


class TokenStore(DictStore):
    bucket_type = TokenBucket


class TestPromisesByToken(ObjectStoreTests):
    deviations = NOT_SHARED
    can_presign = False
    stream_bytes = 1 << 20

    @pytest.fixture
    def store(self):
        return TokenStore("dict://bucket/some/prefix", part_bytes=300_000)


def test_a_listing_by_token_goes_on_from_it_and_without_one_from_the_start():
    store = TokenStore("dict://bucket/p")
    for number in range(7):
        store.put(f"jobs/{number}", b"x")
    store.bucket.asked.clear()
    pages, after, cursor = [], None, ""
    while True:
        page = store.list_page("jobs/", after=after, cursor=cursor, limit=3)
        pages.append([one.key for one in page.objects])
        if page.next_after is None:
            break
        after, cursor = page.next_after, page.cursor
    assert pages == [["jobs/0", "jobs/1", "jobs/2"], ["jobs/3", "jobs/4", "jobs/5"], ["jobs/6"]]
    assert store.bucket.asked == [None, "3", "6"], "each name is listed once"
    late = store.list_page("jobs/", after="jobs/4", limit=3)
    assert [one.key for one in late.objects] == ["jobs/5"], "of the page on which it is"
    assert [one.key for one in store.list_objects("jobs/", after="jobs/4")] == ["jobs/5", "jobs/6"]
    assert store.list_page("jobs/", after="jobs/9", limit=3).objects == ()
