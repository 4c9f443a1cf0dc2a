"""A bucket in memory with a client like an SDK's, a store on it, and accounts for the kits of failures.

The bucket has pages, parts and links, and its answers can be lost. What the clouds' stores keep behind real
SDKs, this one keeps in a few lines, each of which a broken store can change.
"""

from __future__ import annotations

import functools
import secrets
import threading
import time
from contextlib import suppress
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit
from weakref import WeakValueDictionary

from cloudspot.errors import AuthError, CloudspotError, ObjectExists, ObjectMissing, TransientError
from cloudspot.interfaces import ObjectStore, Upload, check_key
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import ObjectMeta, ObjectPage, UnfinishedUpload
from cloudspot.testing.account import Call, Fault, LogAccount, StoreAccount

PART_BYTES = 100
PAGE = 1000


class BucketError(Exception):
    """The service's answer in place of a result: its code."""


class Bucket:
    """The service. Objects by name, uploads by id, and the faults of its calls."""

    def __init__(self):
        self.objects: dict[str, tuple[bytes, datetime, str]] = {}
        self.uploads: dict[str, tuple[str, datetime, dict[int, bytes]]] = {}
        self.faults: dict[Call, Fault] = {}
        self.lock = threading.RLock()
        self.now, self.num_puts = 0.0, 0
        self.secret = secrets.token_hex(8)

    def answer(self, call, act):
        """Return what the act returns, or what the fault of the call makes of it."""
        fault = self.faults.get(call)
        if fault not in {None, Fault.LOST_ANSWER, Fault.CUT}:
            raise BucketError(fault.value)
        with self.lock:
            try:
                return act()
            finally:
                if fault is Fault.LOST_ANSWER:
                    del self.faults[call]
                    raise BucketError(Fault.UNWELL.value)

    def put(self, name, data, *, if_absent=False):
        def act():
            if if_absent and name in self.objects:
                raise BucketError("taken")
            self.num_puts += 1
            self.objects[name] = (bytes(data), datetime.now(timezone.utc), str(self.num_puts))

        return self.answer(Call.PUT, act)

    def get(self, name, start=0, end=None):
        """Return the length of the body and as much of it as arrives."""

        def act():
            if name not in self.objects:
                raise BucketError("missing")
            data = self.objects[name][0][start:end]
            is_cut = self.faults.get(Call.GET) is Fault.CUT
            return len(data), data[: len(data) // 2] if is_cut else data

        return self.answer(Call.GET, act)

    def head(self, name):
        def act():
            if name not in self.objects:
                raise BucketError("missing")
            data, at, etag = self.objects[name]
            return len(data), at, etag

        return self.answer(Call.GET, act)

    def list(self, prefix, after, limit):
        """Return a page of names, and whether more follow."""

        def act():
            names = sorted(one for one in self.objects if one.startswith(prefix) and one > after)
            page = names[: min(limit, PAGE)]
            return [(one, *self.objects[one]) for one in page], len(names) > len(page)

        return self.answer(Call.LIST_OBJECTS, act)

    def delete(self, name):
        return self.answer(Call.DELETE, lambda: self.objects.pop(name, None))

    def begin(self, name):
        def act():
            upload_id = secrets.token_hex(4)
            self.uploads[upload_id] = (name, datetime.now(timezone.utc), {})
            return upload_id

        return self.answer(Call.BEGIN, act)

    def part(self, upload_id, number, data):
        self.answer(Call.PART, lambda: self.uploads[upload_id][2].__setitem__(number, bytes(data)))

    def complete(self, upload_id, numbers, *, if_absent=False):
        def act():
            if upload_id not in self.uploads:
                raise BucketError("no upload")
            name, _, parts = self.uploads[upload_id]
            if if_absent and name in self.objects:
                raise BucketError("taken")
            self.num_puts += 1
            data = b"".join(parts[number] for number in numbers)
            self.objects[name] = (data, datetime.now(timezone.utc), str(self.num_puts))
            del self.uploads[upload_id]

        return self.answer(Call.COMPLETE, act)

    def abort(self, upload_id):
        return self.answer(Call.ABORT, lambda: self.uploads.pop(upload_id, None))


class MemoryBucketStore(ObjectStore):
    """Keeps every promise, also where the bucket fails."""

    url = "memory-bucket://test"

    def __init__(self, bucket):
        self.bucket = bucket

    def ask(self, act, *arguments, key="", **options):
        """Ask the bucket, and translate what it answers in place of a result."""
        try:
            return act(*arguments, **options)
        except BucketError as error:
            raise self.translated(str(error), key) from error

    def translated(self, code, key):
        kinds = {"taken": ObjectExists, "missing": ObjectMissing, "denied": AuthError}
        kind = kinds.get(code, CloudspotError if code == "no upload" else TransientError)
        return kind(f"the bucket: {key}: {code}")

    def name(self, key):
        check_key(key)
        return key

    def put(self, key, data, *, if_absent=False):
        self.ask(self.bucket.put, self.name(key), data, if_absent=if_absent, key=key)

    def get(self, key):
        return self.whole(*self.ask(self.bucket.get, self.name(key), key=key))

    def get_range(self, key, start, length):
        name = self.name(key)
        if start < 0 or length < 0:
            raise ValueError("start and length must not be negative")
        return self.whole(*self.ask(self.bucket.get, name, start, start + length, key=key))

    def whole(self, length, data):
        if len(data) != length:
            raise TransientError("the answer broke off")
        return data

    def head(self, key):
        size, at, etag = self.ask(self.bucket.head, self.name(key), key=key)
        return ObjectMeta(key=key, size=size, modified_at=at, etag=etag)

    def list_page(self, prefix, *, after=None, limit=1000):
        if limit < 1:
            raise ValueError("limit must be positive")
        rows, more = self.ask(self.bucket.list, prefix, after or "", limit, key=prefix)
        page = [
            ObjectMeta(key=name, size=len(data), modified_at=at, etag=etag) for name, data, at, etag in rows
        ]
        return ObjectPage(objects=tuple(page), next_after=page[-1].key if more else None)

    def delete(self, key):
        self.ask(self.bucket.delete, self.name(key), key=key)

    def open_upload(self, key, *, if_absent=False):
        return MemoryBucketUpload(self, self.name(key), if_absent=if_absent)

    def presign_get(self, key, *, seconds):
        name = self.name(key)
        return self.link(name, seconds=seconds, method="GET")

    def link(self, name, *, seconds, method, names=None):
        until = self.bucket.now + time.monotonic() + seconds
        signed = signature(self.bucket, names or name, until, method)
        Links.buckets[self.bucket.secret] = self.bucket
        place = f"{links_server()}/{self.bucket.secret}"
        return f"{place}/{quote(name)}?until={until!r}&method={method}&signed={signed}"

    def unfinished_uploads(self):
        for upload_id, (name, at, _) in list(self.bucket.uploads.items()):
            yield UnfinishedUpload(key=name, id=upload_id, begun_at=at)

    def abort_upload(self, upload):
        self.ask(self.bucket.abort, upload.id, key=upload.key)


class MemoryBucketUpload(Upload):
    def __init__(self, store, key, *, if_absent):
        self.store, self.key, self.if_absent = store, key, if_absent
        self.id, self.number, self.rest, self.is_over = None, 0, bytearray(), False

    def write(self, data):
        self.check_open()
        self.rest += data
        while len(self.rest) >= PART_BYTES:
            self.send(self.rest[:PART_BYTES])
            del self.rest[:PART_BYTES]

    def send(self, part):
        bucket = self.store.bucket
        if self.id is None:
            self.id = self.store.ask(bucket.begin, self.key, key=self.key)
        self.number += 1
        self.store.ask(bucket.part, self.id, self.number, part, key=self.key)

    def numbers(self):
        return range(1, self.number + 1)

    def commit(self):
        self.check_open()
        if self.id is None:
            self.store.put(self.key, self.rest, if_absent=self.if_absent)
        else:
            self.send(self.rest)
            self.store.ask(
                self.store.bucket.complete, self.id, self.numbers(), if_absent=self.if_absent, key=self.key
            )
        self.is_over = True

    def abort(self):
        if not self.is_over and self.id is not None:
            with suppress(CloudspotError):  # cloudspot reap drops what is left
                self.store.ask(self.store.bucket.abort, self.id, key=self.key)
        self.is_over = True

    def check_open(self):
        if self.is_over:
            raise ValueError("the upload has ended")


def signature(bucket, name, until, method):
    return str(hash((bucket.secret, name, repr(float(until)), method)))


class Links(BaseHTTPRequestHandler):
    """Answers the links to the objects of all buckets: ``/BUCKET/NAME?until=...``."""

    buckets: ClassVar[WeakValueDictionary[str, Bucket]] = WeakValueDictionary()

    def answer(self):
        address = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(address.query).items()}
        place, _, name = unquote(address.path[1:]).partition("/")
        bucket, until = self.buckets[place], float(asked["until"])
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        signed = {signature(bucket, one, until, asked["method"]) for one in (name, "*")}
        is_good = (
            asked["signed"] in signed
            and asked["method"] in {self.command, "*"}
            and until > bucket.now + time.monotonic()
            and (self.command != "GET" or name in bucket.objects)
        )
        self.send_response(200 if is_good else 403)
        self.end_headers()
        if is_good and self.command == "GET":
            self.wfile.write(bucket.objects[name][0])
        elif is_good and self.command == "DELETE":
            bucket.delete(name)
        elif is_good:
            bucket.put(name, body)

    do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - its names

    def log_message(self, *_):
        pass


@functools.cache
def links_server():
    """Return the address of one server for all buckets of this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Links)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


class MemoryStoreAccount(StoreAccount):
    """An empty bucket for one kind of store."""

    few_parts_bytes, many_parts_bytes = 2 * PART_BYTES + 7, 12 * PART_BYTES + 7

    def __init__(self, kind=MemoryBucketStore):
        self.bucket, self.kind = Bucket(), kind

    def open(self):
        return self.kind(self.bucket)

    def inject(self, call, fault):
        self.bucket.faults[call] = fault

    def heal(self):
        self.bucket.faults.clear()

    def pass_time(self, seconds):
        self.bucket.now += seconds

    def pending(self):
        return [name for name, _, _ in self.bucket.uploads.values()]


class MemoryLogAccount(LogAccount):
    """Logs in such a bucket, of one kind of sink."""

    def __init__(self, kind=ObjectStoreLogSink):
        self.bucket, self.kind = Bucket(), kind

    def sink(self, job_id):
        sink = self.kind(MemoryBucketStore(self.bucket), job_id)
        sink._store = with_retries(MemoryBucketStore(self.bucket), sleep=lambda seconds: None)
        return sink

    def inject(self, call, fault):
        for one in (Call.PUT,) if call is Call.WRITE_LINES else (Call.GET, Call.LIST_OBJECTS):
            self.bucket.faults[one] = fault

    def heal(self):
        self.bucket.faults.clear()
