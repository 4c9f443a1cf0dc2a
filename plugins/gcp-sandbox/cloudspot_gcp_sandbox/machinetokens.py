"""The access tokens that emulated machines get: made by the metadata server, known to the APIs.

These are different processes, which share a seed. The seed signs a token; the token itself says whose it is
and when it expires.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TOKEN_SECONDS: Final = 3600.0
_PREFIX: Final = "ya29.c."


@dataclass(frozen=True)
class MachineToken:
    """What a token says."""

    email: str
    scopes: tuple[str, ...]
    expires_at: float
    """Seconds since the epoch."""


class MachineTokens:
    """All tokens that follow from one seed."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        """Known only to the metadata servers."""

    def issue(self, email: str, *, scopes: Sequence[str], expires_at: float) -> str:
        """Return a token for the service account."""
        body = base64.urlsafe_b64encode(json.dumps([email, list(scopes), expires_at]).encode())
        return f"{_PREFIX}{body.decode()}.{self._sign(body)}"

    def identity(self, claims: Mapping[str, Any]) -> str:
        """Return claims as a JWT. The seed signs it, where Google would sign with a published key."""
        header = {"alg": "HS256", "kid": "sandbox", "typ": "JWT"}
        parts = [
            base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)
        ]
        signature = hmac.new(self.seed.encode(), b".".join(parts), hashlib.sha256).digest()
        return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()

    def read(self, token: str) -> MachineToken | None:
        """Return what the token says, or None if the seed did not make it; it may have expired."""
        body, _, signature = token.removeprefix(_PREFIX).partition(".")
        if not token.startswith(_PREFIX) or not hmac.compare_digest(signature, self._sign(body.encode())):
            return None
        email, scopes, expires_at = json.loads(base64.urlsafe_b64decode(body))
        return MachineToken(email, tuple(scopes), expires_at)

    def _sign(self, body: bytes) -> str:
        return hmac.new(self.seed.encode(), body, hashlib.sha256).hexdigest()
