"""What the kits ask of a plugin's author: an account, and how to make it refuse, lag and reclaim."""

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
    """What a fault is for: a call of a provisioner, of a store, of a log sink."""

    CREATE = "create"
    LIST = "list"
    PUT = "put"
    """An object is put at once."""
    GET = "get"
    """An object or a range of it is read, or its size is asked for."""
    LIST_OBJECTS = "list objects"
    DELETE = "delete"
    BEGIN = "begin"
    """An upload in parts is begun."""
    PART = "part"
    """A part of it is sent."""
    COMPLETE = "complete"
    """The parts become an object."""
    ABORT = "abort"
    """The parts are dropped."""
    WRITE_LINES = "write lines"
    READ_LINES = "read lines"
    """Lines are read, or streams are listed."""


class Fault(str, enum.Enum):
    """How the cloud's API misbehaves: LOST_ANSWER at the next call alone, each other until ``heal``."""

    LOST_ANSWER = "lost answer"
    """The next call has its effect, and its answer is lost: a status of 500, or a connection that breaks. The
    calls after it are answered as usual, also those of the SDK's own retries."""
    UNWELL = "unwell"
    """It answers with an error of its own, or not at all."""
    THROTTLED = "throttled"
    """The account has asked too often."""
    DENIED = "denied"
    """The caller lacks the right."""
    QUOTA = "quota"
    """The account's limit is reached."""
    REFUSED = "refused"
    """The request can never work, such as one for an image that does not exist."""
    CUT = "cut"
    """The answer breaks off in the middle of its body."""


class Service(ABC):  # noqa: B024 (its subclasses say how a test gets at it)
    """What can misbehave for a test. What cannot be arranged raises NotImplementedError.

    The tests that need it are then deviations.
    """

    def inject(self, call: Call, fault: Fault) -> None:
        """Let the cloud misbehave at such calls until ``heal``; with LOST_ANSWER, at the next one alone."""
        raise NotImplementedError

    def heal(self) -> None:
        """Let the cloud behave again."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        """Let so many seconds of the account's time pass; by default it is the real one."""
        time.sleep(seconds)


class Sold(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the cloud sells: a type of machine in a zone on a market."""

    instance_type: str
    zone: str
    market: Market
    price_per_hour: float
    """Of the machine alone, in the currency of the offers."""
    cpus: int = 0
    memory_bytes: int = 0
    accelerator: str | None = None
    """As ``Resources.accelerator`` names it."""
    accelerator_count: int = 0

    @property
    def key(self) -> str:
        """The key that its offer has."""
        return f"{self.market.value}/{self.zone}/{self.instance_type}"


class Bought(msgspec.Struct, frozen=True, kw_only=True):
    """What the cloud has on its books for one machine, whatever the plugin reports of it."""

    user_data: str
    """What the machine runs when it boots, unpacked."""
    instance_type: str
    zone: str
    market: Market
    disk_bytes: int | None = None
    """Of its boot disk; None: it has none of its own."""
    labels: Mapping[str, str] = {}
    """Its tags or labels, cloudspot's own among them."""
    max_seconds: float | None = None
    """After how long the cloud ends it; None: it does not."""


class Account(Service):
    """An empty account of a cloud, in which a test may do what it likes; made anew for each test.

    It is best an emulated one, behind the real SDK.
    """

    prefix: str = "kit-"
    """How the ids of the jobs and the tokens of a test begin: it leaves alone what else the account has."""
    patience_seconds: float = 30.0
    """How long the cloud may take for what it does in its own time, such as ending a machine."""
    unknown_ids: tuple[str, ...] = ("cloudspot-none",)
    """Ids of machines that the account never had: well formed, malformed."""

    @abstractmethod
    def provider(self) -> Provider:
        """Return a provider of this account that has looked up nothing, as another process would have it."""

    def reserve(self, group: InstanceGroup) -> None:
        """Note that a test is about to launch these machines; an account that costs money counts them."""
        return None

    def limit(self, num_machines: int | None) -> None:
        """Leave room for so many machines in all, in each zone and on each market; None: for any number."""
        raise NotImplementedError

    def lag(self, seconds: float) -> None:
        """Let new machines show in listings only after so many seconds of the account's time."""
        raise NotImplementedError

    def reclaim(self, instance_id: str) -> None:
        """Take a spot machine back without notice; by default, by ``Provider.preempt``."""
        plaincalls.preempt(self.provider(), instance_id, notice_seconds=0)

    def sold(self) -> Sequence[Sold]:
        """Return all that the cloud sells to the provider's options, whatever the resources.

        It is more than the cloud tells on one page of its answers: let its pages be short. There are at least
        two types and two zones, and a type with an accelerator, or the tests that need them are deviations.
        """
        raise NotImplementedError

    def bought(self, instance_id: str) -> Bought:
        """Return what the cloud itself has on its books for a machine; do not ask the plugin."""
        raise NotImplementedError

    def running(self) -> set[str]:
        """Return the ids of all machines that may run and bill.

        The default asks the provisioner; an emulated cloud knows better what it has.
        """
        return {one.id for one in self.listed() if one.state is not InstanceState.ENDED}

    def listed(self) -> list[Instance]:
        """Return the machines of this test that its provisioner lists, ended ones included."""
        found = plaincalls.instances(self.provider().provisioner())
        return [one for one in found if one.job_id.startswith(self.prefix)]


class StoreAccount(Service):
    """An empty place in an object store that a test can disturb; made anew for each test."""

    few_parts_bytes: int = 21 << 20
    """The size of a stream of at least two parts."""
    many_parts_bytes: int = 100 << 20
    """That of one of at least twelve."""

    @abstractmethod
    def open(self) -> ObjectStore:
        """Return the store as another process opens it; its retries need not sleep."""

    @abstractmethod
    def pending(self) -> Sequence[str]:
        """Return the keys of the uploads whose parts the service still has, and bills."""


class LogAccount(Service):
    """Logs of an account that a test can disturb; made anew for each test."""

    @abstractmethod
    def sink(self, job_id: str) -> LogSink:
        """Return the sink of the job's log as another process opens it."""
