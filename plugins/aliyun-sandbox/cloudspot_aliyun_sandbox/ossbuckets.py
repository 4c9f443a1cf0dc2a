"""The contents of the emulated OSS: buckets, objects, and uploads in progress.

This module is not thread-safe.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from fastcrc import crc64

from cloudspot_aliyun_sandbox.osserrors import OssRefusal

MIN_PART_BYTES: Final = 100 << 10
MAX_KEY_BYTES: Final = 1023
NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


@dataclass
class Stored:
    """An object."""

    data: bytes
    etag: str
    kind: str
    """``Normal``, ``Multipart`` or ``Appendable``."""
    modified_at: datetime
    content_type: str
    meta: dict[str, str]
    version_id: str = ""

    @property
    def crc(self) -> int:
        """Return its CRC-64."""
        return int(crc64.xz(self.data))


@dataclass
class Multipart:
    """A multipart upload in progress."""

    key: str
    content_type: str
    meta: dict[str, str]
    started_at: datetime
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass
class HeldBucket:
    """A bucket."""

    name: str
    region: str
    created_at: datetime
    versioning: str = ""
    """``Enabled``, ``Suspended``, or empty if versioning was never on."""
    owner: str = "1234567890123456"
    acl: str = "private"
    encryption: str = ""
    """The encryption algorithm, or empty."""
    policy: bytes = b""
    """The bucket's policy, in JSON."""
    lifecycle: bytes = b""
    """The lifecycle configuration, exactly as it was uploaded."""
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, Multipart] = field(default_factory=dict)

    def write(self, key: str, stored: Stored, *, forbid_overwrite: bool) -> Stored:
        """Store an object; the write is create-only if that is requested, unless versioning is on."""
        if forbid_overwrite and not self.versioning and key in self.objects:
            raise already_exists()
        if self.versioning:
            stored.version_id = "null" if self.versioning == "Suspended" else secrets.token_hex(16)
        self.objects[key] = stored
        return stored

    def append(
        self, key: str, position: int, data: bytes, *, now: datetime, content_type: str, meta: dict[str, str]
    ) -> Stored:
        """Append to an object, or create it."""
        held = self.objects.get(key)
        length = 0 if held is None else len(held.data)
        if held is not None and held.kind != "Appendable":
            raise OssRefusal(409, "ObjectNotAppendable", "The object is not appendable")
        if position != length:
            raise OssRefusal(
                409,
                "PositionNotEqualToLength",
                "Position is not equal to file length",
                headers={"x-oss-next-append-position": str(length)},
            )
        if held is not None:
            content_type, meta = held.content_type, held.meta
        whole = (b"" if held is None else held.data) + data
        stored = Stored(whole, etag_of(whole), "Appendable", now, content_type, meta)
        self.objects[key] = stored
        return stored

    def joined(self, upload: Multipart, listed: list[tuple[int, str]], *, now: datetime) -> Stored:
        """Return the object that the listed parts make up."""
        numbers = [number for number, _ in listed]
        if not numbers:
            raise OssRefusal(400, "MalformedXML", "The XML you provided was not well-formed.")
        if numbers != sorted(set(numbers)):
            raise OssRefusal(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
        for number, etag in listed:
            part = upload.parts.get(number)
            if part is None or etag.strip('"').upper() != etag_of(part):
                raise OssRefusal(
                    400,
                    "InvalidPart",
                    "One or more of the specified parts could not be found or the specified entity tag might "
                    "not have matched the part's entity tag.",
                )
            if number != numbers[-1] and len(part) < MIN_PART_BYTES:
                raise OssRefusal(
                    400,
                    "EntityTooSmall",
                    "Your proposed upload smaller than the minimum allowed size.",
                )
        whole = b"".join(upload.parts[number] for number in numbers)
        sums = "".join(etag_of(upload.parts[number]) for number in numbers)
        etag = f"{etag_of(bytes.fromhex(sums))}-{len(numbers)}"
        return Stored(whole, etag, "Multipart", now, upload.content_type, upload.meta)


def etag_of(data: bytes) -> str:
    """Return the ETag of an object or a part."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest().upper()


def already_exists() -> OssRefusal:
    """Return the refusal of a create-only write."""
    return OssRefusal(
        409,
        "FileAlreadyExists",
        "The object you specified already exists and can not be overwritten.",
    )
