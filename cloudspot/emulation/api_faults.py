"""The faults and the capacity of an emulated cloud's API, which tests and sandboxes set."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cloudspot.emulation.spot_plan import SpotPlan


class Counted(Protocol):
    """A machine of the account that has not ended."""

    @property
    def zone(self) -> str:
        """Return the machine's zone."""

    @property
    def instance_type(self) -> str:
        """Return the name of the machine's type."""

    @property
    def market(self) -> str:
        """Return ``spot`` or ``on-demand``."""

    @property
    def num_vcpus(self) -> int:
        """Return the number of vCPUs that count towards the quota."""


@dataclass(frozen=True)
class Call:
    """One request that reached the API."""

    service: str
    action: str
    parameters: Mapping[str, Any]
    region: str
    error: str | None
    """The error code in the answer, or None if the call succeeded."""
    access_key: str = ""
    """The access key in the request's signature; empty if no signature was readable."""


@dataclass
class Injected:
    """An error that the next matching calls return."""

    action: str
    code: str
    message: str
    status: int
    times: int
    happens: bool
    """Whether the call takes effect, so that only its answer is lost."""


class LateChanges:
    """Changes that an API shows only some time later. The caller must hold a lock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: list[tuple[float, Callable[[], None]]] = []

    def make(self, change: Callable[[], None], *, after_seconds: float) -> None:
        """Make the change at once or, after ``after_seconds``, in the next ``catch_up``."""
        if after_seconds > 0:
            self._waiting.append((self._clock() + after_seconds, change))
        else:
            change()

    def catch_up(self) -> None:
        """Make the changes that are due, in the order in which ``make`` was called."""
        now = self._clock()
        due = [change for at, change in self._waiting if at <= now]
        self._waiting = [one for one in self._waiting if one[0] > now]
        for change in due:
            change()


@dataclass
class Faults:
    """The faults and limits of an API. The fields may be set at any time; they apply to the next calls.

    Capacity is a number of machines, or None for unlimited, by (zone, instance type, market), where ``*``
    matches any. The most specific entry counts: a zone is more specific than a type, and a type than a
    market.
    """

    capacity: dict[tuple[str, str, str], int | None] = field(default_factory=dict)
    spot_plan: SpotPlan = field(default_factory=SpotPlan)
    """The capacity and the prices of spot machines over time."""
    vcpu_quota: dict[str, int] = field(default_factory=dict)
    """The quota by market, ``spot`` or ``on-demand``; a market without an entry has no limit."""
    throttle_every: int = 0
    """Every Nth call to the machines' API is throttled; if N is 0, no call is."""
    describe_lag_seconds: float = 0.0
    """How long a new machine is missing from listings and unknown to all other calls."""
    tag_lag_seconds: float = 0.0
    """How long a machine's new tag or label is not shown."""
    denied: set[str] = field(default_factory=set)
    """Permissions that the caller lacks, in the cloud's own notation."""
    denied_to_machines: set[str] = field(default_factory=set)
    """Permissions on objects that the machines' role lacks."""
    is_machine: Callable[[str], bool] = lambda _caller: False
    """Returns whether a caller, given by the access key or account in its signature, is a machine."""
    rejected_keys: set[str] = field(default_factory=set)
    """Access keys that the cloud does not know."""
    expired_keys: set[str] = field(default_factory=set)
    """Access keys that have expired."""
    contrary: frozenset[str] = frozenset()
    """How the account differs from the behaviour expected of its cloud: see ``EmulatedCloud.contraries``."""
    calls: list[Call] = field(default_factory=list)
    """All calls, in order."""
    on_call: Callable[[Call], None] | None = None
    """Called with each call."""

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
        """Make the next ``times`` calls of the action (``*`` for any) fail with this error.

        If ``happens``, the call takes effect first, as if only its answer were lost.
        """
        with self._lock:
            self._injected.append(Injected(action, code, message, status, times, happens))

    def withdraw(self) -> None:
        """Remove all injected errors."""
        with self._lock:
            self._injected.clear()

    def is_denied(self, right: str | None, caller: str) -> bool:
        """Return whether the caller lacks this permission on objects."""
        return right in self.denied or (right in self.denied_to_machines and self.is_machine(caller))

    def take(self, action: str) -> Injected | None:
        """Return the error injected for this call, or None; a returned error counts as used."""
        with self._lock:
            for fault in self._injected:
                if fault.times > 0 and fault.action in {action, "*"}:
                    fault.times -= 1
                    return fault
            return None

    def is_throttled(self) -> bool:
        """Count a call, and return whether it is throttled."""
        with self._lock:
            self._num_counted += 1
            return self.throttle_every > 0 and self._num_counted % self.throttle_every == 0

    def capacity_of(self, zone: str, instance_type: str, market: str) -> int | None:
        """Return how many such machines can run at once, or None if there is no limit."""
        planned = self.spot_plan.capacity(zone) if market == "spot" else None
        for key in itertools.product((zone, "*"), (instance_type, "*"), (market, "*")):
            if key in self.capacity:
                limits = [one for one in (self.capacity[key], planned) if one is not None]
                return min(limits, default=None)
        return planned

    def num_in_quota(self, wanted: int, alive: Iterable[Counted], *, market: str, vcpus: int) -> int:
        """Return how many of the wanted machines, each with ``vcpus``, fit into the quota."""
        quota = self.vcpu_quota.get(market)
        if quota is None:
            return wanted
        used = sum(one.num_vcpus for one in alive if one.market == market)
        return min(wanted, max(0, quota - used) // vcpus)

    def num_in_stock(
        self, wanted: int, alive: Iterable[Counted], *, zone: str, instance_type: str, market: str
    ) -> int:
        """Return for how many of the wanted machines there is capacity in addition to the running ones."""
        capacity = self.capacity_of(zone, instance_type, market)
        if capacity is None:
            return wanted
        kind = (zone, instance_type, market)
        used = sum((one.zone, one.instance_type, one.market) == kind for one in alive)
        return min(wanted, max(0, capacity - used))

    def record(self, call: Call) -> None:
        """Record a call."""
        with self._lock:
            self.calls.append(call)
        if self.on_call is not None:
            self.on_call(call)

    def actions(self) -> list[str]:
        """Return the actions of all calls, in order."""
        with self._lock:
            return [call.action for call in self.calls]

    def count(self, action: str) -> int:
        """Return how many times the action was called."""
        return self.actions().count(action)
