"""moto's CloudWatch Logs made as strict as the real service: WSGI middleware around moto's server.

The middleware checks signatures and permissions, refuses the batches that the service refuses, and returns
small pages.

Source: CloudWatch Logs API reference, PutLogEvents, GetLogEvents (checked 2026-11).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from moto.core import DEFAULT_ACCOUNT_ID

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot_aws_sandbox.callers import authenticate
from cloudspot_aws_sandbox.query import ApiError, read_body
from cloudspot_aws_sandbox.rights import needs_of

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

MAX_BATCH_BYTES = 1_048_576
MAX_BATCH_EVENTS = 10_000
MAX_EVENT_BYTES = 1_048_576
OVERHEAD_BYTES = 26
MAX_SPAN_MS = 24 * 3600 * 1000
_TARGET = "Logs_20140328."


class StrictLogs:
    """WSGI middleware; requests to other services reach ``app`` unchanged. Thread-safe."""

    def __init__(
        self,
        app: WSGIApplication,
        *,
        faults: Faults,
        secrets: Mapping[str, str],
        is_granted: Callable[[str, str, str, Mapping[str, str]], bool] | None = None,
        page_events: int = MAX_BATCH_EVENTS,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """``is_granted`` returns whether a key has a permission on a resource (an ARN) in a context."""
        self.page_events = page_events
        """The maximum number of events on a page of GetLogEvents."""
        self._app = app
        self._faults = faults
        self._secrets = secrets
        self._is_granted = is_granted
        self._now = now

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        target = str(environ.get("HTTP_X_AMZ_TARGET", ""))
        if not target.startswith(_TARGET):
            return self._app(environ, start_response)
        action = target.removeprefix(_TARGET)
        body = read_body(environ)
        parameters: dict[str, Any] = {}
        region = access_key = ""
        try:
            region, access_key = authenticate(
                environ, body, "logs", secrets=self._secrets, faults=self._faults, now=self._now
            )
            parameters = json.loads(body)
            injected = self._faults.take(action)
            if injected is not None and not injected.happens:
                raise ApiError(injected.code, injected.message, status=injected.status)
            self._authorize(Call("logs", action, parameters, region, None, access_key))
            if action == "PutLogEvents":
                _check_batch(parameters["logEvents"])
            if action == "GetLogEvents":
                parameters["limit"] = min(parameters.get("limit", self.page_events), self.page_events)
                _replace_body(environ, json.dumps(parameters).encode())
            status, headers, content = self._forward(environ)
            if injected is not None:
                raise ApiError(injected.code, injected.message, status=injected.status)
            code = None if status.startswith("2") else json.loads(content).get("__type", status)
        except ApiError as error:
            code = error.code
            status = f"{error.status} {HTTPStatus(error.status).phrase}"
            content = json.dumps({"__type": error.code, "message": error.message}).encode()
            headers = [
                ("Content-Type", "application/x-amz-json-1.1"),
                ("Content-Length", str(len(content))),
            ]
        self._faults.record(Call("logs", action, _without_events(parameters), region, code, access_key))
        start_response(status, headers)
        return [content]

    def _authorize(self, call: Call) -> None:
        for right, arn, context in needs_of(call, account=DEFAULT_ACCOUNT_ID):
            is_granted = self._is_granted is None or self._is_granted(call.access_key, right, arn, context)
            if right in self._faults.denied or not is_granted:
                message = f"User is not authorized to perform: {right} on resource: {arn}"
                raise ApiError("AccessDeniedException", message, status=400)

    def _forward(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        """Let moto answer."""
        seen: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> Callable[[bytes], object]:
            seen.append((status, headers))
            return lambda _: None

        content = b"".join(self._app(environ, start))
        status, headers = seen[-1]
        return status, headers, content


def _check_batch(events: list[dict[str, Any]]) -> None:
    sizes = [len(event["message"].encode()) for event in events]
    times = [event["timestamp"] for event in events]
    if not 1 <= len(events) <= MAX_BATCH_EVENTS:
        raise _wrong("Member must have length less than or equal to 10000")
    if min(sizes) < 1:
        raise _wrong("Log event message must not be empty")
    if max(sizes) > MAX_EVENT_BYTES:
        raise _wrong(f"Log event too large: {max(sizes)} bytes exceeds limit of {MAX_EVENT_BYTES}")
    total = sum(sizes) + OVERHEAD_BYTES * len(events)
    if total > MAX_BATCH_BYTES:
        raise _wrong(f"Upload too large: {total} bytes exceeds limit of {MAX_BATCH_BYTES}")
    if times != sorted(times):
        raise _wrong("Log events in a single PutLogEvents request must be in chronological order.")
    if times[-1] - times[0] > MAX_SPAN_MS:
        raise _wrong(
            "The batch of log events in a single PutLogEvents request cannot span more than 24 hours."
        )


def _wrong(message: str) -> ApiError:
    return ApiError("InvalidParameterException", message)


def _replace_body(environ: dict[str, Any], body: bytes) -> None:
    environ["wsgi.input"] = io.BytesIO(body)
    environ["CONTENT_LENGTH"] = str(len(body))


def _without_events(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with the events replaced by their number."""
    return {name: len(value) if name == "logEvents" else value for name, value in parameters.items()}
