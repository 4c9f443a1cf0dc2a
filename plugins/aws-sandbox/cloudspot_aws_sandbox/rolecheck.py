"""Refuses role credentials that have expired or lack their session token; WSGI middleware."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from cloudspot_aws_sandbox.callers import QUERY_SERVICES, Reason, refusal
from cloudspot_aws_sandbox.query import ApiError
from cloudspot_aws_sandbox.rolekeys import RoleKeys

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

_CREDENTIAL: Final = re.compile(r"([^/,\s=]+)/\d{8}/[a-z0-9-]+/([a-z0-9-]+)/aws4_request")


class RoleCheck:
    """Passes on requests signed with users' credentials; the wrapped services check signatures."""

    def __init__(self, app: WSGIApplication, keys: RoleKeys, *, now: Callable[[], datetime]) -> None:
        self._app = app
        self._keys = keys
        self._now = now

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        query = parse_qs(str(environ.get("QUERY_STRING", "")))
        signed = str(environ.get("HTTP_AUTHORIZATION") or query.get("X-Amz-Credential", [""])[0])
        match = _CREDENTIAL.search(signed)
        if match is None or not self._keys.is_role_key(match[1]):
            return self._app(environ, start_response)
        key, service = match[1], match[2]
        token = environ.get("HTTP_X_AMZ_SECURITY_TOKEN") or query.get("X-Amz-Security-Token", [""])[0]
        if token != self._keys.token_of(key):
            error = refusal(service, Reason.WRONG_TOKEN)
        elif self._keys.expires_at(key) <= self._now():
            error = refusal(service, Reason.EXPIRED)
        else:
            return self._app(environ, start_response)
        kind, body = _error(service, error)
        start_response(
            f"{error.status} {HTTPStatus(error.status).phrase}",
            [("Content-Type", kind), ("Content-Length", str(len(body)))],
        )
        return [body]


def _error(service: str, error: ApiError) -> tuple[str, bytes]:
    """Return the error in the service's own format, with its content type."""
    if service not in {"ec2", "s3", *QUERY_SERVICES}:
        content = {"__type": error.code, "message": error.message}
        return "application/x-amz-json-1.1", json.dumps(content).encode()
    inner = f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message></Error>"
    if service == "ec2":
        inner = f"<Response><Errors>{inner}</Errors><RequestID>role-check</RequestID></Response>"
    elif service != "s3":
        inner = f"<ErrorResponse>{inner}<RequestId>role-check</RequestId></ErrorResponse>"
    return "text/xml", inner.encode()
