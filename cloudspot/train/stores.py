"""The key-value store through which ranks agree."""

from __future__ import annotations

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
