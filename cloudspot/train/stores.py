"""The key-value store through which ranks agree: torch's for several ranks, a dict for one."""

from __future__ import annotations

import threading
from typing import Protocol


class Store(Protocol):
    """What rounds need of torch's Store."""

    def set(self, key: str, value: str, /) -> None:
        """Write the key; other connections may see it a moment later."""

    def get(self, key: str, /) -> bytes:
        """Return the value of a key that is there."""

    def check(self, keys: list[str], /) -> bool:
        """Return at once whether all keys are there."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Write the key if its value is ``expected`` (empty: absent); return the value it then has."""


class LocalStore:
    """The Store of a world of one rank."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str, /) -> None:
        """Write the key."""
        with self._lock:
            self._values[key] = value

    def get(self, key: str, /) -> bytes:
        """Return the value of a key that is there."""
        with self._lock:
            return self._values[key].encode()

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys are there."""
        with self._lock:
            return all(key in self._values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Write the key if its value is ``expected`` (empty: absent); return the value it then has."""
        with self._lock:
            if self._values.get(key, "") == expected:
                self._values[key] = desired
            return self._values[key].encode()
