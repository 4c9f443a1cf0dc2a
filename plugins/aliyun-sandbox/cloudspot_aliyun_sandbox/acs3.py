"""Signature V3 (``ACS3-HMAC-SHA256``), which the second generation of Alibaba Cloud's SDKs uses.

The headers contain the action, its version, the time and the nonce, which older SDKs send as parameters.
Source: "Request syntax and signature method V3" (checked 2026-11), whose example the tests use.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote

ALGORITHM: Final = "ACS3-HMAC-SHA256"
_AUTHORIZATION: Final = re.compile(
    rf"{ALGORITHM} Credential=(?P<key>[^,]+),\s*SignedHeaders=(?P<headers>[^,]+),\s*"
    r"Signature=(?P<signature>\w+)"
)
NEEDED: Final = (
    "host",
    "x-acs-action",
    "x-acs-content-sha256",
    "x-acs-date",
    "x-acs-signature-nonce",
    "x-acs-version",
)
"""The headers that must be signed, in addition to all others that begin with ``x-acs-``."""


class Signed(NamedTuple):
    """A signed request."""

    key: str
    signature: str
    headers: Mapping[str, str]
    """The headers that begin with ``x-acs-``, and ``host``; a required header that is missing is empty."""
    unsigned: tuple[str, ...]
    """The headers that should have been signed, but are unsigned or missing."""
    text: str
    """The text that is signed."""
    is_body_as_signed: bool


def is_acs3(environ: Mapping[str, Any]) -> bool:
    """Return whether a request claims to have this kind of signature."""
    return str(environ.get("HTTP_AUTHORIZATION", "")).startswith(ALGORITHM)


def read(environ: Mapping[str, Any], body: bytes) -> Signed | None:
    """Return the signed request, or None if the header cannot be parsed."""
    authorization = _AUTHORIZATION.fullmatch(str(environ["HTTP_AUTHORIZATION"]))
    if authorization is None:
        return None
    given = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): str(value).strip()
        for name, value in environ.items()
        if name.startswith("HTTP_") or name == "CONTENT_TYPE"
    }
    names = authorization["headers"].split(";")
    own = {name: value for name, value in given.items() if name.startswith("x-acs-") or name == "host"}
    lines = "".join(f"{name}:{given.get(name, '')}\n" for name in sorted(names))
    digest = hashlib.sha256(body).hexdigest()
    canonical = "\n".join(
        (
            str(environ["REQUEST_METHOD"]),
            quote(str(environ.get("PATH_INFO") or "/"), safe="/-_.~"),
            canonical_query(str(environ.get("QUERY_STRING", ""))),
            lines,
            ";".join(sorted(names)),
            given.get("x-acs-content-sha256", ""),
        )
    )
    return Signed(
        key=authorization["key"],
        signature=authorization["signature"],
        headers={**dict.fromkeys(NEEDED, ""), **own},
        unsigned=tuple(sorted(({*own, *NEEDED} - set(names)) | (set(NEEDED) - set(own)))),
        text=f"{ALGORITHM}\n{hashlib.sha256(canonical.encode()).hexdigest()}",
        is_body_as_signed=given.get("x-acs-content-sha256") == digest,
    )


def canonical_query(query: str) -> str:
    """Return a query's parameters by name, with names and values encoded according to RFC 3986."""
    pairs = sorted(parse_qsl(query, keep_blank_values=True))
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs)


def sign(text: str, secret: str) -> str:
    """Return the signature in hexadecimal."""
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
