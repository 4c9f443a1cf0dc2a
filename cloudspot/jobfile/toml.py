"""Read TOML files and ``--set`` overrides as raw tables."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from cloudspot.errors import SpecError
from cloudspot.jobfile.tables import CREDENTIAL_NAME, expects_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES: Final = 1 << 20
"""The maximum number of bytes to read, so that a data file named by mistake is not read whole."""

_ASSIGNMENT: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=\s*([^\s\"'\[{#][^\"'#]*?)\s*(?:#.*)?")
"""A key whose value is not a quoted string, a list or a table."""
_KEY: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the file's raw table.

    Raises:
        SpecError: the file cannot be read, or is not TOML; the message names the line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        # Some editors write a byte order mark.
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SpecError(f"{path}: line {line} is not UTF-8 text, so this is not a TOML file") from None
    if len(data) > MAX_BYTES:
        raise SpecError(
            f"{path} has more than {MAX_BYTES >> 20} MiB, which is too large for a file of settings"
        )
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if path.suffix == ".py":
            raise SpecError(
                f"{path} is a Python script, not a job file; to write a job file, run: cloudspot init "
                f"--entrypoint {path}"
            ) from None
        hint = "" if path.suffix == ".toml" else "; a job file is TOML, and cloudspot init writes one"
        raise SpecError(f"{path}: {_syntax_error(str(error), text)}{hint}") from None
    return raw


def apply_override(raw: dict[str, Any], text: str, type_: type[msgspec.Struct]) -> tuple[str, ...]:
    """Apply one ``a.b=c`` override to the raw table of a ``type_``; return its path.

    The value is a string if the field accepts only strings or the value is not TOML; otherwise it is parsed
    as TOML.

    Raises:
        SpecError: the text is not ``FIELD=VALUE``, or a field in the path is not a table.
    """
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not _KEY.fullmatch(key):
        # The text is not shown because it may contain a credential.
        raise SpecError("--set: expected FIELD=VALUE, as in --set limits.max_cost=20")
    path = tuple(key.split("."))
    table = raw
    for i, step in enumerate(path[:-1]):
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise SpecError(f"--set {key}: {'.'.join(path[: i + 1])} is not a table in the job file")
    table[path[-1]] = _value(value, lambda parsed: expects_text(type_, path, parsed))
    return path


def _value(text: str, is_text: Callable[[Any], bool]) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed["value"]
    # If there is more than one key, the text contained a line break and another assignment.
    return text if len(parsed) > 1 or (not isinstance(value, str) and is_text(value)) else value


def _syntax_error(message: str, text: str) -> str:
    """Return the TOML parser's message with the line number first."""
    match = re.fullmatch(r"(?s)(.*) \(at line (\d+), column \d+\)", message)
    if match:
        return f"line {match[2]}: {match[1]}{_quotes_hint(text.splitlines()[int(match[2]) - 1])}"
    reason = message.removesuffix(" (at end of document)")
    return f"line {len(text.splitlines())}: {reason} at the end of the file"


def _quotes_hint(line: str) -> str:
    """Return the line with its value in quotes as a hint, if only the quotes are missing."""
    assignment = _ASSIGNMENT.fullmatch(line)
    if assignment is None:
        return ""
    key, value = assignment.groups()
    quoted = f'{key} = "{value}"'
    try:
        tomllib.loads(quoted)
    except tomllib.TOMLDecodeError:
        return ""
    return "; text needs quotes" + ("" if CREDENTIAL_NAME.fullmatch(key) else f": {quoted}")
