"""The bytes that OSS is sent and sends: from where they lie, and compared by their checksum.

OSS tells the CRC-64 of what it stores or sends. oss2 computes it by crcmod, which holds the interpreter's
lock and, without a compiler, installs itself in pure Python; fastcrc comes as a wheel, and is about forty
times as fast as the compiled crcmod. It is the same sum: CRC-64/XZ is OSS's ECMA-182.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from fastcrc import crc64

from cloudspot.decoding import whole_number
from cloudspot.errors import TransientError
from cloudspot.interfaces import Data
from cloudspot.plugin.bufferbody import LentBody

SMALL_BYTES: Final = 1 << 20
"""Up to this size a Content-MD5 goes along, so that OSS stores nothing that changed on the way."""
MAX_CRC: Final = (1 << 64) - 1
CRC_HEADER: Final = "x-oss-hash-crc64ecma"


@contextmanager
def payload(
    data: Data, what: str
) -> Iterator[tuple[Any, dict[str, str], Callable[[Mapping[str, str]], None]]]:
    """Lend a body, its headers and a check of the answer's headers. No view of ``data`` is kept.

    Raises:
        TransientError: by the check, where OSS holds other bytes than were sent.
    """
    with memoryview(data).cast("B") as view:

        def check(headers: Mapping[str, str]) -> None:
            compare(headers, view, what)

        if len(view) <= SMALL_BYTES:
            yield bytes(view), digest_header(view), check
            return
        body = LentBody(view)
        try:
            yield body, {}, check
        finally:
            body.release()


def digest_header(data: Data) -> dict[str, str]:
    """Return the Content-MD5 of a body, by which OSS refuses bytes that changed on the way."""
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    return {"Content-MD5": base64.b64encode(digest).decode("ascii")}


def compare(headers: Mapping[str, str], data: Data, what: str) -> None:
    """Raise TransientError if the checksum in an answer's headers, if any, is not that of the bytes."""
    told = headers.get(CRC_HEADER)
    if told is not None and whole_number(told, most=MAX_CRC) != crc64.xz(data):
        raise TransientError(f"{what}: the bytes changed on the way (their CRC-64 differs)")
