"""Partial responses: selects the parts of a JSON value that the parameter ``fields`` names.

Source: "Partial response" in Google's guides to its JSON APIs, ``fields=items(name,size),nextPageToken``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cloudspot_gcp_sandbox.apierror import ApiError

Selector = Mapping[str, "Selector"]
_TOKEN = re.compile(r"[A-Za-z0-9_*]+|[/(),]")


def select(value: Any, fields: str) -> Any:
    """Return the parts of the value that ``fields`` names.

    Raises:
        ApiError: 400, ``fields`` cannot be parsed.
    """
    tokens = _TOKEN.findall(fields)
    if "".join(tokens) != fields.replace(" ", "") or not tokens:
        raise _unreadable(fields)
    selector = _parse(tokens, fields)
    if tokens:
        raise _unreadable(fields)
    return _apply(value, selector)


def _parse(tokens: list[str], fields: str) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    while True:
        if not tokens or not re.match(r"[\w*]", tokens[0]):
            raise _unreadable(fields)
        _merge(tree, _parse_one(tokens, fields))
        if not tokens or tokens[0] != ",":
            return tree
        tokens.pop(0)


def _merge(found: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Merge another selection; a name alone selects everything below it."""
    for name, inner in more.items():
        if name in found and found[name] and inner:
            _merge(found[name], inner)
        else:
            found[name] = {} if name in found else inner


def _parse_one(tokens: list[str], fields: str) -> dict[str, Any]:
    name = tokens.pop(0)
    inner: dict[str, Any] = {}
    if tokens and tokens[0] == "/":
        tokens.pop(0)
        if not tokens or not re.match(r"[\w*]", tokens[0]):
            raise _unreadable(fields)
        inner = _parse_one(tokens, fields)
    elif tokens and tokens[0] == "(":
        tokens.pop(0)
        inner = _parse(tokens, fields)
        if not tokens or tokens.pop(0) != ")":
            raise _unreadable(fields)
    return {name: inner}


def _apply(value: Any, selector: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_apply(item, selector) for item in value]
    if not selector or "*" in selector or not isinstance(value, dict):
        return value
    return {name: _apply(item, selector[name]) for name, item in value.items() if name in selector}


def _unreadable(fields: str) -> ApiError:
    return ApiError(400, "invalidParameter", f"Invalid field selection {fields}")
