"""Run work at a low priority, so that other threads and processes get processor time first."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NICENESS = 10
"""The niceness of such work, which gets it a tenth of the usual processor share. It is not higher, because a
thread that holds the interpreter's lock while it waits for a processor must not block the others for long."""
_AUTOGROUP = Path("/proc/self/autogroup")
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""The nanoseconds for which the thread ran, and for which it waited to run."""
_STARVED_SECONDS = 0.5
_STARVED_RATIO = 6


def lower_thread_priority() -> None:
    """Make the calling thread yield to other threads and processes until the thread ends.

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

    A thread is starved if it has waited for a processor for more than half a second and for six times as long
    as it ran; threads that share one free core wait three times as long as they run. Return False if the
    kernel does not report these times.
    """
    try:
        ran, waited, _times = _SCHEDSTAT.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return False
    return int(waited) > max(_STARVED_SECONDS * 1e9, _STARVED_RATIO * int(ran))


def lower_session_priority() -> None:
    """Make this process's session yield permanently if the process itself has a low priority.

    Otherwise a new session would have the usual priority: see ``low_priority_session``.
    """
    if sys.platform == "linux" and os.getpriority(os.PRIO_PROCESS, 0) > 0:
        _set_session_niceness(NICENESS)


@contextmanager
def low_priority_session() -> Iterator[None]:
    """Make this process's session yield to other sessions within the block, on Linux.

    If the kernel shares the processors among sessions (sched(7), autogroup), a thread's priority counts only
    within its session. If it does not, this call has no effect.
    """
    _set_session_niceness(NICENESS)
    try:
        yield
    finally:
        end_low_priority()


def end_low_priority() -> None:
    """Give this process's session the usual priority, even if a killed process lowered it."""
    _set_session_niceness(0)


def _set_session_niceness(niceness: int) -> None:
    for _ in range(10):
        try:
            _AUTOGROUP.write_text(str(niceness), encoding="ascii")
        except BlockingIOError:  # unprivileged writes are limited to one per 0.1 s on the whole machine
            time.sleep(0.1)
        except OSError:
            return
        else:
            return
