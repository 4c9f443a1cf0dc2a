"""Text of others made safe to show, and ours made fit for terminals that lack its characters."""

from __future__ import annotations

import codecs
import os
import re
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
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # turn the direction in which the rest of the line is read
    "\ud800-\udfff]"  # halves of characters: no encoding has them
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
    "\u00d7": "x",
    "→": ">",
    "←": "<",
    "↑": "^",
    "↓": "v",
    "…": "~",
    "✓": "+",
    "✗": "x",
    "\u00a0": " ",
}
"""What stands for a character that the terminal's encoding lacks; as wide, so that columns stay in line."""

REPLACING = "cloudspot-replacing"
"""The name of the codec error handler that does so; ``?`` stands for all others."""


def printable(line: str) -> str:
    """Return what a terminal would show of a line of someone's log, and nothing that could move its cursor.

    Of a progress bar that was drawn over and over with carriage returns the last state is left. Escape
    sequences (colours, titles, the clipboard, ...) and control characters go; a tab becomes spaces.
    """
    if line.isascii() and line.isprintable():
        return line
    parts = [part for part in re.split(r"\r+", line) if part]
    last = _SEQUENCES.sub("", parts[-1] if parts else "")
    if len(parts) > 1 and not last.strip():
        # Cleared when it was done, as a bar that leaves nothing does: what it said is still of use.
        last = _SEQUENCES.sub("", parts[-2])
    return _CONTROLS.sub("", last.expandtabs(TAB_WIDTH))


def shows_unicode(stream: IO[str]) -> bool:
    """Say whether the stream's encoding has all characters."""
    return (getattr(stream, "encoding", None) or "ascii").lower().replace("_", "-").startswith("utf")


def fit(stream: Any) -> None:
    """Make a text stream write something for each character, whatever its encoding.

    ``LC_ALL=C`` says that a terminal knows ASCII only; Python itself would still send UTF-8 to it. A pipe
    or a file gets the bytes as they are.
    """
    codecs.register_error(REPLACING, _replace)
    told = os.environ.get("LC_ALL") in {"C", "POSIX"}
    chosen = "PYTHONIOENCODING" in os.environ or "PYTHONUTF8" in os.environ
    if told and not chosen and stream.isatty():
        stream.reconfigure(encoding="ascii", errors=REPLACING)
    else:
        stream.reconfigure(errors=REPLACING)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in missing), error.end
