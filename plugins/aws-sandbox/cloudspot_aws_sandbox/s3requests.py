"""Parses requests to S3: the action, its bucket and key, and the permission that it needs.

Source: S3 API reference, the operations' pages, and "Actions, resources, and condition keys for Amazon
S3" (checked 2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

RIGHTS: Mapping[str, str] = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "CompleteMultipartUpload": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "GetBucketVersioning": "s3:GetBucketVersioning",
    "GetObject": "s3:GetObject",
    "GetBucketEncryption": "s3:GetEncryptionConfiguration",
    "GetPublicAccessBlock": "s3:GetBucketPublicAccessBlock",
    "HeadBucket": "s3:ListBucket",
    "HeadObject": "s3:GetObject",
    "ListBuckets": "s3:ListAllMyBuckets",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
    "PutBucketEncryption": "s3:PutEncryptionConfiguration",
    "PutBucketLifecycleConfiguration": "s3:PutLifecycleConfiguration",
    "PutObject": "s3:PutObject",
    "PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "UploadPart": "s3:PutObject",
}
"""The permission that each action needs."""


_SETTINGS: Mapping[str, str] = {
    "acl": "BucketAcl",
    "encryption": "BucketEncryption",
    "lifecycle": "BucketLifecycleConfiguration",
    "policy": "BucketPolicy",
    "publicAccessBlock": "PublicAccessBlock",
    "tagging": "BucketTagging",
    "versioning": "BucketVersioning",
}
"""The bucket's setting that a request reads, writes or deletes, by the parameter that names it."""
_VERBS: Mapping[str, str] = {"GET": "Get", "PUT": "Put", "DELETE": "Delete"}


@dataclass
class S3Request:
    """A parsed request to S3."""

    environ: dict[str, Any]
    bucket: str
    key: str
    query: dict[str, str]
    action: str
    body: bytes = b""
    """The content to store, without the framing of ``aws-chunked``."""
    checksum: tuple[str, str] | None = None
    """The name and the value of the checksum that was sent with the content."""
    region: str = ""
    access_key: str = ""

    def header(self, name: str) -> str | None:
        """Return a header's value, or None."""
        value = self.environ.get("HTTP_" + name.upper().replace("-", "_"))
        return None if value is None else str(value)


def is_for_s3(environ: Mapping[str, Any]) -> bool:
    """Return whether the request is for S3, by its signature's scope or, if unsigned, by its format."""
    if str(environ.get("PATH_INFO", "")).startswith("/moto-api"):
        return False
    authorization = str(environ.get("HTTP_AUTHORIZATION", ""))
    if authorization:
        return "/s3/aws4_request" in authorization
    query = str(environ.get("QUERY_STRING", ""))
    if "X-Amz-Credential=" in query:
        return "/s3/aws4_request" in unquote(query)
    return environ["REQUEST_METHOD"] != "POST" and "HTTP_X_AMZ_TARGET" not in environ


def parse_request(environ: dict[str, Any]) -> S3Request:
    """Return the parsed request, without reading its body."""
    path = unquote(str(environ["REQUEST_URI"]).partition("?")[0])
    bucket, _, key = path.removeprefix("/").partition("/")
    query = dict(parse_qsl(str(environ.get("QUERY_STRING", "")), keep_blank_values=True))
    request = S3Request(environ, bucket, key, query, action="")
    request.action = _action(environ["REQUEST_METHOD"], request)
    return request


def _action(method: str, request: S3Request) -> str:
    query = request.query
    if not request.bucket:
        return "ListBuckets"
    if not request.key:
        if method == "GET" and "list-type" in query:
            return "ListObjectsV2"
        if method == "GET" and "uploads" in query:
            return "ListMultipartUploads"
        if method == "PUT" and not query:
            return "CreateBucket"
        for name, what in _SETTINGS.items():
            if name in query:
                return f"{_VERBS.get(method, method)}{what}"
        if method == "POST" and "delete" in query:
            return "DeleteObjects"
        return {"HEAD": "HeadBucket", "DELETE": "DeleteBucket"}.get(
            method, f"{method} bucket {min(query, default='')}".rstrip()
        )
    if "uploadId" in query:
        return {
            "PUT": "UploadPart",
            "POST": "CompleteMultipartUpload",
            "DELETE": "AbortMultipartUpload",
        }.get(method, "ListParts")
    if method == "POST" and "uploads" in query:
        return "CreateMultipartUpload"
    if method == "PUT" and request.header("x-amz-copy-source") is not None:
        return "CopyObject"
    return {
        "GET": "GetObject",
        "HEAD": "HeadObject",
        "PUT": "PutObject",
        "DELETE": "DeleteObject",
    }.get(method, f"{method} object")
