"""Send messages to people, and run plugins' tasks, in background threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping

from cloudspot.controller.sending import send
from cloudspot.model import Message

MAX_AT_ONCE = 8
"""The most messages that are sent at the same time; further messages wait."""
MAX_ON_THE_WAY = 100
"""The most messages sent or waiting at a time; further messages are dropped and reported as failures."""
CHECK_SECONDS = 0.1


class Outbox:
    """Sends each message in a thread of its own, so that a slow service delays no other message.

    Thread-safe.
    """

    def __init__(self, send: Callable[..., Mapping[str, str]] = send) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(MAX_AT_ONCE)
        self._num_on_the_way = 0
        self._failures: list[tuple[str, str]] = []
        """By job."""

    def put(self, through: str, message: Message, urls: Mapping[str, str], *, own: Collection[str]) -> None:
        """Send the message in the background with ``send``; return immediately."""
        with self._lock:
            if self._num_on_the_way >= MAX_ON_THE_WAY:
                line = f"notify: too many messages are waiting, so one is lost: {message.title}"
                self._failures.append((message.job_id, line))
                return
            self._num_on_the_way += 1
        threading.Thread(
            target=self._run, args=(through, message, urls, own), name="message", daemon=True
        ).start()

    def run_beside(self, work: Callable[[], None]) -> None:
        """Do other work in a thread of its own, for which ``wait`` waits, too; the work must not raise."""

        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._num_on_the_way -= 1

        with self._lock:
            self._num_on_the_way += 1
        threading.Thread(target=run, name="task", daemon=True).start()

    def take_failures(self, job_id: str | None = None) -> tuple[tuple[str, str], ...]:
        """Return (job id, line) once for each failure of one job, or of all jobs; no line contains a URL."""
        with self._lock:
            taken = [one for one in self._failures if job_id in {None, one[0]}]
            self._failures = [one for one in self._failures if one not in taken]
        return tuple(taken)

    def wait(self, seconds: float) -> None:
        """Wait until all messages are sent and all work is done, but for at most ``seconds``."""
        end = time.monotonic() + seconds
        while self._num_on_the_way and time.monotonic() < end:
            time.sleep(CHECK_SECONDS)

    def _run(self, through: str, message: Message, urls: Mapping[str, str], own: Collection[str]) -> None:
        errors: Mapping[str, str] = {}
        try:
            with self._turns:
                errors = self._send(through, message, urls, own=own)
        finally:
            lines = [
                f"notify: {name} {error}; not delivered: {message.title}" for name, error in errors.items()
            ]
            with self._lock:
                self._failures += ((message.job_id, line) for line in lines)
                self._num_on_the_way -= 1
