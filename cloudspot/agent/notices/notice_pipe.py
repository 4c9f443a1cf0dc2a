"""The pipe that wakes the agent after SIGTERM, or after another process has written the notice file."""

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
"""How long the agent may take to save and leave after SIGTERM; its systemd unit waits 30 s longer."""


class PipeByte(enum.IntEnum):
    """The meaning of a byte in the pipe; any other value stands for a signal that is ignored."""

    STOP = signal.SIGTERM
    """The agent has received SIGTERM."""
    NOTICE = 255
    """The notice file may have changed."""


class NoticePipe:
    """A named pipe in the node's directory; the agent opens it at its start, so no byte is lost."""

    def __init__(self, directory: Path) -> None:
        path = _path(directory)
        if not path.is_fifo():
            os.mkfifo(path, 0o600)
        # Opening does not wait for a writer, and because this process also has the pipe open for writing, the
        # reader never gets an EOF.
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(self._reader, True)

    def take_sigterm(self) -> None:
        """Handle SIGTERM from now on; must be called in the main thread.

        The signal's number is written to the pipe: a handler interrupts the main thread anywhere, so it must
        not use a lock that this thread may hold.
        """
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        # A shell that starts the agent may make it ignore these signals, and the training would inherit this.
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)

    def read(self) -> PipeByte:
        """Wait for the next byte that has a meaning, and return its meaning."""
        while True:
            byte = os.read(self._reader, 1)[0]
            if byte in {PipeByte.STOP, PipeByte.NOTICE}:
                return PipeByte(byte)


def wake_agent(directory: Path) -> None:
    """Make this machine's agent read the notice file; an agent that starts later reads it anyway."""
    try:
        pipe = os.open(_path(directory), os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in {errno.ENXIO, errno.ENOENT}:  # no agent has the pipe open
            return
        raise
    try:
        os.write(pipe, bytes([PipeByte.NOTICE]))
    except BlockingIOError:  # the agent has yet to read many bytes
        pass
    finally:
        os.close(pipe)


def as_notice(*, now: float, wall: datetime) -> Reclaim:
    """Return the notice that a SIGTERM received now stands for."""
    notice = PreemptionNotice(deadline=None, action="stop", source="SIGTERM")
    return understand(notice, notice_seconds=STOP_SECONDS, now=now, wall=wall)


def _path(directory: Path) -> Path:
    return directory / "notice.pipe"
