"""Parses requests to OSS: the action, its object, the permission it needs, its parameters and headers.

Source: OSS API reference, the operations' pages, and "RAM policies" (checked 2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

MAX_BODY_BYTES: Final = 5 << 30

RIGHTS: Final[Mapping[str, str]] = {
    "AbortMultipartUpload": "oss:AbortMultipartUpload",
    "AppendObject": "oss:PutObject",
    "CompleteMultipartUpload": "oss:PutObject",
    "CopyObject": "oss:PutObject",
    "DeleteBucket": "oss:DeleteBucket",
    "DeleteMultipleObjects": "oss:DeleteObject",
    "DeleteObject": "oss:DeleteObject",
    "GetBucketInfo": "oss:GetBucketInfo",
    "GetBucketLifecycle": "oss:GetBucketLifecycle",
    "GetBucketPolicy": "oss:GetBucketPolicy",
    "GetBucketVersioning": "oss:GetBucketVersioning",
    "GetObject": "oss:GetObject",
    "GetObjectMeta": "oss:GetObject",
    "HeadObject": "oss:GetObject",
    "InitiateMultipartUpload": "oss:PutObject",
    "ListBuckets": "oss:ListBuckets",
    "ListMultipartUploads": "oss:ListMultipartUploads",
    "ListObjects": "oss:ListObjects",
    "ListObjectsV2": "oss:ListObjects",
    "ListParts": "oss:ListParts",
    "PutBucket": "oss:PutBucket",
    "PutBucketEncryption": "oss:PutBucketEncryption",
    "PutBucketLifecycle": "oss:PutBucketLifecycle",
    "PutBucketPolicy": "oss:PutBucketPolicy",
    "PutBucketVersioning": "oss:PutBucketVersioning",
    "PutObject": "oss:PutObject",
    "UploadPart": "oss:PutObject",
}
"""The permission that each action needs; a copy also needs permission to read its source."""
_LIST = frozenset(
    {
        "list-type",
        "prefix",
        "delimiter",
        "continuation-token",
        "start-after",
        "fetch-owner",
        "max-keys",
        "encoding-type",
    }
)
_PARAMETERS: Final[Mapping[str, frozenset[str]]] = {
    "AbortMultipartUpload": frozenset({"uploadId"}),
    "AppendObject": frozenset({"append", "position"}),
    "CompleteMultipartUpload": frozenset({"uploadId", "encoding-type"}),
    "DeleteMultipleObjects": frozenset({"delete", "encoding-type"}),
    "GetBucketInfo": frozenset({"bucketInfo"}),
    "GetBucketLifecycle": frozenset({"lifecycle"}),
    "GetBucketPolicy": frozenset({"policy"}),
    "GetBucketVersioning": frozenset({"versioning"}),
    "GetObject": frozenset({"response-content-type"}),
    "GetObjectMeta": frozenset({"objectMeta"}),
    "InitiateMultipartUpload": frozenset({"uploads", "encoding-type"}),
    "ListBuckets": frozenset({"prefix", "marker", "max-keys"}),
    "ListMultipartUploads": frozenset({"uploads", "prefix", "encoding-type", "max-uploads"})
    | {"delimiter", "key-marker", "upload-id-marker"},
    "ListObjects": frozenset({"prefix", "delimiter", "marker", "max-keys", "encoding-type"}),
    "ListObjectsV2": _LIST,
    "ListParts": frozenset({"uploadId", "max-parts", "part-number-marker", "encoding-type"}),
    "PutBucketEncryption": frozenset({"encryption"}),
    "PutBucketLifecycle": frozenset({"lifecycle"}),
    "PutBucketPolicy": frozenset({"policy"}),
    "PutBucketVersioning": frozenset({"versioning"}),
    "UploadPart": frozenset({"uploadId", "partNumber"}),
}
SIGNING: Final = frozenset(
    {
        "Expires",
        "OSSAccessKeyId",
        "Signature",
        "security-token",
        "x-oss-additional-headers",
        "x-oss-credential",
        "x-oss-date",
        "x-oss-expires",
        "x-oss-security-token",
        "x-oss-signature",
        "x-oss-signature-version",
    }
)
"""The parameters that a signed URL adds to those of the action."""
_ALWAYS = frozenset({"x-oss-content-sha256", "x-oss-date", "x-oss-security-token"})
_WRITE = frozenset({"x-oss-forbid-overwrite"})
_HEADERS: Final[Mapping[str, frozenset[str]]] = {
    "CompleteMultipartUpload": _WRITE,
    "CopyObject": _WRITE | {"x-oss-copy-source", "x-oss-metadata-directive"},
    "GetObject": frozenset({"x-oss-range-behavior"}),
    "InitiateMultipartUpload": _WRITE,
    "PutBucket": frozenset({"x-oss-acl"}),
    "PutObject": _WRITE,
}
_META = frozenset({"AppendObject", "CopyObject", "InitiateMultipartUpload", "PutObject"})
"""The actions that accept ``x-oss-meta-`` headers."""


@dataclass
class OssRequest:
    """A parsed request to OSS."""

    environ: dict[str, Any]
    bucket: str
    key: str
    query: dict[str, str]
    action: str = ""
    body: bytes = b""
    region: str = ""
    """The signature's region; empty for version 1, which names no region."""
    access_key: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """The headers, by lower-case name."""

    @property
    def method(self) -> str:
        """Return the HTTP method."""
        return str(self.environ["REQUEST_METHOD"])

    @property
    def meta(self) -> dict[str, str]:
        """Return the user's own metadata."""
        return {name: value for name, value in self.headers.items() if name.startswith("x-oss-meta-")}

    def unknown(self) -> str | None:
        """Return a parameter or header that the action does not have, or None if there is no such one."""
        parameters = _PARAMETERS.get(self.action, frozenset()) | SIGNING
        for name in self.query:
            if name not in parameters:
                return name
        allowed = _ALWAYS | _HEADERS.get(self.action, frozenset())
        for name in self.headers:
            if name.startswith("x-oss-") and name not in allowed:
                if name.startswith("x-oss-meta-") and self.action in _META:
                    continue
                return name
        return None


def parse_request(environ: dict[str, Any], domains: Mapping[str, str]) -> OssRequest:
    """Return the parsed request, without reading its body.

    The request is in path style, unless its host is one of the ``domains``, which belong to single buckets.
    """
    raw_path, _, raw_query = str(environ["REQUEST_URI"]).partition("?")
    path = unquote(raw_path).removeprefix("/")
    own = domains.get(str(environ.get("HTTP_HOST", "")).partition(":")[0])
    bucket, _, key = path.partition("/") if own is None else (own, "", path)
    request = OssRequest(environ, bucket, key, _parse_query(raw_query))
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            request.headers[name[5:].replace("_", "-").lower()] = str(value)
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            request.headers[name.replace("_", "-").lower()] = str(environ[name])
    request.action = _action(request)
    return request


def _parse_query(text: str) -> dict[str, str]:
    found = {}
    for pair in text.split("&") if text else ():
        name, _, value = pair.partition("=")
        found[unquote(name.replace("+", " "))] = unquote(value.replace("+", " "))
    return found


def _action(request: OssRequest) -> str:
    method, query = request.method, request.query
    if not request.bucket:
        return "ListBuckets" if method == "GET" else ""
    if not request.key:
        for name, actions in {
            "bucketInfo": {"GET": "GetBucketInfo"},
            "versioning": {"GET": "GetBucketVersioning", "PUT": "PutBucketVersioning"},
            "encryption": {"PUT": "PutBucketEncryption"},
            "lifecycle": {"GET": "GetBucketLifecycle", "PUT": "PutBucketLifecycle"},
            "policy": {"GET": "GetBucketPolicy", "PUT": "PutBucketPolicy"},
            "uploads": {"GET": "ListMultipartUploads"},
            "delete": {"POST": "DeleteMultipleObjects"},
            "list-type": {"GET": "ListObjectsV2"},
        }.items():
            if name in query:
                return actions.get(method, "")
        if method == "GET" and query.keys() <= _PARAMETERS["ListObjects"] | SIGNING:
            return "ListObjects"
        return {"PUT": "PutBucket", "DELETE": "DeleteBucket"}.get(method, "")
    if "uploadId" in query:
        return {
            "GET": "ListParts",
            "PUT": "UploadPart",
            "POST": "CompleteMultipartUpload",
            "DELETE": "AbortMultipartUpload",
        }.get(method, "")
    if method == "POST":
        return (
            "InitiateMultipartUpload" if "uploads" in query else "AppendObject" if "append" in query else ""
        )
    if method == "HEAD" and "objectMeta" in query:
        return "GetObjectMeta"
    if method == "PUT" and "x-oss-copy-source" in request.headers:
        return "CopyObject"
    return {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject", "DELETE": "DeleteObject"}.get(
        method, ""
    )
