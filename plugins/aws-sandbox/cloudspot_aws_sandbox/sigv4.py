"""Checks signatures of version 4, in a header or in a presigned URL's query, as AWS does.

Source: "AWS Signature Version 4 for API requests", IAM user guide, and "Authenticating Requests", S3
API reference (checked 2026-11).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from cloudspot.emulation.signatures import signature_of
from cloudspot_aws_sandbox.query import ApiError

ALGORITHM = "AWS4-HMAC-SHA256"
MAX_SKEW = timedelta(minutes=15)
MAX_EXPIRES_SECONDS = 604800
UNSIGNED = "UNSIGNED-PAYLOAD"

_HEADER = re.compile(
    rf"{ALGORITHM}\s+Credential=(?P<credential>[^,\s]+),\s*"
    r"SignedHeaders=(?P<headers>[^,\s]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)
_CREDENTIAL = re.compile(
    r"(?P<key>[^/]+)/(?P<date>\d{8})/(?P<region>[a-z0-9-]+)/(?P<service>[a-z0-9-]+)/aws4_request"
)


@dataclass(frozen=True)
class Signature:
    """The signature of a request, with its key and its scope."""

    access_key: str
    date: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    value: str
    at: str
    """``X-Amz-Date``."""
    expires_seconds: int | None
    """How long a presigned URL is valid; None if the signature is in a header."""


def read_signature(environ: Mapping[str, Any]) -> Signature | None:
    """Return the request's signature, unchecked, or None if it has none.

    Raises:
        ApiError: the signature is malformed.
    """
    query = dict(parse_qsl(str(environ.get("QUERY_STRING", "")), keep_blank_values=True))
    authorization = str(environ.get("HTTP_AUTHORIZATION", ""))
    expires: int | None = None
    if authorization:
        match = _HEADER.fullmatch(authorization.strip())
        if match is None:
            raise ApiError("AuthorizationHeaderMalformed", "The authorization header is malformed.")
        credential, headers, signature = match["credential"], match["headers"], match["signature"]
        at = str(environ.get("HTTP_X_AMZ_DATE", ""))
    elif "X-Amz-Signature" in query:
        if query.get("X-Amz-Algorithm") != ALGORITHM or not query.get("X-Amz-Expires", "").isdigit():
            raise _bad_query("X-Amz-Algorithm and X-Amz-Expires are required")
        expires = int(query["X-Amz-Expires"])
        if not 0 < expires <= MAX_EXPIRES_SECONDS:
            raise _bad_query("X-Amz-Expires must be less than a week (in seconds)")
        credential, headers = query.get("X-Amz-Credential", ""), query.get("X-Amz-SignedHeaders", "")
        signature, at = query["X-Amz-Signature"], query.get("X-Amz-Date", "")
    else:
        return None
    match = _CREDENTIAL.fullmatch(credential)
    if match is None or re.fullmatch(r"\d{8}T\d{6}Z", at) is None or not at.startswith(match["date"]):
        raise ApiError("AuthorizationHeaderMalformed", "The credential or the date is malformed.")
    return Signature(
        access_key=match["key"],
        date=match["date"],
        region=match["region"],
        service=match["service"],
        signed_headers=tuple(headers.split(";")),
        value=signature,
        at=at,
        expires_seconds=expires,
    )


def check_signature(
    environ: Mapping[str, Any],
    signature: Signature,
    secret: str,
    *,
    now: datetime,
    payload_hash: str | None = None,
) -> None:
    """Compare the signature with the one that the secret yields for this request.

    ``payload_hash`` is the hash of the actual body, for services that, unlike S3, do not trust the client's
    hash.

    Raises:
        ApiError: the signatures differ, the signature is too old, or it omits a required header.
    """
    at = datetime.strptime(signature.at, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    if signature.expires_seconds is None:
        if abs(now - at) > MAX_SKEW:
            raise ApiError(
                "RequestTimeTooSkewed",
                "The difference between the request time and the current time is too large.",
                status=403,
            )
    elif not at - MAX_SKEW <= now <= at + timedelta(seconds=signature.expires_seconds):
        raise ApiError("AccessDenied", "Request has expired", status=403)
    headers = _headers(environ)
    unsigned = {name for name in headers if name == "host" or name.startswith("x-amz-")}
    unsigned -= set(signature.signed_headers)
    if unsigned:
        raise ApiError(
            "AccessDenied",
            f"There were headers present in the request which were not signed: {', '.join(sorted(unsigned))}",
            status=403,
        )
    if not hmac.compare_digest(_sign(environ, signature, secret, headers, payload_hash), signature.value):
        raise ApiError(
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. "
            "Check your key and signing method.",
            status=403,
        )


def sha256_hex(body: bytes) -> str:
    """Return the body's hash in the form in which signatures contain it."""
    return hashlib.sha256(body).hexdigest()


def _sign(
    environ: Mapping[str, Any],
    signature: Signature,
    secret: str,
    headers: Mapping[str, str],
    payload_hash: str | None,
) -> str:
    raw_path, _, raw_query = str(environ["REQUEST_URI"]).partition("?")
    pairs = [
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(raw_query.replace("+", "%20"), keep_blank_values=True)
        if name != "X-Amz-Signature"
    ]
    payload = payload_hash
    if payload is None:
        is_presigned = signature.expires_seconds is not None
        payload = UNSIGNED if is_presigned else headers.get("x-amz-content-sha256", "")
    # All services but S3 encode the path twice.
    path = quote(unquote(raw_path) if signature.service == "s3" else raw_path, safe="/-_.~")
    canonical = "\n".join(
        (
            environ["REQUEST_METHOD"],
            path,
            "&".join(f"{name}={value}" for name, value in sorted(pairs)),
            *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in signature.signed_headers),
            "",
            ";".join(signature.signed_headers),
            payload,
        )
    )
    scope = f"{signature.date}/{signature.region}/{signature.service}/aws4_request"
    return signature_of(canonical, algorithm=ALGORITHM, at=signature.at, scope=scope, secret=f"AWS4{secret}")


def _headers(environ: Mapping[str, Any]) -> dict[str, str]:
    headers = {
        name[5:].replace("_", "-").lower(): str(value)
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = str(environ[name])
    return headers


def _bad_query(message: str) -> ApiError:
    return ApiError("AuthorizationQueryParametersError", message)
