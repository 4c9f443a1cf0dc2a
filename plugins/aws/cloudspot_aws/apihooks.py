"""Reports AWS's API calls through botocore's own events.

The events of one call share a context. Source: botocore, "Events" (``before-parameter-build``,
``after-call``, ``after-call-error``; checked 2026-11).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import botocore.session

from cloudspot.plugin.apirecording import ApiExchange, report

_NOTE: Final = "cloudspot_call"
"""The key in a call's context under which the later events find the call and its start."""


def report_calls(session: botocore.session.Session) -> None:
    """Report each call of the clients that the session makes from now on."""
    session.register("before-parameter-build", _begin)
    session.register("after-call", _end)
    session.register("after-call-error", _fail)


def _begin(*, params: Mapping[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
    context[_NOTE] = model, dict(params), time.monotonic()


def _end(*, parsed: Mapping[str, Any], context: Mapping[str, Any], **_: Any) -> None:
    answer = dict(parsed)
    status = int(answer.pop("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    failed = status >= HTTPStatus.MULTIPLE_CHOICES
    code = str(answer.get("Error", {}).get("Code", status)) if failed else ""
    _report(context, answer=answer, status=status, code=code)


def _fail(*, exception: Exception, context: Mapping[str, Any], **_: Any) -> None:
    _report(context, answer=None, status=0, code=type(exception).__name__)


def _report(context: Mapping[str, Any], *, answer: Any, status: int, code: str) -> None:
    if _NOTE not in context:
        return
    model, parameters, began = context[_NOTE]
    report(
        ApiExchange(
            service=model.service_model.service_name,
            action=model.name,
            request=parameters,
            answer=answer,
            status=status,
            code=code,
            seconds=time.monotonic() - began,
        )
    )
