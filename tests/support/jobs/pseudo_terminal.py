"""A terminal without a screen: runs a program in a pty, and shows what a person would see there."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import pyte


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


OF_OTHERS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "PYTHONIOENCODING")
"""What the environment of the tests may say of another terminal."""


class Terminal:
    """A terminal of a given size with one program in it, which is ended with the block.

    ``environ`` goes on top of the environment of the tests.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        lines: int = 24,
        environ: Mapping[str, str] | None = None,
        encoding: str = "utf-8",
        cwd: str | None = None,
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=20_000, ratio=0.001)
        self.screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.ByteStream(self.screen)
        if encoding != "utf-8":
            self._stream.select_other_charset("@")
        self.sent = b""
        """All that the program has written."""
        self._master, slave = pty.openpty()
        self._slave = slave
        self._set_size(columns, lines)
        self.first_attributes = termios.tcgetattr(slave)
        inherited = {name: value for name, value in os.environ.items() if name not in OF_OTHERS}
        self.process = subprocess.Popen(
            [*command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**inherited, "TERM": "xterm-256color", **(environ or {})},
            cwd=cwd,
            # A session of its own, so that the keys of this terminal reach it as signals.
            preexec_fn=_take_terminal,  # noqa: PLW1509 - it calls nothing that another thread could hold
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._slave)
        os.close(self._master)

    def text(self) -> str:
        """Return what the screen shows, without the blanks at the ends of lines."""
        self.read(0.0)
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def all_lines(self) -> list[str]:
        """Return what has scrolled out at the top, and what the screen shows."""
        self.read(0.0)
        width = self.screen.columns
        past = [
            "".join(line[column].data for column in range(width)).rstrip() for line in self.screen.history.top
        ]
        return [*past, *(line.rstrip() for line in self.screen.display)]

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the size, as a person does who pulls at the window's corner."""
        self.read(0.0)
        self.screen.resize(lines, columns)
        self._set_size(columns, lines)

    def read(self, seconds: float) -> None:
        """Take in what the program writes, until it writes nothing for so long."""
        while select.select([self._master], [], [], seconds)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError as error:
                if error.errno == errno.EIO:
                    return
                raise
            self.sent += data
            self._stream.feed(data)

    def wait_for(self, condition: Callable[[], object] | str, *, seconds: float = 60.0) -> None:
        """Return when the condition is true, or the text is on the screen; fail after ``seconds``."""
        end = time.monotonic() + seconds
        while not (condition in self.text() if isinstance(condition, str) else condition()):
            assert time.monotonic() < end, f"still no {condition!r} after {seconds} s:\n{self.text()}"
            self.read(0.05)

    def finish(self, *, seconds: float = 60.0) -> int:
        """Wait for the program's end and return its exit status."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it still runs after {seconds} s:\n{self.text()}"
            self.read(0.05)
        self.read(0.2)
        return self.process.returncode

    def assert_sane(self) -> None:
        """The cursor shows, typed keys show, and the colours are the terminal's own."""
        self.read(0.1)
        assert not self.screen.cursor.hidden
        assert termios.tcgetattr(self._slave)[:4] == self.first_attributes[:4]
        assert self.screen.cursor.attrs == pyte.screens.Cursor(0, 0).attrs

    def shows_typing(self) -> bool:
        """Say whether typed keys would show."""
        return bool(termios.tcgetattr(self._slave)[3] & termios.ECHO)

    def signal(self, number: signal.Signals) -> None:
        """Send the program a signal."""
        self.process.send_signal(number)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
