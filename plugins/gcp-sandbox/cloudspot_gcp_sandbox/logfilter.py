"""Parses the part of Cloud Logging's query language that programs use; the rest is refused.

Comparisons with ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``:`` and ``=~``, joined by AND (or by nothing),
OR, NOT and brackets. Strings are compared without regard to case.

Source: Cloud Logging, "Logging query language" (checked 2026-11).
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from cloudspot_gcp_sandbox.apierror import ApiError, invalid

MAX_CHARACTERS = 20_000
_TOKEN = re.compile(
    r"""\s*(?:(?P<bracket>[()])|(?P<operator>=~|!~|!=|<=|>=|=|<|>|:)|(?P<text>"(?:[^"\\]|\\.)*")"""
    r"""|(?P<word>[A-Za-z0-9_./@*+-]+))"""
)
_TIMES = {"timestamp", "receiveTimestamp"}
_FIELDS = {
    *("logName", "insertId", "labels", "resource", "severity", "textPayload", "jsonPayload"),
    *("timestamp", "receiveTimestamp", "trace", "spanId", "operation", "httpRequest"),
}
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SEVERITIES = (
    *("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING"),
    *("ERROR", "CRITICAL", "ALERT", "EMERGENCY"),
)

Predicate = Callable[[Mapping[str, Any]], bool]


def parse_filter(text: str) -> Predicate:
    """Return a predicate that holds for matching entries; an entry's times must be datetimes.

    Raises:
        ApiError: 400, the query cannot be parsed.
    """
    if len(text) > MAX_CHARACTERS:
        raise invalid(f"The filter is longer than {MAX_CHARACTERS} characters.")
    parser = _Parser(text)
    if not parser.tokens:
        return lambda _: True
    found = parser.alternatives()
    if parser.tokens:
        raise _unparseable(text)
    return found


def moment(text: str) -> datetime:
    """Parse the time of an entry or a query, to the microsecond.

    Raises:
        ApiError: 400, the text is not a time.
    """
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", text)
    if match is None:
        raise invalid(f"Invalid time: {text}")
    fraction = (match[2] or "")[:6].ljust(6, "0")
    return datetime.fromisoformat(f"{match[1]}.{fraction}{match[3].replace('Z', '+00:00')}")


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise _unparseable(text)
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()

    def alternatives(self) -> Predicate:
        parts = [self._conjunction()]
        while self._take("word", "OR"):
            parts.append(self._conjunction())
        return lambda entry: any(part(entry) for part in parts)

    def _conjunction(self) -> Predicate:
        parts = [self._term()]
        while self.tokens and self.tokens[0] not in {("bracket", ")"), ("word", "OR")}:
            self._take("word", "AND")
            parts.append(self._term())
        return lambda entry: all(part(entry) for part in parts)

    def _term(self) -> Predicate:
        if self._take("word", "NOT"):
            inner = self._term()
            return lambda entry: not inner(entry)
        if self._take("bracket", "("):
            inner = self.alternatives()
            if not self._take("bracket", ")"):
                raise _unparseable(self._text)
            return inner
        return self._comparison()

    def _comparison(self) -> Predicate:
        path = self._path()
        if not self.tokens or self.tokens[0][0] != "operator":
            raise _unparseable(self._text)
        sign = self.tokens.pop(0)[1]
        if self._take("bracket", "("):
            values = [self._value()]
            while self._take("word", "OR"):
                values.append(self._value())
            if not self._take("bracket", ")"):
                raise _unparseable(self._text)
        else:
            values = [self._value()]
        tests = [_comparison(path, sign, value) for value in values]
        return lambda entry: any(test(entry) for test in tests)

    def _path(self) -> tuple[str, ...]:
        if not self.tokens or self.tokens[0][0] != "word":
            raise _unparseable(self._text)
        word = self.tokens.pop(0)[1]
        path = tuple(part for part in word.split(".") if part)
        while word.endswith(".") and self.tokens and self.tokens[0][0] == "text":
            path += (json.loads(self.tokens.pop(0)[1]),)
            word = ""
        if path[0] not in _FIELDS:
            raise invalid(f"Unparseable filter: unknown field {path[0]}")
        return path

    def _value(self) -> str:
        if not self.tokens or self.tokens[0][0] not in {"text", "word"}:
            raise _unparseable(self._text)
        kind, text = self.tokens.pop(0)
        return str(json.loads(text)) if kind == "text" else text

    def _take(self, kind: str, text: str) -> bool:
        if self.tokens and self.tokens[0] == (kind, text):
            self.tokens.pop(0)
            return True
        return False


def _comparison(path: tuple[str, ...], sign: str, text: str) -> Predicate:
    wanted: Any = text.lower()
    if path[0] in _TIMES:
        wanted = moment(text if "T" in text else f"{text}T00:00:00Z")
    elif path[0] == "severity":
        if text.upper() not in _SEVERITIES:
            raise invalid(f"Unparseable filter: no severity {text}")
        wanted = _SEVERITIES.index(text.upper())
    elif sign in {"=~", "!~"}:
        wanted = re.compile(text)

    def test(entry: Mapping[str, Any]) -> bool:
        value: Any = entry
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if path[0] == "severity":
            value = _SEVERITIES.index(value or "DEFAULT")
        if value is None:
            return sign in {"!=", "!~"}
        if sign in {"=~", "!~"}:
            return (wanted.search(str(value)) is not None) is (sign == "=~")
        if isinstance(value, str):
            value = value.lower()
        if sign == ":":
            return wanted in value if isinstance(value, str) else bool(value == wanted)
        return bool(_COMPARE[sign](value, wanted))

    return test


def _unparseable(text: str) -> ApiError:
    return invalid(f"Unparseable filter: syntax error: {text[:200]}")
