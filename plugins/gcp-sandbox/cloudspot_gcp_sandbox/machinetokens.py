"""The access tokens of emulated machines, which the metadata server makes and the APIs check.

The server and the APIs run in different processes, which share a seed that signs tokens. A token contains its
account and its expiry.
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
    """The content of a token."""

    email: str
    scopes: tuple[str, ...]
    expires_at: float
    """The token's expiry, in seconds since the epoch."""


class MachineTokens:
    """Makes and checks the tokens of one seed."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        """The seed is known only to the metadata servers."""

    def issue(self, email: str, *, scopes: Sequence[str], expires_at: float) -> str:
        """Return a token for the service account."""
        body = base64.urlsafe_b64encode(json.dumps([email, list(scopes), expires_at]).encode())
        return f"{_PREFIX}{body.decode()}.{self._sign(body)}"

    def identity(self, claims: Mapping[str, Any]) -> str:
        """Return claims as a JWT, signed with the seed; Google would use a published key."""
        header = {"alg": "HS256", "kid": "sandbox", "typ": "JWT"}
        parts = [
            base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)
        ]
        signature = hmac.new(self.seed.encode(), b".".join(parts), hashlib.sha256).digest()
        return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()

    def read(self, token: str) -> MachineToken | None:
        """Return the token's content, or None if the seed did not sign it; it may have expired."""
        body, _, signature = token.removeprefix(_PREFIX).partition(".")
        if not token.startswith(_PREFIX) or not hmac.compare_digest(signature, self._sign(body.encode())):
            return None
        email, scopes, expires_at = json.loads(base64.urlsafe_b64decode(body))
        return MachineToken(email, tuple(scopes), expires_at)

    def _sign(self, body: bytes) -> str:
        return hmac.new(self.seed.encode(), body, hashlib.sha256).hexdigest()
