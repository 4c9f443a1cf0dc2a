"""Signatures by a key that is derived from the secret step by step, as several clouds do."""

from __future__ import annotations

import hashlib
import hmac


def signature_of(canonical: str, *, algorithm: str, at: str, scope: str, secret: str) -> str:
    """Return the signature of a canonical request, in hexadecimal.

    ``scope`` is the credential's scope, such as ``20261101/REGION/SERVICE/FORMAT_end``, by whose parts the
    key is derived from ``secret``, which begins with the cloud's prefix (``AWS4``). ``at`` is the request's
    time as it is signed.
    """
    text = "\n".join((algorithm, at, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = secret.encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()
