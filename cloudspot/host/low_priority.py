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


@contextmanager
def low_priority_session() -> Iterator[None]:
    """Have this process's session yield to other sessions meanwhile, on Linux.

    Where the kernel shares the processors among sessions (sched(7), autogroup), the priority of a thread
    counts only within its own. Elsewhere this does nothing.
    """
    with suppress(OSError):
        _AUTOGROUP.write_text(str(NICENESS), encoding="ascii")
    try:
        yield
    finally:
        end_low_priority()


def end_low_priority() -> None:
    """Give this process's session the usual priority, also if another process of it was killed meanwhile."""
    for _ in range(10):
        try:
            _AUTOGROUP.write_text("0", encoding="ascii")
        except BlockingIOError:  # without privileges: once in a tenth of a second on the whole machine
            time.sleep(0.1)
        except OSError:
            return
        else:
            return
