"""The checksums with which S3 verifies a body, computed with the standard library alone."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType


def _crc(body: bytes, polynomial: int, num_bytes: int) -> bytes:
    """Return a reflected CRC; slow, for the few clients that do not send a CRC-32."""
    table = _table(polynomial)
    mask = (1 << 8 * num_bytes) - 1
    value = mask
    for byte in body:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return (value ^ mask).to_bytes(num_bytes, "big")


@cache
def _table(polynomial: int) -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)  # noqa: PLW2901 - the algorithm's usual form
        table.append(value)
    return tuple(table)


CHECKSUMS: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType(
    {
        "crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
        "crc32c": lambda body: _crc(body, 0x82F63B78, 4),
        "crc64nvme": lambda body: _crc(body, 0x9A6C9329AC4BC9B5, 8),
        "sha1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
        "sha256": lambda body: hashlib.sha256(body).digest(),
        "md5": lambda body: hashlib.md5(body, usedforsecurity=False).digest(),
    }
)
"""The checksums by the NAME in the header ``x-amz-checksum-NAME``; ``md5`` is for ``Content-MD5``."""


def is_right(algorithm: str, text: str, body: bytes) -> bool | None:
    """Return whether the base64 text is the body's checksum, or None if it cannot be a checksum."""
    wanted = CHECKSUMS[algorithm](body)
    try:
        found = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return found == wanted if len(found) == len(wanted) else None


def unchunked(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the content and the trailers of an ``aws-chunked`` body.

    Raises:
        ValueError: the body is not ``aws-chunked``.
    """
    content, position = bytearray(), 0
    while True:
        end = body.index(b"\r\n", position)
        size = int(body[position:end].partition(b";")[0], 16)
        position = end + 2
        if size == 0:
            break
        content += body[position : position + size]
        position += size + 2
    lines = body[position:].decode("ascii").split("\r\n")
    trailers = dict(line.split(":", 1) for line in lines if ":" in line)
    return bytes(content), {name.strip().lower(): value.strip() for name, value in trailers.items()}
