"""Request bodies for OSS, sent without a copy, and checks of the checksums in OSS's responses.

OSS returns the CRC-64 of the bytes that it stores or sends. oss2 computes it with crcmod, which holds the
interpreter's lock and is pure Python if it was installed without a compiler; fastcrc comes as a wheel, and is
about forty times as fast as the compiled crcmod. OSS's ECMA-182 is the same checksum as CRC-64/XZ.
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
"""Up to this size, a Content-MD5 is sent, so that OSS refuses bytes that changed in transit."""
MAX_CRC: Final = (1 << 64) - 1
CRC_HEADER: Final = "x-oss-hash-crc64ecma"


@contextmanager
def payload(
    data: Data, what: str
) -> Iterator[tuple[Any, dict[str, str], Callable[[Mapping[str, str]], None]]]:
    """Yield a body, its headers and a check of the response's headers. No view of ``data`` is kept.

    Raises:
        TransientError: from the check, if OSS has stored other bytes than were sent.
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
    """Return the Content-MD5 of a body, with which OSS refuses bytes that changed in transit."""
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    return {"Content-MD5": base64.b64encode(digest).decode("ascii")}


def compare(headers: Mapping[str, str], data: Data, what: str) -> None:
    """Raise TransientError if the checksum in a response's headers differs from that of the bytes."""
    checksum = headers.get(CRC_HEADER)
    if checksum is not None and whole_number(checksum, most=MAX_CRC) != crc64.xz(data):
        raise TransientError(f"{what}: the bytes were damaged in transit (their CRC-64 differs)")
