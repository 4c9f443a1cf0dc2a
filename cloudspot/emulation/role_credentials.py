"""The credentials of an emulated cloud's roles, which the metadata service issues and the API verifies.

The two processes share only a seed, from which they derive a key's secret and token; the key itself contains
its expiry.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar


@dataclass(frozen=True)
class Credentials:
    """A role's temporary credentials."""

    access_key: str
    secret_key: str
    token: str
    expires_at: datetime


class RoleKeys:
    """All role credentials derived from a seed; a plugin's subclass gives them its cloud's format."""

    prefix: ClassVar[str]
    """The prefix of roles' keys, which no other keys have."""
    token_prefix: ClassVar[str] = ""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        """The seed, which only the metadata services know."""

    def issue(self, instance_id: str, *, expires_at: datetime) -> Credentials:
        """Return the credentials of an instance's role until ``expires_at``, rounded to whole seconds."""
        seconds = int(expires_at.timestamp())
        moment = base64.b32encode(seconds.to_bytes(5, "big")).decode()
        owner = base64.b32encode(self._digest("owner", f"{instance_id}/{seconds}")[:5]).decode()
        key = f"{self.prefix}{moment}{owner}"
        return Credentials(
            key, self.secret_of(key), self.token_of(key), datetime.fromtimestamp(seconds, timezone.utc)
        )

    def is_role_key(self, access_key: str) -> bool:
        """Return whether the key has the format of a role's key."""
        return access_key.startswith(self.prefix) and len(access_key) == len(self.prefix) + 16

    def secret_of(self, access_key: str) -> str:
        """Return the key's secret."""
        return base64.b64encode(self._digest("secret", access_key)[:30]).decode()

    def token_of(self, access_key: str) -> str:
        """Return the session token that must accompany the key."""
        parts = [self._digest(f"token{number}", access_key) for number in range(8)]
        return self.token_prefix + base64.b64encode(b"".join(parts)).decode()

    def expires_at(self, access_key: str) -> datetime:
        """Return when the key expires, or 1970 if the key is malformed."""
        start = len(self.prefix)
        try:
            seconds = int.from_bytes(base64.b32decode(access_key[start : start + 8]), "big")
            return datetime.fromtimestamp(seconds, timezone.utc)
        except (ValueError, OverflowError):
            return datetime.fromtimestamp(0, timezone.utc)

    def _digest(self, purpose: str, text: str) -> bytes:
        return hmac.new(self.seed.encode(), f"{purpose}:{text}".encode(), hashlib.sha256).digest()


class ShownCredentials:
    """The role's credentials that one machine's metadata service shows. Thread-safe.

    New credentials appear ``lead`` before the old ones expire; the old ones remain valid until their expiry.
    Short-lived credentials, as in tests, are shown for at least half of their life.
    """

    def __init__(
        self,
        keys_type: Callable[[str], RoleKeys],
        facts: Mapping[str, Any],
        *,
        lead: timedelta,
        now: Callable[[], datetime],
    ) -> None:
        """``facts`` holds ``instance-id``, ``role-seed`` and ``credential-seconds`` (6 hours by default)."""
        self._keys_type = keys_type
        self._facts = facts
        self._lifetime = timedelta(seconds=float(facts.get("credential-seconds", 6 * 3600)))
        self._lead = min(lead, self._lifetime / 2)
        self._now = now
        self._lock = threading.Lock()
        self._newest: Credentials | None = None
        self.updated_at = now()
        """When the newest credentials were issued, or, before the first, when the service started."""

    def current(self) -> Credentials:
        """Return the credentials to show at this time."""
        with self._lock:
            now = self._now()
            if self._newest is None or self._newest.expires_at - now < self._lead:
                keys = self._keys_type(str(self._facts["role-seed"]))
                self._newest = keys.issue(str(self._facts["instance-id"]), expires_at=now + self._lifetime)
                self.updated_at = now
            return self._newest


class Secrets(Mapping[str, str]):
    """The secrets of the given users, and of roles, whose secrets are derived from the seed."""

    def __init__(self, users: Mapping[str, str], roles: RoleKeys) -> None:
        self._users = dict(users)
        self._roles = roles

    def __getitem__(self, access_key: str) -> str:
        if self._roles.is_role_key(access_key):
            return self._roles.secret_of(access_key)
        return self._users[access_key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._users)

    def __len__(self) -> int:
        return len(self._users)
