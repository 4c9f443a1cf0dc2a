"""Request bodies for S3, sent without a copy, with a checksum that is computed once."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fastcrc

from cloudspot.interfaces import Data
from cloudspot.plugin.bufferbody import LentBody

SMALL_BYTES = 1 << 20
"""Up to this size, a copy costs less than the round trip of ``Expect: 100-continue``, which botocore adds to
every file-like body. With that header, a larger body is not sent at all if S3 refuses the request.
"""


@contextmanager
def payload(data: Data, *, has_checksum: bool) -> Iterator[Mapping[str, Any]]:
    """Yield the arguments that send ``data``: its body and, if it has one, its checksum.

    No view of ``data`` is kept.
    """
    with memoryview(data).cast("B") as view:
        checksum = {"ChecksumCRC32": crc32(view)} if has_checksum else {}
        if len(view) <= SMALL_BYTES:
            yield {"Body": bytes(view), **checksum}
            return
        body = LentBody(view)
        try:
            yield {"Body": body, "ContentLength": len(view), **checksum}
        finally:
            body.release()


def crc32(view: memoryview) -> str:
    """Return the CRC-32 in the form that S3's header needs.

    fastcrc is five times as fast as the standard library, which takes longer than sending the bytes.
    """
    return base64.b64encode(fastcrc.crc32.iso_hdlc(view).to_bytes(4, "big")).decode("ascii")
