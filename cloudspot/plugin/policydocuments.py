"""Compare policies in the JSON format that several clouds share: statements that allow actions."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Document = Mapping[str, Any]
_NEGATIONS: Final = ("NotAction", "NotResource", "NotPrincipal")


def excess(found: Iterable[Document], wanted: Iterable[Document]) -> list[str]:
    """Return a line for each permission in the ``found`` policies that the ``wanted`` policies do not grant.

    Statements that deny something are ignored, because they only restrict. A statement that allows something
    is covered by a wanted statement that includes its actions, resources and principals and has no further
    condition. A statement whose scope is unclear, for example with a ``NotAction``, counts as excess.
    """
    allowed = [one for document in wanted for one in _statements(document) if one.get("Effect") == "Allow"]
    lines = []
    for document in found:
        for statement in _statements(document):
            if statement.get("Effect") == "Deny":
                continue
            unclear = [name for name in _NEGATIONS if name in statement]
            if unclear:
                lines.append(f"it allows everything except what {unclear[0]} names")
                continue
            lines += [
                f"it allows {action} on {resource}" + (f" to {principal}" if principal else "")
                for action in listed(statement.get("Action", "*"))
                for resource in listed(statement.get("Resource", "*"))
                for principal in _principals(statement)
                if not any(_covers(one, statement, action, resource, principal) for one in allowed)
            ]
    return list(dict.fromkeys(lines))


def lacking(found: Sequence[Document], wanted: Sequence[Document]) -> list[str]:
    """Return a line for each permission in the ``wanted`` policies that the ``found`` policies lack."""
    return [line.replace("it allows", "it does not allow", 1) for line in excess(wanted, found)]


def _covers(
    wider: Mapping[str, Any], statement: Mapping[str, Any], action: str, resource: str, principal: str
) -> bool:
    if any(name in wider for name in _NEGATIONS):
        return False
    conditions = statement.get("Condition", {})
    return (
        any(_matches(action.lower(), one.lower()) for one in listed(wider.get("Action", "*")))
        and any(_matches(resource, one) for one in listed(wider.get("Resource", "*")))
        and any(principal == one for one in _principals(wider))
        and all(conditions.get(name) == value for name, value in wider.get("Condition", {}).items())
    )


def _matches(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


def _statements(document: Document) -> Sequence[Mapping[str, Any]]:
    found = document.get("Statement", ())
    return [found] if isinstance(found, Mapping) else found


def _principals(statement: Mapping[str, Any]) -> list[str]:
    """Return the statement's principals, such as ``Service vm.example.com``, or ``[""]`` if it names none."""
    found = statement.get("Principal", "")
    if not isinstance(found, Mapping):
        return [str(found)]
    return [f"{kind} {name}" for kind, names in found.items() for name in listed(names)]


def listed(value: Any) -> Sequence[str]:
    """Return an element of a statement, which is a string or a list of strings, as a list."""
    return [str(value)] if isinstance(value, str) else [str(one) for one in value]
