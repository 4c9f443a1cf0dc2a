"""The emulated operations: the API's asynchronous work, and its record of how machines ended."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.catalogue import BASE

KEPT_SECONDS: Final = 14 * 24 * 3600.0
"""How long a finished operation is listed ("Handling API responses"; from memory)."""
SYSTEM: Final = "system"
_FIRST_ID: Final = 5_000_000_000_000_000_000
ApiErrors = Sequence[Mapping[str, Any]]


@dataclass
class Operation:
    """One operation."""

    value: dict[str, Any]
    """The fields that the API shows and that never change."""
    scope: str
    """``zones/ZONE``, ``regions/REGION`` or ``global``."""
    inserted_at: float
    done_at: float
    errors: ApiErrors = ()
    """The content of ``error.errors`` when the operation is done."""
    status: int = 0
    """``httpErrorStatusCode``; many failed operations have none."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """The fields that appear when the operation is done."""


class Operations:
    """All operations of a project. The caller holds the machines' lock."""

    def __init__(self, project: str, clock: Callable[[], float]) -> None:
        self._project = project
        self._clock = clock
        self._numbers = itertools.count(1)
        self._all: list[Operation] = []

    def add(
        self,
        scope: str,
        kind: str,
        target: str,
        *,
        user: str,
        seconds: float = 0.0,
        errors: ApiErrors = (),
        status: int = 0,
        more: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Operation:
        """Begin an operation that takes ``seconds``.

        ``target`` is the target's path; ``fields`` are added to the operation.
        """
        now = self._clock()
        name = f"operation-{int(now * 1000)}-{secrets.token_hex(6)}"
        resource: dict[str, Any] = {
            "kind": "compute#operation",
            "id": str(_FIRST_ID + next(self._numbers)),
            "name": name,
            "operationType": kind,
            "targetLink": BASE + target,
            "user": user,
            "insertTime": timestamp(now),
            "startTime": timestamp(now),
            "selfLink": f"{BASE}projects/{self._project}/{scope}/operations/{name}",
            **{name: item for name, item in fields.items() if item},
        }
        if scope != "global":
            kind_of_scope, _, where = scope.partition("/")
            resource[kind_of_scope.removesuffix("s")] = (
                f"{BASE}projects/{self._project}/{kind_of_scope}/{where}"
            )
        operation = Operation(resource, scope, now, now + seconds, errors, status, more or {})
        self._all.append(operation)
        return operation

    def show(self, operation: Operation) -> dict[str, Any]:
        """Return the operation's current state."""
        if self._clock() < operation.done_at:
            return {**operation.value, "status": "RUNNING", "progress": 0}
        resource = {
            **operation.value,
            **operation.more,
            "status": "DONE",
            "progress": 100,
            "endTime": timestamp(operation.done_at),
        }
        if operation.errors:
            resource["error"] = {"errors": [dict(one) for one in operation.errors]}
        if operation.status:
            resource["httpErrorStatusCode"] = operation.status
            resource["httpErrorMessage"] = "BAD REQUEST"
        return resource

    def find(self, scope: str, name: str) -> Operation:
        """Return the operation by its name or its id.

        Raises:
            ApiError: the operation does not exist (404).
        """
        for operation in self._all:
            if operation.scope == scope and name in {operation.value["name"], operation.value["id"]}:
                return operation
        path = f"projects/{self._project}/{scope}/operations/{name}"
        raise ApiError(404, "notFound", f"The resource '{path}' was not found")

    def by_scope(self) -> dict[str, list[dict[str, Any]]]:
        """Return the listed operations by scope, oldest first."""
        now = self._clock()
        self._all = [one for one in self._all if now - one.done_at < KEPT_SECONDS]
        found: dict[str, list[dict[str, Any]]] = {}
        for operation in self._all:
            found.setdefault(operation.scope, []).append(self.show(operation))
        return found


def timestamp(seconds: float) -> str:
    """Return a moment in the API's form, such as ``2026-11-20T08:22:00.000+00:00``."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
