"""Verifies signed URLs of version 4 as Cloud Storage does: signer, expiry and signature.

Source: Cloud Storage, "V4 signing process with your own program" (from memory).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from urllib.parse import quote

from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.identities import Identities
from cloudspot_gcp_sandbox.wsgi import Request

MAX_SECONDS = 604_800
_ALGORITHM = "GOOG4-RSA-SHA256"
_NEEDED = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")


def is_signed(request: Request) -> bool:
    """Return whether the request uses a signed URL."""
    return "X-Goog-Signature" in request.query or "X-Goog-Algorithm" in request.query


def check_signed(request: Request, identities: Identities, *, now: datetime) -> str:
    """Return the address of the signing account.

    Raises:
        ApiError: 400, the signature is malformed; 403, the signature is wrong or has expired.
    """
    given = {name: request.query.get(f"X-Goog-{name}", [""])[0] for name in _NEEDED}
    missing = [name for name in _NEEDED if not given[name]]
    if missing or given["Algorithm"] != _ALGORITHM:
        raise ApiError(
            400, "AuthorizationQueryParametersError", f"Query-string authentication lacks {missing}"
        )
    email, _, scope = given["Credential"].partition("/")
    try:
        began = datetime.strptime(given["Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
        seconds = int(given["Expires"])
        signature = bytes.fromhex(given["Signature"])
    except ValueError as error:
        raise ApiError(400, "AuthorizationQueryParametersError", str(error)) from error
    if not 1 <= seconds <= MAX_SECONDS:
        raise ApiError(400, "AuthorizationQueryParametersError", "X-Goog-Expires must be 1 to 604800")
    parts = scope.split("/")
    if len(parts) != 4 or parts[0] != given["Date"][:8] or parts[2:] != ["storage", "goog4_request"]:
        raise ApiError(400, "AuthorizationQueryParametersError", f"Invalid credential scope: {scope}")
    if not began - timedelta(minutes=15) <= now < began + timedelta(seconds=seconds):
        raise ApiError(400, "ExpiredToken", "Invalid argument.")
    account = identities.account(email)
    text = _text_to_sign(request, given, scope)
    if account is None or not account.has_signed(text.encode(), signature):
        raise ApiError(403, "SignatureDoesNotMatch", "Access denied.")
    return email


def _text_to_sign(request: Request, given: Mapping[str, str], scope: str) -> str:
    query = "&".join(
        f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}"
        for name, values in sorted(request.query.items())
        for value in sorted(values)
        if name != "X-Goog-Signature"
    )
    names = given["SignedHeaders"].split(";")
    headers = "".join(f"{name}:{' '.join((request.header(name) or '').split())}\n" for name in names)
    canonical = "\n".join(
        (request.method, request.path, query, headers, given["SignedHeaders"], "UNSIGNED-PAYLOAD")
    )
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    return f"{_ALGORITHM}\n{given['Date']}\n{scope}\n{hashed}"
