"""Requests to fakes of Google's JSON APIs, and their responses, over WSGI."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

from cloudspot_gcp_sandbox.apierror import ApiError, invalid

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

_RESUME_INCOMPLETE = {308: "Resume Incomplete"}
"""Storage's name for status 308; the standard's name is Permanent Redirect."""


@dataclass(frozen=True)
class Request:
    """A received request."""

    method: str
    path: str
    """The percent-encoded path, without the query."""
    query: Mapping[str, Sequence[str]]
    environ: Mapping[str, Any]

    @classmethod
    def of(cls, environ: Mapping[str, Any]) -> Request:
        """Parse a request's line and headers, without reading its body."""
        target = str(environ.get("REQUEST_URI") or environ.get("RAW_URI") or "")
        path = target.partition("?")[0] or quote(environ.get("PATH_INFO", "/").encode("latin-1"))
        text = str(environ.get("QUERY_STRING", ""))
        return cls(environ["REQUEST_METHOD"], path, parse_qs(text, keep_blank_values=True), environ)

    def header(self, name: str) -> str | None:
        """Return a header of the request, or None if it is missing."""
        name = name.upper().replace("-", "_")
        value = self.environ.get(name if name in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{name}")
        return str(value) if value not in {None, ""} else None

    def read(self) -> bytes:
        """Return the body.

        Raises:
            ApiError: 411, the body's length is missing; 400, the body is shorter than stated.
        """
        length = self.header("content-length")
        if length is None:
            if self.method in {"POST", "PUT", "PATCH"}:
                raise ApiError(411, "lengthRequired", "POST requests require a Content-Length header.")
            return b""
        body: bytes = self.environ["wsgi.input"].read(int(length))
        if len(body) < int(length):
            raise ApiError(400, "badRequest", "The request ended before its body did.")
        return body

    def read_json(self) -> Any:
        """Return the body's JSON value, or None if there is no body.

        Raises:
            ApiError: 400, the body or its Content-Type is not JSON.
        """
        body = self.read()
        if not body:
            return None
        kind = (self.header("content-type") or "").partition(";")[0].strip()
        if kind != "application/json":
            raise invalid(f"Invalid Content-Type of a JSON request: {kind!r}")
        return parse_json(body)


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""

    @classmethod
    def json(cls, value: Mapping[str, Any], *, status: int = 200) -> Reply:
        """Return a response in JSON."""
        return cls(status, {"Content-Type": "application/json; charset=UTF-8"}, json.dumps(value).encode())

    @classmethod
    def refusal(cls, error: ApiError) -> Reply:
        """Return the response for an error."""
        reply = cls.json(error.value(), status=error.status)
        return cls(reply.status, {**reply.headers, **error.headers}, reply.body)

    def send(self, start_response: StartResponse) -> Iterable[bytes]:
        """Send the answer."""
        phrase = _RESUME_INCOMPLETE.get(self.status)
        if phrase is None:
            known = {status.value: status.phrase for status in HTTPStatus}
            phrase = known.get(self.status, "Client Closed Request")
        headers = {**self.headers, "Content-Length": str(len(self.body))}
        start_response(f"{self.status} {phrase}", list(headers.items()))
        return [self.body]  # type: ignore[list-item] # a memoryview is sent like bytes


def parse_json(body: bytes) -> Any:
    """Return the JSON value.

    Raises:
        ApiError: 400, the text is not JSON.
    """
    try:
        return json.loads(body)
    except ValueError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from error
