"""An object store in OSS: what ``oss://bucket/prefix`` opens.

Create-only puts are OSS's ``x-oss-forbid-overwrite``, which a bucket with versioning ignores: such a bucket
is refused. Each is made once: a 409 is therefore always about another's object, and a lost answer is a
TransientError, after which the caller reads the key back (protocol P1), so that no write of ours is taken
for another's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from http import HTTPStatus
from typing import Any

from urllib3.exceptions import IncompleteRead

from cloudspot.errors import AuthError, CloudspotError, StoreRefused
from cloudspot.interfaces import Data, ObjectStore, Upload, is_key
from cloudspot.model import CheckResult, ObjectMeta, ObjectPage
from cloudspot.plugin.multipart import PART_BYTES, PartedUpload
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.errors import SDK_ERRORS, error_code
from cloudspot_aliyun.ossbucket import OssBucket
from cloudspot_aliyun.osspayload import compare, payload
from cloudspot_aliyun.ossupload import BINARY, FORBID_OVERWRITE, OssUploadRequests

MAX_PAGE = 1000
READ_BYTES = 1 << 20
"""What is taken from the socket at once on its way into a buffer."""
MAX_PRESIGN_SECONDS = 7 * 24 * 3600
"""A signature of version 4 holds no longer; one by a role's credentials ends with them, hours at most."""
# Without it a range past the end, or one that begins there, gets the whole object.
_STANDARD = {"x-oss-range-behavior": "standard"}


class OssStore(ObjectStore):
    """Objects in a bucket, below a prefix. Thread-safe.

    The bucket's region is asked for at first use, so that none need be configured. Objects get no ACL,
    and the encryption and storage class that the bucket is set to.
    """

    def __init__(
        self,
        url: str,
        *,
        clients: AliyunClients | None = None,
        part_bytes: int = PART_BYTES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read the URL; no I/O. ``part_bytes`` is in what pieces a stream goes up, at least 100 KiB.

        Raises:
            SpecError: ``url`` is not ``oss://bucket`` or ``oss://bucket/prefix``.
        """
        self.url = url
        self.bucket = OssBucket(url, clients or AliyunClients(), sleep)
        self._part_bytes = part_bytes

    def __repr__(self) -> str:
        return f"OssStore({self.url!r})"

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Store ``data`` under ``key``; see ObjectStore.

        Made again only where OSS says that it did nothing: it throttles, or the key had expired.
        """
        full = self.bucket.full(key)
        more = {"Content-Type": BINARY, **({FORBID_OVERWRITE: "true"} if if_absent else {})}

        def attempt() -> None:
            with (
                self.bucket.asking("write", key) as client,
                payload(data, f"{self.url}: {key}") as (body, headers, check),
            ):
                answer = client.put_object(full, body, headers={**headers, **more})
                check(answer.headers)
            self.bucket.check_create(answer.headers)

        self.bucket.persist(attempt)

    def get(self, key: str) -> bytes:
        """Return the whole object; see ObjectStore."""
        full = self.bucket.full(key)

        def attempt() -> bytes:
            with self.bucket.asking("read", key) as client:
                answer = client.get_object(full)
                data = _whole(answer)
            compare(answer.headers, data, f"{self.url}: {key}")
            return data

        return self.bucket.persist(attempt)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return some of the object's bytes; see ObjectStore."""
        if start < 0 or length < 0:
            raise ValueError(f"start and length must be >= 0: got {start}, {length}")
        if length == 0:
            self.head(key)  # HTTP has no empty range; whether the object is there is asked all the same.
            return b""

        def attempt() -> bytes:
            with self._reading(key, start, length) as answer:
                return b"" if answer is None else _whole(answer)

        return self.bucket.persist(attempt)

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        """Read some of the object's bytes into the buffer; see ObjectStore."""
        if start < 0:
            raise ValueError(f"start must be >= 0: got {start}")

        def attempt() -> int:
            with memoryview(buffer).cast("B") as view:
                if len(view) == 0:
                    self.head(key)  # as in get_range
                    return 0
                with self._reading(key, start, len(view)) as answer:
                    return 0 if answer is None else _into(answer, view)

        return self.bucket.persist(attempt)

    def head(self, key: str) -> ObjectMeta:
        """Return what is known of the object; see ObjectStore."""
        full = self.bucket.full(key)

        def attempt() -> ObjectMeta:
            with self.bucket.asking("read", key) as client:
                answer = client.head_object(full)
            return ObjectMeta(key=key, size=answer.content_length, modified_at=_moment(answer.last_modified))

        return self.bucket.persist(attempt)

    def list_page(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        """Return a page of objects, at most 1000; see ObjectStore.

        What others keep in the bucket under names that are no keys (``folder/``) is passed over.
        """
        if limit < 1:
            raise ValueError(f"limit must be >= 1: got {limit}")

        def attempt() -> Any:
            with self.bucket.asking("list", prefix) as client:
                return client.list_objects_v2(
                    prefix=self.bucket.prefix + prefix,
                    start_after="" if after is None else self.bucket.prefix + after,
                    max_keys=min(limit, MAX_PAGE),
                )

        answer = self.bucket.persist(attempt)
        found = [(entry.key[len(self.bucket.prefix) :], entry) for entry in answer.object_list]
        return ObjectPage(
            objects=tuple(
                ObjectMeta(key=key, size=entry.size, modified_at=_moment(entry.last_modified))
                for key, entry in found
                if is_key(key)
            ),
            next_after=found[-1][0] if answer.is_truncated and found else None,
        )

    def delete(self, key: str) -> None:
        """Remove the object; see ObjectStore."""
        full = self.bucket.full(key)

        def attempt() -> None:
            with self.bucket.asking("delete", key) as client:
                client.delete_object(full)

        self.bucket.persist(attempt)

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start a streamed put; see ObjectStore. Holds up to five parts in memory."""
        return PartedUpload(
            OssUploadRequests(self.bucket, key, if_absent=if_absent),
            key=key,
            url=self.url,
            if_absent=if_absent,
            part_bytes=self._part_bytes,
            sleep=self.bucket.sleep,
        )

    def presign_get(self, key: str, *, seconds: float) -> str:
        """Return a URL that reads the object; see ObjectStore.

        Raises:
            ValueError: ``seconds`` is not in 1 to 604,800, which is all that OSS signs for.
        """
        full = self.bucket.full(key)
        if not 1 <= seconds <= MAX_PRESIGN_SECONDS:
            raise ValueError(f"seconds must be in 1 to {MAX_PRESIGN_SECONDS}: got {seconds}")
        with self.bucket.asking("read", key) as client:
            url: str = client.sign_url("GET", full, math.ceil(seconds), slash_safe=True)
        return url

    def check(self) -> Sequence[CheckResult]:
        """Try whether the bucket is there and may be listed, and say what it keeps that is billed."""
        try:
            self.list_page("", limit=1)
        except CloudspotError as error:
            return (CheckResult(name="bucket", ok=False, detail=str(error)),)
        return (
            CheckResult(name="bucket", ok=True, detail=self.url),
            self._check_setting("bucket versioning", self._versioning),
            self._check_setting("bucket lifecycle", self._lifecycle),
        )

    @contextmanager
    def _reading(self, key: str, start: int, length: int) -> Iterator[Any]:
        """Lend the answer to a get of a range; None: it begins at the object's end or beyond."""
        full = self.bucket.full(key)
        with self.bucket.asking("read", key) as client:
            try:
                answer = client.get_object(full, byte_range=(start, start + length - 1), headers=_STANDARD)
            except SDK_ERRORS as error:
                if error_code(error) != "InvalidRange":
                    raise
                answer = None
            # Of an empty object there is no range: from memory of the docs it is refused as one past the end.
            is_empty = answer is not None and answer.content_length == 0
            if answer is not None and answer.status != HTTPStatus.PARTIAL_CONTENT and not is_empty:
                answer.resp.response.close()
                raise StoreRefused(f"{self.url}: the server ignores ranges; use another store")
            yield answer

    def _check_setting(self, name: str, ask: Callable[[], str]) -> CheckResult:
        try:
            return CheckResult(name=name, ok=True, detail=ask())
        except AuthError:
            return CheckResult(name=name, ok=True, detail="unknown: the right to ask is missing")
        except CloudspotError as error:
            return CheckResult(name=name, ok=False, detail=str(error))

    def _versioning(self) -> str:
        self.bucket.info()
        return "off"  # Else the bucket had been refused.

    def _lifecycle(self) -> str:
        with self.bucket.asking("list", "") as client:
            try:
                rules = client.get_bucket_lifecycle().rules
            except SDK_ERRORS as error:
                if error_code(error) != "NoSuchLifecycle":
                    raise
                rules = []
        if any(rule.abort_multipart_upload is not None and rule.status == "Enabled" for rule in rules):
            return "unfinished uploads are removed"
        return (
            "the parts of an upload that a dying machine leaves stay and are billed; "
            "add a rule with AbortMultipartUpload"
        )


def _whole(answer: Any) -> bytes:
    """Return all of an answer's body, straight from the connection."""
    data: bytes = answer.resp.response.raw.read(decode_content=False)
    # urllib3 2 has raised where the answer broke off; 1.26, which requests takes too, has not.
    if answer.content_length is not None and len(data) != answer.content_length:
        raise IncompleteRead(len(data), answer.content_length - len(data))
    return data


def _into(answer: Any, view: memoryview) -> int:
    """Read an answer's body into the buffer; return how long it is."""
    raw, length, filled = answer.resp.response.raw, min(int(answer.content_length), len(view)), 0
    while filled < length:
        with view[filled : min(filled + READ_BYTES, length)] as block:
            count = raw.readinto(block)
        if not count:
            raise IncompleteRead(filled, length - filled)
        filled += count
    return length


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, tz=timezone.utc)
