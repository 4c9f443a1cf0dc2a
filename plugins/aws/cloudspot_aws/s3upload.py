"""Streams into S3: parts go up side by side from a few buffers, and the last request makes them an object."""

from __future__ import annotations

import logging
import queue
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from cloudspot.errors import CloudspotError, ObjectExists, ObjectMissing, TransientError
from cloudspot.interfaces import Data, Upload
from cloudspot_aws.s3body import payload
from cloudspot_aws.s3bucket import Bucket, Passing, UploadGone

PART_BYTES = 16 << 20
"""S3 takes parts of 5 MiB to 5 GiB, the last may be smaller."""
NUM_THREADS = 4
"""Parts on their way at once; one more buffer is being filled meanwhile: 80 MiB in all."""
GROWTH_EVERY = 1000
"""After so many parts they double: S3 takes 10,000 of them, which then hold 16 TiB."""
_WRITER = "cloudspot-writer"
"""The metadata by which an upload knows its own object where an answer was lost."""

# Below the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.aws.s3")


class S3Upload(Upload):
    """A multipart upload, or a single put where all of it fits into one part.

    A process that dies in the middle leaves parts behind, which the bucket bills until they are aborted:
    a lifecycle rule (AbortIncompleteMultipartUpload) does that.
    """

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        *,
        if_absent: bool,
        part_bytes: int = PART_BYTES,
        num_threads: int = NUM_THREADS,
    ) -> None:
        self._bucket = bucket
        self._key = key
        self._full = bucket.full(key)
        self._condition = {"IfNoneMatch": "*"} if if_absent else {}
        self._if_absent = if_absent
        self._writer = secrets.token_hex(16)
        self._part_bytes = part_bytes
        self._num_threads = num_threads
        self._is_open = True
        self._id: str | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._parts: list[Future[dict[str, Any]]] = []
        self._buffer = bytearray()
        self._filled = 0
        self._num_buffers = 0
        self._free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()

    def write(self, data: Data) -> None:
        """Append bytes; see Upload. Blocks while all buffers are on their way."""
        self._check_open()
        with memoryview(data).cast("B") as view:
            position = 0
            while position < len(view):
                if self._filled == len(self._buffer):
                    self._next_buffer()
                count = min(len(self._buffer) - self._filled, len(view) - position)
                with view[position : position + count] as piece:
                    self._buffer[self._filled : self._filled + count] = piece
                self._filled += count
                position += count

    def commit(self) -> None:
        """Make the object visible; see Upload."""
        self._check_open()
        try:
            if self._id is None:
                self._settle(self._put)
            else:
                self._send_part()
                parts = [part.result() for part in self._parts]
                self._settle(lambda: self._complete(parts))
                self._id = None
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop what was written; see Upload."""
        if not self._is_open:
            return
        self._is_open = False
        for part in self._parts:
            part.cancel()
        if self._pool is not None:
            # A part that arrives after the abort would stay, and be billed.
            self._pool.shutdown(wait=True)
        self._buffer = bytearray()
        self._free = queue.SimpleQueue()
        if self._id is not None:
            try:
                self._bucket.persist(self._abort)
            except CloudspotError as error:
                _log.warning("parts of an upload stay until the bucket's lifecycle removes them: %s", error)

    # --- parts ------------------------------------------------------------------------------------

    def _next_buffer(self) -> None:
        """Send the buffer if there is one, and find another."""
        if self._buffer:
            self._send_part()
        size = self._part_bytes << (len(self._parts) // GROWTH_EVERY)
        if self._num_buffers <= self._num_threads:
            self._num_buffers += 1
            found = bytearray()
        else:
            found = self._free.get()  # As soon as a part has arrived, or failed.
        for part in self._parts:
            if part.done() and part.exception() is not None:
                part.result()
        self._buffer = found if len(found) == size else bytearray(size)
        self._filled = 0

    def _send_part(self) -> None:
        if self._filled == 0:
            return
        if self._id is None:
            self._id = self._bucket.persist(self._create)
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="cloudspot-s3")
        assert self._pool is not None
        number, buffer, length = len(self._parts) + 1, self._buffer, self._filled
        self._parts.append(self._pool.submit(self._carry, number, buffer, length))
        self._buffer, self._filled = bytearray(), 0

    def _carry(self, number: int, buffer: bytearray, length: int) -> dict[str, Any]:
        try:
            with memoryview(buffer) as view, view[:length] as part:
                return self._bucket.persist(lambda: self._upload_part(number, part))
        finally:
            self._free.put(buffer)

    # --- requests ---------------------------------------------------------------------------------

    def _create(self) -> str:
        with self._bucket.asking("write", self._key) as client:
            answer = client.create_multipart_upload(
                Bucket=self._bucket.name,
                Key=self._full,
                ChecksumAlgorithm="CRC32",
                Metadata={_WRITER: self._writer},
            )
        return str(answer["UploadId"])

    def _upload_part(self, number: int, part: memoryview) -> dict[str, Any]:
        with self._bucket.asking("write", self._key) as client, payload(part) as what:
            answer = client.upload_part(
                Bucket=self._bucket.name, Key=self._full, UploadId=self._id, PartNumber=number, **what
            )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": what["ChecksumCRC32"]}

    def _complete(self, parts: list[dict[str, Any]]) -> None:
        with self._bucket.asking("write", self._key) as client:
            client.complete_multipart_upload(
                Bucket=self._bucket.name,
                Key=self._full,
                UploadId=self._id,
                MultipartUpload={"Parts": parts},
                **self._condition,
            )

    def _put(self) -> None:
        with (
            memoryview(self._buffer) as view,
            view[: self._filled] as data,
            self._bucket.asking("write", self._key) as client,
            payload(data) as what,
        ):
            client.put_object(
                Bucket=self._bucket.name,
                Key=self._full,
                Metadata={_WRITER: self._writer},
                **self._condition,
                **what,
            )

    def _abort(self) -> None:
        try:
            with self._bucket.asking("write", self._key) as client:
                client.abort_multipart_upload(Bucket=self._bucket.name, Key=self._full, UploadId=self._id)
        except UploadGone:
            return

    # --- the outcome ------------------------------------------------------------------------------

    def _settle(self, publish: Callable[[], None]) -> None:
        """Publish the object; where an answer is lost, look whether it is there and ours.

        Raises:
            ObjectExists: another's object was there first.
            TransientError: it is still unknown, or the parts are gone: upload again.
        """
        is_unknown = False

        def attempt() -> None:
            nonlocal is_unknown
            try:
                publish()
            except Passing:
                raise
            except TransientError:
                is_unknown = True
                if not self._is_ours():
                    raise
            except (ObjectExists, UploadGone) as error:
                if is_unknown and self._is_ours():
                    return
                if isinstance(error, ObjectExists):
                    raise
                raise self._lost(error) from error

        self._bucket.persist(attempt)

    def _lost(self, error: UploadGone) -> CloudspotError:
        """Return what an upload that is gone means: S3 drops one whose condition has failed."""
        if self._if_absent and self._found_writer() is not None:
            return ObjectExists(f"{self._bucket.url}: {self._key} exists")
        return CloudspotError(f"{error}; upload again")

    def _is_ours(self) -> bool:
        return self._found_writer() == self._writer

    def _found_writer(self) -> str | None:
        """Return who wrote the object that stands there ("" unknown), or None where there is none."""
        try:
            with self._bucket.asking("read", self._key) as client:
                answer = client.head_object(Bucket=self._bucket.name, Key=self._full)
        except ObjectMissing:
            return None
        return str(answer.get("Metadata", {}).get(_WRITER, ""))

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"the upload of {self._key} was committed or aborted")
