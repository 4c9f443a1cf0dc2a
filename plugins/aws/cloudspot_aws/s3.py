"""An object store in S3: what ``s3://bucket/prefix`` opens.

Create-only puts are S3's conditional writes (``If-None-Match: *``), which hold on versioned buckets too.
Each is made once: a 412 is therefore always about another's object, and a lost answer is a
TransientError, after which the caller reads the key back (protocol P1), so that no write of ours is taken
for another's. A server that ignores the condition is found out by the probe at first use.

Payloads are sent from where they lie, unsigned over https (and within this machine), with one CRC-32
that S3 compares: about the speed of the socket.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from cloudspot.errors import AuthError, CloudspotError, StoreRefused
from cloudspot.interfaces import Data, ObjectStore, Upload, is_key
from cloudspot.model import CheckResult, ObjectMeta, ObjectPage
from cloudspot.plugin.multipart import PART_BYTES, PartedUpload, Passing
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import error_code
from cloudspot_aws.s3body import payload
from cloudspot_aws.s3bucket import Bucket
from cloudspot_aws.s3upload import S3UploadRequests

MAX_PAGE = 1000
READ_BYTES = 1 << 20
"""What is taken from the socket at once on its way into a buffer: urllib3 copies it, out of the cache."""
MAX_PRESIGN_SECONDS = 7 * 24 * 3600
"""A signature of version 4 holds no longer; one by a role's credentials ends with them, hours at most."""


class S3Store(ObjectStore):
    """Objects in a bucket, below a prefix. Thread-safe.

    The bucket's region is asked for at first use, so that none need be configured. Objects get no ACL,
    and the encryption that the bucket is set to.
    """

    def __init__(
        self,
        url: str,
        *,
        clients: AwsClients | None = None,
        part_bytes: int = PART_BYTES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read the URL; no I/O. ``part_bytes`` is in what pieces a stream goes up, at least 5 MiB.

        Raises:
            SpecError: ``url`` is not ``s3://bucket`` or ``s3://bucket/prefix``.
        """
        self.url = url
        self._bucket = Bucket(url, clients or AwsClients(), sleep)
        self._part_bytes = part_bytes

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Store ``data`` under ``key``; see ObjectStore.

        Made again only where S3 says that it did nothing: it throttles, or asks to after a conflict.
        """
        full = self._bucket.full(key)
        condition = {"IfNoneMatch": "*"} if if_absent else {}

        def attempt() -> None:
            with self._bucket.asking("write", key) as client, payload(data) as what:
                client.put_object(Bucket=self._bucket.name, Key=full, **condition, **what)

        self._bucket.persist(attempt, kind=Passing)

    def get(self, key: str) -> bytes:
        """Return the whole object; see ObjectStore."""
        return self._read(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return some of the object's bytes; see ObjectStore."""
        if start < 0 or length < 0:
            raise ValueError(f"start and length must be >= 0: got {start}, {length}")
        if length == 0:
            self.head(key)  # HTTP has no empty range; whether the object is there is asked all the same.
            return b""
        return self._read(key, Range=f"bytes={start}-{start + length - 1}")

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        """Read some of the object's bytes into the buffer; see ObjectStore."""
        with memoryview(buffer).cast("B") as view:
            if start < 0:
                raise ValueError(f"start must be >= 0: got {start}")
            if len(view) == 0:
                self.head(key)  # as in get_range
                return 0
            with self._reading(key, Range=f"bytes={start}-{start + len(view) - 1}") as answer:
                if answer is None:
                    return 0
                length = min(int(answer["ContentLength"]), len(view))
                filled = 0
                while filled < length:
                    with view[filled : min(filled + READ_BYTES, length)] as block:
                        filled += answer["Body"].readinto(block)  # Raises where the answer broke off.
                return length

    def head(self, key: str) -> ObjectMeta:
        """Return what is known of the object; see ObjectStore."""
        full = self._bucket.full(key)
        with self._bucket.asking("read", key) as client:
            answer = client.head_object(Bucket=self._bucket.name, Key=full)
        return ObjectMeta(key=key, size=answer["ContentLength"], modified_at=answer["LastModified"])

    def list_page(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        """Return a page of objects, at most 1000; see ObjectStore.

        What others keep in the bucket under names that are no keys (``folder/``) is passed over.
        """
        if limit < 1:
            raise ValueError(f"limit must be >= 1: got {limit}")
        start = {} if after is None else {"StartAfter": self._bucket.prefix + after}
        with self._bucket.asking("list", prefix) as client:
            answer = client.list_objects_v2(
                Bucket=self._bucket.name,
                Prefix=self._bucket.prefix + prefix,
                MaxKeys=min(limit, MAX_PAGE),
                **start,
            )
        found = [(entry["Key"][len(self._bucket.prefix) :], entry) for entry in answer.get("Contents", ())]
        return ObjectPage(
            objects=tuple(
                ObjectMeta(key=key, size=entry["Size"], modified_at=entry["LastModified"])
                for key, entry in found
                if is_key(key)
            ),
            next_after=found[-1][0] if answer.get("IsTruncated") and found else None,
        )

    def delete(self, key: str) -> None:
        """Remove the object; see ObjectStore."""
        full = self._bucket.full(key)
        with self._bucket.asking("delete", key) as client:
            client.delete_object(Bucket=self._bucket.name, Key=full)

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start a streamed put; see ObjectStore. Holds up to five parts in memory."""
        return PartedUpload(
            S3UploadRequests(self._bucket, key, if_absent=if_absent),
            key=key,
            url=self.url,
            if_absent=if_absent,
            part_bytes=self._part_bytes,
            sleep=self._bucket.sleep,
        )

    def presign_get(self, key: str, *, seconds: float) -> str:
        """Return a URL that reads the object; see ObjectStore.

        Raises:
            ValueError: ``seconds`` is not in 1 to 604,800, which is all that S3 signs for.
        """
        full = self._bucket.full(key)
        if not 1 <= seconds <= MAX_PRESIGN_SECONDS:
            raise ValueError(f"seconds must be in 1 to {MAX_PRESIGN_SECONDS}: got {seconds}")
        with self._bucket.asking("read", key) as client:
            url: str = client.generate_presigned_url(
                "get_object",
                Params={"Bucket": self._bucket.name, "Key": full},
                ExpiresIn=math.ceil(seconds),
            )
        return url

    def check(self) -> Sequence[CheckResult]:
        """Try whether the bucket is there and may be listed, and say what it keeps that is billed."""
        try:
            self.list_page("", limit=1)
        except CloudspotError as error:
            return (CheckResult(name="bucket", ok=False, detail=str(error)),)
        return (
            CheckResult(name="bucket", ok=True, detail=self.url),
            self._check_setting("bucket versioning", _versioning),
            self._check_setting("bucket lifecycle", _lifecycle),
        )

    def _check_setting(self, name: str, ask: Callable[[Any, str], str]) -> CheckResult:
        try:
            with self._bucket.asking("list", "") as client:
                return CheckResult(name=name, ok=True, detail=ask(client, self._bucket.name))
        except AuthError:
            return CheckResult(name=name, ok=True, detail="unknown: the right to ask is missing")
        except CloudspotError as error:
            return CheckResult(name=name, ok=False, detail=str(error))

    def _read(self, key: str, **options: str) -> bytes:
        with self._reading(key, **options) as answer:
            if answer is None:
                return b""
            body, length = answer["Body"], answer["ContentLength"]
            # Asked for by its length it comes in one piece, straight from the socket.
            data: bytes = body.read(length)
            while len(data) < length:
                data += body.read(length - len(data))  # Raises where the answer broke off.
            return data

    @contextmanager
    def _reading(self, key: str, **options: str) -> Iterator[Any]:
        """Lend the answer to a get; None: the range begins at the object's end or beyond."""
        full = self._bucket.full(key)
        with self._bucket.asking("read", key) as client:
            try:
                answer = client.get_object(Bucket=self._bucket.name, Key=full, **options)
            except client.exceptions.ClientError as error:
                if not options or error_code(error) not in {"InvalidRange", "416"}:
                    raise
                answer = None
            if (
                answer is not None
                and options
                and answer["ResponseMetadata"]["HTTPStatusCode"] != HTTPStatus.PARTIAL_CONTENT
            ):
                answer["Body"].close()
                raise StoreRefused(f"{self.url}: the server ignores ranges; use another store")
            yield answer


def _versioning(client: Any, bucket: str) -> str:
    status = client.get_bucket_versioning(Bucket=bucket).get("Status", "Off")
    if status != "Enabled":
        return "off"
    return (
        "on: what cloudspot deletes stays as an old version and is billed; "
        "add a lifecycle rule that expires noncurrent versions"
    )


def _lifecycle(client: Any, bucket: str) -> str:
    try:
        rules = client.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", [])
    except client.exceptions.ClientError as error:
        if error_code(error) != "NoSuchLifecycleConfiguration":
            raise
        rules = []
    if any("AbortIncompleteMultipartUpload" in rule and rule["Status"] == "Enabled" for rule in rules):
        return "unfinished uploads are removed"
    return (
        "the parts of an upload that a dying machine leaves stay and are billed; "
        "add a rule with AbortIncompleteMultipartUpload"
    )
