"""Checks signatures of versions 1 and 4, in a header or in a signed URL's query, as OSS does.

Sources: OSS API reference, "Include signatures in the Authorization header", "Add signatures to URLs", for
V1 and V4 (checked 2026-11).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote

from cloudspot.emulation.signatures import signature_of
from cloudspot_aliyun_sandbox.osserrors import OssRefusal
from cloudspot_aliyun_sandbox.ossrequests import OssRequest

MAX_SKEW: Final = timedelta(minutes=15)
MAX_EXPIRES_SECONDS: Final = 604800
ALGORITHM: Final = "OSS4-HMAC-SHA256"
UNSIGNED: Final = "UNSIGNED-PAYLOAD"

_V1 = re.compile(r"OSS ([^:\s]+):(\S+)")
_V4 = re.compile(
    rf"{ALGORITHM} Credential=(?P<credential>[^,\s]+), ?Signature=(?P<signature>[0-9a-f]{{64}})"
    r"(?:, ?AdditionalHeaders=(?P<headers>[a-z0-9;-]+))?"
)
_CREDENTIAL = re.compile(r"([^/]+)/(\d{8})/([a-z0-9-]+)/oss/aliyun_v4_request")
_SUBRESOURCES: Final = frozenset(
    {"append", "bucketInfo", "delete", "lifecycle", "objectMeta", "partNumber", "position", "security-token"}
    | {"uploadId", "uploads", "versioning", "continuation-token", "response-content-type"}
)
"""The known parameters that a signature of version 1 covers."""


@dataclass(frozen=True)
class Signature:
    """The signature of a request, with its key and its scope."""

    version: int
    access_key: str
    value: str
    at: datetime
    """When the signature was made; for a signed URL of version 1, when it expires."""
    region: str = ""
    expires_seconds: int | None = None
    """How long a signed URL is valid; None if the signature is in a header."""
    additional_headers: tuple[str, ...] = ()
    token: str = ""


def read_signature(request: OssRequest) -> Signature | None:
    """Return the request's signature, unchecked, or None if it has none.

    Raises:
        OssRefusal: the signature is malformed.
    """
    authorization, query = request.headers.get("authorization", ""), request.query
    token = request.headers.get("x-oss-security-token", "")
    if authorization.startswith(ALGORITHM):
        match = _V4.fullmatch(authorization)
        if match is None:
            raise _malformed("The Authorization header is malformed.")
        key, region, at = _scope(match["credential"], request.headers.get("x-oss-date", ""))
        names = tuple((match["headers"] or "").split(";")) if match["headers"] else ()
        return Signature(4, key, match["signature"], at, region, None, names, token)
    if authorization:
        match = _V1.fullmatch(authorization)
        if match is None:
            raise _malformed("The Authorization header is malformed.")
        date = request.headers.get("x-oss-date") or request.headers.get("date", "")
        try:
            at = parsedate_to_datetime(date)
        except (TypeError, ValueError):
            raise OssRefusal(403, "AccessDenied", "OSS authentication requires a valid Date.") from None
        return Signature(1, match[1], match[2], at, token=token)
    if "x-oss-signature" in query:
        seconds = query.get("x-oss-expires", "")
        if query.get("x-oss-signature-version") != ALGORITHM or not seconds.isdigit():
            raise _malformed("x-oss-signature-version and x-oss-expires are required.")
        if not 1 <= int(seconds) <= MAX_EXPIRES_SECONDS:
            raise _malformed("Invalid expires parameter.")
        key, region, at = _scope(query.get("x-oss-credential", ""), query.get("x-oss-date", ""))
        listed = query.get("x-oss-additional-headers", "")
        names = tuple(listed.split(";")) if listed else ()
        token = query.get("x-oss-security-token", "")
        return Signature(4, key, query["x-oss-signature"], at, region, int(seconds), names, token)
    if "Signature" in query:
        if not query.get("Expires", "").isdigit() or not query.get("OSSAccessKeyId"):
            raise _malformed("OSSAccessKeyId and Expires are required.")
        at = datetime.fromtimestamp(int(query["Expires"]), timezone.utc)
        token = query.get("security-token", "")
        return Signature(1, query["OSSAccessKeyId"], query["Signature"], at, "", 0, (), token)
    return None


def check_signature(request: OssRequest, signature: Signature, secret: str, *, now: datetime) -> None:
    """Compare the signature with the one that the secret yields for this request.

    Raises:
        OssRefusal: the signatures differ, or the given one is too old.
    """
    if signature.expires_seconds is None:
        if abs(now - signature.at) > MAX_SKEW:
            raise OssRefusal(
                403,
                "RequestTimeTooSkewed",
                "The difference between the request time and the current time is too large.",
            )
    elif not _starts(signature) <= now <= signature.at + timedelta(seconds=signature.expires_seconds):
        raise OssRefusal(403, "AccessDenied", "Request has expired.")
    if signature.version == 4 and signature.expires_seconds is None:
        claimed = request.headers.get("x-oss-content-sha256")
        if claimed != UNSIGNED:
            raise OssRefusal(400, "InvalidArgument", "x-oss-content-sha256 must be UNSIGNED-PAYLOAD.")
    right = (
        _sign_v1(request, signature, secret)
        if signature.version == 1
        else _sign_v4(request, signature, secret)
    )
    if not hmac.compare_digest(right, signature.value):
        raise OssRefusal(
            403,
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. Check your key "
            "and signing method.",
        )


def _starts(signature: Signature) -> datetime:
    if signature.version == 1:
        return datetime.fromtimestamp(0, timezone.utc)
    return signature.at - MAX_SKEW


def _sign_v1(request: OssRequest, signature: Signature, secret: str) -> str:
    headers = sorted((name, value) for name, value in request.headers.items() if name.startswith("x-oss-"))
    shown = sorted((name, value) for name, value in request.query.items() if name in _SUBRESOURCES)
    resource = f"/{request.bucket}/{request.key}" if request.bucket else "/"
    if shown:
        resource += "?" + "&".join(f"{name}={value}" if value else name for name, value in shown)
    date = request.headers.get("x-oss-date") or request.headers.get("date", "")
    if signature.expires_seconds is not None:
        date = request.query["Expires"]
    text = "\n".join(
        (
            request.method,
            request.headers.get("content-md5", ""),
            request.headers.get("content-type", ""),
            date,
            "".join(f"{name}:{value}\n" for name, value in headers) + resource,
        )
    )
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha1).digest()
    return base64.b64encode(digest).decode("ascii")


def _sign_v4(request: OssRequest, signature: Signature, secret: str) -> str:
    def is_signed(name: str) -> bool:
        return (
            name.startswith("x-oss-")
            or name in {"content-type", "content-md5"}
            or name in signature.additional_headers
        )

    query = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in request.query.items()
        if name != "x-oss-signature"
    )
    headers = sorted((name, value.strip()) for name, value in request.headers.items() if is_signed(name))
    path = f"/{request.bucket}/{request.key}" if request.bucket else "/"
    canonical = "\n".join(
        (
            request.method,
            quote(path, safe="/-_.~"),
            "&".join(f"{name}={value}" if value else name for name, value in query),
            "".join(f"{name}:{value}\n" for name, value in headers),
            ";".join(sorted(signature.additional_headers)),
            UNSIGNED,
        )
    )
    at = signature.at.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{at[:8]}/{signature.region}/oss/aliyun_v4_request"
    return signature_of(canonical, algorithm=ALGORITHM, at=at, scope=scope, secret=f"aliyun_v4{secret}")


def _scope(credential: str, at: str) -> tuple[str, str, datetime]:
    """Return the key's id, the region and the time."""
    match = _CREDENTIAL.fullmatch(credential)
    if match is None or re.fullmatch(r"\d{8}T\d{6}Z", at) is None or not at.startswith(match[2]):
        raise _malformed("The credential or the date is malformed.")
    moment = datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    return match[1], match[3], moment


def _malformed(message: str) -> OssRefusal:
    return OssRefusal(400, "InvalidArgument", message)
