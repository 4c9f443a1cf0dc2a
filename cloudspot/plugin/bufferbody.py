"""A buffer as the body of an HTTP request, sent from where it lies."""

from __future__ import annotations

import io
from typing import Final

BLOCK_BYTES: Final = 1 << 20
"""How much the socket gets at once: enough that Python costs nothing beside the copying."""


class LentBody:
    """A buffer as a file-like object, which HTTP clients send without copying it.

    ``read`` returns views, and more than was asked for: botocore, requests and urllib3 ask for 16 KiB at a
    time, and pass each view to ``socket.sendall`` as it is.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0
        self._lent: memoryview | None = None

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int = -1) -> memoryview | bytes:
        """Return the next block; b"" at the end."""
        self.release()
        end = min(self._position + BLOCK_BYTES, len(self._view))
        if self._position == end:
            return b""
        self._lent = self._view[self._position : end]
        self._position = end
        return self._lent

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, as a client does to sign the body or to send it again."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = max(0, min(base + offset, len(self._view)))
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def release(self) -> None:
        """Take back the view that was lent: a traceback that holds it would keep the buffer exported."""
        if self._lent is not None:
            self._lent.release()
            self._lent = None
