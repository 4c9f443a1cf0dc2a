"""Reports Google's API calls through the hooks of requests, which all of Google's clients here use.

Source: requests, "Event Hooks" (checked 2026-11).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import requests

from cloudspot.plugin.apirecording import ApiExchange, report


def report_answers(session: requests.Session) -> None:
    """Report each response that the session receives from now on, unless it is read as a stream."""
    session.hooks["response"].append(_report)


def _report(answer: requests.Response, **options: Any) -> None:
    if options.get("stream"):
        return
    sent = answer.request
    parts = urlsplit(str(sent.url))
    body = _json_of(answer.content)
    report(
        ApiExchange(
            service=_service_of(parts.path),
            action=f"{sent.method} {parts.path}",
            request={"query": dict(parse_qsl(parts.query)), "body": _json_of(sent.body)},
            answer=body,
            status=answer.status_code,
            code="" if answer.ok else error_code(body, answer.status_code),
            seconds=answer.elapsed.total_seconds(),
        )
    )


def _service_of(path: str) -> str:
    """Return the service's name, judged by its path, which is unique to the service whatever the host."""
    first, _, rest = path.lstrip("/").partition("/")
    if rest.startswith("entries:"):
        return "logging"
    return rest.partition("/")[0] if first in {"upload", "download", "batch"} else first


def _json_of(body: Any) -> Any:
    """Return a body's JSON, or None if the body contains no JSON."""
    if not isinstance(body, (str, bytes)):
        return None
    try:
        return json.loads(body)
    except ValueError:
        return None


def error_code(body: Any, status: int) -> str:
    """Return an error's first reason, else its status name, else the HTTP status."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if isinstance(error, Mapping):
        reasons = [one.get("reason") for one in error.get("errors") or () if isinstance(one, Mapping)]
        named = [one for one in (*reasons, error.get("status")) if isinstance(one, str)]
        if named:
            return named[0]
    return str(status)
