"""Messages on their way to people, sent beside whatever their process does."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from cloudspot.controller.sending import send
from cloudspot.model import Message

MAX_WAITING = 100
"""Messages of a job that wait for earlier ones; further ones are dropped, and that is told."""
MAX_AT_ONCE = 4
"""Jobs whose messages are sent at the same time."""
CHECK_SECONDS = 0.1


class Outbox:
    """Sends the messages of each job in order, from threads of its own. Thread-safe."""

    def __init__(self, send: Callable[[str, Message, Mapping[str, str]], Mapping[str, str]] = send) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(MAX_AT_ONCE)
        self._waiting: dict[str, deque[tuple[str, Message, Mapping[str, str]]]] = {}
        """By job; one whose messages are all out is not there."""
        self._failures: list[tuple[str, str]] = []

    def put(self, through: str, message: Message, urls: Mapping[str, str]) -> None:
        """Send the message soon; returns at once."""
        job_id = message.job_id
        with self._lock:
            is_new = job_id not in self._waiting
            waiting = self._waiting.setdefault(job_id, deque())
            if len(waiting) >= MAX_WAITING:
                self._failures.append(
                    (job_id, f"notify: too many messages wait, so one is lost: {message.title}")
                )
                return
            waiting.append((through, message, urls))
        if is_new:
            threading.Thread(target=self._run, args=(job_id,), name="messages", daemon=True).start()

    def take_failures(self, job_id: str | None = None) -> tuple[tuple[str, str], ...]:
        """Return what did not arrive, of one job or of all, by job, each once: a line without any URL."""
        with self._lock:
            taken = [one for one in self._failures if job_id in {None, one[0]}]
            self._failures = [one for one in self._failures if one not in taken]
        return tuple(taken)

    def wait(self, seconds: float) -> None:
        """Wait until all messages are out, but no longer than that."""
        end = time.monotonic() + seconds
        while self._waiting and time.monotonic() < end:
            time.sleep(CHECK_SECONDS)

    def _run(self, job_id: str) -> None:
        while True:
            with self._lock:
                if not self._waiting[job_id]:
                    del self._waiting[job_id]
                    return
                through, message, urls = self._waiting[job_id].popleft()
            with self._slots:
                errors = self._send(through, message, urls)
            lines = [f"notify: {name} {error}; not told: {message.title}" for name, error in errors.items()]
            with self._lock:
                self._failures += ((job_id, line) for line in lines)
