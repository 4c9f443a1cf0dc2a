"""The pipe that wakes the agent for a notice: SIGTERM, or another process that wrote the notice file."""

from __future__ import annotations

import enum
import errno
import os
import signal
from datetime import datetime
from pathlib import Path

from cloudspot.agent.reclaim import Reclaim, understand
from cloudspot.model import PreemptionNotice

STOP_SECONDS = 60.0
"""How long the agent may take to save and leave after SIGTERM. Its unit waits half a minute longer."""


class PipeByte(enum.IntEnum):
    """What one byte in the pipe says; any other is a signal that means nothing here."""

    STOP = signal.SIGTERM
    """The agent has got SIGTERM."""
    NOTICE = 255
    """The notice file may have changed."""


class NoticePipe:
    """A named pipe in the node's directory, open from the agent's first moment; what is unread is kept."""

    def __init__(self, directory: Path) -> None:
        path = _path(directory)
        if not path.is_fifo():
            os.mkfifo(path, 0o600)
        # Neither end waits for the other here, and with a writer of its own the reader never meets an end.
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(self._reader, True)

    def take_sigterm(self) -> None:
        """Take SIGTERM from now on; called in the main thread.

        The number goes through the pipe: a handler runs in the middle of whatever the main thread does, and
        may touch no lock that it holds.
        """
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        # A shell that waits for the agent makes it ignore these; the training would inherit that.
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)

    def read(self) -> PipeByte:
        """Wait for the next word and return it."""
        while True:
            byte = os.read(self._reader, 1)[0]
            if byte in {PipeByte.STOP, PipeByte.NOTICE}:
                return PipeByte(byte)


def tell_agent(directory: Path) -> None:
    """Have the agent of this machine read its notice file; one that starts later reads it anyway."""
    try:
        pipe = os.open(_path(directory), os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in {errno.ENXIO, errno.ENOENT}:  # no agent has the pipe open
            return
        raise
    try:
        os.write(pipe, bytes([PipeByte.NOTICE]))
    except BlockingIOError:  # full of words that the agent has yet to read
        pass
    finally:
        os.close(pipe)


def as_notice(*, now: float, wall: datetime) -> Reclaim:
    """Return the notice that SIGTERM at this moment stands for."""
    notice = PreemptionNotice(deadline=None, action="stop", source="SIGTERM")
    return understand(notice, notice_seconds=STOP_SECONDS, now=now, wall=wall)


def _path(directory: Path) -> Path:
    return directory / "notice.pipe"
