"""Batches of requests to Compute Engine, as gcloud sends them.

Each part of a ``multipart/mixed`` body is a request (``application/http``), and each part of the response
answers one of them. Source: "Batching requests" of Google's API clients (from memory).
"""

from __future__ import annotations

import email.parser
import email.policy
import io
import re
import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.wsgi import Reply, Request

MAX_REQUESTS: Final = 1000
_PASSED_ON: Final = ("HTTP_AUTHORIZATION", "HTTP_USER_AGENT", "HTTP_HOST")
"""The headers of the whole request that apply to each part, unless the part overrides them."""


def answer_batch(request: Request, reply: Callable[[Request], Reply]) -> Reply:
    """Return the responses to all requests of the batch, each made by ``reply``.

    Raises:
        ApiError: 400, the request is not a batch.
    """
    kind = request.header("content-type") or ""
    if re.match("multipart/mixed;", kind) is None:
        raise _malformed("the body is not multipart/mixed")
    head = f"Content-Type: {kind}\r\n\r\n".encode("latin-1")
    parser = email.parser.BytesParser(policy=email.policy.HTTP)
    parts = list(parser.parsebytes(head + request.read()).iter_parts())
    if not 1 <= len(parts) <= MAX_REQUESTS:
        raise _malformed(f"{len(parts)} requests")
    mark = f"batch_{secrets.token_urlsafe(12)}"
    answers = []
    for part in parts:
        if part.get_content_type() != "application/http":
            raise _malformed("a part is not application/http")
        answer = reply(_request_of(part.get_content(), request.environ))
        name = str(part.get("content-id", "")).strip("<>")
        lines = [
            f"--{mark}",
            "Content-Type: application/http",
            f"Content-ID: <response-{name}>",
            "",
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            *(f"{name}: {value}" for name, value in answer.headers.items()),
            f"Content-Length: {len(answer.body)}",
            "",
            "",
        ]
        answers.append("\r\n".join(lines).encode("latin-1") + bytes(answer.body) + b"\r\n")
    body = b"".join(answers) + f"--{mark}--\r\n".encode()
    return Reply(200, {"Content-Type": f"multipart/mixed; boundary={mark}"}, body)


def _request_of(text: bytes, around: Mapping[str, Any]) -> Request:
    head, _, body = text.replace(b"\r\n", b"\n").partition(b"\n\n")
    line, _, rest = head.partition(b"\n")
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers = email.parser.BytesHeaderParser(policy=email.policy.HTTP).parsebytes(rest)
    path, _, query = target.partition("?")
    body = body.strip(b"\n")
    return Request.of(
        {
            **{name: value for name, value in around.items() if name.startswith("wsgi.")},
            **{name: around[name] for name in _PASSED_ON if name in around},
            **{f"HTTP_{name.upper().replace('-', '_')}": str(value) for name, value in headers.items()},
            "REQUEST_METHOD": method,
            "REQUEST_URI": target,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": str(headers.get("content-type", "")),
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
        }
    )


def _malformed(why: str) -> ApiError:
    return ApiError(400, "badRequest", f"Failed to parse batch request: {why}.")
