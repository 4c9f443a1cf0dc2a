"""An ordered stop of the agent: whoever shuts the machine down sends SIGTERM, and that is a notice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import datetime

from cloudspot.agent.watcher import Reclaim, understand
from cloudspot.model import PreemptionNotice

STOP_SECONDS = 60.0
"""How long the agent may take to save and leave after SIGTERM. Its unit waits half a minute longer."""


class OrderedStop:
    """Listens for SIGTERM from the agent's first moment on; what comes before anybody asks is kept."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def listen(self) -> None:
        """Take SIGTERM from now on; called in the main thread.

        The number goes through a pipe: a handler runs in the middle of whatever the main thread does, and may
        touch no lock that it holds.
        """
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        # A shell that waits for us ignores these in us; the training would inherit that.
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)

    def tell(self, on_stop: Callable[[], None]) -> None:
        """Start a thread that calls ``on_stop`` once SIGTERM has come, at most once."""
        threading.Thread(target=self._wait, args=(on_stop,), name="ordered stop", daemon=True).start()

    def _wait(self, on_stop: Callable[[], None]) -> None:
        # Other signals with a handler of Python's come this way too.
        while os.read(self._reader, 1) != bytes([signal.SIGTERM]):
            pass
        on_stop()


def as_notice(*, now: float, wall: datetime) -> Reclaim:
    """Return the notice that an ordered stop at this moment is."""
    notice = PreemptionNotice(deadline=None, action="stop", source="SIGTERM")
    return understand(notice, notice_seconds=STOP_SECONDS, now=now, wall=wall)
