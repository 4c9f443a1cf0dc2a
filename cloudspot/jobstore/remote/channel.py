"""Exchanges frames, in both directions, between two processes that share only a store.

Each end puts its frames into numbered, create-only objects, called *pieces*, and looks for the next piece of
the other end. A piece begins with a hash of its key, its content, and a secret that both ends know. A piece
ends the channel if it is truncated or belongs to another command, direction or number.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloudspot.errors import CloudspotError, CorruptData, ObjectExists, TransientError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.stored_records import find_bytes
from cloudspot.jobstore.remote.relay import MAX_FRAME_BYTES, Frame, FrameReader, Kind

FIRST_LOOK_SECONDS = 0.1
"""The shortest time between two puts, and between two looks for the next piece.

Each look that finds no piece lengthens the wait for the next look by the factor ``_GROWTH``."""
BUSY_LOOK_SECONDS = 0.5
"""The longest wait between two looks in the first ``BUSY_SECONDS`` after a frame was sent or received."""
BUSY_SECONDS = 30.0
IDLE_LOOK_SECONDS = 4.0
"""The longest wait between two looks after ``BUSY_SECONDS``."""
_GROWTH = 1.25
ALIVE_SECONDS = 20.0
"""The time after which an end without frames to send puts a piece all the same."""
SILENT_SECONDS = 75.0
"""An end that has put no piece for this long is considered gone."""
MAX_PIECE_BYTES = 4 << 20
FIRST_PIECE_BYTES = 512 << 10
PUT_SECONDS = 3.0
"""The target duration for the put of a piece: pieces become smaller if the connection to the store is slow,
so that the other end does not mistake a long put for silence.
"""
LAST_REQUESTS = 8
"""How many requests an end may make beyond its limit, to announce that it leaves."""
_URGENT = frozenset({Kind.SIGNAL, Kind.SIZE})
"""The kinds of frames that overtake input, even input that the other end is not taking."""
WINDOW_BYTES = 16 << 20
"""The maximum number of bytes that are put before the other end has acknowledged them."""
_ACKNOWLEDGED_BYTES = 4 << 20
_GATHER_SECONDS = 0.01
"""The time to wait for more frames to put into the same piece as the first frame."""
_RETRY_SECONDS = 0.5
_DIGEST_BYTES = 32
DEFAULT_MAX_REQUESTS = 100_000


class ChannelEnded(CloudspotError):
    """No more frames can be sent or will arrive; the message gives the reason."""


class RequestsUsed(ChannelEnded):
    """This end may not make any more requests."""


@dataclass
class Requests:
    """The number of requests that an end has made to the store, and its limit."""

    most: float = math.inf
    num_reads: int = 0
    num_writes: int = 0

    @property
    def usd(self) -> float:
        """The cost of the requests at the usual prices of object stores, which ``docs/remote.md`` states."""
        # The two figures are the prices of 1,000 reads and of 1,000 writes.
        return (self.num_reads * 0.0004 + self.num_writes * 0.005) / 1000

    def check(self, *, is_last: bool = False) -> None:
        """Raise RequestsUsed at the limit; ``is_last`` permits the few requests that announce the end."""
        if self.num_reads + self.num_writes >= self.most + (LAST_REQUESTS if is_last else 0):
            raise RequestsUsed(f"the limit of {self.most:,.0f} requests to the store is reached")


IDLE_PER_HOUR = Requests(
    num_reads=int(2 * 3600 / IDLE_LOOK_SECONDS), num_writes=int(2 * 3600 / ALIVE_SECONDS)
)
"""The number of requests that both ends make in an hour without any input or output."""
BUSY_PER_HOUR = Requests(
    num_reads=int(2 * 3600 / FIRST_LOOK_SECONDS), num_writes=int(2 * 3600 / FIRST_LOOK_SECONDS)
)
"""The most requests that both ends make in an hour, which they reach if both send frames all the time."""


class Channel:
    """One end of a channel.

    Two threads put pieces and look for pieces. Any thread may call ``send`` and ``take``.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        sends: Callable[[int], str],
        takes: Callable[[int], str],
        secret: bytes,
        requests: Requests | None = None,
    ) -> None:
        """Take ``sends`` and ``takes``, which return the keys of pieces by number, counted from 0."""
        self._store = store
        self._sends, self._takes = sends, takes
        self._secret = secret
        self.requests = requests or Requests()
        self._changed = threading.Condition()
        self._outgoing: deque[Frame] = deque()
        self._outgoing_bytes = 0
        self._sent_bytes = self._acknowledged_bytes = 0
        self._piece_bytes = min(FIRST_PIECE_BYTES, MAX_PIECE_BYTES)
        self._incoming: deque[Frame] = deque()
        self._urgent: deque[Frame] = deque()
        self._taken_bytes = self._acknowledged_taken_bytes = 0
        self._is_finishing = False
        self._is_leaving = False
        self._has_finished = False
        self._leaves_for: str | None = None
        """The reason why this end leaves of its own accord."""
        self.has_sent_close = False
        """Whether the piece that tells the other end that this end has left was put."""
        self.is_left = False
        """Whether the other end has left. Frames that it sent earlier may still wait to be taken."""
        self._ended: str | None = None
        self._num_put = 0
        self._active_at = time.monotonic()
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), name=f"channel {name}", daemon=True)
            for name, loop in (("put", self._put_pieces), ("look", self._look_for_pieces))
        ]

    def start(self) -> None:
        """Start the threads that put pieces and look for pieces."""
        for each in self._threads:
            each.start()

    @property
    def ended(self) -> str | None:
        """The reason why the channel has ended, or None if it is open."""
        return self._ended

    def end(self, why: str) -> None:
        """End the channel immediately. Frames that have not been put yet are lost."""
        with self._changed:
            self._ended = self._ended or why
            self._changed.notify_all()

    def send(self, frame: Frame) -> None:
        """Queue a frame to be put. Waits while the queue is full.

        Raises:
            ChannelEnded: the channel has ended, or this end has left.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or self._is_leaving or self._outgoing_bytes < MAX_PIECE_BYTES
            )
            if self._ended is not None or self._is_leaving:
                raise ChannelEnded(self._ended or self._leaves_for or "this side has left")
            self._outgoing.append(frame)
            self._outgoing_bytes += frame.size
            self._active_at = time.monotonic()
            self._changed.notify_all()

    def hurry(self, frame: Frame) -> None:
        """Queue a frame before all queued frames, without waiting.

        Raises:
            ChannelEnded: the channel has ended.
        """
        with self._changed:
            if self._ended is not None:
                raise ChannelEnded(self._ended)
            self._outgoing.appendleft(frame)
            self._outgoing_bytes += frame.size
            self._active_at = time.monotonic()
            self._changed.notify_all()

    def leave(self, *last: Frame) -> None:
        """Replace all queued frames by these last frames, and put them without waiting for the other end.

        Raises:
            ChannelEnded: the channel has ended.
        """
        with self._changed:
            if self._ended is not None:
                raise ChannelEnded(self._ended)
            self._leave_with(last)

    def _leave_with(self, last: Sequence[Frame]) -> None:
        self._outgoing = deque(last)
        self._outgoing_bytes = sum(frame.size for frame in last)
        self._is_leaving = True
        self._changed.notify_all()

    def take(self, seconds: float, *, urgent_only: bool = False) -> Frame | None:
        """Return the next frame received, or None if no frame arrives within ``seconds``.

        Urgent frames come first; with ``urgent_only``, no other frames are returned.

        Raises:
            ChannelEnded: the channel has ended, so no frame will arrive.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._urgent or (self._incoming and not urgent_only) or self._ended, seconds
            )
            if self._urgent:
                return self._urgent.popleft()
            if self._incoming and not urgent_only:
                frame = self._incoming.popleft()
                self._taken_bytes += frame.size
                if self._taken_bytes - self._acknowledged_taken_bytes >= _ACKNOWLEDGED_BYTES:
                    self._changed.notify_all()
                return frame
            if self._ended is not None:
                raise ChannelEnded(self._ended)
            return None

    def finish(self, seconds: float) -> bool:
        """Put the queued frames, and then stop putting. Return whether this was done within ``seconds``."""
        with self._changed:
            self._is_finishing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_finished or self._ended, seconds)
            return self._has_finished

    def _run(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except RequestsUsed as error:
            if self._leaves_for is not None:
                self.end(self._leaves_for)
                return
            # Otherwise the other end would wait, at a cost, until it considers this end gone.
            with self._changed:
                self._leaves_for = str(error)
                self._leave_with((Frame(Kind.MESSAGE, str(error).encode()), Frame(Kind.CLOSE)))
            if loop == self._put_pieces:
                self._run(loop)
        except (CloudspotError, ValueError) as error:
            self.end(str(error))

    # --- putting ------------------------------------------------------------------------------------

    def _put_pieces(self) -> None:
        while (data := self._gather()) is not None:
            began = time.monotonic()
            self._put(self._num_put, data)
            self._num_put += 1
            self._fit_pieces(len(data), time.monotonic() - began)
            if self._is_leaving and not self._outgoing:
                self.has_sent_close = True
            if self._leaves_for is not None:
                self.end(self._leaves_for)
                return
            with self._changed:  # frames that arrive meanwhile go into one piece
                rest = began + FIRST_LOOK_SECONDS - time.monotonic()
                self._changed.wait_for(lambda: self._ended or self._is_finishing or self._is_leaving, rest)
        with self._changed:
            self._has_finished = True
            self._changed.notify_all()

    def _fit_pieces(self, num_bytes: int, seconds: float) -> None:
        """Choose the size of further pieces by the duration of the last put."""
        if num_bytes >= self._piece_bytes // 2:
            fits = int(num_bytes * PUT_SECONDS / max(seconds, 1e-3))
            self._piece_bytes = min(max(MAX_FRAME_BYTES, fits), 2 * self._piece_bytes, MAX_PIECE_BYTES)

    def _gather(self) -> bytes | None:
        """Wait for frames and return them encoded, or None if the channel has ended or finished."""
        with self._changed:
            has_come = self._changed.wait_for(
                lambda: (
                    self._ended is not None
                    or self._may_put
                    or self._taken_bytes - self._acknowledged_taken_bytes >= _ACKNOWLEDGED_BYTES
                    or (self._is_finishing and not self._outgoing)
                ),
                ALIVE_SECONDS,
            )
            is_finishing = self._is_finishing
        if has_come and not is_finishing:
            time.sleep(_GATHER_SECONDS)
        with self._changed:
            if self._ended is not None or (is_finishing and not self._outgoing):
                return None
            data = b""
            if self._taken_bytes > self._acknowledged_taken_bytes:
                self._acknowledged_taken_bytes = self._taken_bytes
                data += Frame(Kind.TAKEN, str(self._acknowledged_taken_bytes).encode()).encode()
            while len(data) < self._piece_bytes and self._may_put:
                frame = self._outgoing.popleft()
                self._outgoing_bytes -= frame.size
                self._sent_bytes += frame.size
                data += frame.encode()
            self._changed.notify_all()
            return data or Frame(Kind.ALIVE).encode()

    @property
    def _may_put(self) -> bool:
        if not self._outgoing:
            return False
        is_urgent = self._is_leaving or self._outgoing[0].kind in _URGENT
        return is_urgent or self._sent_bytes - self._acknowledged_bytes < WINDOW_BYTES

    def _put(self, number: int, data: bytes) -> None:
        key = self._sends(number)
        piece = self._seal(key, data) + data
        end = time.monotonic() + SILENT_SECONDS
        while True:
            self.requests.check(is_last=self._is_leaving)
            self.requests.num_writes += 1
            try:
                if not self._is_taken(key, piece):
                    return
                raise ChannelEnded("another writer has taken the key of the next piece")
            except TransientError:
                if time.monotonic() >= end or self._ended is not None:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _is_taken(self, key: str, piece: bytes) -> bool:
        """Put a piece. Return whether another object already has the key."""
        try:
            self._store.put(key, piece, if_absent=True)
        except ObjectExists:  # an earlier attempt of ours may have succeeded, but its answer was lost
            return find_bytes(self._store, key) != piece
        return False

    # --- looking ------------------------------------------------------------------------------------

    def _look_for_pieces(self) -> None:
        reader, number, pause = FrameReader(), 0, FIRST_LOOK_SECONDS
        heard_at = time.monotonic()
        while self._ended is None and not self._has_finished and self._leaves_for is None:
            self.requests.check()
            self.requests.num_reads += 1
            key = self._takes(number)
            try:
                piece = find_bytes(self._store, key)
            except TransientError:
                piece = None
            now = time.monotonic()
            if piece is None:
                if now - heard_at > SILENT_SECONDS:
                    raise ChannelEnded(f"the other side has been silent for {SILENT_SECONDS:.0f} s")
                pause = self._wait(pause)
                continue
            heard_at, pause = now, FIRST_LOOK_SECONDS
            digest, data = piece[:_DIGEST_BYTES], piece[_DIGEST_BYTES:]
            if not hmac.compare_digest(digest, self._seal(key, data)):
                raise CorruptData("a piece is truncated or belongs to another command")
            number += 1
            self._receive(reader.feed(data))
            time.sleep(FIRST_LOOK_SECONDS)

    def _wait(self, pause: float) -> float:
        """Wait before the next look, and return the wait before the look after that."""
        with self._changed:
            active_at = self._active_at
            self._changed.wait_for(lambda: self._ended or self._active_at > active_at, pause)
            if self._active_at > active_at:
                return FIRST_LOOK_SECONDS
        is_busy = time.monotonic() - active_at < BUSY_SECONDS
        return min(pause * _GROWTH, BUSY_LOOK_SECONDS if is_busy else IDLE_LOOK_SECONDS)

    def _receive(self, frames: list[Frame]) -> None:
        with self._changed:
            for frame in frames:
                if frame.kind is Kind.TAKEN:
                    self._acknowledged_bytes = max(self._acknowledged_bytes, int(frame.data))
                elif frame.kind is not Kind.ALIVE:
                    self.is_left = self.is_left or frame.kind is Kind.CLOSE
                    is_urgent = frame.kind in _URGENT
                    (self._urgent if is_urgent else self._incoming).append(frame)
                    self._active_at = time.monotonic()
            self._changed.notify_all()

    def _seal(self, key: str, data: bytes) -> bytes:
        """Return the hash that binds the content of a piece to its key."""
        return hmac.digest(self._secret, key.encode() + b"\0" + hashlib.sha256(data).digest(), "sha256")
