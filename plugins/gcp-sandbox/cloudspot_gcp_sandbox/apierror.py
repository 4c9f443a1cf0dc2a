"""Errors in the form of Google's JSON APIs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

_STATUS_NAMES: Mapping[int, str] = MappingProxyType(
    {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "NOT_FOUND",
        409: "ALREADY_EXISTS",
        412: "FAILED_PRECONDITION",
        416: "OUT_OF_RANGE",
        429: "RESOURCE_EXHAUSTED",
        500: "INTERNAL",
        501: "UNIMPLEMENTED",
        503: "UNAVAILABLE",
        504: "DEADLINE_EXCEEDED",
    }
)


class ApiError(Exception):
    """The refusal of a request, raised by a fake.

    ``reason`` becomes ``error.errors[0].reason``, such as ``notFound``, ``conditionNotMet`` or
    ``quotaExceeded``; ``status_name`` becomes ``error.status``, by default the name of the HTTP status;
    ``details`` becomes ``error.details``.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        domain: str = "global",
        status_name: str | None = None,
        details: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.domain = domain
        self.status_name = status_name or _STATUS_NAMES.get(status, "UNKNOWN")
        self.details = tuple(details)
        self.headers = headers

    def value(self) -> dict[str, Any]:
        """Return the response's JSON value."""
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "errors": [{"message": self.message, "domain": self.domain, "reason": self.reason}],
            "status": self.status_name,
        }
        if self.details:
            error["details"] = list(self.details)
        return {"error": error}

    def body(self) -> bytes:
        """Return the response's body."""
        return json.dumps(self.value()).encode()


def invalid(message: str, *, field: str = "") -> ApiError:
    """Return the refusal of a request that violates the API's own description."""
    violation = {"description": message} | ({"field": field} if field else {})
    return ApiError(
        400,
        "badRequest",
        message,
        details=[{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}],
    )
