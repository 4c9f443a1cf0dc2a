"""Recordings of a cloud's API: one JSON object a line, masked before it is written."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from cloudspot.decoding import decode
from cloudspot.errors import CloudspotError
from cloudspot.plugin.apirecording import ApiExchange
from cloudspot_prove.masking import Mask

FORMAT: Final = 1
MAX_BYTES: Final = 64 << 20
"""The maximum size of a file that is read."""


class Head(msgspec.Struct, frozen=True, kw_only=True, tag="head"):
    """The first line of a recording."""

    provider: str
    versions: dict[str, str]
    """The versions, by distribution."""
    format: int = FORMAT


class Exchange(msgspec.Struct, frozen=True, kw_only=True, tag="exchange"):
    """One request and its answer, masked."""

    number: int = 0
    """The number of the line, unique in its file."""
    step: str
    """The step of the run, such as ``launch``."""
    at: float
    """When the answer arrived, in seconds since the run began."""
    service: str
    action: str
    request: Any
    answer: Any = None
    status: int
    code: str = ""
    seconds: float
    same_as: int | None = None
    """The number of the earlier exchange with the same answer."""


Line = Head | Exchange


class Recorder:
    """Observes exchanges, and appends each to a file of its own. Thread-safe."""

    def __init__(
        self, path: Path, mask: Mask, *, step: str, began: float, left_out: Iterable[str] = ()
    ) -> None:
        """Make a file that only its owner can read; ``began`` is the run's beginning by ``time.time()``."""
        self.step = step
        """The step of the run to which later exchanges belong."""
        self._mask = mask
        self._began = began
        self._left_out = frozenset(left_out)
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, bytes], int] = {}
        self._num_written = 0
        path.touch(mode=0o600)
        self._path = path

    def __call__(self, exchange: ApiExchange) -> None:
        """Write the exchange, unless its service is left out."""
        if exchange.service in self._left_out:
            return
        action = self._mask.action(exchange.action, exchange.service)
        answer = self._mask.tree(exchange.answer, exchange.service)
        at = round(time.time() - self._began, 3)
        key = action, msgspec.json.encode(answer)
        with self._lock:
            self._num_written += 1
            before = self._seen.setdefault(key, self._num_written)
            same = None if before == self._num_written else before
            line = Exchange(
                number=self._num_written,
                step=self.step,
                at=at,
                service=exchange.service,
                action=action,
                request=self._mask.tree(exchange.request, exchange.service),
                answer=None if same is not None else answer,
                status=exchange.status,
                code=self._mask.code(exchange.code),
                seconds=round(exchange.seconds, 3),
                same_as=same,
            )
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")


def read_head(path: Path) -> Head:
    """Return the first line of a recording; raise CloudspotError if the file is not a recording."""
    with path.open("rb") as file:
        text = file.readline(1 << 16)
    try:
        return decode(text, Head)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CloudspotError(f"{path} is not a recording: line 1: {error}") from None


def read_lines(path: Path) -> Iterator[Exchange]:
    """Yield the exchanges of a file in their order, each with its answer; an incomplete last line is ignored.

    Raises:
        CloudspotError: the file is not a recording, or it has another format.
    """
    if path.stat().st_size > MAX_BYTES:
        raise CloudspotError(f"{path} is larger than {MAX_BYTES >> 20} MiB, the most for a recording")
    answers: dict[int, Any] = {}
    data = path.read_bytes()
    lines = data.split(b"\n")
    for number, text in enumerate(lines[:-1], start=1):
        try:
            line = decode(text, Line)
        except msgspec.DecodeError as error:
            raise CloudspotError(f"{path}: line {number} does not belong to a recording: {error}") from None
        if isinstance(line, Head):
            if line.format != FORMAT:
                raise CloudspotError(f"{path} has format {line.format}; expected {FORMAT}")
            continue
        if line.same_as is None:
            answers[line.number] = line.answer
            yield line
        else:
            yield msgspec.structs.replace(line, answer=answers.get(line.same_as), same_as=None)


def read_all(directory: Path) -> list[Exchange]:
    """Return the exchanges of all files of a run, in the order of their answers."""
    found = itertools.chain.from_iterable(read_lines(path) for path in sorted(directory.glob("*.jsonl")))
    return sorted(found, key=lambda one: one.at)


def write_whole(path: Path, head: Head, exchanges: Iterable[Exchange]) -> None:
    """Write the exchanges as one recording."""
    written: dict[tuple[str, bytes], int] = {}
    with path.open("wb") as file:
        file.write(msgspec.json.encode(head) + b"\n")
        for number, one in enumerate(exchanges, start=1):
            before = written.setdefault((one.action, msgspec.json.encode(one.answer)), number)
            same = None if before == number else before
            answer = None if same is not None else one.answer
            line = msgspec.structs.replace(one, number=number, same_as=same, answer=answer)
            file.write(msgspec.json.encode(line) + b"\n")
