"""What goes wrong in an emulated cloud, and how much there is to be had; tests and sandboxes set it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """One request that reached the API."""

    service: str
    action: str
    parameters: Mapping[str, Any]
    region: str
    error: str | None
    """The code of the error that was answered; None: it succeeded."""
    access_key: str = ""
    """Whose signature it carries; empty: none that could be read."""


@dataclass
class Injected:
    """An error that the next matching calls get."""

    action: str
    code: str
    message: str
    status: int
    times: int
    happens: bool
    """The call has its effect all the same, and only its answer is lost."""


@dataclass
class Faults:
    """Set the fields at any time; a call sees them as they are then.

    Capacity is by (zone, instance type, market), where ``*`` stands for any; a number of machines, or
    None for enough. The most specific entry counts: the zone before the type before the market.
    """

    capacity: dict[tuple[str, str, str], int | None] = field(default_factory=dict)
    vcpu_quota: dict[str, int] = field(default_factory=dict)
    """By market, ``spot`` or ``on-demand``; without an entry, no limit."""
    throttle_every: int = 0
    """Every so many calls of the API for machines, one is throttled; 0: none."""
    describe_lag_seconds: float = 0.0
    """For so long a new machine is in no listing, and unknown to every other call."""
    tag_lag_seconds: float = 0.0
    """For so long a tag or label that was set on a machine does not show."""
    denied: set[str] = field(default_factory=set)
    """Rights that the caller lacks, in the cloud's own words."""
    rejected_keys: set[str] = field(default_factory=set)
    """Access keys that the cloud does not know."""
    expired_keys: set[str] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    """All that came, in order."""
    on_call: Callable[[Call], None] | None = None
    """Hears of each call as well."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._injected: list[Injected] = []
        self._num_counted = 0

    def inject(
        self,
        action: str,
        code: str,
        *,
        message: str = "injected",
        status: int = 500,
        times: int = 1,
        happens: bool = False,
    ) -> None:
        """Let the next ``times`` calls of the action (``*``: of any) end with this error.

        With ``happens`` the call has its effect first, as when an answer is lost on its way.
        """
        with self._lock:
            self._injected.append(Injected(action, code, message, status, times, happens))

    def take(self, action: str) -> Injected | None:
        """Return the error for this call, if one is injected, and use it up."""
        with self._lock:
            for one in self._injected:
                if one.times > 0 and one.action in {action, "*"}:
                    one.times -= 1
                    return one
            return None

    def is_throttled(self) -> bool:
        """Count a call, and say whether it is one too many."""
        with self._lock:
            self._num_counted += 1
            return self.throttle_every > 0 and self._num_counted % self.throttle_every == 0

    def capacity_of(self, zone: str, instance_type: str, market: str) -> int | None:
        """Return how many such machines can run at once; None: as many as you like."""
        for key in (
            (zone, instance_type, market),
            (zone, instance_type, "*"),
            (zone, "*", market),
            (zone, "*", "*"),
            ("*", instance_type, market),
            ("*", instance_type, "*"),
            ("*", "*", market),
            ("*", "*", "*"),
        ):
            if key in self.capacity:
                return self.capacity[key]
        return None

    def record(self, call: Call) -> None:
        """Keep a call."""
        with self._lock:
            self.calls.append(call)
        if self.on_call is not None:
            self.on_call(call)

    def actions(self) -> list[str]:
        """Return the names of the actions that came, in order."""
        with self._lock:
            return [call.action for call in self.calls]

    def count(self, action: str) -> int:
        """Return how often the action came."""
        return self.actions().count(action)
