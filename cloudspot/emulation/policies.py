"""Evaluate policies in the JSON format that several clouds share: statements that allow or deny actions.

Source: IAM user guide, "Policy evaluation logic", "IAM JSON policy elements: Condition operators"; RAM user
guide, "Policy elements" (checked 2026-11). A condition with an operator that is not supported here never
holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

Value = Callable[[str], str | None]
"""Returns the value of a condition key for a request, or None if the request has none."""


def is_allowed(policies: Iterable[str], right: str, resource: str, value: Value | None = None) -> bool:
    """Return whether the policies (in JSON) grant a permission on a resource.

    A denial overrides every grant. Without ``value``, every condition is assumed to hold.
    """
    effects = {
        statement["Effect"]
        for policy in policies
        for statement in _statements(policy)
        if _matches(statement["Action"], right)
        and _matches(statement["Resource"], resource)
        and (value is None or _holds(statement.get("Condition", {}), value))
    }
    return effects == {"Allow"}


@lru_cache(maxsize=256)
def _statements(policy: str) -> Sequence[Mapping[str, Any]]:
    found = json.loads(policy)["Statement"]
    return [found] if isinstance(found, Mapping) else list(found)


def _matches(patterns: str | Sequence[str], text: str) -> bool:
    listed = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatchcase(text, one) for one in listed)


def _holds(conditions: Mapping[str, Mapping[str, Any]], value_of: Value) -> bool:
    for operator, tests in conditions.items():
        for name, wanted in tests.items():
            value, listed = value_of(name), [wanted] if isinstance(wanted, str) else wanted
            if operator == "Null":
                is_met = (value is None) == (str(listed[0]).lower() == "true")
            elif operator == "StringEquals":
                is_met = value in listed
            elif operator == "StringLike":
                is_met = value is not None and _matches(listed, value)
            else:
                is_met = False
            if not is_met:
                return False
    return True
