"""Shared by function hosts: check that a driver fits, estimate its cost, and wait for its role."""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Final, TypeVar
from urllib.parse import urlsplit

from cloudspot.calls.retrying import retry, until
from cloudspot.errors import AuthError, SpecError
from cloudspot.model import DriverFunction

T = TypeVar("T")

PASS_SECONDS: Final = 3.0
"""The estimated duration of a pass over a few live jobs; a pass without live jobs takes less than a second.
"""
NOTICE_SECONDS: Final = 5.0
"""How long a pass that a notice triggers waits before it starts. The node gets the notice at about the same
time, and records it a second or two later."""
LACKS_RIGHTS: Final = f"status {AuthError.exit_code}"
"""The words in a driver function's error that identify a missing permission."""
_MINUTES_A_MONTH: Final = 30.4 * 24 * 60


@dataclass(frozen=True, kw_only=True)
class FunctionLimits:
    """The code that a function host can run, and its maximum size."""

    host: str
    """The host's name as the cloud writes it."""
    runtime: str
    """How messages name the runtime for this Python, such as ``Lambda's python3.12``."""
    machines: Mapping[str, str]
    """How messages name each architecture, by ``platform.machine()``."""
    glibc: Mapping[tuple[int, int], tuple[int, int]]
    """The glibc version for each version of Python."""
    max_packed_bytes: int | None = None
    """None if there is no limit."""
    max_unpacked_bytes: int | None = None
    """None if there is no limit."""

    def size_of(self, function: DriverFunction) -> str:
        """Return the size of the function's code and its limits, for ``FunctionHost.plan``."""
        packed, unpacked = len(function.archive) / 1e6, function.unpacked_bytes / 1e6
        most = [one for one in (self.max_packed_bytes, self.max_unpacked_bytes) if one is not None]
        limit = f"accepts {' and '.join(f'{one / 1e6:.0f}' for one in most)} MB" if most else "sets no limit"
        return f"its code: {packed:.1f} MB packed, {unpacked:.0f} MB unpacked; {self.host} {limit}"

    def require_fit(self, function: DriverFunction) -> None:
        """Refuse a function whose code the host cannot run or whose code is too large.

        Raises:
            SpecError: the code needs another system, Python or glibc, or is too large.
        """
        here = (sys.version_info[0], sys.version_info[1])
        if sys.platform != "linux" or platform.machine() not in self.machines or here not in self.glibc:
            pythons = f"{_dotted(min(self.glibc))} to {_dotted(max(self.glibc))}"
            raise SpecError(
                f"a driver on {self.host} is made of the packages installed here, so deploy it from Linux "
                f"on {' or '.join(self.machines.values())} with Python {pythons}; this is Python "
                f"{_dotted(here)} on {sys.platform}, {platform.machine()}"
            )
        if function.needs_glibc > self.glibc[here]:
            able = [python for python, has in self.glibc.items() if has >= function.needs_glibc]
            raise SpecError(
                f"a package that is installed here is compiled for glibc {_dotted(function.needs_glibc)} or "
                f"newer, but {self.runtime} has glibc {_dotted(self.glibc[here])}: install an older package"
                + (f", or deploy from Python {_dotted(min(able))}" if able else "")
            )
        sizes = {"packed": len(function.archive), "unpacked": function.unpacked_bytes}
        limits = {"packed": self.max_packed_bytes, "unpacked": self.max_unpacked_bytes}
        for what, limit in limits.items():
            if limit is not None and sizes[what] > limit:
                raise SpecError(
                    f"the driver's code has {sizes[what] / 1e6:.0f} MB {what}; {self.host} accepts at most "
                    f"{limit / 1e6:.0f} MB"
                )


def once_effective(
    call: Callable[[], T],
    *,
    is_new: Callable[[Exception], bool],
    kind: type[Exception] | tuple[type[Exception], ...],
    within_seconds: float,
    sleep: Callable[[float], None],
    wait_seconds: float = 2.0,
) -> T:
    """Return the result of ``call`` once a new role and its permissions have taken effect.

    Args:
        call: Must be safe to repeat.
        is_new: Whether an error of ``kind`` may mean that the role has not taken effect yet.
        kind: The errors that are passed to ``is_new``.
        within_seconds: How long the call is repeated; then the error is raised.
        sleep: Called with the seconds to wait.
        wait_seconds: The time between two calls.
    """
    waits = until(time.monotonic() + within_seconds, repeat(wait_seconds))
    return retry(call, sleep=sleep, waits=waits, kind=kind, when=is_new)


def whole_minutes(function: DriverFunction, *, scheduler: str) -> int:
    """Return the number of minutes between two passes, for a scheduler that supports only whole minutes.

    Raises:
        SpecError: the function's interval is not a whole number of minutes.
    """
    minutes = function.every_seconds / 60
    if minutes < 1 or not math.isclose(minutes, round(minutes)):
        raise SpecError(f"--every: {scheduler} runs functions only at intervals of whole minutes, such as 5m")
    return round(minutes)


def passes_a_month(minutes: int) -> float:
    """Return the number of passes per month if there is one every ``minutes``."""
    return _MINUTES_A_MONTH / minutes


def bucket_of(function: DriverFunction, *, scheme: str, needs: str) -> str:
    """Return the name of the store's bucket.

    ``needs`` begins the message; it names the host and the service in which the host needs a store.

    Raises:
        SpecError: the store is in another service.
    """
    parts = urlsplit(function.store_url)
    if parts.scheme != scheme or not parts.netloc:
        raise SpecError(f"{needs}; the store is {function.store_url}")
    return parts.netloc


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
