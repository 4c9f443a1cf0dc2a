"""Reads multipart bodies for an emulated Cloud Storage, and sends contents and ranges of them."""

from __future__ import annotations

import email.parser
import email.policy
import re
from collections.abc import Mapping
from typing import Any

from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.objects import StoredObject
from cloudspot_gcp_sandbox.wsgi import Reply, Request, parse_json

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def read_multipart(request: Request) -> tuple[dict[str, Any], bytes]:
    """Return the metadata and the content of a multipart/related body."""
    content_type = request.header("content-type") or ""
    found = re.fullmatch(r"""multipart/related;\s*boundary=["']?([^"']+)["']?""", content_type.strip())
    if found is None:
        raise ApiError(400, "badContent", f"Unsupported content with type: {content_type}")
    mark = b"--" + found[1].encode("latin-1")
    body = request.read()
    # gcloud ends lines with a bare line feed, which Google accepts.
    end = b"\n" if body.startswith(mark + b"\n") else b"\r\n"
    if not body.startswith(mark + end) or not body.rstrip(b"\r\n").endswith(end + mark + b"--"):
        raise ApiError(400, "badContent", "Malformed multipart body.")
    body = body.rstrip(b"\r\n").removeprefix(mark + end).removesuffix(end + mark + b"--")
    described, separator, media = body.partition(end + mark + end)
    if not separator:
        raise ApiError(400, "badContent", "Malformed multipart body: two parts are expected.")
    _, text = _split_part(described, "application/json", end)
    _, data = _split_part(media, None, end)
    fields = parse_json(text)
    if not isinstance(fields, dict):
        raise ApiError(400, "parseError", "Parse Error")
    return fields, data


def media(request: Request, found: StoredObject) -> Reply:
    """Return the object's bytes, or the requested range of them.

    Raises:
        ApiError: 416, the range begins at the object's end or beyond.
    """
    headers = {
        "Content-Type": request.query.get(
            "response-content-type", [found.fields.get("contentType", "application/octet-stream")]
        )[0],
        "ETag": f'"{found.generation}"',
        "Last-Modified": f"{found.created_at:%a, %d %b %Y %H:%M:%S} GMT",
        "x-goog-generation": str(found.generation),
        "x-goog-metageneration": str(found.metageneration),
        "x-goog-hash": f"crc32c={found.crc32c},md5={found.md5}",
        "x-goog-stored-content-encoding": "identity",
        "x-goog-stored-content-length": str(found.size),
        "x-goog-storage-class": "STANDARD",
    }
    wanted = _RANGE.fullmatch(request.header("range") or "")
    if wanted is None or wanted[0] == "bytes=-":
        return Reply(200, headers, found.read())
    if wanted[1]:
        first, last = int(wanted[1]), min(int(wanted[2] or found.size), found.size - 1)
    else:
        first, last = max(0, found.size - int(wanted[2])), found.size - 1
    if first >= found.size or last < first:
        raise ApiError(416, "requestedRangeNotSatisfiable", "The requested range cannot be satisfied.")
    headers["Content-Range"] = f"bytes {first}-{last}/{found.size}"
    return Reply(206, headers, found.read(first, last + 1))


def _split_part(part: bytes, content_type: str | None, end: bytes) -> tuple[Mapping[str, str], bytes]:
    head, separator, body = part.partition(end + end)
    if not separator:
        raise ApiError(400, "badContent", "Malformed multipart body: a part has no headers.")
    parser = email.parser.BytesHeaderParser(policy=email.policy.HTTP)
    headers = {name.lower(): str(value) for name, value in parser.parsebytes(head).items()}
    if content_type is not None and content_type not in headers.get("content-type", ""):
        raise ApiError(400, "badContent", f"The first part must be {content_type}.")
    return headers, body
