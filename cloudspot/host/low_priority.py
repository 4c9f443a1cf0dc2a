"""Work that yields: what else runs on this host gets the processors first."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NICENESS = 10
"""A tenth of the share of what does not yield: a thread that is put off while it holds the interpreter's lock
must not keep the others waiting for long."""
_AUTOGROUP = Path("/proc/self/autogroup")
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""In nanoseconds: for how long the thread ran, and for how long it waited to run."""
_STARVED_SECONDS = 0.5
_STARVED_RATIO = 6


def lower_thread_priority() -> None:
    """Have the calling thread yield to other threads and processes until it ends.

    Without privileges there is no way back, so it is for threads of their own. It does nothing where the
    system is not Linux.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
                os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def is_starved() -> bool:
    """Return whether others leave the calling thread next to nothing, so that yielding is no help any more.

    It has then been ready to run, without a processor, for more than half a second, and for six times as long
    as it ran; threads that share one free core among them wait three times as long. False where the kernel
    does not tell.
    """
    try:
        ran, waited, _times = _SCHEDSTAT.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return False
    return int(waited) > max(_STARVED_SECONDS * 1e9, _STARVED_RATIO * int(ran))


def lower_session_priority() -> None:
    """Have this process's session yield to others, for good, if this process was started by what yields.

    A session of one's own would be back at the priority of all others: see ``low_priority_session``.
    """
    if sys.platform == "linux" and os.getpriority(os.PRIO_PROCESS, 0) > 0:
        _set_session_niceness(NICENESS)


@contextmanager
def low_priority_session() -> Iterator[None]:
    """Have this process's session yield to other sessions meanwhile, on Linux.

    Where the kernel shares the processors among sessions (sched(7), autogroup), the priority of a thread
    counts only within its own. Elsewhere this does nothing.
    """
    _set_session_niceness(NICENESS)
    try:
        yield
    finally:
        end_low_priority()


def end_low_priority() -> None:
    """Give this process's session the usual priority, also if another process of it was killed meanwhile."""
    _set_session_niceness(0)


def _set_session_niceness(niceness: int) -> None:
    for _ in range(10):
        try:
            _AUTOGROUP.write_text(str(niceness), encoding="ascii")
        except BlockingIOError:  # without privileges: once in a tenth of a second on the whole machine
            time.sleep(0.1)
        except OSError:
            return
        else:
            return
