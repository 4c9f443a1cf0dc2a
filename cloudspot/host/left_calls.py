"""Make calls in other threads, so that a hanging call can be abandoned together with its thread."""

from __future__ import annotations

import contextvars
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

R = TypeVar("R")


class LeftAloneError(Exception):
    """The call did not end in time, and its result is ignored."""


class _Inside(threading.local):
    plugin: object = None


inside = _Inside()
"""For each thread, the plugin whose code the thread runs, as noted by ``calls.guard``; None in cloudspot's
own code."""


@dataclass
class Limits:
    """Switches the time limits for plugin calls in this process on and off."""

    are_enforced: bool = False


limits = Limits()
_lock = threading.Lock()


@contextmanager
def enforced_limits() -> Iterator[None]:
    """Enforce time limits for plugin calls within the block, in all threads."""
    before, limits.are_enforced = limits.are_enforced, True
    try:
        yield
    finally:
        limits.are_enforced = before


def call_within(seconds: float, request: Callable[[], R], *, owner: object) -> R:
    """Return the result of ``request``, called in a daemon thread with this thread's context.

    Raises:
        LeftAloneError: the call did not end within ``seconds``, or ``cut_off_all`` was called. Until the call
            ends, it counts as the ``owner``'s in ``num_hanging``.
    """
    job = _Job(request)
    job.begin()
    try:
        job.done.acquire(timeout=seconds)
    finally:  # also at Ctrl-C
        job.leave(owner)
    if job.left_by is not None:
        raise LeftAloneError
    if job.error is not None:
        raise job.error
    return job.result  # type: ignore[no-any-return]


def num_hanging(owner: object) -> int:
    """Return how many of the owner's abandoned calls have not ended yet."""
    with _lock:
        return sum(job.left_by is owner for job in _left)


def is_any_under_way() -> bool:
    """Return whether any call, including an abandoned one, has not ended yet."""
    return bool(_left or _waited_for)


def cut_off_all() -> None:
    """Abandon all calls that other threads wait for, so that Ctrl-C need not wait for these threads."""
    with _lock:
        for job in _waited_for:
            job.done.release()
        _waited_for.clear()


class _Job:
    """One call, made in a thread that can be abandoned together with the call."""

    def __init__(self, request: Callable[[], Any]) -> None:
        self._request = request
        self._context = contextvars.copy_context()
        self.done = threading.Lock()
        """A lock that is held until the call ends or is cut off."""
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None
        self._has_ended = False
        self.left_by: object = None
        """The owner, if the call was cut off."""

    def begin(self) -> None:
        try:
            worker = _idle.pop()
        except IndexError:
            worker = _Worker()
            worker.start()
        with _lock:
            _waited_for.add(self)
        worker.jobs.put(self)

    def make(self) -> None:
        try:
            self.result = self._context.run(self._request)
        except BaseException as error:  # noqa: BLE001 - `call_within` raises it
            self.error = error

    def end(self) -> None:
        with _lock:
            self._has_ended = True
            _left.discard(self)
            if self in _waited_for:
                _waited_for.discard(self)
                self.done.release()

    def leave(self, owner: object) -> None:
        """Stop waiting for the call."""
        with _lock:
            _waited_for.discard(self)
            if not self._has_ended:
                self.left_by = owner
                _left.add(self)


class _Worker(threading.Thread):
    """Makes one call after another; a hanging call does not delay the exit of the process."""

    def __init__(self) -> None:
        super().__init__(name="cloudspot-plugin", daemon=True)
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            job = self.jobs.get()
            job.make()
            _idle.append(self)  # before the call ends, so that the next call finds this thread
            job.end()
            del job


_waited_for: set[_Job] = set()
_left: set[_Job] = set()
"""The calls that were cut off and have not ended yet."""
_idle: list[_Worker] = []


def _forget() -> None:
    """Reset the state in a forked process, where these threads do not exist and the lock may be held."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    for each in (_waited_for, _left, _idle):
        each.clear()


os.register_at_fork(after_in_child=_forget)
