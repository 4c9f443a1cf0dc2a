"""Deliver the lines of the node's log files to the sink once and in order, even through an outage.

A batch's lines are numbered and written to disk before the batch is delivered. An agent that is killed before
it records a delivery is followed by one that delivers the same batch again; readers drop the repeated lines
by their numbers.
"""

from __future__ import annotations

import codecs
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from cloudspot.agent.worker import Worker
from cloudspot.calls.retrying import doubled
from cloudspot.decoding import decode
from cloudspot.errors import CloudspotError
from cloudspot.host.partial_files import write_whole
from cloudspot.interfaces import LogSink
from cloudspot.jobstore.access.store_clock import utc_now
from cloudspot.jobstore.layout.records import LogStanding
from cloudspot.jobstore.logs.log_streams import METRICS, UTILIZATION
from cloudspot.model import LogRecord

_log = logging.getLogger(__name__)

BATCH_BYTES = 1 << 20
"""A batch with this many bytes is full; it may exceed the limit by one read of one file."""
BATCH_LINES = 10_000
"""A batch with this many lines is full: each line adds 100 bytes in a segment, and even more in memory."""
FLUSHES_PER_SECOND = 2.5
"""The maximum number of deliveries per second by all nodes together, the first node excepted."""
MAX_BACKOFF_SECONDS = 15.0
UNFINISHED_SECONDS = 20.0
"""An unfinished line is delivered after this long: a progress bar may end its line only hours later."""
_CONTINUING = bytes(range(0x80, 0xC0))
"""The UTF-8 bytes that do not begin a character."""
_WHOLE_LINES = (METRICS, UTILIZATION)
"""Programs read the lines of these sources, so their unfinished lines are not delivered."""


class _Position(msgspec.Struct, kw_only=True):
    """The pump's position; the whole record is rewritten before and after each delivery."""

    next_seq: int = 0
    offsets: dict[str, int] = msgspec.field(default_factory=dict)
    """By file name, the offset of the first byte that is not yet in a batch."""
    pending: list[LogRecord] = msgspec.field(default_factory=list)
    """The numbered lines of the current batch, which may have been delivered already."""


def flush_seconds_of(rank: int, *, num_nodes: int, asked_seconds: float) -> float:
    """Return the time between a node's deliveries: as asked for the first node, more if there are many."""
    return asked_seconds if rank == 0 else max(asked_seconds, num_nodes / FLUSHES_PER_SECOND)


class LogPump(Worker):
    """A thread that follows files and delivers their lines in one stream, every ``flush_seconds``."""

    def __init__(
        self,
        sink: LogSink,
        *,
        stream: str,
        position_path: Path,
        flush_seconds: float,
        wait: Callable[[float], bool] | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """Create the pump; ``wait`` waits for a number of seconds and returns whether to stop delivering."""
        super().__init__("logs")
        self._sink = sink
        self._stream = stream
        self._path = position_path
        self._flush_seconds = flush_seconds
        self._now = now
        self._files: list[tuple[Path, str]] = []
        self._unfinished: dict[str, tuple[int, datetime]] = {}
        """By file name, the offset at which the unfinished line begins, and when it was first seen."""
        self._cuts: dict[str, int] = {}
        """By file name, the offset at which an unfinished line was last cut."""
        self._lock = threading.Lock()
        self._wait = wait or self._stopped.wait
        self._failures = 0
        self._error = ""
        try:
            self._position: _Position = decode(position_path.read_bytes(), _Position)
        except FileNotFoundError:
            self._position = _Position()

    def follow(self, path: Path, source: str) -> None:
        """Deliver all of the file's lines from now on; the file need not exist yet."""
        with self._lock:
            if (path, source) not in self._files:
                self._files.append((path, source))

    def finish(self, *, deadline: float) -> bool:
        """Deliver all remaining lines, including unfinished ones; return whether all were delivered.

        ``deadline`` is monotonic.
        """
        self.stop()
        self._join(max(0.0, deadline - time.monotonic()))
        while not self._thread.is_alive():
            if self._deliver(final=True):
                return True
            if time.monotonic() >= deadline:
                break
            time.sleep(min(0.5, max(0.0, deadline - time.monotonic())))
        return False

    def standing(self) -> LogStanding:
        """Return how far the delivery has come; thread-safe."""
        with self._lock:
            files = tuple(self._files)
        position = self._position
        waiting = 0
        for path, _ in files:
            with suppress(OSError):  # it does not exist yet
                waiting += max(0, path.stat().st_size - position.offsets.get(path.name, 0))
        return LogStanding(num_lines=position.next_seq, waiting_bytes=waiting, error=self._error)

    def _run(self) -> None:
        while not self._wait(self._wait_seconds()):
            self._deliver(final=False)

    def _wait_seconds(self) -> float:
        backoff = doubled(self._flush_seconds, self._failures, most=MAX_BACKOFF_SECONDS)
        return max(self._flush_seconds, backoff)

    def _deliver(self, *, final: bool) -> bool:
        """Deliver the lines in the files; return False if the sink failed.

        Lines written during a delivery wait for the next call, unless they fill a batch. Otherwise, a
        training run that logs continuously would cause a request for every few lines.
        """
        may_be_more = True
        while may_be_more or self._position.pending:
            position = self._position
            if not position.pending:
                may_be_more = self._collect(final=final)
                if not position.pending:
                    return True
                self._save()
            try:
                self._sink.write(position.pending)
            except CloudspotError as error:
                self._failures += 1
                self._error = str(error)
                if self._failures in {1, 10, 100}:
                    _log.warning("log lines are waiting for their sink: %s", error)
                return False
            self._failures = 0
            self._error = ""
            position.pending = []
            self._save()
        return True

    def _collect(self, *, final: bool) -> bool:
        """Number a batch of lines; return whether the batch is full, so more lines may follow."""
        with self._lock:
            files = tuple(self._files)
        room = BATCH_BYTES
        for path, source in files:
            if room > 0:
                room -= self._take_lines(path, source, final=final)
        return room <= 0

    def _take_lines(self, path: Path, source: str, *, final: bool) -> int:
        """Number the file's next lines; return their size, or ``BATCH_BYTES`` if more lines may follow."""
        position = self._position
        offset = position.offsets.get(path.name, 0)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(BATCH_BYTES)
        except OSError:  # it does not exist yet
            return 0
        is_all = len(data) < BATCH_BYTES
        end = data.rfind(b"\n") + 1
        cut_at: int | None = None
        if final and is_all:
            end = len(data)
        elif end == 0 and (not is_all or self._is_overdue(path.name, offset, data, source)):
            end = len(data) - len(_begun(data))  # the rest of the line becomes another line
            cut_at = offset + end
        num_lines = BATCH_LINES - len(position.pending)
        rest = b"".join(data[:end].split(b"\n", num_lines)[num_lines:])
        end -= len(rest)
        is_all = is_all and not rest
        lines = split_lines(data[:end])
        if lines and not lines[0] and self._cuts.get(path.name) == offset:
            del lines[0]  # only the newline of a delivered line
        if cut_at is not None:
            self._cuts[path.name] = cut_at
        for line in lines:
            text = line.decode("utf-8", errors="replace")
            record = LogRecord(
                stream=self._stream,
                seq=position.next_seq,
                time=self._now(),
                text=text,
                source=source,
            )
            position.pending.append(record)
            position.next_seq += 1
        position.offsets[path.name] = offset + end
        return end if is_all else BATCH_BYTES

    def _is_overdue(self, name: str, offset: int, data: bytes, source: str) -> bool:
        if source in _WHOLE_LINES or not data.strip(b"\r"):
            return False
        now = self._now()
        begin, since = self._unfinished.get(name, (-1, now))
        if begin != offset:
            self._unfinished[name] = (offset, now)
        return begin == offset and now - since >= timedelta(seconds=UNFINISHED_SECONDS)

    def _save(self) -> None:
        # If the disk is full, it is more important to deliver the lines that report it than to avoid repeated
        # lines after a restart.
        with suppress(OSError):
            write_whole(self._path, msgspec.json.encode(self._position))


def _begun(data: bytes) -> bytes:
    """Return the bytes at the end that may be part of an unfinished character or Windows newline."""
    if data.endswith(b"\r"):
        return b"\r"
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:].lstrip(_CONTINUING))
    return decoder.getstate()[0]


def split_lines(data: bytes) -> list[bytes]:
    """Return the lines without their line ends; a carriage return does not end a line.

    A progress bar redraws itself with carriage returns, and one line for each state would flood the log. A
    single line holds all states, and readers show the last one.
    """
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]
