"""Write the metrics of ``run.log()`` to TensorBoard event files among the artifacts.

This module encodes TFRecord's framing and five protobuf messages itself: tensorboard and protobuf would be
larger than the rest of the agent's environment, which every machine installs before it trains.

Each generation has its own files, whose names sort by its number. The first file begins with a session start
at the step from which the generation resumed, so readers drop earlier generations' metrics from that step on.
After a few MiB a new file is begun: a changed artifact is uploaded whole every half minute, and one file with
a week of steps would delay the checkpoints.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cloudspot.agent.node import Node
from cloudspot.train.handoff import metrics_path

_log = logging.getLogger(__name__)

DIRECTORY = "tensorboard"
"""Below the artifacts."""
_VERSION = b"brain.Event:2"
MAX_FILE_BYTES = 4 << 20
"""No more records are added to a file that has reached this size."""
BLOCK_BYTES = 1 << 20
"""The size of one read of the metrics; also the maximum length of a line."""


@dataclass
class _Position:
    """How far a generation's metrics have been written to its event files."""

    offset: int = 0
    """The offset of the first byte of the metrics that has not been converted yet."""
    skip: int = 0
    """The number of lines after that offset that an earlier agent of this machine has already converted."""
    part: int = 0
    """The index of the current file."""
    size: int = 0
    """The current file's size in bytes."""


class EventFiles:
    """Converts the metrics of this node's generations to event files; not thread-safe."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._starts: dict[int, int] = {}
        self._positions: dict[int, _Position] = {}
        self._complaint = ""

    def begin(self, generation: int, step: int) -> None:
        """Record the step from which a generation resumes."""
        self._starts[generation] = step

    def update(self, should_end: Callable[[], bool] = lambda: False) -> None:
        """Append the metrics logged since the last call; log an error if a file cannot be written.

        Stop early once ``should_end`` returns True, because a restarted agent may have long metrics to
        convert. The next call continues from there.
        """
        for handoff in sorted(self._node.directory.glob("generations/*")):
            if not handoff.name.isdecimal():
                continue
            if should_end():
                return
            generation = int(handoff.name)
            try:
                self._update(generation, metrics_path(handoff, 0), should_end)
            except OSError as error:
                # The file may now end with an incomplete record: the next call checks that.
                self._positions.pop(generation, None)
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    _log.warning("metrics are not kept for TensorBoard: %s", error)

    def _update(self, generation: int, metrics: Path, should_end: Callable[[], bool]) -> None:
        if not metrics.exists():  # rank 0 runs elsewhere, or has no session
            return
        position = self._positions.get(generation)
        if position is None:
            position = self._positions[generation] = _resume(self._node.artifacts / DIRECTORY, generation)
        with metrics.open("rb") as file:
            file.seek(position.offset)
            is_more = True
            while is_more and not should_end():
                data = file.read(BLOCK_BYTES)
                is_more = len(data) == BLOCK_BYTES
                end = data.rfind(b"\n") + 1
                if is_more and end == 0:
                    end = len(data)  # the session never writes such a long line
                lines = data[:end].splitlines()
                self._append(generation, position, [_Line.parse(line) for line in lines[position.skip :]])
                position.skip = max(0, position.skip - len(lines))
                position.offset += end
                file.seek(position.offset)

    def _append(self, generation: int, position: _Position, lines: list[_Line]) -> None:
        if not lines:
            return
        directory = self._node.artifacts / DIRECTORY
        records = [line.record() for line in lines]
        if position.size >= MAX_FILE_BYTES:
            position.part, position.size = position.part + 1, 0
        if position.size == 0:
            head = [_record(_event(lines[0].time, 0, _bytes(3, _VERSION)))]
            if position.part == 0:
                step = self._starts.get(generation, lines[0].step)
                session_start = _bytes(7, _varint(1, 1))
                head.append(_record(_event(lines[0].time, step, session_start)))
            records[:0] = head
        directory.mkdir(parents=True, exist_ok=True)
        with _path(directory, generation, position.part).open("ab") as file:
            position.size += file.write(b"".join(records))


def _path(directory: Path, generation: int, part: int) -> Path:
    """Return a file's path; sorting by name puts a generation's parts in order."""
    suffix = f"-{part:06d}" if part else ""
    return directory / f"events.out.tfevents.generation-{generation:06d}{suffix}"


def _num_head_records(part: int) -> int:
    """Return how many records precede the metrics: the version and, in the first file, the session start."""
    return 1 if part else 2


def _resume(directory: Path, generation: int) -> _Position:
    """Return where an earlier agent of this machine stopped, after cutting off an incomplete record."""
    position = _Position()
    part = 0
    while True:
        try:
            with _path(directory, generation, part).open("r+b") as file:
                num_records, size = _measure(file)
                if num_records < _num_head_records(part):
                    num_records, size = 0, 0
                file.truncate(size)
        except FileNotFoundError:
            return position
        position.part, position.size = part, size
        position.skip += max(0, num_records - _num_head_records(part))
        part += 1


def _measure(file: BinaryIO) -> tuple[int, int]:
    """Return the number of complete records and their size in bytes."""
    num_records, end, length = 0, 0, file.seek(0, os.SEEK_END)
    while length >= end + 16:
        file.seek(end)
        (size,) = struct.unpack("<Q", file.read(8))
        if size == 0 or end + 16 + size > length:
            break
        num_records, end = num_records + 1, end + 16 + size
    return num_records, end


@dataclass(frozen=True)
class _Line:
    """A line of the metrics; a malformed line has no values, but is still counted."""

    step: int
    time: float
    values: Mapping[str, float]

    @classmethod
    def parse(cls, text: bytes) -> _Line:
        try:
            value = json.loads(text)
            values = {str(name): float(each) for name, each in value["values"].items()}
            return cls(int(value["step"]), float(value["time"]), values)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return cls(0, 0.0, {})

    def record(self) -> bytes:
        scalars = b"".join(
            _bytes(1, _bytes(1, name.encode(errors="replace")) + _float(2, value))
            for name, value in self.values.items()
        )
        return _record(_event(self.time, self.step, _bytes(5, scalars)))


# --- protobuf: a field is its number and wire type, then its value --------------------------------
# Source: tensorflow/core/util/event.proto and framework/summary.proto (checked 2026-11).


def _event(wall_time: float, step: int, what: bytes) -> bytes:
    return bytes([1 << 3 | 1]) + struct.pack("<d", wall_time) + _varint(2, step) + what


def _varint(number: int, value: int) -> bytes:
    return bytes([number << 3, *_base128(value % (1 << 64))])


def _bytes(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, *_base128(len(value))]) + value


def _float(number: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # finite, but too large for 32 bits
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return bytes([number << 3 | 5]) + packed


def _base128(value: int) -> Iterator[int]:
    while value >= 128:
        yield value & 127 | 128
        value >>= 7
    yield value


# --- TFRecord: length, its checksum, the bytes, their checksum ------------------------------------


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc32c(length) + data + _masked_crc32c(data)


def _masked_crc32c(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc32c_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC32C = tuple(map(_crc32c_of, range(256)))
