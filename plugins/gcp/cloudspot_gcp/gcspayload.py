"""Request bodies for Cloud Storage, sent without a copy, with a checksum that is computed once."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from fastcrc import crc32

from cloudspot.plugin.bufferbody import BLOCK_BYTES


class Body:
    """A request's body in pieces, which are sent without being joined; each attempt iterates over them anew.

    ``requests`` asks such an object for its length and its pieces, and urllib3 passes each piece to
    ``socket.sendall``. Close the body when the request is over: if an error's traceback held it, the caller's
    buffer would stay exported.
    """

    def __init__(self, view: memoryview, *, head: bytes = b"", tail: bytes = b"") -> None:
        self._view = view
        self._head = head
        self._tail = tail
        self._lent: memoryview | None = None

    def __len__(self) -> int:
        return len(self._head) + len(self._view) + len(self._tail)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        if self._head:
            yield self._head
        for start in range(0, len(self._view), BLOCK_BYTES):
            self._take_back()
            self._lent = self._view[start : start + BLOCK_BYTES]
            yield self._lent
        if self._tail:
            yield self._tail

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        self._take_back()

    def _take_back(self) -> None:
        if self._lent is not None:
            self._lent.release()
            self._lent = None


def multipart(view: memoryview, described: Mapping[str, Any]) -> tuple[Body, str]:
    """Return the body that sends a whole object with its description, and the body's content type."""
    # A boundary of this length does not occur in the content by chance.
    mark = secrets.token_hex(24)
    head = (
        f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(described)}\r\n"
        f"--{mark}\r\nContent-Type: application/octet-stream\r\n\r\n"
    ).encode()
    body = Body(view, head=head, tail=f"\r\n--{mark}--\r\n".encode())
    return body, f"multipart/related; boundary={mark}"


def extend_crc32c(checksum: int, view: memoryview) -> int:
    """Extend the CRC32C ``checksum`` of some bytes by the bytes in ``view``; start from 0.

    google_crc32c, which comes with the SDK, accepts only ``bytes``, and so would need a copy.
    """
    return int(crc32.iscsi(view, checksum))


def shown_crc32c(checksum: int) -> str:
    """Return the checksum in the form that Storage's fields and headers use."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode("ascii")
