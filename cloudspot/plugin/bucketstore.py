"""An object store in a cloud's bucket: the parts that the stores of all clouds share."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, Final

from cloudspot.calls import CheckRequest, CheckResults, LinkRequest, LinkResult
from cloudspot.calls.retrying import retry
from cloudspot.errors import CloudspotError, CorruptData, ObjectMissing, StoreRefused, TransientError
from cloudspot.interfaces import MAX_GET_BYTES, Data, ObjectStore, Upload, is_key
from cloudspot.model import CheckResult, ObjectMeta, ObjectPage, UnfinishedUpload
from cloudspot.plugin.bucket import Bucket, Download, Listed, RangeBeyondEnd
from cloudspot.plugin.multipart import (
    NUM_THREADS,
    PART_BYTES,
    PartedRequests,
    PartedUpload,
    Passing,
    UploadGone,
    settle,
)

MAX_PAGE: Final = 1000
MAX_EMPTY_PAGES: Final = 10_000
"""The maximum number of empty pages in a row. A service may return a few after many objects were deleted."""
READ_BYTES: Final = 1 << 20
"""How many bytes are read into a buffer at once: urllib3 copies them, and the copy stays in the processor's
cache."""
MAX_PRESIGN_SECONDS: Final = 7 * 24 * 3600
"""The longest validity of a version 4 signature; if signed with a role's credentials, it expires with them
after hours."""


class BucketStore(ObjectStore):
    """Objects in a bucket, below a prefix. Thread-safe.

    Objects have no ACL; their encryption and storage class are the bucket's defaults. A request is repeated
    only if the cloud did nothing; a create-only put is also repeated if its answer was lost, because the
    object carries its writer's mark, by which the store recognizes its own objects.
    """

    bucket_type: ClassVar[Callable[..., Bucket]]
    """Called with the URL, ``clients`` and ``sleep``."""
    upload_type: ClassVar[Callable[..., PartedRequests]]
    """A subclass of PartedRequests for one put or one stream, called as ``upload_type(bucket, key,
    if_absent=...)``."""
    num_threads: ClassVar[int] = NUM_THREADS
    """How many parts of a stream are uploaded at once."""

    def __init__(
        self,
        url: str,
        *,
        clients: Any = None,
        part_bytes: int = PART_BYTES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read the URL, without I/O; streams have parts of ``part_bytes``; ``clients`` are the plugin's.

        Raises:
            SpecError: ``url`` is not ``scheme://bucket`` or ``scheme://bucket/prefix``.
        """
        self.url = url
        self.bucket = type(self).bucket_type(url, clients, sleep)
        self._part_bytes = part_bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Store ``data`` under ``key``; see ObjectStore.

        A replacing put is not repeated if its answer is lost, because it might undo a later put.
        """
        requests, writer = self._requests(key, if_absent=if_absent), secrets.token_hex(16)
        with memoryview(data) as given, given.cast("B") as view:
            if not if_absent:
                retry(lambda: requests.put(writer, view), sleep=self.bucket.sleep, kind=Passing)
                return
            settle(
                lambda: requests.put(writer, view),
                is_ours=lambda: self._writer_of(key) == writer,
                sleep=self.bucket.sleep,
            )

    def get(self, key: str) -> bytes:
        """Return the whole object; see ObjectStore.

        Raises:
            CorruptData: the object is larger than ``MAX_GET_BYTES``.
            TransientError: see ObjectStore; also if the bytes do not match the checksum in the answer.
        """
        return self._read(key, None)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"start and length must be >= 0: got {start}, {length}")
        if length == 0:
            self.head(key)  # HTTP has no empty range, but a missing object must still be reported.
            return b""
        return self._read(key, (start, start + length - 1))

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        if start < 0:
            raise ValueError(f"start must be >= 0: got {start}")
        with memoryview(buffer) as given, given.cast("B") as view:
            if len(view) == 0:
                self.head(key)  # as in get_range
                return 0

            def fill(client: Any) -> int:
                with self._download(client, key, (start, start + len(view) - 1)) as (download, num_bytes):
                    filled = 0
                    while filled < num_bytes:
                        with view[filled : min(filled + READ_BYTES, num_bytes)] as block:
                            count = download.body.readinto(block)
                        if not count:
                            raise self.bucket.cut_off(key, filled, num_bytes)
                        filled += count
                    self._check_end(download, key)
                    with view[:num_bytes] as data:
                        download.verify(data)
                    return num_bytes

            try:
                return self.bucket.ask("read", key, fill)
            except RangeBeyondEnd:
                return 0

    def head(self, key: str) -> ObjectMeta:
        name = self.bucket.full(key)
        found = self.bucket.ask("read", key, lambda client: self.bucket.head(client, name))
        return ObjectMeta(key=key, size=found.size, modified_at=found.modified_at, etag=found.etag)

    def list_page(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, cursor: str = ""
    ) -> ObjectPage:
        """Return a page of at most 1000 objects; see ObjectStore.

        Objects whose names are not valid keys, such as ``folder/``, are skipped.
        """
        if limit < 1:
            raise ValueError(f"limit must be >= 1: got {limit}")
        ours = self.bucket.prefix
        start = None if after is None else ours + after
        listed, token = self._names(prefix, start, cursor or None, limit=limit)
        seen: set[str] = set()
        while not listed and token is not None:
            if token in seen or len(seen) == MAX_EMPTY_PAGES:
                raise self._stuck(prefix)
            seen.add(token)
            listed, token = self._names(prefix, start, token, limit=limit)
        # Without this check, the end of a foreign name could look like one of our keys.
        if (foreign := next((one.name for one in listed if not one.name.startswith(ours)), None)) is not None:
            raise StoreRefused(
                f"{self.url}: the listing also has {foreign[:200]!r}, so the server ignores the prefix; "
                "remove any proxy in between, or use another store"
            )
        keys = [one.name[len(ours) :] for one in listed]
        return ObjectPage(
            objects=tuple(
                ObjectMeta(key=key, size=one.size, modified_at=one.modified_at, etag=one.etag)
                for key, one in zip(keys, listed, strict=True)
                if is_key(key)
            ),
            next_after=None if token is None else keys[-1],
            cursor=token if token is not None and self.bucket.lists_by_token else "",
            # The services' consoles create empty objects to represent directories.
            skipped=tuple(
                key
                for key, one in zip(keys, listed, strict=True)
                if not is_key(key) and not (one.size == 0 and (not key or key.endswith("/")))
            ),
        )

    def delete(self, key: str) -> None:
        name = self.bucket.full(key)
        try:
            self.bucket.ask("delete", key, lambda client: self.bucket.delete(client, name))
        except ObjectMissing:
            return

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects, a thousand per request if the cloud supports it; see ObjectStore."""
        if not self.bucket.deletes_many:
            super().delete_many(keys)
            return
        names = [self.bucket.full(key) for key in keys]
        for start in range(0, len(names), MAX_PAGE):
            part = names[start : start + MAX_PAGE]
            self.bucket.ask("delete", f"{len(part)} objects", partial(self._delete_names, names=part))

    def _delete_names(self, client: Any, names: Sequence[str]) -> None:
        self.bucket.delete_names(client, names)

    def close(self) -> None:
        """Close the connections; see ObjectStore."""
        self.bucket.close()

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start a streamed put; see ObjectStore.

        It needs memory for one part per thread, and for one more part.
        """
        return PartedUpload(
            self._requests(key, if_absent=if_absent),
            key=key,
            url=self.url,
            if_absent=if_absent,
            found_writer=lambda: self._writer_of(key),
            part_bytes=self._part_bytes,
            num_threads=self.num_threads,
            sleep=self.bucket.sleep,
        )

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """Yield the uploads whose parts are still in the bucket; see ObjectStore."""
        for upload in self.bucket.ask("list uploads of", "", self.bucket.list_uploads):
            key = upload.name[len(self.bucket.prefix) :]
            if upload.name.startswith(self.bucket.prefix) and is_key(key):
                yield UnfinishedUpload(key=key, id=upload.id, begun_at=upload.begun_at)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        requests = self._requests(upload.key, if_absent=False)
        with suppress(UploadGone):
            retry(lambda: requests.drop(upload.id), sleep=self.bucket.sleep)

    def presign_get(self, key: str, *, seconds: float) -> str:
        """Return a URL that reads the object; see ObjectStore.

        Raises:
            ValueError: ``seconds`` is not from 1 to 604,800, the longest validity of a signature.
        """
        name = self.bucket.full(key)
        if not 1 <= seconds <= MAX_PRESIGN_SECONDS:
            raise ValueError(f"seconds must be in 1 to {MAX_PRESIGN_SECONDS}: got {seconds}")
        return self.bucket.ask(
            "sign for", key, lambda client: self.bucket.sign_get(client, name, math.ceil(seconds))
        )

    def link(self, request: LinkRequest) -> LinkResult:
        """Return a URL that a browser shows; see ObjectStore.

        Raises:
            ValueError: ``seconds`` is not from 1 to 604,800, the longest validity of a signature.
        """
        name = self.bucket.full(request.key)
        if not 1 <= request.seconds <= MAX_PRESIGN_SECONDS:
            raise ValueError(f"seconds must be in 1 to {MAX_PRESIGN_SECONDS}: got {request.seconds}")
        return self.bucket.ask(
            "sign for",
            request.key,
            lambda client: self.bucket.sign_link(client, name, int(request.seconds), request.media_type),
        )

    def check(self, request: CheckRequest) -> CheckResults:
        """Check that the bucket exists and can be listed, and report settings that cost money."""
        try:
            self.list_page("", limit=1)
        except CloudspotError as error:
            return CheckResults(results=(CheckResult(name="bucket", ok=False, detail=str(error)),))
        bucket = CheckResult(name="bucket", ok=True, detail=self.url)
        return CheckResults(results=(bucket, *self.bucket.check_settings()))

    def _names(
        self, prefix: str, start: str | None, token: str | None, *, limit: int
    ) -> tuple[Sequence[Listed], str | None]:
        """Return a page of names in the bucket, and the next page's token; see Bucket.list_names."""
        whole, most = self.bucket.prefix + prefix, min(limit, MAX_PAGE)
        listed, following = self.bucket.ask(
            "list",
            prefix,
            lambda client: self.bucket.list_names(client, whole, after=start, token=token, limit=most),
        )
        if self.bucket.lists_by_token and start is not None:
            listed = [one for one in listed if one.name > start]
        return listed, following

    def _stuck(self, prefix: str) -> StoreRefused:
        return StoreRefused(
            f"{self.url}: the listing of {prefix or 'all objects'} does not move forward: the server sends "
            "empty pages without end; use another store"
        )

    def _requests(self, key: str, *, if_absent: bool) -> PartedRequests:
        return type(self).upload_type(self.bucket, key, if_absent=if_absent)

    def _writer_of(self, key: str) -> str | None:
        """Return the writer of the object at the key ("" if unknown), or None if there is no object."""
        name = self.bucket.full(key)
        try:
            return self.bucket.ask("read", key, lambda client: self.bucket.head(client, name)).writer
        except ObjectMissing:
            return None

    def _read(self, key: str, span: tuple[int, int] | None) -> bytes:
        def read(client: Any) -> bytes:
            with self._download(client, key, span) as (download, num_bytes):
                if span is None and num_bytes > MAX_GET_BYTES:
                    raise CorruptData(f"{self.url}: {key}: it is longer than {MAX_GET_BYTES} bytes")
                # If the known length is requested, the read returns a single block directly from the socket.
                data = download.body.read(num_bytes) if num_bytes else b""
                while len(data) < num_bytes:
                    more = download.body.read(num_bytes - len(data))
                    if not more:
                        raise self.bucket.cut_off(key, len(data), num_bytes)
                    data += more
                self._check_end(download, key)
                with memoryview(data) as view:
                    download.verify(view)
                return data

        try:
            return self.bucket.ask("read", key, read)
        except RangeBeyondEnd:
            return b""

    @contextmanager
    def _download(
        self, client: Any, key: str, span: tuple[int, int] | None
    ) -> Iterator[tuple[Download, int]]:
        """Yield the answer to a read, and its length in bytes."""
        download = self.bucket.download(client, self.bucket.full(key), span)
        if span is not None and not download.is_partial and download.num_bytes:
            download.body.close()  # A cache may have answered with the whole object, so ask again.
            download = self.bucket.download(client, self.bucket.full(key), span)
        try:
            if download.num_bytes is None:
                raise StoreRefused(
                    f"{self.url}: an answer does not say how long it is; remove the proxy that drops its "
                    "Content-Length, or use another store"
                )
            # Only some servers answer a range of an empty object as partial.
            if span is not None and not download.is_partial and download.num_bytes > 0:
                raise StoreRefused(f"{self.url}: the server ignores ranges; use another store")
            if span is not None and download.num_bytes > span[1] - span[0] + 1:
                raise StoreRefused(
                    f"{self.url}: the answer for {key} announces {download.num_bytes} bytes, more than were "
                    "requested; remove any proxy in between, or use another store"
                )
            yield download, download.num_bytes
        finally:
            download.body.close()

    def _check_end(self, found: Download, key: str) -> None:
        """Check that the body has ended; this last read also releases the connection."""
        if found.body.read(1):
            raise TransientError(f"{self.url}: the answer for {key} has more bytes than it announces")
