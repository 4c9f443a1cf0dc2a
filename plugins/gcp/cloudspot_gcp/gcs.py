"""An object store in Cloud Storage: what ``gs://bucket/prefix`` opens.

Create-only puts are those of Storage's preconditions (``ifGenerationMatch=0``), which hold on versioned
buckets too. One whose answer is lost is made again: should the first have succeeded, the second's 412 is
about an object that carries this writer's mark, and is no refusal.

Contents go from where they lie and are read as they come, by the JSON API, with one CRC32C that Storage
compares and that is compared with what comes back; for all else there is google-cloud-storage.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from cloudspot.errors import (
    CloudspotError,
    ObjectMissing,
    StoreRefused,
    TransientError,
)
from cloudspot.interfaces import Data, ObjectStore, Upload, is_key
from cloudspot.model import CheckResult, ObjectMeta, ObjectPage
from cloudspot.plugin.multipart import PART_BYTES, PartedUpload, Passing, settle
from cloudspot_gcp.clients import TIMEOUT, GcpClients, endpoint
from cloudspot_gcp.errors import SDK_ERRORS, status_of
from cloudspot_gcp.gcsbody import extend_crc32c, shown_crc32c
from cloudspot_gcp.gcsbucket import Bucket
from cloudspot_gcp.gcscheck import check_settings
from cloudspot_gcp.gcsupload import GcsRequests

MAX_PAGE = 1000
MAX_PRESIGN_SECONDS = 7 * 24 * 3600
"""A signature of version 4 holds no longer; one by IAM may end sooner, when Google changes its keys."""
READ_BYTES = 256 << 10
"""What is read at once into a buffer: the copy stays in the processor's cache."""
_LISTED = "items(name,size,updated),nextPageToken"
_CRC32C = re.compile(r"(?:^|,)\s*crc32c=([^,\s]+)")


class GcsStore(ObjectStore):
    """Objects in a bucket, below a prefix. Thread-safe.

    Objects get no ACL, and the encryption that the bucket is set to.
    """

    def __init__(
        self,
        url: str,
        *,
        clients: GcpClients | None = None,
        part_bytes: int = PART_BYTES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read the URL; no I/O. ``part_bytes`` is in what pieces a stream goes up, a multiple of 256 KiB.

        Raises:
            SpecError: ``url`` is not ``gs://bucket`` or ``gs://bucket/prefix``.
        """
        self.url = url
        self._clients = clients or GcpClients()
        self._bucket = Bucket(url, self._clients, sleep)
        self._part_bytes = part_bytes

    def __repr__(self) -> str:
        return f"GcsStore({self.url!r})"

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Store ``data`` under ``key``; see ObjectStore.

        A replacing put is made again only where Storage says that it did nothing: it throttles.
        """
        requests, writer = GcsRequests(self._bucket, key, if_absent=if_absent), secrets.token_hex(16)
        with memoryview(data) as given, given.cast("B") as view:
            if not if_absent:
                self._bucket.persist(lambda: requests.put(writer, view), kind=Passing)
                return
            settle(
                lambda: requests.put(writer, view),
                is_ours=lambda: requests.found_writer() == writer,
                sleep=self._bucket.sleep,
            )

    def get(self, key: str) -> bytes:
        """Return the whole object; see ObjectStore.

        Raises:
            TransientError: also where its bytes have not the checksum that Storage has of them.
        """
        return self._read(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return some of the object's bytes; see ObjectStore."""
        if start < 0 or length < 0:
            raise ValueError(f"start and length must be >= 0: got {start}, {length}")
        if length == 0:
            self.head(key)  # HTTP has no empty range; whether the object is there is asked all the same.
            return b""
        return self._read(key, span=f"bytes={start}-{start + length - 1}")

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        """Read some of the object's bytes into the buffer; see ObjectStore."""
        with memoryview(buffer).cast("B") as view:
            if start < 0:
                raise ValueError(f"start must be >= 0: got {start}")
            if len(view) == 0:
                self.head(key)  # as in get_range
                return 0
            with self._reading(key, f"bytes={start}-{start + len(view) - 1}") as answer:
                if answer is None:
                    return 0
                length = min(self._length(answer), len(view))
                filled = 0
                while filled < length:
                    block = _some(answer, min(READ_BYTES, length - filled))
                    view[filled : filled + len(block)] = block
                    filled += len(block)
                with view[:length] as found:
                    self._compare(key, found, answer)
                return length

    def head(self, key: str) -> ObjectMeta:
        """Return what is known of the object; see ObjectStore."""
        blob = self._bucket.handle().blob(self._bucket.full(key))
        with self._bucket.asking("read", key):
            blob.reload(retry=None, timeout=TIMEOUT)
        return ObjectMeta(key=key, size=blob.size, modified_at=blob.updated)

    def list_page(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        """Return a page of objects, at most 1000; see ObjectStore.

        What others keep in the bucket under names that are no keys (``folder/``) is passed over.
        """
        if limit < 1:
            raise ValueError(f"limit must be >= 1: got {limit}")
        # Storage lists from a name on, inclusive. No key comes between ``after`` and it with the smallest
        # character of a key behind.
        start = None if after is None else f"{self._bucket.prefix}{after} "
        with self._bucket.asking("list", prefix):
            listing = self._clients.storage().list_blobs(
                self._bucket.name,
                prefix=self._bucket.prefix + prefix,
                start_offset=start,
                page_size=min(limit, MAX_PAGE),
                fields=_LISTED,
                retry=None,
                timeout=TIMEOUT,
            )
            found: list[Any] = []
            for page in listing.pages:
                found = list(page)
                if found or listing.next_page_token is None:  # A page may be empty, and not the last.
                    break
        named = [(blob.name[len(self._bucket.prefix) :], blob) for blob in found]
        return ObjectPage(
            objects=tuple(
                ObjectMeta(key=key, size=blob.size, modified_at=blob.updated)
                for key, blob in named
                if is_key(key)
            ),
            next_after=named[-1][0] if listing.next_page_token is not None and named else None,
        )

    def delete(self, key: str) -> None:
        """Remove the object; see ObjectStore."""
        full = self._bucket.full(key)
        try:
            with self._bucket.asking("delete", key):
                self._bucket.handle().blob(full).delete(retry=None, timeout=TIMEOUT)
        except ObjectMissing:
            return

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start a streamed put; see ObjectStore. Holds two parts in memory: 32 MiB."""
        return PartedUpload(
            GcsRequests(self._bucket, key, if_absent=if_absent),
            key=key,
            url=self.url,
            if_absent=if_absent,
            part_bytes=self._part_bytes,
            num_threads=1,
            sleep=self._bucket.sleep,
        )

    def presign_get(self, key: str, *, seconds: float) -> str:
        """Return a URL that reads the object; see ObjectStore.

        Signed by the service account's key, or on a machine, which has none, by IAM in its stead.

        Raises:
            ValueError: ``seconds`` is not in 1 to 604,800, which is all that Storage takes.
            CloudspotError: this is a user's own login, which cannot sign.
        """
        from cloudspot_gcp.signing import signer

        full = self._bucket.full(key)
        if not 1 <= seconds <= MAX_PRESIGN_SECONDS:
            raise ValueError(f"seconds must be in 1 to {MAX_PRESIGN_SECONDS}: got {seconds}")
        with self._bucket.asking("sign for", key):
            url: str = (
                self._bucket.handle()
                .blob(full)
                .generate_signed_url(
                    version="v4",
                    expiration=timedelta(seconds=math.ceil(seconds)),
                    credentials=signer(self._clients),
                    api_access_endpoint=endpoint("storage"),
                )
            )
        return url

    def check(self) -> Sequence[CheckResult]:
        """Try whether the bucket is there and may be listed, and say what it keeps that is billed."""
        try:
            self.list_page("", limit=1)
        except CloudspotError as error:
            return (CheckResult(name="bucket", ok=False, detail=str(error)),)
        return check_settings(self._bucket)

    def _read(self, key: str, *, span: str | None = None) -> bytes:
        with self._reading(key, span) as answer:
            if answer is None:
                return b""
            length = self._length(answer)
            # Asked for by its length it comes in one piece, straight from the socket.
            data = _some(answer, length) if length else b""
            while len(data) < length:
                data += _some(answer, length - len(data))
            with memoryview(data) as view:
                self._compare(key, view, answer)
            return data

    @contextmanager
    def _reading(self, key: str, span: str | None) -> Iterator[Any]:
        """Lend the answer to a read of the object, or a span of it; None: it begins at the end or beyond."""
        full = self._bucket.full(key)
        path = f"/storage/v1/b/{quote(self._bucket.name, safe='')}/o/{quote(full, safe='')}"
        headers = {"Accept-Encoding": "identity", **({} if span is None else {"Range": span})}
        with self._bucket.asking("read", key):
            try:
                answer = self._bucket.send("GET", path, params={"alt": "media"}, headers=headers, stream=True)
            except SDK_ERRORS as error:
                if not span or status_of(error) != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                yield None
                return
            with answer:
                if span is not None and answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                    raise StoreRefused(f"{self.url}: the server ignores ranges; use another store")
                yield answer

    def _length(self, answer: Any) -> int:
        text = answer.headers.get("Content-Length", "")
        if not text.isdecimal():
            raise StoreRefused(
                f"{self.url}: an answer does not say how long it is; leave out the proxy that takes it away, "
                "or use another store"
            )
        return int(text)

    def _compare(self, key: str, view: memoryview, answer: Any) -> None:
        """Raise TransientError where an object was read whole and has not Storage's checksum of it."""
        _, _, total = answer.headers.get("Content-Range", "").partition("/")
        found = _CRC32C.search(answer.headers.get("x-goog-hash", ""))
        if found is None or (answer.status_code == HTTPStatus.PARTIAL_CONTENT and total != str(len(view))):
            return
        if shown_crc32c(extend_crc32c(0, view)) != found[1]:
            raise TransientError(f"{self.url}: {key} arrived damaged; read it again")


def _some(answer: Any, num_bytes: int) -> bytes:
    """Return what comes next, at most so much; urllib3 raises where it breaks off before its length."""
    data: bytes = answer.raw.read(num_bytes, decode_content=False)
    if not data:
        raise ConnectionError("the answer is shorter than it said")
    return data
