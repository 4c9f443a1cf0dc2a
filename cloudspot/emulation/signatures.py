"""Signatures with a key that is derived from the secret step by step, as in several clouds."""

from __future__ import annotations

import hashlib
import hmac


def signature_of(canonical: str, *, algorithm: str, at: str, scope: str, secret: str) -> str:
    """Return the signature of a canonical request, in hexadecimal.

    ``scope`` is the credential's scope, such as ``20261101/REGION/SERVICE/FORMAT_end``. Its parts are used to
    derive the key from ``secret``, which begins with the cloud's prefix (``AWS4``). ``at`` is the request's
    time in the format that is signed.
    """
    text = "\n".join((algorithm, at, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = secret.encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()
