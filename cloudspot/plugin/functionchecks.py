"""What the hosts of functions do alike: check that a driver fits, reckon its cost, wait for its rights."""

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
"""What a pass over a few live jobs is reckoned to take; one over none takes less than a second."""
NOTICE_SECONDS: Final = 5.0
"""How long a pass for a notice waits. The node learns of its end at about the same time, and says so a second
or two later."""
LACKS_RIGHTS: Final = f"status {AuthError.exit_code}"
"""In the error that a driver's function raises when a right is missing."""
_MINUTES_A_MONTH: Final = 30.4 * 24 * 60


@dataclass(frozen=True, kw_only=True)
class FunctionLimits:
    """The code that a host of functions can run, and how much of it."""

    host: str
    """Such as ``AWS Lambda``."""
    runtime: str
    """The runtime for this Python, as messages name it: ``Lambda's python3.12``."""
    machines: Mapping[str, str]
    """What messages call each architecture, by ``platform.machine()``."""
    glibc: Mapping[tuple[int, int], tuple[int, int]]
    """The version of the C library, by that of Python."""
    max_packed_bytes: int | None = None
    """None: any number, as below."""
    max_unpacked_bytes: int | None = None

    def size_of(self, function: DriverFunction) -> str:
        """Return how large the function's code is, and how large it may be, for ``FunctionHost.plan``."""
        packed, unpacked = len(function.archive) / 1e6, function.unpacked_bytes / 1e6
        most = [one for one in (self.max_packed_bytes, self.max_unpacked_bytes) if one is not None]
        limit = f"takes {' and '.join(f'{one / 1e6:.0f}' for one in most)}" if most else "sets no limit"
        return f"its code: {packed:.1f} MB packed, {unpacked:.0f} MB unpacked; {self.host} {limit}"

    def require_fit(self, function: DriverFunction) -> None:
        """Refuse a function that is made of what the host cannot run, or too much.

        Raises:
            SpecError: another system, Python or C library is needed, or there is too much code.
        """
        here = (sys.version_info[0], sys.version_info[1])
        if sys.platform != "linux" or platform.machine() not in self.machines or here not in self.glibc:
            pythons = f"{_dotted(min(self.glibc))} to {_dotted(max(self.glibc))}"
            raise SpecError(
                f"a driver on {self.host} is made of what is installed here, so deploy it from Linux on "
                f"{' or '.join(self.machines.values())} with Python {pythons}; here is Python "
                f"{_dotted(here)} on {sys.platform}, {platform.machine()}"
            )
        if function.needs_glibc > self.glibc[here]:
            able = [python for python, has in self.glibc.items() if has >= function.needs_glibc]
            raise SpecError(
                f"a package that is installed here is compiled for glibc {_dotted(function.needs_glibc)} or "
                f"newer, and {self.runtime} has {_dotted(self.glibc[here])}: install an older one"
                + (f", or deploy from Python {_dotted(min(able))}" if able else "")
            )
        sizes = {"packed": len(function.archive), "unpacked": function.unpacked_bytes}
        limits = {"packed": self.max_packed_bytes, "unpacked": self.max_unpacked_bytes}
        for what, limit in limits.items():
            if limit is not None and sizes[what] > limit:
                raise SpecError(
                    f"the driver's code has {sizes[what] / 1e6:.0f} MB {what}; {self.host} takes "
                    f"{limit / 1e6:.0f}"
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
    """Return what ``call`` returns, as soon as a role and its rights, which were just made, take effect.

    Args:
        call: Safe to repeat.
        is_new: Whether an error of ``kind`` may come from what has not taken effect yet.
        kind: The errors that are looked at.
        within_seconds: How long that may last; then the error is raised.
        sleep: Takes seconds.
        wait_seconds: Between two calls.
    """
    waits = until(time.monotonic() + within_seconds, repeat(wait_seconds))
    return retry(call, sleep=sleep, waits=waits, kind=kind, when=is_new)


def whole_minutes(function: DriverFunction, *, scheduler: str) -> int:
    """Return how many minutes lie between two passes, for a scheduler that counts whole ones.

    Raises:
        SpecError: the function asks for something else.
    """
    minutes = function.every_seconds / 60
    if minutes < 1 or not math.isclose(minutes, round(minutes)):
        raise SpecError(f"--every: {scheduler} runs a function every minute or number of minutes, such as 5m")
    return round(minutes)


def passes_a_month(minutes: int) -> float:
    """Return how many passes a month has that come every so many minutes."""
    return _MINUTES_A_MONTH / minutes


def bucket_of(function: DriverFunction, *, scheme: str, needs: str) -> str:
    """Return the name of the store's bucket.

    ``needs`` begins the message: which host needs a store in which service.

    Raises:
        SpecError: the store is elsewhere.
    """
    parts = urlsplit(function.store_url)
    if parts.scheme != scheme or not parts.netloc:
        raise SpecError(f"{needs}; this one is {function.store_url}")
    return parts.netloc


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
