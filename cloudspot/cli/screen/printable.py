"""Make foreign text safe to show, and fit our own text to terminals that lack its characters."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Mapping
from dataclasses import fields as fields_of
from dataclasses import is_dataclass, replace
from enum import Enum
from typing import IO, Any

_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)"  # OSC and other strings: titles, links, the clipboard
    r"|\x1b[ -/]*[0-~]"  # the rest
    r"|\x9b[0-?]*[ -/]*[@-~]",  # CSI in eight bits
    re.DOTALL,
)
_CONTROLS = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f"
    "\u2028\u2029"  # ends of lines
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the reading direction of the rest of the line
    "\ud800-\udfff]"  # lone surrogates, which no encoding has
)
TAB_WIDTH = 8

_ASCII = {
    **dict.fromkeys("─━╌┄╴╶╸╺", "-"),
    **dict.fromkeys("│┃", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
    **dict.fromkeys("█▉▊▋▓", "#"),
    **dict.fromkeys("▌▍▎▏▒", "="),
    **dict.fromkeys("░·", "."),
    **dict.fromkeys("▁▂", "_"),
    **dict.fromkeys("▃▄▅", "-"),
    **dict.fromkeys("▆▇", "#"),
    **dict.fromkeys("•●◆", "*"),
    **dict.fromkeys("“”„«»", '"'),
    **dict.fromkeys("\u2018\u2019", "'"),
    **dict.fromkeys("\u2013\u2014\u2011", "-"),
    **dict(zip("\u00d7→←↑↓…✓✗\u00a0", "x><^v~+x ", strict=True)),
}
"""Substitutes for characters that the terminal's encoding lacks, equally wide so that columns stay aligned.
"""

REPLACING = "cloudspot-replacing"
"""The name of the codec error handler that inserts the substitutes. Other characters become ``?``."""


def printable(line: str) -> str:
    """Return the line as a terminal would show it, without anything that could move the cursor.

    If a progress bar is redrawn with carriage returns, only its last state is returned. Escape sequences
    (colours, titles, the clipboard, ...) and control characters are removed; a tab becomes spaces.
    """
    if line.isascii() and line.isprintable():
        return line
    parts = [part for part in re.split(r"\r+", line) if part]
    last = _SEQUENCES.sub("", parts[-1] if parts else "")
    if len(parts) > 1 and not last.strip():
        # The bar clears itself at the end, but its last state is still useful.
        last = _SEQUENCES.sub("", parts[-2])
    return _CONTROLS.sub("", last.expandtabs(TAB_WIDTH))


def in_one_line(text: str) -> str:
    """Return the whole text as one printable line; unlike in a log, a carriage return removes no text."""
    return printable(" ".join(re.split(r"[\r\n]+", text)))


def printable_value(value: Any) -> Any:
    """Return the value with every string in it, at any depth, passed through ``in_one_line``."""
    import msgspec

    if isinstance(value, str) and not isinstance(value, Enum):
        return in_one_line(value)
    if isinstance(value, Mapping):
        return {printable_value(name): printable_value(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(map(printable_value, value))
    if isinstance(value, msgspec.Struct):
        fields = {name: printable_value(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{one.name: printable_value(getattr(value, one.name)) for one in fields_of(value)}
        )
    return value


def shows_unicode(stream: IO[str]) -> bool:
    """Return whether the stream's encoding can represent all characters."""
    return (getattr(stream, "encoding", None) or "ascii").lower().replace("_", "-").startswith("utf")


def fit(stream: Any) -> None:
    """Let a text stream write a substitute for each character that its encoding lacks.

    ``LC_ALL=C`` means that a terminal supports only ASCII, although Python would send it UTF-8. A pipe or a
    file receives the bytes unchanged.
    """
    codecs.register_error(REPLACING, _replace)
    is_ascii_locale = os.environ.get("LC_ALL") in {"C", "POSIX"}
    chosen = "PYTHONIOENCODING" in os.environ or "PYTHONUTF8" in os.environ
    if is_ascii_locale and not chosen and stream.isatty():
        stream.reconfigure(encoding="ascii", errors=REPLACING)
    else:
        stream.reconfigure(errors=REPLACING)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in missing), error.end
