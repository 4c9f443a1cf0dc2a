"""The object store in Cloud Storage that ``gs://bucket/prefix`` opens.

Create-only puts use Storage's preconditions (``ifGenerationMatch=0``), which work on versioned buckets too.
Contents are sent and received without a copy, by the JSON API, with one CRC32C that Storage verifies on
writes and this module on reads; all other requests use google-cloud-storage. An upload is sent as a whole, or
in pieces that continue after a broken connection.

Source: Cloud Storage, "Resumable uploads", "Perform resumable uploads" (checked 2026-11). Storage checks the
    condition of a create-only upload at the end of the upload: googleapis/google-cloud-java#201.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import quote

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.plugin.bucket import require
from cloudspot.plugin.bucketstore import BucketStore
from cloudspot.plugin.multipart import PartedRequests
from cloudspot_gcp.clients import TIMEOUT
from cloudspot_gcp.gcsbucket import WRITER, GcsBucket, fields_of
from cloudspot_gcp.gcspayload import Body, extend_crc32c, multipart, shown_crc32c

UNIT_BYTES = 256 << 10
"""The size of every piece but the last must be a multiple of this size."""
_CONTENT_TYPE = "application/octet-stream"
_REACHED = re.compile(r"bytes=0-([0-9]{1,18})")


class GcsUploadRequests(PartedRequests):
    """The requests of one upload. Its parts are sent one after another, by one thread at a time.

    The last part's remainder beyond a multiple of 256 KiB is held back for ``complete``, because the size is
    known only then. An upload that is not completed costs nothing, and Storage deletes it after a week.
    """

    bucket: GcsBucket

    def __init__(self, bucket: GcsBucket, key: str, *, if_absent: bool) -> None:
        """Do no I/O."""
        super().__init__(bucket, key, if_absent=if_absent)
        self._path = f"/upload/storage/v1/b/{quote(bucket.name, safe='')}/o"
        self._condition = {"ifGenerationMatch": "0"} if if_absent else {}
        self._num_sent = 0
        self._start = 0
        """The offset of the part that is being sent."""
        self._position: int | None = 0
        """The number of bytes that Storage has, or None if it is unknown because a connection broke."""
        self._checksum = 0
        self._rest = b""

    def put(self, writer: str, data: memoryview) -> None:
        described = {
            "name": self.name,
            "contentType": _CONTENT_TYPE,
            "crc32c": shown_crc32c(extend_crc32c(0, data)),
            "metadata": {WRITER: writer},
        }
        body, content_type = multipart(data, described)
        with self.bucket.asking(self.verb, self.key), body:
            answer = self.bucket.send(
                "POST",
                self._path,
                params={"uploadType": "multipart", **self._condition},
                data=body,
                headers={"Content-Type": content_type},
            )
        self._described(answer)

    def begin(self, writer: str) -> str:
        """Begin a resumable upload; return its URL, which is its only credential."""
        with self.bucket.asking(self.verb, self.key):
            answer = self.bucket.send(
                "POST",
                self._path,
                params={"uploadType": "resumable", "name": self.name, **self._condition},
                json={"contentType": _CONTENT_TYPE, "metadata": {WRITER: writer}},
            )
            return str(require(answer.headers.get("Location"), "an upload's URL"))

    def send(self, upload_id: str, number: int, part: memoryview) -> Any:
        if number != self._num_sent + 1:
            raise CloudspotError(
                f"{self.bucket.url}: part {number} of {self.key} was sent before part {self._num_sent + 1}"
            )
        whole = len(part) - len(part) % UNIT_BYTES
        with part[:whole] as pieces, part[whole:] as rest:
            self._carry(upload_id, pieces, total=None)
            self._checksum = extend_crc32c(extend_crc32c(self._checksum, pieces), rest)
            self._rest = bytes(rest)
        self._start += whole
        self._num_sent = number
        return None

    def complete(self, upload_id: str, parts: Sequence[Any]) -> None:
        with memoryview(self._rest) as rest:
            stored = self._carry(upload_id, rest, total=self._start + len(rest))
        if stored["crc32c"] != shown_crc32c(self._checksum):
            raise CloudspotError(f"{self.bucket.url}: {self.key} arrived damaged; upload it again")

    def drop(self, upload_id: str) -> None:
        with self.bucket.asking("write", self.key):
            # The response has status 499 on success, and 404 if the upload no longer exists.
            self.bucket.clients.session().delete(upload_id, timeout=TIMEOUT)

    def _carry(self, upload_id: str, view: memoryview, *, total: int | None) -> dict[str, Any]:
        """Send the bytes at the part's offset, until Storage has all of them.

        Return the object's description if ``total`` is given, which makes these the last bytes; otherwise
        return an empty one.

        Raises:
            TransientError: a connection broke, or Storage failed; the next call continues from there.
        """
        start, end = self._start, self._start + len(view)
        while total is not None or self._position != end:
            try:
                if self._position is None:
                    answer = self._ask(upload_id, b"", "bytes */*")
                else:
                    with view[self._position - start :] as rest:
                        answer = self._ask_with(upload_id, rest, self._position, total)
            except TransientError:
                self._position = None
                raise
            if answer.status_code != HTTPStatus.PERMANENT_REDIRECT:
                return self._described(answer)
            reached = _REACHED.fullmatch(answer.headers.get("Range", ""))
            position = 0 if reached is None else int(reached[1]) + 1
            if not start <= position <= end:
                raise CloudspotError(
                    f"{self.bucket.url}: the upload of {self.key} is at {position} bytes, not between "
                    f"{start} and {end}; upload it again"
                )
            has_moved = self._position is None or position > self._position
            self._position = position
            if not has_moved:
                raise TransientError(
                    f"{self.bucket.url}: the upload of {self.key} does not get beyond {position} bytes"
                )
        return {}

    def _described(self, answer: Any) -> dict[str, Any]:
        """Return Storage's description of the object that an upload has created.

        Raises:
            TransientError: the response cannot be read, so the caller must look up who wrote the object.
        """
        with self.bucket.asking(self.verb, self.key):
            described = fields_of(answer)
            require(described.get("crc32c"), "a checksum")
        return described

    def _ask_with(self, upload_id: str, view: memoryview, start: int, total: int | None) -> Any:
        span = f"{start}-{start + len(view) - 1}" if len(view) else "*"
        if total is None:
            return self._ask(upload_id, view, f"bytes {span}/*")
        hashes = {"x-goog-hash": f"crc32c={shown_crc32c(self._checksum)}"}
        return self._ask(upload_id, view, f"bytes {span}/{total}", hashes)

    def _ask(
        self, upload_id: str, data: memoryview | bytes, span: str, headers: dict[str, str] | None = None
    ) -> Any:
        with self.bucket.asking(self.verb, self.key), memoryview(data) as view, Body(view) as body:
            return self.bucket.send(
                "PUT",
                upload_id,
                data=body if view else b"",
                headers={"Content-Range": span, **(headers or {})},
            )


class GcsStore(BucketStore):
    """Objects in a bucket of Cloud Storage; ``part_bytes`` is a multiple of 256 KiB. See BucketStore."""

    bucket_type = GcsBucket
    upload_type = GcsUploadRequests
    num_threads: ClassVar[int] = 1  # A resumable upload accepts its parts one after another.
