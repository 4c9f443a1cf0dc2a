"""Calls of Function Compute 3.0: paths and JSON (the ROA style), signed with version 3 (ACS3-HMAC-SHA256).

The service's SDK, alibabacloud_fc20230330, needs 20 packages and 68 MB on every machine; this module needs
only `requests`, on which oss2 depends. Sources: Function Compute API reference, version 2023-03-30, and the
SDK's own paths; "Request syntax and signature method V3" (checked 2026-11).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

import requests
from aliyunsdkcore.acs_exception.exceptions import ServerException

from cloudspot_aliyun.clients import CONNECT_SECONDS, READ_SECONDS, USER_AGENT, AliyunClients, fc_endpoint
from cloudspot_aliyun.credentials import Credentials
from cloudspot_aliyun.errors import ERRORS, unless

VERSION: Final = "2023-03-30"
_ALGORITHM: Final = "ACS3-HMAC-SHA256"


class Invocation(NamedTuple):
    """The result of running a function once."""

    has_failed: bool
    payload: bytes


class FunctionCompute:
    """The functions of one account and region; each call is made once."""

    def __init__(self, clients: AliyunClients) -> None:
        """Do no I/O."""
        self._clients = clients

    def ask(
        self, what: str, call: str, path: str, body: Mapping[str, Any] | None = None, *, ignoring: str = ""
    ) -> dict[str, Any] | None:
        """Make a call such as ``"POST CreateFunction"``, and return its response.

        Return None if it was refused with the code ``ignoring``, which means that there is nothing to do.

        Raises:
            CloudspotError: the class says what to do; the message begins with ``what`` and names the
                permission.
        """
        method, _, action = call.partition(" ")
        data = b"" if body is None else json.dumps(body).encode()
        done = unless(f"{what}: fc:{action}", lambda: self._send(method, action, path, data), ignoring)
        return None if done is None else dict(done.json()) if done.content else {}

    def invoke(self, what: str, name: str, event: bytes, *, seconds: float) -> Invocation:
        """Run the function and wait for at most ``seconds``.

        Raises:
            CloudspotError: the function could not be run.
        """
        with ERRORS.translated(f"{what}: fc:InvokeFunction"):
            path = f"/functions/{name}/invocations"
            done = self._send("POST", "InvokeFunction", path, event, is_event=True, seconds=seconds)
        return Invocation("X-Fc-Error-Type" in done.headers, done.content)

    def _send(
        self,
        method: str,
        action: str,
        path: str,
        data: bytes,
        *,
        is_event: bool = False,
        seconds: float = READ_SECONDS,
    ) -> requests.Response:
        endpoint = fc_endpoint(self._clients.region)
        path = f"/{VERSION}{path}"
        headers = signed_headers(
            self._clients.credentials.get(),
            {
                "content-type": "application/octet-stream" if is_event else "application/json; charset=utf-8",
                "host": endpoint.netloc,
                "x-acs-action": action,
                "x-acs-version": VERSION,
            },
            method=method,
            path=path,
            data=data,
        )
        done = requests.request(
            method,
            f"{endpoint.scheme}://{endpoint.netloc}{path}",
            data=data,
            headers={**headers, "User-Agent": USER_AGENT},
            timeout=(CONNECT_SECONDS, seconds),
            allow_redirects=False,
        )
        if done.status_code >= 300:
            try:
                error_fields = done.json()
                code, message = (
                    str(error_fields.get("Code") or error_fields["code"]),
                    str(error_fields.get("Message") or error_fields["message"]),
                )
            except (ValueError, KeyError, AttributeError, RecursionError):
                code, message = "", f"HTTP status {done.status_code}"
            raise ServerException(code, message, http_status=done.status_code)
        return done


def signed_headers(
    key: Credentials,
    headers: Mapping[str, str],
    *,
    method: str,
    path: str,
    data: bytes,
    now: datetime | None = None,
    nonce: str | None = None,
) -> dict[str, str]:
    """Return the headers, including those that sign the request.

    The path must need no escaping, and the request must have no query parameters.
    """
    digest = hashlib.sha256(data).hexdigest()
    known = {
        **headers,
        "x-acs-content-sha256": digest,
        "x-acs-date": (now or datetime.now(timezone.utc)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "x-acs-signature-nonce": nonce or uuid.uuid4().hex,
        **({"x-acs-security-token": key.security_token} if key.security_token else {}),
    }
    names = ";".join(sorted(known))
    lines = "".join(f"{name}:{known[name]}\n" for name in sorted(known))
    canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{digest}"
    text = f"{_ALGORITHM}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(key.access_key_secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    signed = f"{_ALGORITHM} Credential={key.access_key_id},SignedHeaders={names},Signature={signature}"
    return {**known, "Authorization": signed}
