"""The accounts that a plugin's author implements for the kits, with control over faults and reclaims."""

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
    """The call that a fault affects: of a provisioner, a store or a log sink."""

    CREATE = "create"
    LIST = "list"
    PUT = "put"
    """Putting an object in one request."""
    GET = "get"
    """Reading an object, a range of it, or its size."""
    LIST_OBJECTS = "list objects"
    DELETE = "delete"
    BEGIN = "begin"
    """Beginning an upload in parts."""
    PART = "part"
    """Sending a part."""
    COMPLETE = "complete"
    """Making an object from the parts."""
    ABORT = "abort"
    """Deleting the parts."""
    WRITE_LINES = "write lines"
    READ_LINES = "read lines"
    """Reading lines, or listing streams."""


class Fault(str, enum.Enum):
    """A fault of the cloud's API, which lasts until ``heal``, except LOST_ANSWER, which affects one call."""

    LOST_ANSWER = "lost answer"
    """The next call has its effect, and its answer is lost: a status of 500, or a connection that breaks.
    Later calls are answered as usual, including the SDK's own retries."""
    UNWELL = "unwell"
    """The service answers with an error of its own, or not at all."""
    THROTTLED = "throttled"
    """The account has made too many requests."""
    DENIED = "denied"
    """The caller lacks the permission."""
    QUOTA = "quota"
    """The account's limit is reached."""
    REFUSED = "refused"
    """The request can never work, for example because its image does not exist."""
    CUT = "cut"
    """The answer breaks off in the middle of its body."""


class Service(ABC):  # noqa: B024 (its subclasses have the abstract methods)
    """A service whose faults a test can control. A method that is not supported raises NotImplementedError.

    The tests that need it are then deviations.
    """

    def inject(self, call: Call, fault: Fault) -> None:
        """Make such calls fail until ``heal``; with LOST_ANSWER, only the next call."""
        raise NotImplementedError

    def heal(self) -> None:
        """Remove the faults."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        """Let ``seconds`` of the account's time pass, which is real time by default."""
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
    """The time after which the cloud ends it, or None if the cloud does not."""


class Account(Service):
    """An empty account of a cloud for one test, which may change everything in it.

    An emulated account behind the real SDK is best.
    """

    prefix: str = "kit-"
    """The prefix of a test's job ids and tokens; the test does not touch anything else in the account."""
    patience_seconds: float = 30.0
    """How long the cloud may take for asynchronous actions, such as ending a machine."""
    unknown_ids: tuple[str, ...] = ("cloudspot-none",)
    """Ids of machines that the account never had, both well-formed and malformed."""

    @abstractmethod
    def provider(self) -> Provider:
        """Return a provider of this account without any cached lookups, as in another process."""

    def reserve(self, group: InstanceGroup) -> None:
        """Note that a test is about to launch these machines; an account that costs money counts them."""
        return None

    def limit(self, num_machines: int | None) -> None:
        """Limit the machines in each zone and on each market to ``num_machines``; None removes the limit."""
        raise NotImplementedError

    def lag(self, seconds: float) -> None:
        """List new machines only after ``seconds`` of the account's time."""
        raise NotImplementedError

    def reclaim(self, instance_id: str) -> None:
        """Reclaim a spot machine without notice; by default, with ``Provider.preempt``."""
        plaincalls.preempt(self.provider(), instance_id, notice_seconds=0)

    def sold(self) -> Sequence[Sold]:
        """Return all items that the cloud sells under the provider's options, for any resources.

        They must not fit on one page of the cloud's answers, so make its pages short. There should be at
        least two types, two zones, and a type with an accelerator; without these, the tests that need them
        are deviations.
        """
        raise NotImplementedError

    def bought(self, instance_id: str) -> Bought:
        """Return the cloud's own record of a machine, without asking the plugin."""
        raise NotImplementedError

    def running(self) -> set[str]:
        """Return the ids of all machines that may run and be billed.

        The default asks the provisioner; an emulated cloud should answer from its own data.
        """
        return {one.id for one in self.listed() if one.state is not InstanceState.ENDED}

    def listed(self) -> list[Instance]:
        """Return the machines of this test in the provisioner's listing, including ended machines."""
        found = plaincalls.instances(self.provider().provisioner())
        return [one for one in found if one.job_id.startswith(self.prefix)]


class StoreAccount(Service):
    """An empty part of an object store for one test, which can inject faults."""

    few_parts_bytes: int = 21 << 20
    """The size of a stream with at least two parts."""
    many_parts_bytes: int = 100 << 20
    """The size of a stream with at least twelve parts."""

    @abstractmethod
    def open(self) -> ObjectStore:
        """Return the store as another process opens it; its retries need not sleep."""

    @abstractmethod
    def pending(self) -> Sequence[str]:
        """Return the keys of the uploads whose parts the service still stores and bills."""


class LogAccount(Service):
    """The logs of an account for one test, which can inject faults."""

    @abstractmethod
    def sink(self, job_id: str) -> LogSink:
        """Return the sink of the job's log as another process opens it."""
