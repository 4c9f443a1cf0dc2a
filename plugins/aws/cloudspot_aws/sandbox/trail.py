"""The account's trail: a line for each request that came, with who made it and which rights it took."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from cloudspot.testing.faults import Call
from cloudspot_aws.sandbox.credentials import RoleKeys
from cloudspot_aws.sandbox.rights import resource_of, rights_of


class Trail:
    """A file of JSON lines, as CloudTrail would have them in many more words. Thread-safe."""

    def __init__(self, path: Path, keys: RoleKeys, *, account: str, now: Callable[[], datetime]) -> None:
        """Begin a file; a call whose key is one of ``keys`` was made by a machine."""
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._keys = keys
        self._account = account
        self._now = now
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> None:
        """Write a line; after ``close`` there is nobody left to read it."""
        line = {
            "at": self._now().isoformat(),
            "by": "machine" if self._keys.is_role_key(call.access_key) else "user",
            "service": call.service,
            "action": call.action,
            "rights": sorted(rights_of(call)),
            "resource": resource_of(call, account=self._account),
            "error": call.error,
        }
        with self._lock:
            if not self._file.closed:
                self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """End the file; safe to repeat."""
        with self._lock:
            self._file.close()
