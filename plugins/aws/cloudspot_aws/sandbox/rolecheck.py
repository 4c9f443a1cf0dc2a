"""Refuses the credentials of roles that have expired or came without their session token; WSGI."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from cloudspot_aws.sandbox.credentials import RoleKeys

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

_CREDENTIAL: Final = re.compile(r"([^/,\s=]+)/\d{8}/[a-z0-9-]+/([a-z0-9-]+)/aws4_request")
_EXPIRED: Final = {"ec2": "RequestExpired", "s3": "ExpiredToken"}
_INVALID: Final = {"ec2": "AuthFailure", "s3": "InvalidToken"}
_JSON_SERVICES: Final = {"fis", "logs", "ssm", "pricing", "scheduler", "servicequotas"}


class RoleCheck:
    """What users' own credentials sign goes through; the services inside check signatures themselves."""

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
        is_json = service in _JSON_SERVICES
        if token != self._keys.token_of(key):
            code = "UnrecognizedClientException" if is_json else "InvalidClientTokenId"
            code, message = (
                _INVALID.get(service, code),
                "The security token included in the request is invalid.",
            )
        elif self._keys.expires_at(key) <= self._now():
            code = "ExpiredTokenException" if is_json else "ExpiredToken"
            code, message = (
                _EXPIRED.get(service, code),
                "The security token included in the request is expired",
            )
        else:
            return self._app(environ, start_response)
        kind, body = _error(service, code, message)
        status = "403 Forbidden" if service in {"iam", "sts"} else "400 Bad Request"
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]


def _error(service: str, code: str, message: str) -> tuple[str, bytes]:
    """Return the error in the service's own format, with its content type."""
    if service in _JSON_SERVICES:
        return "application/x-amz-json-1.1", json.dumps({"__type": code, "message": message}).encode()
    inner = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    if service == "ec2":
        inner = f"<Response><Errors>{inner}</Errors><RequestID>role-check</RequestID></Response>"
    elif service != "s3":
        inner = f"<ErrorResponse>{inner}<RequestId>role-check</RequestId></ErrorResponse>"
    return "text/xml", inner.encode()
