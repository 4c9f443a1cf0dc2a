"""The contents of an emulated Cloud Storage: buckets, and their objects with all generations."""

from __future__ import annotations

import base64
import hashlib
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import google_crc32c

from cloudspot_gcp_sandbox.apierror import ApiError

MAX_NAME_BYTES = 1024
IN_MEMORY_BYTES = 1 << 20
"""Larger objects are stored in files if the buckets have a directory."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9_.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_CONDITIONS = {
    "ifGenerationMatch": ("generation", True),
    "ifGenerationNotMatch": ("generation", False),
    "ifMetagenerationMatch": ("metageneration", True),
    "ifMetagenerationNotMatch": ("metageneration", False),
}


PROJECT_NUMBER: Final = "123456789012"


@dataclass
class StoredObject:
    """One generation of an object."""

    name: str
    generation: int
    content: bytes | Path
    size: int
    crc32c: str
    md5: str
    fields: dict[str, Any]
    """The fields that its writer has set: contentType, metadata, ..."""
    created_at: datetime
    metageneration: int = 1
    deleted_at: datetime | None = None
    """When it ceased to be the live generation."""

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from ``start`` to ``end`` (exclusive)."""
        end = self.size if end is None else end
        if isinstance(self.content, bytes):
            return self.content[start:end]
        with self.content.open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def resource(self, bucket: str) -> dict[str, Any]:
        """Return the resource in the form in which the API shows it."""
        path = f"/storage/v1/b/{bucket}/o/{_quoted(self.name)}"
        shown = {
            "kind": "storage#object",
            "id": f"{bucket}/{self.name}/{self.generation}",
            "selfLink": f"https://www.googleapis.com{path}",
            "mediaLink": f"https://storage.googleapis.com/download{path}?generation={self.generation}&alt=media",
            "name": self.name,
            "bucket": bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "storageClass": "STANDARD",
            "size": str(self.size),
            "md5Hash": self.md5,
            "crc32c": self.crc32c,
            "etag": base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode(),
            "timeCreated": timestamp(self.created_at),
            "updated": timestamp(self.created_at),
            "timeStorageClassUpdated": timestamp(self.created_at),
            **self.fields,
        }
        if self.deleted_at is not None:
            shown["timeDeleted"] = timestamp(self.deleted_at)
        return shown


@dataclass
class StoredBucket:
    """A bucket. The common lock of all buckets guards its contents."""

    name: str
    project: str
    fields: dict[str, Any]
    created_at: datetime
    metageneration: int = 1
    live: dict[str, StoredObject] = field(default_factory=dict)
    noncurrent: list[StoredObject] = field(default_factory=list)

    @property
    def is_versioned(self) -> bool:
        """Whether replaced objects are kept."""
        return bool(self.fields.get("versioning", {}).get("enabled"))

    def resource(self) -> dict[str, Any]:
        """Return the resource in the form in which the API shows it."""
        return {
            "kind": "storage#bucket",
            "id": self.name,
            "selfLink": f"https://www.googleapis.com/storage/v1/b/{self.name}",
            "name": self.name,
            "projectNumber": PROJECT_NUMBER,
            "metageneration": str(self.metageneration),
            "timeCreated": timestamp(self.created_at),
            "updated": timestamp(self.created_at),
            "etag": base64.b64encode(f"b{self.metageneration}".encode()).decode(),
            **self.fields,
        }


class Buckets:
    """All buckets. Thread-safe: the conditions of a change are checked and the change is made in one step."""

    def __init__(
        self,
        *,
        directory: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._directory = directory
        self._now = now
        self._lock = threading.RLock()
        self._buckets: dict[str, StoredBucket] = {}
        self._last_generation = 0

    # --- buckets ----------------------------------------------------------------------------------

    def make(self, name: str, *, project: str, fields: Mapping[str, Any] | None = None) -> StoredBucket:
        """Make a bucket.

        Raises:
            ApiError: 400, the name is invalid; 409, the name is in use.
        """
        check_bucket_name(name)
        defaults = {
            "location": "US",
            "locationType": "multi-region",
            "storageClass": "STANDARD",
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": False}},
            # Every new bucket has soft delete, by default for seven days (docs: "Soft delete").
            "softDeletePolicy": {
                "retentionDurationSeconds": "604800",
                "effectiveTime": timestamp(self._now()),
            },
        }
        with self._lock:
            if name in self._buckets:
                raise ApiError(
                    409,
                    "conflict",
                    "The requested bucket name is not available. The bucket namespace is shared by all users "
                    "of the system. Please select a different name and try again.",
                )
            bucket = StoredBucket(name, project, {**defaults, **(fields or {})}, self._now())
            self._buckets[name] = bucket
            return bucket

    def get(self, name: str) -> StoredBucket:
        """Return the bucket.

        Raises:
            ApiError: 404, the bucket does not exist.
        """
        with self._lock:
            if name not in self._buckets:
                raise ApiError(404, "notFound", "The specified bucket does not exist.")
            return self._buckets[name]

    def exists(self, name: str) -> bool:
        """Return whether a bucket of that name exists."""
        with self._lock:
            return name in self._buckets

    def of_project(self, project: str) -> list[StoredBucket]:
        """Return the project's buckets, by name."""
        with self._lock:
            found = [bucket for bucket in self._buckets.values() if bucket.project == project]
        return sorted(found, key=lambda bucket: bucket.name)

    def change(self, name: str, fields: Mapping[str, Any]) -> StoredBucket:
        """Patch the bucket: null removes a field."""
        with self._lock:
            bucket = self.get(name)
            bucket.fields = _patched(bucket.fields, fields)
            bucket.metageneration += 1
            return bucket

    def remove(self, name: str) -> None:
        """Remove the bucket.

        Raises:
            ApiError: 404, the bucket does not exist; 409, the bucket is not empty.
        """
        with self._lock:
            bucket = self.get(name)
            if bucket.live or bucket.noncurrent:
                raise ApiError(409, "conflict", "The bucket you tried to delete is not empty.")
            del self._buckets[name]

    # --- objects ----------------------------------------------------------------------------------

    def find(self, bucket: str, name: str, *, generation: int | None = None) -> StoredObject:
        """Return the live object, or the given generation.

        Raises:
            ApiError: 404, the object does not exist.
        """
        with self._lock:
            place = self.get(bucket)
            stored = place.live.get(name)
            if generation is not None:
                all_of_it = [one for one in (stored, *place.noncurrent) if one is not None]
                wanted = (one for one in all_of_it if (one.name, one.generation) == (name, generation))
                stored = next(wanted, None)
            if stored is None:
                suffix = "" if generation is None else f"#{generation}"
                raise ApiError(404, "notFound", f"No such object: {bucket}/{name}{suffix}")
            return stored

    def put(
        self,
        bucket: str,
        name: str,
        data: bytes | bytearray,
        *,
        fields: Mapping[str, Any],
        conditions: Mapping[str, Any],
    ) -> StoredObject:
        """Make the object, if the conditions hold.

        Raises:
            ApiError: 412, the conditions do not hold; 400, the name is invalid; 404, the bucket does not
                exist.
        """
        check_object_name(name)
        self.get(bucket)
        content = self._keep(data)
        crc32c, md5 = crc32c_of(data), base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest())
        with self._lock:
            place = self.get(bucket)
            existing = place.live.get(name)
            check_conditions(existing, conditions)
            # A generation is the time in microseconds, and grows with every write.
            self._last_generation = max(self._last_generation + 1, int(self._now().timestamp() * 1e6))
            stored = StoredObject(
                name,
                self._last_generation,
                content,
                len(data),
                crc32c,
                md5.decode(),
                dict(fields),
                self._now(),
            )
            if existing is not None:
                self._retire(place, existing)
            place.live[name] = stored
            return stored

    def delete(self, bucket: str, name: str, conditions: Mapping[str, Any]) -> None:
        """Remove the live object, or the generation ``conditions["generation"]``.

        Raises:
            ApiError: 404, the object does not exist; 412, the conditions do not hold.
        """
        with self._lock:
            place = self.get(bucket)
            stored = self.find(bucket, name, generation=conditions.get("generation"))
            check_conditions(stored, conditions)
            if place.live.get(name) is stored:
                del place.live[name]
                if "generation" not in conditions:
                    self._retire(place, stored)
            else:
                place.noncurrent.remove(stored)

    def patch(
        self, bucket: str, name: str, fields: Mapping[str, Any], conditions: Mapping[str, Any]
    ) -> StoredObject:
        """Change an object's metadata."""
        with self._lock:
            stored = self.find(bucket, name, generation=conditions.get("generation"))
            check_conditions(stored, conditions)
            stored.fields = _patched(stored.fields, fields)
            stored.metageneration += 1
            return stored

    def names(self, bucket: str, *, versions: bool = False) -> Iterator[StoredObject]:
        """Yield the objects in the order of their names' bytes."""
        with self._lock:
            place = self.get(bucket)
            found = [*place.live.values(), *(place.noncurrent if versions else ())]
        yield from sorted(found, key=lambda one: (one.name.encode(), one.generation))

    def _retire(self, place: StoredBucket, stored: StoredObject) -> None:
        if place.is_versioned:
            stored.deleted_at = self._now()
            place.noncurrent.append(stored)

    def _keep(self, data: bytes | bytearray) -> bytes | Path:
        if self._directory is None or len(data) <= IN_MEMORY_BYTES:
            return bytes(data)
        with tempfile.NamedTemporaryFile(dir=self._directory, prefix="object-", delete=False) as file:
            file.write(data)
        return Path(file.name)


def check_conditions(existing: StoredObject | None, conditions: Mapping[str, Any]) -> None:
    """Raise ApiError (412) unless the conditions hold; generation 0 means that there is no live object."""
    for name, (of, is_match) in _CONDITIONS.items():
        if name not in conditions:
            continue
        found = 0 if existing is None else getattr(existing, of)
        # Without a live object, only ifGenerationMatch=0 holds.
        holds = (found == conditions[name]) is is_match
        if existing is None and (of, is_match) != ("generation", True):
            holds = False
        if not holds:
            raise ApiError(
                412,
                "conditionNotMet",
                "At least one of the pre-conditions you specified did not hold.",
                status_name="FAILED_PRECONDITION",
            )


def check_bucket_name(name: str) -> None:
    """Raise ApiError unless the name is valid for a bucket.

    Source: "Bucket naming requirements" (from memory).
    """
    parts = name.split(".")
    is_good = (
        (_BUCKET.fullmatch(name) is not None or ("." in name and len(name) <= 222))
        and all(_BUCKET.fullmatch(f"a{part}a") and 1 <= len(part) <= 63 for part in parts)
        and _ADDRESS.fullmatch(name) is None
        and not name.startswith("goog")
        and "google" not in name
        and name[0] not in "-_."
        and name[-1] not in "-_."
    )
    if not is_good:
        raise ApiError(400, "invalid", f"Invalid bucket name: '{name}'")


def check_object_name(name: str) -> None:
    """Raise ApiError unless the name is valid for an object.

    Source: "Object naming requirements" (from memory).
    """
    if not name:
        raise ApiError(400, "required", "Required")
    is_good = (
        len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES
        and name not in {".", ".."}
        and not set(name) & {"\r", "\n"}
        and not name.startswith(".well-known/acme-challenge/")
    )
    if not is_good:
        raise ApiError(400, "invalid", f"Disallowed unicode characters or reserved name: {name!r}")


def crc32c_of(data: bytes | bytearray | memoryview) -> str:
    """Return the checksum in the API's form."""
    return base64.b64encode(google_crc32c.value(bytes(data)).to_bytes(4, "big")).decode("ascii")


def timestamp(moment: datetime) -> str:
    """Return a time in the API's form, to the millisecond."""
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def _patched(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    patched = dict(fields)
    for name, value in changes.items():
        if value is None:
            patched.pop(name, None)
        elif isinstance(value, dict) and isinstance(patched.get(name), dict):
            patched[name] = _patched(patched[name], value)
        else:
            patched[name] = value
    return patched


def _quoted(name: str) -> str:
    return quote(name, safe="")
