"""The time since this host's boot, by which all its processes measure durations, and a name for that boot."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import sys
import time
from functools import cache
from pathlib import Path

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that counts the host's sleep, as CLOCK_BOOTTIME does on Linux and CLOCK_MONOTONIC on macOS."""


def boot_seconds() -> float:
    """Return the seconds since the host's boot; the clock is the same in all processes and cannot be set."""
    return time.clock_gettime(_CLOCK)


@cache
def this_boot() -> str:
    """Return a name for this boot of this host; its processes share ``boot_seconds``, locks and files."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        boot = platform.node() + (_session_of_mac() if sys.platform == "darwin" else "")
    return hashlib.blake2b(boot.encode(), digest_size=4).hexdigest()


def _session_of_mac() -> str:
    """Return the kernel's name for this boot of a Mac (``kern.bootsessionuuid``, xnu's sysctl.h)."""
    text, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, 0)
    return text.value.decode("ascii", "replace")
