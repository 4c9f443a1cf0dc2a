"""The rules of the job file beyond its types; each is stated once, for the reader and the schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec


def text_like(
    pattern: str, wrong: str | Callable[[str], str], *, known: tuple[str, ...] = ()
) -> msgspec.Meta:
    """Require that a whole string matches the pattern.

    Args:
        pattern: a regular expression that has the same meaning in JavaScript.
        wrong: the message, in which ``{}`` stands for the string; or a function that returns it.
        known: strings that editors propose.
    """
    return msgspec.Meta(
        pattern=f"^(?:{pattern})$",
        extra={"wrong": wrong if callable(wrong) else lambda value: wrong.replace("{}", value)},
        extra_json_schema={"enum": list(known)} if known else None,
    )


ONCE: Final = msgspec.Meta(extra={"once": True}, extra_json_schema={"uniqueItems": True})
"""Require that a list has no duplicates."""


@dataclass(frozen=True)
class OneOf:
    """Exactly one of two fields must be given; if not ``is_needed``, at most one."""

    fields: tuple[str, str]
    wrong: str
    """The message, in which ``{}`` stands for ``both are`` or ``neither is``."""
    is_needed: bool = True

    def problem(self, table: Any, name: str) -> tuple[str, str] | None:
        """Return the invalid field of the table ``name`` (empty: the whole file) and the fault, or None."""
        num_there = sum(getattr(table, field) is not None for field in self.fields)
        if num_there == 1 or (num_there == 0 and not self.is_needed):
            return None
        return "", self.wrong.replace("{}", "both are" if num_there else "neither is")

    def schema(self) -> Mapping[str, Any]:
        """Return the rule as JSON Schema."""
        if not self.is_needed:
            return {"not": {"required": list(self.fields)}}
        return {"oneOf": [{"required": [field]} for field in self.fields]}


@dataclass(frozen=True)
class Needs:
    """A field that has an effect only together with another field."""

    field: str
    needed: str
    value: str | None = None
    """The value of ``field`` that needs the other field; None means any value."""
    called: str = ""
    """How messages refer to ``needed``, if not by its name."""

    def problem(self, table: Any, name: str) -> tuple[str, str] | None:
        """Return the invalid field of the table ``name`` (empty: the whole file) and the fault, or None."""
        found = getattr(table, self.field)
        concerns = bool(found) if self.value is None else found == self.value
        if not concerns or getattr(table, self.needed) is not None:
            return None
        return self.field, f"has no effect without {self.called or f'{name}.{self.needed}'}"

    def schema(self) -> Mapping[str, Any]:
        """Return the rule as JSON Schema."""
        if self.value is None:
            return {"dependencies": {self.field: [self.needed]}}
        given = {"properties": {self.field: {"const": self.value}}, "required": [self.field]}
        return {"if": given, "then": {"required": [self.needed]}}


TableRule = OneOf | Needs
"""A rule about several fields of a table; the table's class lists its rules in ``rules``."""

VARIABLE: Final = "[A-Za-z_][A-Za-z0-9_]*"
"""The name of an environment variable."""
SCHEME: Final = "[a-z][a-z0-9+.-]*"
"""The scheme of a URL."""


def _variable_problem(name: str) -> str:
    if name.startswith("CLOUDSPOT_"):
        return f"{name!r}: names that begin with CLOUDSPOT_ are reserved"
    return f"{name!r} is not the name of an environment variable"


def _url_problem(url: str) -> str:
    if "@" in url.partition("://")[2].partition("/")[0]:
        # The URL is not shown because it may contain a password.
        return "must not contain credentials; each machine that uses it finds its own"
    return f'"{url}" is not a URL; expected one such as file:///absolute/path'


Variable = Annotated[str, text_like(rf"(?!CLOUDSPOT_){VARIABLE}", _variable_problem)]
Url = Annotated[str, text_like(rf"{SCHEME}://[^/@]*(?:/[^\n]*)?", _url_problem)]
"""A URL without credentials."""
INSIDE: Final = r"(?![/~])(?!(?:[^\\]*/)?\.\.(?:/|$))[^\\]+"
INSIDE_WRONG: Final = '"{}" must be a path inside the working directory, such as "src/train.py"'
Inside = Annotated[str, text_like(INSIDE, INSIDE_WRONG)]
"""A path that does not leave the working directory."""
Argument = Annotated[str, text_like(r"[^\u0000]*", "must not contain a zero byte")]
"""A string that can be passed to a program."""
