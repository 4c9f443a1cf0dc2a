"""Log lines in OSS: appendable objects ``logs/<instance>/<date>/...``, as is usual on Alibaba Cloud.

::

    logs/i-bp1.../2026-11-20/digits-7kq2.1-0.000000000000.log     the job, its stream, its first line's number
    jobs/digits-7kq2/logs/1-0/i-bp1...                            a machine on which the stream was written

An object holds the lines of one UTC date, without a gap. A writer knows the object's length and its last
line; if an append finds the object longer, the writer reads its end and appends only the missing lines. So
each line is written once, even if a response was lost or an agent was restarted. Source: OSS API reference,
AppendObject (checked 2026-11).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timezone
from itertools import groupby
from typing import ClassVar, Final, NamedTuple

from cloudspot.calls.retrying import retry
from cloudspot.errors import CloudspotError, ObjectMissing, TransientError
from cloudspot.interfaces import LogSink, ObjectStore, check_stream
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.logs.objectlog import list_streams
from cloudspot.model import LogPiece, LogRecord
from cloudspot.plugin.logorder import Arrival, read_back
from cloudspot_aliyun import osslogformat
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.metadata import EcsMetadata
from cloudspot_aliyun.oss import OssStore
from cloudspot_aliyun.ossbucket import NotAppendable, OssBucket, PositionTaken
from cloudspot_aliyun.osspayload import digest_header

LOGS: Final = "logs/"
BLOCK_BYTES: Final = 4 << 20
"""The size of the pieces in which a log is read from its beginning."""
END_BYTES: Final = 128 << 10
"""The size of the first piece that is read from a log's end; it holds more than a screen of lines."""
MAX_OBJECT_BYTES: Final = 1 << 30
"""The length at which a new object is begun; OSS accepts 5 GiB, but smaller files are easier to use."""
NUM_THREADS: Final = 8
"""How many objects are deleted at once."""

_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class _Moved(TransientError):
    """The object is longer than expected, or an append's response was lost; read its end and try again."""


class _File(NamedTuple):
    """An object of a stream's log, as listed; sorted by the number of its first line."""

    first: int
    key: str
    size: int
    day: date


@dataclass
class _End:
    """The end of a log, at which a writer continues."""

    key: str
    first: int
    """The number of the object's first line, which is in its key."""
    day: date
    size: int
    last_seq: int


class OssLogSink(LogSink):
    """A job's log in OSS, in the bucket of its store. Thread-safe."""

    is_in_store: ClassVar[bool] = True

    def __init__(
        self,
        store: ObjectStore,
        job_id: str,
        *,
        clients: AliyunClients | None = None,
        instance_id: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Do no I/O. ``instance_id`` is the writing machine; the default is this machine, from its metadata.

        Raises:
            SpecError: the store is not in OSS.
        """
        if isinstance(store, OssStore) and clients is None:
            self._bucket = store.bucket  # The sink shares the store's credentials and connections.
        else:
            self._bucket = OssBucket(store.url, clients or AliyunClients(), sleep)
        self._store = with_retries(store, sleep=sleep)
        self._job_id = job_id
        self._sleep = sleep
        self._instance_id = instance_id
        self._lock = threading.Lock()
        self._ends: dict[str, _End | None] = {}
        """The ends of the streams that this sink writes, by stream."""
        self._instances: dict[str, tuple[str, ...]] = {}
        """The machines that have written each stream, by stream, as far as they are known."""
        self._read_to: dict[str, tuple[int, int]] = {}
        """The length that was read, and the number of the last line read, by object."""

    # --- writing ----------------------------------------------------------------------------------

    def write(self, records: Sequence[LogRecord]) -> None:
        if not records:
            return
        stream = records[0].stream
        check_stream(stream)
        with self._lock:
            retry(lambda: self._write(stream, records), sleep=self._sleep)

    def _write(self, stream: str, records: Sequence[LogRecord]) -> None:
        if stream not in self._ends:
            self._ends[stream] = self._find_end(stream)
        for day, run in groupby(records, lambda record: record.time.astimezone(timezone.utc).date()):
            end = self._ends[stream]
            left = [record for record in run if end is None or record.seq > end.last_seq]
            if left:
                self._append(stream, day, left)

    def _append(self, stream: str, day: date, records: list[LogRecord]) -> None:
        end = self._ends[stream]
        if end is None or end.day != day or end.size >= MAX_OBJECT_BYTES:
            end = self._begin(stream, day, records[0].seq)
        data = osslogformat.encode(records)
        try:
            size = self._append_bytes(end.key, end.size, data)
        except (PositionTaken, TransientError) as error:
            del self._ends[stream]
            raise _Moved(str(error)) from error
        except NotAppendable as error:
            # The object was replaced by a copy or an empty one, so the log continues in another object.
            seq = records[0].seq
            self._ends[stream] = replace(self._begin(stream, day, max(seq, end.first + 1)), last_seq=seq - 1)
            raise _Moved(str(error)) from error
        self._ends[stream] = replace(end, size=size, last_seq=records[-1].seq)

    def _append_bytes(self, key: str, position: int, data: bytes) -> int:
        # The response has only the whole object's checksum; Content-MD5 detects bytes that change in transit.
        headers = {"Content-Type": "text/plain; charset=utf-8", **digest_header(data)}
        with self._bucket.asking("append to", key) as client:
            answer = client.append_object(self._bucket.full(key), position, data, headers=headers)
        return int(answer.next_position)

    def _begin(self, stream: str, day: date, first: int) -> _End:
        """Return the end of an object that does not exist yet."""
        name = f"{self._job_id}.{stream}.{first:012d}.log"
        key = f"{LOGS}{self._instance()}/{day.isoformat()}/{name}"
        return _End(key, first, day, 0, first - 1)

    def _find_end(self, stream: str) -> _End | None:
        """Return the end of the machine's log of the stream; the first call announces the log to readers."""
        instance = self._instance()
        marker = keys.log_stream_prefix(self._job_id, stream) + instance
        files = self._files_of(instance, stream)
        if not files:
            self._store.put(marker, b"")
            return None
        last = files[-1]
        newest = next(self._back_through(last, stream), None)
        seqs = [] if newest is None else [arrival.record.seq for arrival in newest]
        return _End(last.key, last.first, last.day, last.size, max(seqs, default=last.first - 1))

    def _instance(self) -> str:
        if self._instance_id is None:
            self._instance_id = EcsMetadata().require("meta-data/instance-id").strip()
        if _INSTANCE.fullmatch(self._instance_id) is None:
            raise CloudspotError(f"{self._instance_id!r} is not an instance id")
        return self._instance_id

    # --- reading ----------------------------------------------------------------------------------

    def streams(self) -> Sequence[str]:
        """Return the names of the job's streams, sorted; see LogSink.

        A request is made for each stream.
        """
        return list_streams(self._store, self._job_id)

    def read(self, stream: str, *, after: int = -1) -> Iterator[LogRecord]:
        newest = after
        files = self._files(stream)
        for number, file in enumerate(files):
            if number + 1 < len(files) and files[number + 1].first <= after + 1:
                continue
            start, last = self._read_to.get(file.key, (0, -1))
            # Only the object's end was read, or it was removed and begun again.
            if last > after or start > file.size:
                start = 0
            if start == 0 and after >= file.first:
                start = self._start_after(file, stream, after)
            for record in self._lines(file, start, stream):
                last = max(last, record.seq)
                if record.seq > newest:
                    newest = record.seq
                    yield record
            self._read_to[file.key] = file.size, last

    def read_back(self, stream: str) -> Iterator[LogRecord]:
        """Yield the stream's records, newest first; see LogSink. Pieces are fetched when they are needed."""
        files = self._files(stream)
        pages = (page for file in reversed(files) for page in self._back_through(file, stream))
        top = -1
        try:
            for record in read_back(pages):
                top = max(top, record.seq)
                yield record
        finally:
            # If the newest line is read, a later ``read`` need not read these objects' present lines again.
            for file in files if top >= 0 else ():
                self._read_to.setdefault(file.key, (file.size, top))

    def pieces(self) -> Sequence[LogPiece]:
        """Return the objects of the log, without fetching any; see LogSink."""
        return [
            LogPiece(stream=stream, name=file.key, first_day=file.day, last_day=file.day, num_bytes=file.size)
            for stream in self.streams()
            for file in self._files(stream)
        ]

    def remove(self, pieces: Sequence[LogPiece]) -> None:
        map_parallel(self._store.delete, [piece.name for piece in pieces], num_threads=NUM_THREADS)

    def _files(self, stream: str) -> list[_File]:
        instances = self._instances.get(stream, ())
        if not instances:
            prefix = keys.log_stream_prefix(self._job_id, stream)
            instances = tuple(meta.key[len(prefix) :] for meta in self._store.list_objects(prefix))
            self._instances[stream] = instances
        return sorted(file for instance in instances for file in self._files_of(instance, stream))

    def _files_of(self, instance: str, stream: str) -> list[_File]:
        prefix = f"{LOGS}{instance}/"
        name = re.compile(rf"(\d{{4}}-\d\d-\d\d)/{re.escape(f'{self._job_id}.{stream}')}\.(\d{{12,}})\.log")
        files = []
        for meta in self._store.list_objects(prefix):
            match = name.fullmatch(meta.key.removeprefix(prefix))
            if match is not None:
                with suppress(ValueError):  # The key's date is invalid, so the object is not cloudspot's.
                    files.append(_File(int(match[2]), meta.key, meta.size, date.fromisoformat(match[1])))
        return sorted(files)

    def _start_after(self, file: _File, stream: str, after: int) -> int:
        """Return the offset of a line before which no line has a number above ``after``.

        The search is by bisection, so that a reader of a long log's last hour fetches little more than that
        hour.
        """
        low, high = 0, file.size
        while high - low > BLOCK_BYTES:
            middle = (low + high) // 2
            block = self._range(file.key, middle, END_BYTES)
            start = osslogformat.first_start(block)
            first = next(osslogformat.decode(block[start:], stream), None)
            if first is None or first.seq > after:
                high = middle
            else:
                low = middle + start
        return low

    def _lines(self, file: _File, start: int, stream: str) -> Iterator[LogRecord]:
        """Yield an object's lines from ``start``, the offset of a line, to the object's listed length."""
        rest = b""
        while start < file.size:
            block = self._range(file.key, start, min(BLOCK_BYTES, file.size - start))
            if not block:
                return  # The object has been removed.
            start += len(block)
            rest += block
            if start < file.size:
                cut = osslogformat.last_start(rest)
                yield from osslogformat.decode(rest[:cut], stream)
                rest = rest[cut:]
        yield from osslogformat.decode(rest, stream)

    def _back_through(self, file: _File, stream: str) -> Iterator[list[Arrival]]:
        end, length, rest = file.size, END_BYTES, b""
        while end > 0:
            start = max(0, end - length)
            block = self._range(file.key, start, end - start)
            if len(block) < end - start:
                return  # The object has been removed.
            rest = block + rest
            cut = 0 if start == 0 else osslogformat.first_start(rest)
            page = [Arrival(record, 0, 0) for record in osslogformat.decode(rest[cut:], stream)]
            rest, end, length = rest[:cut], start, min(length * 2, BLOCK_BYTES)
            if page:
                yield page

    def _range(self, key: str, start: int, length: int) -> bytes:
        try:
            return self._store.get_range(key, start, length)
        except ObjectMissing:
            return b""
