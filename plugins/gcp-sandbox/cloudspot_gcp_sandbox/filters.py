"""The ``filter``, ``orderBy``, ``maxResults`` and ``pageToken`` of Compute Engine's lists.

Source: the parameters' descriptions in the discovery document of compute v1. Unknown syntax is refused, so
that no test passes because a filter was misread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cloudspot_gcp_sandbox.apierror import ApiError, invalid

MAX_RESULTS: Final = 500
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<punctuation>[()])|(?P<operator>!=|<=|>=|=|<|>|:)"""
    r"""|"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<word>[^\s()=!<>:"']+))"""
)
_FIELD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z0-9_-]+)*")
_URL_FIELDS: Final = frozenset({"targetLink", "selfLink", "zone", "region", "machineType", "network"})
Token = tuple[str, str]
Test = Callable[[Mapping[str, Any]], bool]


def matching(items: Sequence[Mapping[str, Any]], expression: str | None) -> list[Mapping[str, Any]]:
    """Return the items that match the filter.

    Raises:
        ApiError: the filter cannot be read (400).
    """
    if not expression or not expression.strip():
        return list(items)
    test = _Parser(expression).parse()
    return [item for item in items if test(item)]


def page(items: Sequence[Any], query: Mapping[str, Any]) -> tuple[list[Any], str | None]:
    """Return the items of the requested page, and the token of the next page.

    Raises:
        ApiError: the size or the token is malformed (400).
    """
    size, token = query.get("maxResults", MAX_RESULTS), query.get("pageToken", "")
    if not 0 <= size <= MAX_RESULTS:
        raise invalid(
            f"Invalid value for field 'maxResults': '{size}'. Values must be within the range: [0, 500]"
        )
    if token and not token.startswith("page-"):
        raise invalid(f"Invalid value for field 'pageToken': '{token}'.")
    start = int(token.removeprefix("page-") or 0)
    end = start + (size or MAX_RESULTS)
    return list(items[start:end]), f"page-{end}" if end < len(items) else None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._at = 0
        words = {value for kind, value in self._tokens if kind == "word"}
        self._is_regex = bool(words & {"eq", "ne"})
        if self._is_regex and any(kind == "operator" for kind, _ in self._tokens):
            raise self._wrong("regular expressions and AIP-160 cannot be mixed")

    def parse(self) -> Test:
        test = self._either()
        if self._at < len(self._tokens):
            raise self._wrong(f"unexpected {self._tokens[self._at][1]!r}")
        return test

    def _split(self, text: str) -> list[Token]:
        tokens: list[Token] = []
        position, text = 0, text.strip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._wrong(f"cannot be read at {position}")
            position = match.end()
            kind = str(match.lastgroup)
            tokens.append(("text" if kind in {"double", "single"} else kind, match[kind]))
        return tokens

    def _either(self) -> Test:
        tests = [self._all()]
        while self._take_keyword("OR"):
            tests.append(self._all())
        return tests[0] if len(tests) == 1 else lambda item: any(test(item) for test in tests)

    def _all(self) -> Test:
        tests = [self._term()]
        while self._at < len(self._tokens) and self._tokens[self._at] not in {
            ("word", "OR"),
            ("punctuation", ")"),
        }:
            self._take_keyword("AND")
            tests.append(self._term())
        return tests[0] if len(tests) == 1 else lambda item: all(test(item) for test in tests)

    def _term(self) -> Test:
        if self._take_keyword("NOT"):
            inner = self._term()
            return lambda item: not inner(item)
        kind, token = self._next()
        if (kind, token) == ("punctuation", "("):
            test = self._either()
            if self._next() != ("punctuation", ")"):
                raise self._wrong("a ) is missing")
            return test
        if kind != "word" or not _FIELD.fullmatch(token):
            raise self._wrong(f"{token!r} is not a field")
        return self._comparison(token)

    def _comparison(self, field: str) -> Test:
        kind, operator = self._next()
        if kind not in {"operator", "word"} or operator not in {"=", "!=", ":", "eq", "ne"}:
            raise self._wrong(f"the operator {operator!r} is not known here")
        kind, wanted = self._next()
        if kind not in {"word", "text"}:
            raise self._wrong(f"{wanted!r} is not a value")
        if operator in {"eq", "ne"}:
            pattern = re.compile(wanted)
            return lambda item: (pattern.fullmatch(_text(item, field)) is None) == (operator == "ne")
        if operator == ":":
            if wanted == "*" and kind == "word":
                return lambda item: _value(item, field) is not None
            if field in _URL_FIELDS:
                # Others have found that, on the real API, ``:`` silently matches nothing in a URL.
                return lambda _: False
            return lambda item: wanted in _text(item, field)
        return lambda item: (_text(item, field) == wanted) == (operator == "=")

    def _next(self) -> Token:
        if self._at >= len(self._tokens):
            raise self._wrong("it is incomplete")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take_keyword(self, keyword: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] == ("word", keyword):
            self._at += 1
            return True
        return False

    def _wrong(self, why: str) -> ApiError:
        return invalid(
            f"Invalid value for field 'filter': '{self._text}'. Invalid list filter expression. {why}"
        )


def _value(item: Mapping[str, Any], field: str) -> Any:
    value: Any = item
    for step in field.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value


def _text(item: Mapping[str, Any], field: str) -> str:
    value = _value(item, field)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
