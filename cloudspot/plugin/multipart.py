"""Stream into an object store: parts are uploaded in parallel, and the final request joins them."""

from __future__ import annotations

import logging
import queue
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from cloudspot.calls.retrying import retry
from cloudspot.errors import CloudspotError, ObjectExists, TransientError
from cloudspot.interfaces import Data, Upload

PART_BYTES: Final = 16 << 20
NUM_THREADS: Final = 4
"""How many parts are uploaded at once. In the meantime one more buffer is filled, which makes 80 MiB in
total."""
GROWTH_EVERY: Final = 1000
"""The part size doubles after every 1,000 parts; stores accept 10,000 parts, which then hold 16 TiB."""

_log = logging.getLogger(__name__)


class Passing(TransientError):
    """The store did nothing this time, so any request can be repeated, even a create-only one."""


class UploadGone(CloudspotError):
    """The upload no longer exists: it was completed, aborted, or removed by the bucket's rules."""


class PartedRequests(ABC):
    """The requests of one upload to one key, which a plugin implements. Thread-safe.

    Each request makes one attempt, within ``self.bucket.asking(verb, self.key)``, which yields the client and
    translates errors. The verb is ``self.verb`` for the requests that create the object (``complete`` and
    ``put``), else ``write``. ``writer`` is stored in the object's metadata, so that an upload whose answer
    was lost recognizes its own object. All requests raise the same errors as ObjectStore's methods, and also:

    Raises:
        Passing: nothing was done.
        UploadGone: the upload started by ``begin`` no longer exists.
    """

    bucket: Any
    """The plugin's Bucket."""
    key: str
    """The object's key, without the store's prefix."""
    name: str
    """The object's name in the bucket."""
    verb: str
    """``create`` if the upload is create-only, else ``write``."""

    def __init__(self, bucket: Any, key: str, *, if_absent: bool) -> None:
        """Do no I/O."""
        self.bucket = bucket
        self.key = key
        self.name = bucket.full(key)
        self.verb = "create" if if_absent else "write"

    @abstractmethod
    def begin(self, writer: str) -> str:
        """Start an upload in parts; return its id.

        If the service has no such request, return an id that is unique for the key, such as
        ``secrets.token_hex(8)``, use it to distinguish the parts of different uploads, and keep ``writer``
        for ``complete``.
        """

    @abstractmethod
    def send(self, upload_id: str, number: int, part: memoryview) -> Any:
        """Send part ``number``, from 1, and return its name for ``complete``; keep no view of the part."""

    @abstractmethod
    def complete(self, upload_id: str, parts: Sequence[Any]) -> None:
        """Create the object from the parts; create-only if the upload is."""

    @abstractmethod
    def put(self, writer: str, data: memoryview) -> None:
        """Store the whole object in one request, create-only if the upload is; keep no view of the data."""

    @abstractmethod
    def drop(self, upload_id: str) -> None:
        """Delete the upload's parts; do nothing if the store has no such request and deletes them itself.

        If parts remain and are billed, ``Bucket.list_uploads`` must list them.
        """


class PartedUpload(Upload):
    """An upload in parts, or a single put if all bytes fit into one part.

    A process that dies during the upload leaves parts behind, which are billed until a lifecycle rule of the
    bucket deletes them.
    """

    def __init__(
        self,
        requests: PartedRequests,
        *,
        key: str,
        url: str,
        if_absent: bool,
        found_writer: Callable[[], str | None],
        part_bytes: int = PART_BYTES,
        num_threads: int = NUM_THREADS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Do no I/O; ``key`` and the store's ``url`` are used in messages.

        ``found_writer`` returns the writer of the object at the key ("" if unknown), or None if there is no
        object.
        """
        self._requests = requests
        self._key = key
        self._url = url
        self._if_absent = if_absent
        self._found_writer = found_writer
        self._writer = secrets.token_hex(16)
        self._part_bytes = part_bytes
        self._num_threads = num_threads
        self._sleep = sleep
        self._is_open = True
        self._id: str | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._parts: list[Future[Any]] = []
        self._buffer = bytearray()
        self._filled = 0
        self._num_buffers = 0
        self._free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()

    def write(self, data: Data) -> None:
        """Append bytes; see Upload. Blocks while all buffers are being sent."""
        self._check_open()
        with memoryview(data).cast("B") as view:
            position = 0
            while position < len(view):
                if self._filled == len(self._buffer):
                    self._next_buffer()
                count = min(len(self._buffer) - self._filled, len(view) - position)
                # Assigning to the bytearray itself would first copy the piece.
                with memoryview(self._buffer) as buffer, view[position : position + count] as piece:
                    buffer[self._filled : self._filled + count] = piece
                self._filled += count
                position += count

    def commit(self) -> None:
        self._check_open()
        try:
            if self._id is None:
                self._settle(self._put)
            else:
                upload_id = self._id
                self._send_part()
                parts = [part.result() for part in self._parts]
                self._settle(lambda: self._requests.complete(upload_id, parts))
                self._id = None
        finally:
            self.abort()

    def abort(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for part in self._parts:
            part.cancel()
        if self._pool is not None:
            # A part that arrives after the abort would remain and be billed.
            self._pool.shutdown(wait=True)
        self._buffer = bytearray()
        self._free = queue.SimpleQueue()
        if self._id is not None:
            upload_id = self._id
            try:
                self._retry(lambda: self._requests.drop(upload_id))
            except UploadGone:
                return
            except CloudspotError as error:
                _log.warning("an upload's parts stay until the bucket's lifecycle removes them: %s", error)

    # --- parts ------------------------------------------------------------------------------------

    def _next_buffer(self) -> None:
        """Send the current buffer, if any, and take another."""
        if self._buffer:
            self._send_part()
        size = self._part_bytes << (len(self._parts) // GROWTH_EVERY)
        if self._num_buffers <= self._num_threads:
            self._num_buffers += 1
            buffer = bytearray()
        else:
            buffer = self._free.get()  # waits until a part has been stored or has failed
        for part in self._parts:
            if part.done() and part.exception() is not None:
                part.result()
        self._buffer = buffer if len(buffer) == size else bytearray(size)
        self._filled = 0

    def _send_part(self) -> None:
        if self._filled == 0:
            return
        if self._id is None:
            self._id = self._retry(lambda: self._requests.begin(self._writer))
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="cloudspot-upload")
        assert self._pool is not None
        number, buffer, length = len(self._parts) + 1, self._buffer, self._filled
        self._parts.append(self._pool.submit(self._carry, self._id, number, buffer, length))
        self._buffer, self._filled = bytearray(), 0

    def _carry(self, upload_id: str, number: int, buffer: bytearray, length: int) -> Any:
        try:
            with memoryview(buffer) as view, view[:length] as part:
                return self._retry(lambda: self._requests.send(upload_id, number, part))
        finally:
            self._free.put(buffer)

    def _put(self) -> None:
        with memoryview(self._buffer) as view, view[: self._filled] as data:
            self._requests.put(self._writer, data)

    def _retry(self, call: Callable[[], Any]) -> Any:
        return retry(call, sleep=self._sleep)

    # --- the outcome ------------------------------------------------------------------------------

    def _settle(self, publish: Callable[[], None]) -> None:
        """Publish the object; if an answer is lost, check whether the object exists and is ours.

        Raises:
            ObjectExists: another writer's object was there first.
            TransientError: the outcome is still unknown.
            CloudspotError: the parts no longer exist; upload again.
        """
        try:
            settle(publish, is_ours=lambda: self._found_writer() == self._writer, sleep=self._sleep)
        except UploadGone as error:
            # A store may drop an upload whose condition has failed.
            if self._if_absent and self._found_writer() is not None:
                raise ObjectExists(f"{self._url}: {self._key} already exists") from error
            raise CloudspotError(str(error)) from error

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"the upload of {self._key} was already committed or aborted")


def settle(
    publish: Callable[[], None], *, is_ours: Callable[[], bool], sleep: Callable[[float], None]
) -> None:
    """Create an object by calling ``publish``, which is repeated after transient failures.

    ``publish`` must be safe to repeat: either a condition guards it, or it completes an upload. ``is_ours``
    returns whether the object at the key has this writer's mark, which shows that a call whose answer was
    lost has succeeded.

    Raises:
        ObjectExists: another writer's object was there first.
        UploadGone: ``publish`` raised it, and the object is not ours.
        TransientError: the outcome is still unknown.
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
            if not is_ours():
                raise
        except (ObjectExists, UploadGone):
            if not (is_unknown and is_ours()):
                raise

    retry(attempt, sleep=sleep)
