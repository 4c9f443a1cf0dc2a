"""Runs cloudspot's commands for a page. Each command has its own terminal, so it asks its usual questions."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from cloudspot.cli.screen.printable import printable

MAX_CHARACTERS = 200_000
"""How many characters at the end of the output are kept."""
ACTIONS: Mapping[str, tuple[str, Sequence[str], Sequence[tuple[str, str]]]] = {
    "stop": ("Save a checkpoint and stop the job.", (), ()),
    "resume": ("Resume the job.", ("--detach",), ()),
    "move": (
        "Move the job to another zone, machine type or market.",
        ("--detach",),
        (("--zone", "Zone"), ("--type", "Machine type"), ("--market", "Market: spot or on-demand")),
    ),
    "preempt": ("Reclaim one of the job's machines, as a drill.", (), (("--node", "Node, such as 2.0"),)),
}
"""Maps each command to its description, its fixed options, and the options that a page asks for."""


class CommandRun:
    """A command that is running or has ended."""

    def __init__(self, number: int, action: str, arguments: Sequence[str]) -> None:
        """Start ``cloudspot ACTION ARGUMENTS``."""
        self.number = number
        self.title = " ".join(("cloudspot", action, *arguments))
        self.exit_status: int | None = None
        """The exit status, or None while the command is running."""
        self._text = ""
        self._lock = threading.Lock()
        self._master, slave = pty.openpty()
        environ = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cloudspot", action, *arguments],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=environ,
                start_new_session=True,
            )
        finally:
            os.close(slave)
        threading.Thread(target=self._follow, name=f"command {number}", daemon=True).start()

    @property
    def text(self) -> str:
        """Return the command's output as printable lines."""
        with self._lock:
            lines = self._text.replace("\r\n", "\n").split("\n")
        return "\n".join(printable(line) for line in lines)

    def answer(self, text: str) -> None:
        """Type a line into the command's terminal."""
        if self.exit_status is None:
            line = "".join(letter for letter in text if letter.isprintable())
            with suppress(OSError):
                os.write(self._master, f"{line}\n".encode())

    def end(self) -> None:
        """Interrupt the command, as Ctrl-C does; the job itself continues."""
        if self.exit_status is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGINT)

    def _follow(self) -> None:
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # Linux raises this when no process has the other end open
                data = b""
            if not data:
                break
            with self._lock:
                self._text = (self._text + data.decode(errors="replace"))[-MAX_CHARACTERS:]
        self.exit_status = self._process.wait()
        os.close(self._master)
