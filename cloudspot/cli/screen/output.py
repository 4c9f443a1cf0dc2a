"""The output of commands: styled on a terminal and plain elsewhere; text for people, or JSON for programs.

Most of the text comes from elsewhere: from a training script, or from anyone who can write to the bucket. It
reaches the terminal only through the functions here, which remove its control characters. Only the live
screen and the progress bar write directly, with the same protection.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

import click

from cloudspot.cli import exit_codes
from cloudspot.cli.screen.printable import in_one_line
from cloudspot.errors import SpecError
from cloudspot.host.size_text import size_text


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def terminal_width() -> int | None:
    """Return the width of the terminal in characters; None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if is_terminal() else None


class Styled(NamedTuple):
    """A part of a line that has its own style."""

    text: str
    style: str | None
    """A colour, ``bold``, ``dim``, or a combination of two such as ``bold red``; visible only on a terminal.
    """


def echo(*parts: str | Styled, style: str | None = None, error: bool = False) -> None:
    """Print the parts immediately as one line, without any control characters in them.

    ``style`` applies to the parts that have no style.
    """
    line = "".join(
        _coded(part) if isinstance(part, Styled) else _coded(Styled(part, style)) for part in parts
    )
    _put(line, error=error)


def _coded(part: Styled) -> str:
    text = in_one_line(part.text)
    if part.style is None or not text:
        return text
    styles = part.style.split()
    weights = {style: True for style in styles if style in {"bold", "dim"}}
    return click.style(text, fg=next((style for style in styles if style not in weights), None), **weights)


def _put(text: str, *, error: bool = False) -> None:
    color = False if os.environ.get("NO_COLOR") else None
    # Pass the stream, because click would otherwise open its own in UTF-8, even if this stream has another
    # encoding.
    click.echo(text, file=sys.stderr if error else sys.stdout, color=color)


def echo_error(message: str) -> None:
    """Print an error to standard error."""
    echo(Styled("error: ", "bold red"), " ".join(message.split()), error=True)


def echo_traceback(error: BaseException) -> None:
    """Print the error's traceback to standard error."""
    for line in "".join(traceback.format_exception(error)).splitlines():
        echo(line, error=True)


WARNING_STYLE = "magenta"
"""Yellow is illegible on white, and blue on black; red, green, cyan and magenta are legible on both."""


def warn(text: str) -> None:
    """Print a warning to standard error."""
    echo(f"warning: {text}", style=WARNING_STYLE, error=True)


def warner() -> Callable[[Exception], None]:
    """Return a function that warns of the errors of a retried call, each distinct error only once."""
    shown = set[str]()

    def warn_once(error: Exception) -> None:
        if str(error) not in shown:
            shown.add(str(error))
            warn(f"{error}; trying again")

    return warn_once


def confirm_deletion(what: str, *, yes: bool) -> None:
    """Ask whether to delete ``what`` unless ``yes`` is given; end the command if the answer is no."""
    confirm(f"Delete {what} permanently?", action="delete", otherwise="nothing was deleted", yes=yes)


def confirm(question: str, *, action: str, otherwise: str, yes: bool) -> None:
    """Ask the question unless ``yes`` is given; if the answer is no, print ``otherwise`` and end the command.

    Raises:
        SpecError: there is no terminal for the question.
    """
    if yes:
        return
    if not can_ask():
        raise SpecError(f"there is no terminal on which to ask; give --yes to {action} without asking")
    if not click.confirm(in_one_line(question), err=True):
        echo(otherwise, error=True)
        click.get_current_context().exit(exit_codes.FAILED)


def can_ask() -> bool:
    """Return whether a user can answer questions."""
    return sys.stdin.isatty()


def echo_json(value: Any) -> None:
    """Print one JSON value, indented, with times in RFC 3339 format; non-finite numbers become null."""
    import msgspec

    _put(_json_text(msgspec.to_builtins(value), indent=2))


def echo_json_line(value: Any) -> None:
    """Print one JSON value on one line, as ``echo_json`` does."""
    _put(_json_text(value, indent=None))


def _json_text(value: Any, *, indent: int | None) -> str:
    # JSON has no NaN, and few programs can read Python's notation for it. DEL is the only ASCII control
    # character that JSON allows unescaped in a string.
    return json.dumps(_finite(value), indent=indent, allow_nan=False).replace("\x7f", "\\u007f")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def echo_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    num_folding: int = 1,
    first_width: int | None = None,
) -> None:
    """Print a table: with rich on a terminal, elsewhere as aligned columns that are never cut or wrapped.

    On a narrow terminal, the last ``num_folding`` columns wrap; so does the first column, at ``first_width``
    characters, if that is given.
    """
    headers = [in_one_line(cell) for cell in headers]
    rows = [[in_one_line(cell) for cell in row] for row in rows]
    if is_terminal():
        _echo_rich_table(headers, rows, num_folding, first_width)
        return
    widths = [max(len(row[i]) for row in (headers, *rows)) for i in range(len(headers))]
    for row in (headers, *rows):
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _echo_rich_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], num_folding: int, first_width: int | None
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, header in enumerate(headers, start=1):
        if number == 1 and first_width is not None:
            table.add_column(header, overflow="fold", max_width=first_width)
        elif number <= len(headers) - num_folding:
            table.add_column(header, no_wrap=True)
        else:
            table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=STATE_STYLES.get(cell, "")) for cell in row))
    Console().print(table)


STATE_STYLES = {
    "succeeded": "green",
    "running": "cyan",
    "failed": "red",
    "stopped": WARNING_STYLE,
    "draining": WARNING_STYLE,
    "holding": WARNING_STYLE,
    "suspended": WARNING_STYLE,
}
"""The styles of job states on a terminal."""


def echo_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print ``name value`` lines with aligned values; empty values are omitted."""
    shown = [(name, value.splitlines()) for name, value in fields if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *rest = value
        echo("  ", Styled(name.ljust(width), "dim"), "  ", first)
        for line in rest:
            echo(f"  {' ' * width}  {line}")


def clock_text(moment: datetime) -> str:
    """Return a time for the start of a line: the local time of day on a terminal, full UTC elsewhere."""
    if is_terminal():
        return moment.astimezone().strftime("%H:%M:%S")
    return utc_text(moment)


def moment_text(moment: datetime | str) -> str:
    """Return a time for a table: the local date and time on a terminal, full UTC elsewhere."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if is_terminal():
        return moment.astimezone().strftime("%Y-%m-%d %H:%M")
    return utc_text(moment)


def utc_text(moment: datetime) -> str:
    """Return a time in the form ``2026-11-20T06:25:04Z``."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration_text(seconds: float) -> str:
    """Return a duration for people: ``0.4s``, ``42s``, ``3m 05s``, ``2h 07m``, ``3d 04h``."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}h"
    if hours:
        return f"{hours}h {minute:02}m"
    return f"{minutes}m {second:02}s" if minutes else f"{second}s"


def shared_size_text(num_bytes: int, num_shared: int, num_sent: int | None = None) -> str:
    """Return a checkpoint's size, the part shared with earlier ones, and the part sent if that is smaller."""
    notes = [f"{size_text(num_shared)} shared"] if num_shared else []
    if num_sent is not None and num_sent < num_bytes - num_shared:
        notes.append(f"{size_text(num_sent)} sent")
    return size_text(num_bytes) + (f" ({', '.join(notes)})" if notes else "")


def bar(share: float) -> str:
    """Return a bar of 30 characters, filled to ``share`` (0 to 1)."""
    filled = min(30, max(0, round(share * 30)))
    return "█" * filled + "░" * (30 - filled)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return metrics on one line: ``loss 0.123, accuracy 0.98``."""
    return ", ".join(f"{name} {value:.4g}" for name, value in sorted(metrics.items()))


def steps_text(step: int, steps_total: int | None) -> str:
    """Return ``120/600``, or ``120`` if the total is unknown."""
    return str(step) if steps_total is None else f"{step}/{steps_total}"
