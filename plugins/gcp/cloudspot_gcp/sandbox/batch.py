"""Several requests to Compute Engine in one, as gcloud makes them: WSGI middleware.

Each part of a ``multipart/mixed`` body is a request (``application/http``), and each part of the answer is the
answer to one. Source: "Batching requests" of Google's API clients (from memory).
"""

from __future__ import annotations

import email.parser
import email.policy
import io
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cloudspot_gcp.sandbox.apierror import ApiError
from cloudspot_gcp.sandbox.wsgi import Reply, Request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

PATH: Final = "/batch/compute/v1"
MAX_REQUESTS: Final = 1000
_PASSED_ON: Final = ("HTTP_AUTHORIZATION", "HTTP_USER_AGENT", "HTTP_HOST")
"""What of the whole request counts for each, where it does not say otherwise."""


class Batches:
    """What is no batch goes through to ``app`` untouched. Thread-safe."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        request = Request.of(environ)
        if request.path != PATH:
            return self._app(environ, start_response)
        try:
            return self._answer(request).send(start_response)
        except ApiError as error:
            return Reply.refusal(error).send(start_response)

    def _answer(self, request: Request) -> Reply:
        kind = request.header("content-type") or ""
        if request.method != "POST" or re.match("multipart/mixed;", kind) is None:
            raise ApiError(
                400, "badRequest", "Failed to parse batch request, error: no multipart/mixed body."
            )
        head = f"Content-Type: {kind}\r\n\r\n".encode("latin-1")
        parser = email.parser.BytesParser(policy=email.policy.HTTP)
        parts = list(parser.parsebytes(head + request.read()).iter_parts())
        if not 1 <= len(parts) <= MAX_REQUESTS:
            raise ApiError(400, "badRequest", f"The batch has {len(parts)} requests.")
        mark = f"batch_{secrets.token_urlsafe(12)}"
        answers = []
        for part in parts:
            if part.get_content_type() != "application/http":
                raise ApiError(
                    400, "badRequest", "Failed to parse batch request, error: no application/http."
                )
            answer = self._one(part.get_content(), request.environ)
            name = str(part.get("content-id", "")).strip("<>")
            answers.append(
                f"--{mark}\r\nContent-Type: application/http\r\nContent-ID: <response-{name}>\r\n\r\n".encode()
                + answer
                + b"\r\n"
            )
        body = b"".join(answers) + f"--{mark}--\r\n".encode()
        return Reply(200, {"Content-Type": f"multipart/mixed; boundary={mark}"}, body)

    def _one(self, text: bytes, around: Mapping[str, Any]) -> bytes:
        """Return the answer to one request, with its status line."""
        head, _, body = text.replace(b"\r\n", b"\n").partition(b"\n\n")
        line, _, rest = head.partition(b"\n")
        method, target, _ = line.decode("latin-1").split(" ", 2)
        headers = email.parser.BytesHeaderParser(policy=email.policy.HTTP).parsebytes(rest)
        path, _, query = target.partition("?")
        body = body.strip(b"\n")
        environ: dict[str, Any] = {
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
        said: list[bytes] = []

        def start(status: str, fields: list[tuple[str, str]], *_: Any) -> Any:
            lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields)]
            said.append("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")

        content = b"".join(self._app(environ, start))
        return said[0] + content
