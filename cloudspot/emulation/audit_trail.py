"""An emulated account's audit trail, with the caller and the permissions of each request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from cloudspot.emulation.api_faults import Call
from cloudspot.local.machines import now_utc


class Trail:
    """A file of JSON lines for ``Faults.on_call``; tests compare it with the policies in a plugin's docs.

    Thread-safe.
    """

    def __init__(
        self,
        path: Path,
        *,
        is_machine: Callable[[str], bool],
        rights: Callable[[Call], Iterable[str]],
        resource: Callable[[Call], str],
        now: Callable[[], datetime] = now_utc,
    ) -> None:
        """Open the file.

        ``is_machine`` returns whether an access key belongs to a machine, ``rights`` returns the permissions
        that a call needs, in the cloud's own notation, and ``resource`` returns the resource that the call
        concerns, or ``*``.
        """
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._is_machine = is_machine
        self._rights = rights
        self._resource = resource
        self._now = now
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> None:
        """Write a line for the call; after ``close``, do nothing."""
        line = {
            "at": self._now().isoformat(),
            "by": "machine" if self._is_machine(call.access_key) else "user",
            "service": call.service,
            "action": call.action,
            "rights": sorted(self._rights(call)),
            "resource": self._resource(call),
            "error": call.error,
        }
        with self._lock:
            if not self._file.closed:
                self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Close the file; safe to repeat."""
        with self._lock:
            self._file.close()
