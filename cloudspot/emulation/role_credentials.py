"""The credentials that roles of an emulated cloud get: made by the metadata service, known to the API.

The two are different processes. They share a seed, from which key, secret and token follow; the key
itself says until when it holds.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import ClassVar


@dataclass(frozen=True)
class Credentials:
    """What a role uses for a while."""

    access_key: str
    secret_key: str
    token: str
    expires_at: datetime


class RoleKeys:
    """All the credentials of roles that one seed makes; a plugin's subclass gives them its cloud's looks."""

    prefix: ClassVar[str]
    """What the key of a role begins with, and no other key."""
    token_prefix: ClassVar[str] = ""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        """What the metadata services are told, and nobody else."""

    def issue(self, instance_id: str, *, expires_at: datetime) -> Credentials:
        """Return the credentials of an instance's role, which hold until then (whole seconds)."""
        seconds = int(expires_at.timestamp())
        moment = base64.b32encode(seconds.to_bytes(5, "big")).decode()
        owner = base64.b32encode(self._digest("owner", f"{instance_id}/{seconds}")[:5]).decode()
        key = f"{self.prefix}{moment}{owner}"
        return Credentials(
            key, self.secret_of(key), self.token_of(key), datetime.fromtimestamp(seconds, timezone.utc)
        )

    def is_role_key(self, access_key: str) -> bool:
        """Say whether it is a role's, by its looks."""
        return access_key.startswith(self.prefix) and len(access_key) == len(self.prefix) + 16

    def secret_of(self, access_key: str) -> str:
        """Return the secret that belongs to the key."""
        return base64.b64encode(self._digest("secret", access_key)[:30]).decode()

    def token_of(self, access_key: str) -> str:
        """Return the session token that must come with the key."""
        parts = [self._digest(f"token{number}", access_key) for number in range(8)]
        return self.token_prefix + base64.b64encode(b"".join(parts)).decode()

    def expires_at(self, access_key: str) -> datetime:
        """Return until when the key holds; one that is malformed never did."""
        start = len(self.prefix)
        try:
            seconds = int.from_bytes(base64.b32decode(access_key[start : start + 8]), "big")
            return datetime.fromtimestamp(seconds, timezone.utc)
        except (ValueError, OverflowError):
            return datetime.fromtimestamp(0, timezone.utc)

    def _digest(self, purpose: str, text: str) -> bytes:
        return hmac.new(self.seed.encode(), f"{purpose}:{text}".encode(), hashlib.sha256).digest()


class Secrets(Mapping[str, str]):
    """The secrets of users, which are listed, and of roles, which follow from the seed."""

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
