"""The accounts that a plugin's author implements for the kits; tests control their faults and reclaims."""

from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from cloudspot.interfaces import LogSink, ObjectStore, Provider
from cloudspot.model import Instance, InstanceGroup, InstanceState, Market
from cloudspot.testing import plaincalls


class Call(str, enum.Enum):
    """The call that a fault affects: a call of a provisioner, a store or a log sink."""

    CREATE = "create"
    LIST = "list"
    PUT = "put"
    """Putting an object in one request."""
    GET = "get"
    """Reading an object, a range of it, or its size."""
    LIST_OBJECTS = "list objects"
    DELETE = "delete"
    BEGIN = "begin"
    """Starting an upload in parts."""
    PART = "part"
    """Sending a part."""
    COMPLETE = "complete"
    """Creating an object from the parts."""
    ABORT = "abort"
    """Deleting the parts."""
    WRITE_LINES = "write lines"
    READ_LINES = "read lines"
    """Reading lines, or listing streams."""


class Fault(str, enum.Enum):
    """A fault of the cloud's API; it lasts until ``heal``, except LOST_ANSWER, which affects one call."""

    LOST_ANSWER = "lost answer"
    """The next call takes effect, but its answer is lost: the status is 500, or the connection breaks. Later
    calls are answered as usual, including the SDK's own retries."""
    UNWELL = "unwell"
    """The service answers with an internal error, or not at all."""
    THROTTLED = "throttled"
    """The account has made too many requests."""
    DENIED = "denied"
    """The caller lacks the permission."""
    QUOTA = "quota"
    """The account has reached its limit."""
    REFUSED = "refused"
    """The request can never work, for example because its image does not exist."""
    CUT = "cut"
    """The answer ends in the middle of its body."""


class Service(ABC):  # noqa: B024 (its subclasses have the abstract methods)
    """A service whose faults a test can control.

    If a method is not supported, raise NotImplementedError; the tests that need it are then deviations.
    """

    def inject(self, call: Call, fault: Fault) -> None:
        """Make such calls fail until ``heal``, or only the next one with LOST_ANSWER."""
        raise NotImplementedError

    def heal(self) -> None:
        """Remove the faults."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        """Let ``seconds`` of the account's time pass; by default, this is real time."""
        time.sleep(seconds)


class Sold(msgspec.Struct, frozen=True, kw_only=True):
    """An item that the cloud sells: a type of machine in a zone on a market."""

    instance_type: str
    zone: str
    market: Market
    price_per_hour: float
    """The price of the machine alone, in the currency of the offers."""
    cpus: int = 0
    memory_bytes: int = 0
    accelerator: str | None = None
    """The accelerator's name, as in ``Resources.accelerator``."""
    accelerator_count: int = 0

    @property
    def key(self) -> str:
        """The key of its offer."""
        return f"{self.market.value}/{self.zone}/{self.instance_type}"


class Bought(msgspec.Struct, frozen=True, kw_only=True):
    """The cloud's own record of one machine, independent of the plugin."""

    user_data: str
    """The machine's boot script, uncompressed."""
    instance_type: str
    zone: str
    market: Market
    disk_bytes: int | None = None
    """The size of its boot disk, or None if it has no disk of its own."""
    labels: Mapping[str, str] = {}
    """Its tags or labels, including cloudspot's own."""
    max_seconds: float | None = None
    """The time after which the cloud ends it, or None if the cloud sets no limit."""


class Account(Service):
    """An empty account at a cloud for one test, which may change everything in it.

    The best choice is an emulated account, accessed through the real SDK.
    """

    prefix: str = "kit-"
    """The prefix of a test's job ids and tokens; the test does not touch anything else in the account."""
    patience_seconds: float = 30.0
    """How long the cloud may take for asynchronous actions, such as ending a machine."""
    unknown_ids: tuple[str, ...] = ("cloudspot-none",)
    """Ids that no machine of the account ever had, both well-formed and malformed."""

    @abstractmethod
    def provider(self) -> Provider:
        """Return a provider of this account without cached lookups, as in another process."""

    def reserve(self, group: InstanceGroup) -> None:
        """Note that a test is about to launch these machines; an account that costs money counts them."""
        return None

    def limit(self, num_machines: int | None) -> None:
        """Limit the machines in each zone and market to ``num_machines``; None removes the limit."""
        raise NotImplementedError

    def lag(self, seconds: float) -> None:
        """Let new machines appear in listings only after ``seconds`` of the account's time."""
        raise NotImplementedError

    def reclaim(self, instance_id: str) -> None:
        """Reclaim a spot machine without notice; the default uses ``Provider.preempt``."""
        plaincalls.preempt(self.provider(), instance_id, notice_seconds=0)

    def sold(self) -> Sequence[Sold]:
        """Return all items that the cloud sells under the provider's options, for any resources.

        They must not fit on one page of the cloud's answers, so make its pages short. There should be at
        least two types, two zones, and a type with an accelerator; if not, the tests that need them are
        deviations.
        """
        raise NotImplementedError

    def bought(self, instance_id: str) -> Bought:
        """Return the cloud's own record of a machine, without asking the plugin."""
        raise NotImplementedError

    def running(self) -> set[str]:
        """Return the ids of all machines that may be running and billed.

        The default calls the provisioner; an emulated cloud should answer from its own data.
        """
        return {one.id for one in self.listed() if one.state is not InstanceState.ENDED}

    def listed(self) -> list[Instance]:
        """Return the machines of this test in the provisioner's listing, including ended machines."""
        found = plaincalls.instances(self.provider().provisioner())
        return [one for one in found if one.job_id.startswith(self.prefix)]


class StoreAccount(Service):
    """An empty part of an object store for one test, which can inject faults."""

    few_parts_bytes: int = 21 << 20
    """The size of a stream that has at least two parts."""
    many_parts_bytes: int = 100 << 20
    """The size of a stream that has at least twelve parts."""

    @abstractmethod
    def open(self) -> ObjectStore:
        """Return the store as another process would open it; its retries need not sleep."""

    @abstractmethod
    def pending(self) -> Sequence[str]:
        """Return the keys of the uploads whose parts the service still stores and bills."""


class LogAccount(Service):
    """The logs of an account for one test, which can inject faults."""

    @abstractmethod
    def sink(self, job_id: str) -> LogSink:
        """Return the sink of the job's log as another process would open it."""
