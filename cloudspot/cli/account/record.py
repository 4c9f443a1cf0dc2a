"""A record of the parts that ``cloudspot setup`` has created in an account, as JSON lines.

The file is in the state home. Each line is on disk before the part is created, so that after a kill at any
point, the next setup knows which parts may be its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, Final

import msgspec

from cloudspot.calls import SetupRequest
from cloudspot.decoding import convert, decode
from cloudspot.errors import CloudspotError
from cloudspot.host.private_directories import make_private
from cloudspot.interfaces import SetupPart
from cloudspot.jobstore.jobs.state_home import state_home

INTENDED: Final = "intended"
"""The part was about to be created, and no such resource existed."""
MADE: Final = "made"
REMOVED: Final = "removed"
Name = tuple[str, str]
"""The kind and the name of a part."""


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: datetime
    event: str
    kind: str = ""
    name: str = ""
    request: Mapping[str, Any] | None = None


class SetupRecord:
    """The record of one provider's account."""

    def __init__(self, provider: str, account: str) -> None:
        """Read the record, if there is one.

        Raises:
            CloudspotError: it cannot be read.
        """
        file = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{provider}-{account}")
        self.path = state_home() / "setup" / f"{file}.jsonl"
        self._parts: dict[Name, str] = {}
        self._requests: list[SetupRequest] = []
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise CloudspotError(f"{self.path} cannot be read: {error.strerror}") from error
        for line in filter(None, text.split(b"\n")):
            # A line that was cut short by a kill describes a step that did not begin.
            with suppress(msgspec.DecodeError):
                self._fold(decode(line, _Line))

    @property
    def parts(self) -> Sequence[Name]:
        """The parts that were created or begun and have not been removed, in order."""
        return [name for name, event in self._parts.items() if event != REMOVED]

    @property
    def requests(self) -> Sequence[SetupRequest]:
        """All requests to the setup, oldest first."""
        return self._requests

    def has(self, part: SetupPart) -> bool:
        """Return whether this setup has created the part, or begun to."""
        return self._parts.get((part.kind, part.name), REMOVED) != REMOVED

    def ask(self, request: SetupRequest) -> None:
        """Record a request, unless it is already recorded."""
        asked = msgspec.to_builtins(request)
        del asked["deadline"]
        if convert(asked, SetupRequest) not in self._requests:
            self._append(_Line(at=_now(), event="asked", request=asked))

    def note(self, part: SetupPart, event: str) -> None:
        """Record, for the part, a step that is about to begin or has finished."""
        self._append(_Line(at=_now(), event=event, kind=part.kind, name=part.name))

    def close(self) -> None:
        """Delete the record if every part in it was removed."""
        if not self.parts:
            self.path.unlink(missing_ok=True)

    def _append(self, line: _Line) -> None:
        make_private(self.path.parent)
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            # Start a new line after a line that was cut short by a kill.
            whole = b"" if size == 0 or os.pread(handle, 1, size - 1) == b"\n" else b"\n"
            os.write(handle, whole + msgspec.json.encode(line) + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
        self._fold(line)

    def _fold(self, line: _Line) -> None:
        if line.request is not None:
            self._requests.append(convert(line.request, SetupRequest))
        else:
            self._parts[line.kind, line.name] = line.event


def _now() -> datetime:
    return datetime.now(timezone.utc)
