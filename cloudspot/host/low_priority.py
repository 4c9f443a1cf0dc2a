"""Run work at a low priority, so that other threads and processes get the processors first."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NICENESS = 10
"""The niceness of such work, which gives it a tenth of the usual share. It is not higher, because a thread
that waits for a processor while it holds the interpreter's lock must not block the others for long."""
_AUTOGROUP = Path("/proc/self/autogroup")
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""The nanoseconds for which the thread ran, and for which it waited to run."""
_STARVED_SECONDS = 0.5
_STARVED_RATIO = 6


def lower_thread_priority() -> None:
    """Make the calling thread yield to other threads and processes until it ends.

    Without privileges this cannot be undone, so use it for dedicated threads. On systems other than Linux it
    does nothing.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
                os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def is_starved() -> bool:
    """Return whether the calling thread gets almost no processor time, so that it should stop yielding.

    It has then waited for a processor for more than half a second, and for six times as long as it ran;
    threads that share one free core wait three times as long as they run. False if the kernel does not
    report.
    """
    try:
        ran, waited, _times = _SCHEDSTAT.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return False
    return int(waited) > max(_STARVED_SECONDS * 1e9, _STARVED_RATIO * int(ran))


def lower_session_priority() -> None:
    """Make this process's session yield permanently, if the process itself has a low priority.

    A new session would otherwise have the usual priority: see ``low_priority_session``.
    """
    if sys.platform == "linux" and os.getpriority(os.PRIO_PROCESS, 0) > 0:
        _set_session_niceness(NICENESS)


@contextmanager
def low_priority_session() -> Iterator[None]:
    """Make this process's session yield to other sessions within the block, on Linux.

    If the kernel shares the processors among sessions (sched(7), autogroup), the priority of a thread counts
    only within its session. Otherwise this does nothing.
    """
    _set_session_niceness(NICENESS)
    try:
        yield
    finally:
        end_low_priority()


def end_low_priority() -> None:
    """Give this process's session the usual priority, even if a killed process has lowered it."""
    _set_session_niceness(0)


def _set_session_niceness(niceness: int) -> None:
    for _ in range(10):
        try:
            _AUTOGROUP.write_text(str(niceness), encoding="ascii")
        except BlockingIOError:  # unprivileged writes are limited to one in 0.1 s on the whole machine
            time.sleep(0.1)
        except OSError:
            return
        else:
            return
