"""Streams into Cloud Storage: pieces go up one behind the other, and on after a broken connection."""

from __future__ import annotations

import logging
import queue
import re
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.interfaces import Data, Upload
from cloudspot.persistence import FIRST_DELAY_SECONDS
from cloudspot_gcp.clients import TIMEOUT
from cloudspot_gcp.gcsbody import Body, extend_crc32c, multipart, shown_crc32c
from cloudspot_gcp.gcsbucket import NUM_TRIES, WRITER, Bucket, Passing

UNIT_BYTES = 256 << 10
"""Every piece but the last must be a multiple of it."""
PART_BYTES = 16 << 20
"""How much is sent by a request. One is on its way while the next is being filled: 48 MiB in all."""
NUM_BUFFERS = 3
_RANGE = re.compile(r"bytes=0-(\d+)")

# Below the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.gcp.gcs")


class GcsUpload(Upload):
    """A resumable upload, or a single put where all of it fits into one part.

    A process that dies in the middle leaves nothing that is billed: Storage forgets the upload after a week.
    """

    def __init__(self, bucket: Bucket, key: str, *, if_absent: bool, part_bytes: int = PART_BYTES) -> None:
        """Do no I/O. ``part_bytes`` is a multiple of 256 KiB."""
        if part_bytes < UNIT_BYTES or part_bytes % UNIT_BYTES:
            raise ValueError(f"part_bytes must be a multiple of {UNIT_BYTES}: got {part_bytes}")
        self._bucket = bucket
        self._key = key
        self._full = bucket.full(key)
        self._if_absent = if_absent
        self._part_bytes = part_bytes
        self._writer = secrets.token_hex(16)
        self._is_open = True
        self._session: str | None = None
        self._is_complete = False
        self._has_failed = False
        self._pool: ThreadPoolExecutor | None = None
        self._pieces: list[Future[None]] = []
        self._buffer = bytearray()
        self._filled = 0
        self._sent = 0
        self._checksum = 0
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
            if self._session is None:
                with memoryview(self._buffer) as view, view[: self._filled] as data:
                    put_whole(self._bucket, self._key, data, if_absent=self._if_absent, writer=self._writer)
            else:
                self._finish_pieces()
                self._bucket.settle(self._key, self._writer, self._send_last)
            self._is_complete = True
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop what was written; see Upload."""
        if not self._is_open:
            return
        self._is_open = False
        for piece in self._pieces:
            piece.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._buffer = bytearray()
        self._free = queue.SimpleQueue()
        if self._session is not None and not self._is_complete:
            try:
                self._bucket.persist(self._cancel)
            except CloudspotError as error:
                _log.info("an upload that was dropped stays for a week, unbilled: %s", error)

    # --- pieces -----------------------------------------------------------------------------------

    def _next_buffer(self) -> None:
        """Send the buffer if there is one, and find another."""
        if self._buffer:
            self._send_piece()
        if self._num_buffers < NUM_BUFFERS:
            self._num_buffers += 1
            self._buffer = bytearray(self._part_bytes)
        else:
            self._buffer = self._free.get()  # As soon as a piece has arrived, or failed.
        self._finish_pieces(wait=False)
        self._filled = 0

    def _send_piece(self) -> None:
        if self._session is None:
            self._session = self._bucket.persist(self._begin)
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="cloudspot-gcs")
        assert self._pool is not None
        self._pieces.append(self._pool.submit(self._carry, self._buffer, self._sent))
        self._sent += len(self._buffer)
        self._buffer = bytearray()

    def _finish_pieces(self, *, wait: bool = True) -> None:
        """Raise what went wrong with a piece; those that arrived are forgotten."""
        while self._pieces and (wait or self._pieces[0].done()):
            self._pieces.pop(0).result()

    def _carry(self, buffer: bytearray, start: int) -> None:
        try:
            if self._has_failed:
                return  # What comes before it is missing: it leads nowhere.
            with memoryview(buffer) as view:
                self._checksum = extend_crc32c(self._checksum, view)
                self._carry_view(view, start, total=None)
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._free.put(buffer)

    def _send_last(self) -> None:
        with memoryview(self._buffer) as view, view[: self._filled] as data:
            checksum = extend_crc32c(self._checksum, data)
            stored = self._carry_view(data, self._sent, total=self._sent + len(data), checksum=checksum)
        if stored.get("crc32c") != shown_crc32c(checksum):
            raise TransientError(f"{self._bucket.url}: {self._key} arrived damaged; upload again")

    def _carry_view(
        self, view: memoryview, start: int, *, total: int | None, checksum: int = 0
    ) -> dict[str, Any]:
        """Send what belongs at ``start``, on from where Storage has it, until it has all of it.

        Returns the object's description where ``total`` says that this is the end, else nothing.
        """
        end, position, num_failures = start + len(view), start, 0
        headers = {} if total is None else {"x-goog-hash": f"crc32c={shown_crc32c(checksum)}"}
        while True:
            try:
                with view[position - start :] as rest:
                    answer = self._put(rest, position, total, headers)
            except TransientError:
                num_failures += 1
                if num_failures == NUM_TRIES:
                    raise
                self._bucket.sleep(FIRST_DELAY_SECONDS * 2 ** (num_failures - 1))
                try:
                    answer = self._put(memoryview(b""), None, total, {})  # How far is it?
                except TransientError:
                    continue
            if answer.status_code != HTTPStatus.PERMANENT_REDIRECT:
                return dict(answer.json())
            reached = _reached(answer)
            if not start <= reached <= end:
                raise CloudspotError(
                    f"{self._bucket.url}: {self._key} stands at {reached} bytes, not between {start} "
                    f"and {end}; upload again"
                )
            if reached > position:
                num_failures = 0
            position = reached
            if position == end and total is None:
                return {}

    # --- requests ---------------------------------------------------------------------------------

    def _begin(self) -> str:
        with self._bucket.asking("write", self._key):
            answer = self._bucket.send(
                "POST",
                _upload_path(self._bucket),
                params={
                    "uploadType": "resumable",
                    "name": self._full,
                    **_condition(if_absent=self._if_absent),
                },
                json={"contentType": _CONTENT_TYPE, "metadata": {WRITER: self._writer}},
            )
            return str(answer.headers["Location"])

    def _put(self, view: memoryview, start: int | None, total: int | None, headers: dict[str, str]) -> Any:
        """Send bytes, or without ``start`` ask how far the upload is."""
        assert self._session is not None
        whole = "*" if total is None else str(total)
        span = "*" if start is None or not view else f"{start}-{start + len(view) - 1}"
        if start is None:
            whole = "*"
        with self._bucket.asking("write", self._key), Body(view) as body:
            return self._bucket.send(
                "PUT",
                self._session,
                data=body if len(view) else b"",
                headers={"Content-Range": f"bytes {span}/{whole}", **headers},
            )

    def _cancel(self) -> None:
        assert self._session is not None
        with self._bucket.asking("write", self._key):
            # The answer is 499 where it worked, 404 where it was no more.
            self._bucket.clients.session().delete(self._session, timeout=TIMEOUT)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"the upload of {self._key} was committed or aborted")


_CONTENT_TYPE = "application/octet-stream"


def put_whole(bucket: Bucket, key: str, view: memoryview, *, if_absent: bool, writer: str) -> None:
    """Store an object by a single request.

    Create-only it is repeated where an answer is lost, and known for ours by ``writer``. Else it is made
    again only where Storage says that it did nothing.

    Raises:
        ObjectExists: another's object was there first.
        TransientError: the outcome is unknown.
    """
    described = {
        "name": bucket.full(key),
        "contentType": _CONTENT_TYPE,
        "crc32c": shown_crc32c(extend_crc32c(0, view)),
        "metadata": {WRITER: writer},
    }

    def attempt() -> None:
        body, content_type = multipart(view, described)
        with bucket.asking("write", key), body:
            bucket.send(
                "POST",
                _upload_path(bucket),
                params={"uploadType": "multipart", **_condition(if_absent=if_absent)},
                data=body,
                headers={"Content-Type": content_type},
            )

    if if_absent:
        bucket.settle(key, writer, attempt)
    else:
        bucket.persist(attempt, kind=Passing)


def _upload_path(bucket: Bucket) -> str:
    return f"/upload/storage/v1/b/{quote(bucket.name, safe='')}/o"


def _condition(*, if_absent: bool) -> dict[str, str]:
    return {"ifGenerationMatch": "0"} if if_absent else {}


def _reached(answer: Any) -> int:
    """Return how many bytes Storage has of an upload."""
    found = _RANGE.fullmatch(answer.headers.get("Range", ""))
    return 0 if found is None else int(found[1]) + 1
