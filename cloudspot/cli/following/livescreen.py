"""Show a panel at the bottom of the terminal, redrawn twice a second, with lines scrolling above it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cloudspot.cli.following.terminal import TerminalState
from cloudspot.cli.screen import output
from cloudspot.cli.screen.lines import CLOUDSPOT, Line
from cloudspot.cli.screen.printable import in_one_line, shows_unicode

REFRESHES_PER_SECOND = 2.0
MAX_LINE_LENGTH = 2000
"""Longer lines are cut; ``cloudspot logs`` prints them in full."""
MAX_BURST = 500
"""The maximum number of lines printed if many arrive at once: terminals are slow, and nobody reads more."""
KEPT_LINES = 300
"""The number of lines kept so that they can be printed again when the terminal becomes narrower."""

Draw = Callable[[int, int, bool], Sequence[Text]]
"""Makes the panel's lines, given the width, the height, and whether the terminal is ASCII-only."""


class LiveScreen:
    """The terminal while a job is followed; not thread-safe.

    ``draw`` is called from the screen's own thread, so that the panel is redrawn while the caller waits.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._state = TerminalState()
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._ascii_only = not shows_unicode(sys.stdout)
        self._printed: deque[Text] = deque(maxlen=KEPT_LINES)
        self._width = self._console.width
        self._live: Live | None = None

    def __enter__(self) -> LiveScreen:
        with ExitStack() as undo:
            undo.enter_context(self._state)
            self._keep_to_foreground()
            undo.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._lower_panel()
        finally:
            self._state.__exit__()

    def print(self, lines: Sequence[Line]) -> None:
        """Print lines above the panel."""
        left_out = max(0, len(lines) - MAX_BURST)
        texts = [_as_text(line) for line in lines[left_out:]]
        if left_out:
            texts.insert(0, Text(f"({left_out} lines left out; see them with cloudspot logs)", "dim"))
        self._write(texts)
        self._printed.extend(texts)

    def warn(self, text: str) -> None:
        """Print a warning above the panel."""
        self.print([Line(datetime.now(timezone.utc), CLOUDSPOT, f"warning: {text}", output.WARNING_STYLE)])

    def check(self) -> None:
        """Handle changes of the terminal since the last call: Ctrl-Z, or a new width."""
        if self._state.is_suspend_asked:
            self._lower_panel()
            self._state.suspend()
        self._keep_to_foreground()
        width = self._console.width
        if width < self._width and self._live is not None:
            # Terminals differ in how they reflow lines that no longer fit, so the panel's position is now
            # unknown. Clear the screen and print its lines again.
            self._lower_panel()
            self._console.clear()
            self._write(list(self._printed)[-self._console.height :])
            self._raise_panel()
        self._width = width

    def leave_at_once(self) -> None:
        """Restore the terminal for an exit without clean-up; safe to call from a signal handler."""
        self._state.restore()

    def _keep_to_foreground(self) -> None:
        """Show the panel in the foreground; in the background (``&``, ``bg``), print only lines."""
        if self._state.is_ours and self._live is None:
            self._state.hush()
            self._raise_panel()
        elif not self._state.is_ours:
            self._lower_panel()

    def _raise_panel(self) -> None:
        """Draw the panel at the cursor, and keep redrawing it."""
        self._live = Live(
            console=self._console,
            get_renderable=self._panel,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            vertical_overflow="crop",
        )
        self._live.start(refresh=True)

    def _lower_panel(self) -> None:
        """Remove the panel; the cursor is then where the panel began."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _panel(self) -> Group:
        size = self._console.size
        return Group(*self._draw(size.width, size.height, self._ascii_only))

    def _write(self, texts: Sequence[Text]) -> None:
        if texts:
            # Let the terminal wrap long lines, so that they can be copied in full.
            self._console.print(*texts, sep="\n", soft_wrap=True)


def _as_text(line: Line) -> Text:
    head, text = in_one_line(line.head), in_one_line(line.text)
    if len(text) > MAX_LINE_LENGTH:
        text = f"{text[:MAX_LINE_LENGTH]} ... ({len(text) - MAX_LINE_LENGTH} more)"
    return Text.assemble((head, "dim"), " ", (text, line.style or ""))
