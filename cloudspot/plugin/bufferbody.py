"""A buffer as the body of an HTTP request, sent without a copy."""

from __future__ import annotations

import io
from typing import Final

BLOCK_BYTES: Final = 1 << 20
"""How many bytes are passed to the socket at once: enough to make Python's own time negligible."""


class LentBody:
    """A buffer as a file-like object, which HTTP clients send without copying it.

    ``read`` returns views, which may be longer than requested: botocore, requests and urllib3 request 16 KiB
    at a time, and pass each view unchanged to ``socket.sendall``.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0
        self._lent: memoryview | None = None

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int = -1) -> memoryview | bytes:
        """Return the next block, or b"" at the end."""
        self.release()
        end = min(self._position + BLOCK_BYTES, len(self._view))
        if self._position == end:
            return b""
        self._lent = self._view[self._position : end]
        self._position = end
        return self._lent

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; clients do this to sign the body or to resend it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = max(0, min(base + offset, len(self._view)))
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def release(self) -> None:
        """Release the last view from ``read``, because a traceback with it would keep the buffer locked."""
        if self._lent is not None:
            self._lent.release()
            self._lent = None
