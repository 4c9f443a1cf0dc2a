"""Lets a test move the clock of the command line or of a node, each by a file with the shift in seconds.

``DRILL_CLOCKS`` names the directory of the files: ``node-<rank>`` for the agent of a machine, ``node-<rank>-ranks``
for the ranks of its training, ``cli`` for all others. Supervisors keep the right time, because they stand for the cloud. Without the variable nothing
changes.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

DIRECTORY = os.environ.get("DRILL_CLOCKS")
NODE = os.environ.get("CLOUDSPOT_NODE_DIR")


def shift_file() -> Path:
    """Return the file of this process; one that the fork server has made has its variables since then."""
    assert DIRECTORY is not None
    if NODE is None:
        return Path(DIRECTORY, "cli")
    # Past os.environ, where the fork server would see an import of torch read it, and then fork no rank.
    ranks = "-ranks" if b"RANK" in os.environ._data else ""  # type: ignore[attr-defined]
    return Path(DIRECTORY, f"node-{Path(NODE).parent.name.rpartition('-')[2]}{ranks}")


def move_clocks() -> None:
    """Add what the file says to ``time.time``, ``time.time_ns`` and ``datetime.now`` from now on."""
    real_time, real_time_ns, real_now = time.time, time.time_ns, dt.datetime.now

    def seconds() -> float:
        try:
            return float(shift_file().read_text() or 0)
        except OSError:
            return 0.0

    def now(cls: type[dt.datetime], tz: dt.tzinfo | None = None) -> dt.datetime:
        return real_now(tz) + dt.timedelta(seconds=seconds())

    time.time = lambda: real_time() + seconds()
    time.time_ns = lambda: real_time_ns() + int(seconds() * 1e9)
    # A subclass would be no datetime to those who look at the exact type, as msgspec does.
    attributes: dict[str, Any] = gc.get_referents(dt.datetime.__dict__)[0]
    attributes["now"] = classmethod(now)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(dt.datetime))


if DIRECTORY is not None and "cloudspot.local.supervisor" not in sys.orig_argv:
    move_clocks()
