"""Connect a command on a node with this process's standard streams, or with its terminal."""

from __future__ import annotations

import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from cloudspot.cli import exit_codes
from cloudspot.cli.screen import output
from cloudspot.errors import CloudspotError
from cloudspot.jobstore.remote.calling import RemoteProcess
from cloudspot.jobstore.remote.channel import ChannelEnded
from cloudspot.jobstore.remote.relay import Frame, Kind, size_frame

_READ_BYTES = 64 << 10
_INTERRUPTS = 3
"""How many times Ctrl-C must be pressed to leave a command that does not end."""
_LEAVE = b"~."
"""The characters that leave a shell when typed at the beginning of a line, as in ssh."""


def terminal_size() -> tuple[int, int]:
    """Return the rows and columns of the terminal.

    Raises:
        CloudspotError: standard input or output is not a terminal.
    """
    if not (os.isatty(0) and os.isatty(1)):
        raise CloudspotError("standard input and output are not a terminal; use cloudspot exec without --tty")
    size = os.get_terminal_size(1)
    return size.lines or 24, size.columns or 80  # some containers report a size of 0


def attach(process: RemoteProcess, *, has_terminal: bool) -> int:
    """Relay the streams until the command has ended, and return its exit status.

    Raises:
        CloudspotError: the connection was cut off; the message states why.
    """
    streams = _Streams(process, has_terminal=has_terminal)
    try:
        with streams.signals(), streams.raw():
            threading.Thread(target=streams.pass_in, name="standard input", daemon=True).start()
            while process.status is None:
                streams.pass_signals()
                if streams.has_left:
                    raise ChannelEnded("you left it")
                frame = process.frames()
                if frame is not None and not streams.write(frame):
                    return exit_codes.PIPE_CLOSED
    except ChannelEnded as error:
        raise CloudspotError(f"the command was cut off: {process.message or error}") from None
    finally:
        process.close()
    if process.message:
        output.warn(process.message)
    return process.status


class _Streams:
    def __init__(self, process: RemoteProcess, *, has_terminal: bool) -> None:
        self._process = process
        self._has_terminal = has_terminal
        self._has_new_size = False
        self._signals: list[str] = []
        self._num_interrupts = 0
        self.has_left = False
        """Whether the user has typed ``_LEAVE``."""

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Within the block, put our terminal into raw mode if the command has a terminal."""
        if not self._has_terminal:
            yield
            return
        before = termios.tcgetattr(0)
        tty.setraw(0)
        try:
            yield
        finally:
            termios.tcsetattr(0, termios.TCSAFLUSH, before)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Within the block, record signals in order to pass them on to the command."""
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
        before = {number: signal.signal(number, self._note) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> Any:
        if number == signal.SIGWINCH:
            self._has_new_size = True
            return
        self._num_interrupts += number == signal.SIGINT
        if self._num_interrupts >= _INTERRUPTS:
            raise KeyboardInterrupt
        self._signals.append(signal.Signals(number).name.removeprefix("SIG"))

    def pass_signals(self) -> None:
        """Pass on the recorded signals.

        A signal handler could not do this, because it must not wait for the channel.
        """
        if self._has_new_size and self._has_terminal:
            self._has_new_size = False
            self._process.channel.hurry(size_frame(*terminal_size()))
        while self._signals:
            self._process.channel.hurry(Frame(Kind.SIGNAL, self._signals.pop(0).encode()))

    def pass_in(self) -> None:
        """Pass on standard input until it ends."""
        channel, leaves = self._process.channel, _Leaving()
        with suppress(ChannelEnded):
            while data := _read_input():
                if self._has_terminal and leaves.is_typed_in(data):
                    self.has_left = True
                    return
                channel.send(Frame(Kind.INPUT, data))
            channel.send(Frame(Kind.END_OF_INPUT))

    def write(self, frame: Frame) -> bool:
        """Write part of the command's output. Return False if nothing reads our output any more."""
        stream = sys.stderr if frame.kind is Kind.ERRORS else sys.stdout
        data = memoryview(frame.data)
        with suppress(BrokenPipeError):
            while data:
                data = data[os.write(stream.fileno(), data) :]
            return True
        return False


def _read_input() -> bytes:
    """Return the next bytes of standard input.

    The result is empty at the end of the input, or if the input is closed.
    """
    try:
        return os.read(0, _READ_BYTES)
    except OSError:
        return b""


class _Leaving:
    """Watches for ``_LEAVE`` at the beginning of a line."""

    def __init__(self) -> None:
        self._line = b""

    def is_typed_in(self, data: bytes) -> bool:
        """Return whether ``data`` completes ``_LEAVE``."""
        for byte in data:
            if byte in b"\r\n":
                self._line = b""
                continue
            self._line = (self._line + bytes([byte]))[: len(_LEAVE) + 1]
            if self._line == _LEAVE:
                return True
        return False
