"""What S3 is sent: bytes from where they lie, with a checksum computed once."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cloudspot.interfaces import Data

BLOCK_BYTES = 1 << 20
"""What is handed to the socket at once: enough that Python costs nothing beside the copying."""
SMALL_BYTES = 1 << 20
"""Up to this size a copy is cheaper than the round trip of ``Expect: 100-continue``, with which botocore
sends every file-like body. A larger one is then not sent at all where S3 refuses its headers."""


class Body:
    """A buffer as the file-like object that botocore sends without copying it.

    ``read`` returns views, and more than it was asked for: botocore and urllib3 pass each on to
    ``socket.sendall`` as it is, and ask for 16 KiB at a time.
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
        """Move, as botocore does to sign the body or to send it again."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = max(0, min(base + offset, len(self._view)))
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def release(self) -> None:
        """Take back the view that was lent: in an error's traceback it would keep the buffer exported."""
        if self._lent is not None:
            self._lent.release()
            self._lent = None


@contextmanager
def payload(data: Data) -> Iterator[Mapping[str, Any]]:
    """Lend the arguments that send ``data``: its body and its checksum. No view of it is kept."""
    with memoryview(data).cast("B") as view:
        checksum = crc32(view)
        if len(view) <= SMALL_BYTES:
            yield {"Body": bytes(view), "ChecksumCRC32": checksum}
            return
        body = Body(view)
        try:
            yield {"Body": body, "ContentLength": len(view), "ChecksumCRC32": checksum}
        finally:
            body.release()


def crc32(view: memoryview) -> str:
    """Return the checksum as S3's header has it.

    CRC-32 is what the standard library computes at the speed of several sockets, without holding the
    interpreter's lock; CRC-64/NVME and CRC-32C would need awscrt.
    """
    return base64.b64encode(zlib.crc32(view).to_bytes(4, "big")).decode("ascii")
