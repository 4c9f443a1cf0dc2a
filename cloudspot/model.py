"""Frozen value types that all layers share: machines, offers, notices, objects, log lines."""

from __future__ import annotations

import base64
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Annotated, Any, Final

import msgspec

from cloudspot.decoding import (
    Dated,
    InstanceId,
    OrdinalOrZero,
    Price,
    Rank,
    Seconds,
    StreamName,
    Tally,
)

MAX_UNKNOWN: Final = 100
"""The most characters of a value that this version does not know."""


class OpenEnum(str, enum.Enum):
    """Values to which later versions, and providers, add others; each class says what an unknown one means.

    An unknown value is equal to the same text, is stored and read back as it is, and is no member.
    """

    @classmethod
    def _missing_(cls, value: object) -> OpenEnum | None:
        if not isinstance(value, str) or not 0 < len(value) <= MAX_UNKNOWN or not value.isprintable():
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown

    @property
    def is_known(self) -> bool:
        """Whether this version knows the value."""
        return self.name in type(self).__members__


class Market(OpenEnum):
    """How a machine is paid for; nothing is bought on an unknown market."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


GIB: Final = 1 << 30


class Capability(str, enum.Enum):
    """What a provider can do, beside creating, listing and ending machines."""

    CONTAINERS = "containers"
    """Its machines can run docker or podman, so that a job may have ``run.image``."""
    CONSOLE = "console"
    """``Provisioner.console`` tells what a machine has printed."""
    LOGS = "logs"
    """``Provider.log_sink`` can keep logs elsewhere than in the object store."""
    REGISTRY = "registry"
    """``Provider.registry_login`` logs in to the provider's own registry of containers."""
    IMAGES = "images"
    """``Provider.image_host`` keeps images of machines, so that ``cloudspot image`` works."""
    FUNCTIONS = "functions"
    """``Provider.function_host`` runs drivers as functions, so that ``cloudspot driver`` works."""
    PREEMPT = "preempt"
    """``Provider.preempt`` reclaims a machine, so that ``cloudspot preempt`` works."""
    THIS_COMPUTER = "this-computer"
    """Its machines are processes of the computer that drives them, and end when that is switched off. A job
    of it is driven only where it was submitted, or adopted: else whoever can write to a store would choose
    what runs there."""


class InstanceState(OpenEnum):
    """The state of a machine. Only ``ENDED`` proves that it no longer runs anything.

    A machine in an unknown state may run, and is billed.
    """

    PENDING = "pending"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    ENDED = "ended"

    @property
    def is_up(self) -> bool:
        """Whether the machine may run, or will run soon, and nothing is known to have begun to end it."""
        return self not in (InstanceState.SHUTTING_DOWN, InstanceState.ENDED)


class EndReason(OpenEnum):
    """Why a machine ended, as far as the provider can tell; an unknown reason is shown as it is."""

    RECLAIMED = "reclaimed"
    """The provider took a spot machine back."""
    TERMINATED = "terminated"
    """Someone asked the provider to terminate it."""
    SELF = "self"
    """It shut itself down from the inside."""
    LOST = "lost"
    """The host failed."""
    CAPACITY = "capacity"
    """It never ran: there was no room for it after all."""
    QUOTA = "quota"
    """It never ran: a quota left no room for what it needs."""
    UNSTARTABLE = "unstartable"
    """It never ran, for a reason that the next machine of the same request would meet too."""
    UNKNOWN = "unknown"


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What one node must have; ``None`` or 0 leaves the choice to the provider."""

    accelerator: str | None = None
    """The vendor's or provider's name, such as ``A100``."""
    accelerator_count: int = 0
    cpus: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0


class Billing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What time of a machine its provider charges for; by default each second that has begun."""

    minimum_seconds: Seconds = 0.0
    """A machine that ran for less is charged for this long."""
    increment_seconds: Annotated[float, msgspec.Meta(ge=1, le=1e10)] = 1.0
    """Time is rounded up to a multiple of this."""
    free_if_reclaimed_seconds: Seconds = 0.0
    """A spot machine that the provider takes back before it has run for this long is not charged; what is
    billed beside it, such as its disk, is."""

    def charged_seconds(self, seconds: float) -> float:
        """Return what is charged for a machine that ran for ``seconds`` and was not taken back."""
        return max(self.minimum_seconds, math.ceil(seconds / self.increment_seconds) * self.increment_seconds)


class PricePart(msgspec.Struct, frozen=True, kw_only=True):
    """What a price adds up, such as the machine and its disk."""

    name: str
    per_hour: Price | None
    """In the offer's currency; None: it costs something that nobody tells, and that the price leaves out."""

    def __str__(self) -> str:
        if self.per_hour is None:
            return f"{self.name} not counted"
        return f"{self.name} {self.per_hour:.6f}".rstrip("0").rstrip(".")


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be bought: an instance type in a zone on a market, with its price."""

    instance_type: str
    zone: str
    market: Market
    price_per_hour: Price
    """The price of one node, in ``currency``: its machine, boot disk and public address."""
    on_demand_price_per_hour: Price
    """The same type's price on demand, for the comparison in the bill."""
    currency: str = "USD"
    billing: Billing = Billing()
    """What of a machine's time is charged at these prices."""
    transfer_price_per_gib: Price = 0.0
    """What a GiB between such a machine and the region of the job's bucket costs, in ``currency``, in the
    dearer direction; 0 within the region. It is no part of the price."""
    network: str = ""
    """Machines of different networks, such as two regions' VPCs, do not reach each other; empty: all of the
    provider's do."""
    extras_per_hour: Price = 0.0
    """What of the price is for what is billed beside the machine, such as its disk."""
    price_parts: tuple[PricePart, ...] = ()
    """What the price adds up, for people; empty: nobody tells."""
    region: str = ""
    """Where the provider has several at once: the one in which the machine would be."""
    image: str = ""
    """The id of the image from which the machine would start, where the provider finds it with the offer."""
    image_gib: Tally = 0
    """How large that image is; see ``cloudspot.plugin.launchrequests.disk_gib``."""
    has_setup: bool = False
    """The image is one of ``ImageHost``, and the job's setup is done in it."""
    details: Mapping[str, str] = msgspec.field(default_factory=dict)
    """What the plugin alone needs of what it has looked up, so that ``render`` needs no I/O. It is stored
    with the launch and holds no secret."""

    @property
    def key(self) -> str:
        """The offer's unique name within its provider."""
        return f"{self.market.value}/{self.zone}/{self.instance_type}"

    def reaches(self, other: Offer) -> bool:
        """Return whether machines of the two offers reach each other, so that they can train together."""
        return self.network == other.network or not (self.network and other.network)

    @property
    def price_text(self) -> str:
        """What the price adds up, such as ``machine 0.0318, disk 0.011``; empty: nobody tells."""
        return ", ".join(map(str, self.price_parts))


class DriverFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A program that drives a store's jobs: ``FunctionHost`` runs it once for each event."""

    name: str
    """At most 40 letters, digits and hyphens: the same for the same store."""
    archive: bytes
    """A zip of all its Python code; equal code gives equal bytes."""
    unpacked_bytes: int
    """How much that is on disk."""
    needs_glibc: tuple[int, int] = (0, 0)
    """The least version of the C library that its compiled code runs on; (0, 0): any."""
    handler: str
    """``module.function``; it takes what the provider passes on, and first waits ``wait_seconds`` of that."""
    every_seconds: float
    """How long it is from one pass to the next."""
    reaps: bool = False
    """Once a day it is run with ``REAP_EVENT``, and its role has the rights of ``cloudspot reap`` as well."""
    store_url: str
    environment: Mapping[str, str]


class MachineImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that ``cloudspot image bake`` has had made of a machine's disk."""

    id: str
    key: str
    """Of the setup that it holds; see ``cloudspot.jobfile.setup_key``."""
    job_name: str
    """The name in the job file for which it was made."""
    is_ready: bool
    """Machines can start from it. False: the provider still copies the disk, or could not."""
    failure: str = ""
    """Why the provider could not make it."""
    created_at: datetime | None = None
    size_gib: float | None = None
    """What is kept and billed, as far as the provider tells; else the size of the disk."""
    where: str = ""
    """The region that has it; empty: every one."""


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """One thing of cloudspot's making that a provider or a store keeps, whether anything needs it or not."""

    kind: str
    """What it is, in the provider's own words, such as ``volume``."""
    id: str
    """By which the provider finds it, unique for its kind and place."""
    where: str = ""
    """Its region or zone."""
    job_id: str = ""
    """The job that it was made for; empty: it is no job's, such as a driver's role."""
    store_url: str = ""
    """The store that it was made for, as ``InstanceGroup.store_url``; empty: nothing on it tells."""
    created_at: datetime | None = None
    """None: the provider does not tell."""
    is_in_use: bool = False
    """For what is no job's: it is part of something that stands, such as a driver."""
    price_per_day: float | None = None
    """What it costs as long as it is left alone, in ``currency``; None: not known."""
    currency: str = "USD"
    detail: str = ""
    """What people want to know besides, such as its size."""


class UnfinishedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload in parts that was begun and neither completed nor aborted."""

    key: str
    id: str
    """The store's own name for it."""
    begun_at: datetime


REAP_EVENT: Final = {"reap": True}
"""What a function is run with to end what its store's jobs have left, rather than to drive them."""


class FunctionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider tells of a function that it runs."""

    where: str
    """Its name within the provider, such as an ARN."""
    state: str
    """The provider's own word."""
    every_seconds: float | None
    """None: nothing runs it on a schedule."""
    version: str
    """The version of cloudspot that it has."""
    changed_at: datetime | None


DEFAULT_MASTER_PORT: Final = 29500
"""torchrun's default."""
ANNOUNCED: Final = ("MASTER_ADDR", "MASTER_PORT", "NUM_NODES")
"""The facts about the newest generation that its machines are told: the address and the port at which its
ranks meet, and how many nodes it has."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as its provider reports it."""

    id: InstanceId
    state: InstanceState
    job_id: str
    launch: OrdinalOrZero
    """The launch that it belongs to, counted from 1 (a tag on the machine)."""
    rank: Rank | None = None
    """The node's index within the launch, from 0, if the provider knows it."""
    end_reason: EndReason | None = None
    address: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    market: Market | None = None
    launched_at: datetime | None = None
    ended_at: datetime | None = None
    store_url: str = ""
    """Its InstanceGroup's; empty if the provider cannot tell."""
    detail: str = ""
    """One line for people, where the provider says it: why the machine ended, or why it has not started, and
    what to change. Empty: it says nothing, or all is as usual."""

    @property
    def node_name(self) -> str:
        """The name by which people find the machine: ``<job>-<launch>-<rank>``."""
        return f"{self.job_id}-{self.launch}" + ("" if self.rank is None else f"-{self.rank}")


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that this process runs on, according to its metadata service."""

    instance_id: InstanceId
    rank: Rank
    """The node's index within its launch, from 0."""
    address: str
    """Where the other nodes of the launch reach it."""
    zone: str | None = None
    instance_type: str | None = None
    market: Market | None = None


class InstanceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch asks for: ``num_nodes`` equal machines, or at least ``min_nodes`` of them, or none."""

    job_id: str
    launch: int
    num_nodes: int
    min_nodes: int
    """With fewer machines than this, the provider must end them and raise CapacityError."""
    job_nodes: int
    """The most nodes that train together (``nodes.max``): this launch may replace one of many, so whatever is
    arranged for several nodes, such as a placement group, is the job's and not the launch's."""
    offer: Offer
    resources: Resources
    user_data: str
    """The boot script, the same for all nodes; a node learns its rank from its metadata."""
    max_seconds: float
    """How long a machine may live at most, for clouds that can enforce a limit."""
    decided_at: datetime | None = None
    """When the launch was decided, by some controller's clock, for clouds whose limit is a point in time;
    None: not known. The machines come up to ``token_seconds`` later."""
    store_url: str = ""
    """The store of the job's records, without credentials, for a tag: it leads people to the job, and tells
    controllers the machine from those of another store's job of the same id."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The job's own, for providers whose machines can carry them."""
    drives: bool = False
    """Its nodes drive the job at their end (``nodes.drive``), which takes a driver's rights."""


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request that ``create`` sends; stored in the intent and replayed unchanged."""

    provider: str
    body: dict[str, Any]
    """JSON values only; holds no secret."""
    made_by: str = ""
    """The distribution and the version of the plugin that rendered it, such as ``cloudspot-acme 1.2``;
    written by whoever stores the request."""
    signature: str = ""
    """Where ``create`` obeys only requests of the provider's own making: how it knows them again."""


class PreemptionNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's announcement that it will take this machine."""

    deadline: datetime | None
    """When it will be taken (UTC); None if the provider names no time."""
    deadline_monotonic: float | None = None
    """The same moment by this machine's ``time.monotonic()``, where the source counts from now: "in 30 s" is
    ``time.monotonic() + 30``. It then counts instead of ``deadline``, and as it is. Of ``deadline`` no more
    is believed than ``PreemptionSource.notice_seconds``, since this machine's clock may be wrong. None: the
    source tells only the time of day."""
    action: str = "terminate"
    """``terminate``, ``stop`` or ``hibernate``; each ends the training on this machine."""
    source: str = ""
    """The channel it came by, such as ``metadata`` or ``shutdown-script``."""


class ObjectMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What a listing shows of an object."""

    key: str
    size: int
    """Bytes."""
    modified_at: datetime
    etag: str = ""
    """What the store names these bytes by, such as an entity tag or a generation: the same in a listing and
    by ``head``, and another one after each put of other bytes. Empty: it has no such name."""


class ObjectPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a listing, in ascending order of keys."""

    objects: tuple[ObjectMeta, ...]
    next_after: str | None
    """The ``after`` of the next page; None if this was the last."""
    cursor: str = ""
    """How the store finds the next page, where its service lists by a token of its own. It is given back
    beside ``next_after``, to the same store and with the same prefix; empty: ``next_after`` is enough."""
    skipped: tuple[str, ...] = ()
    """Names that were passed over: those that are not valid keys, such as what is not ASCII, and symlinks.
    Some may be told with several pages. What stands for a directory (``folder/``) is not among them."""


class LogRecord(Dated, frozen=True, kw_only=True):
    """One line of a node's log."""

    stream: StreamName
    """``<launch>-<rank>``: one machine's log."""
    seq: Tally
    """The number of the line in its stream, from 0, without gaps; readers drop repeats by it."""
    time: datetime
    text: str
    """The line without its newline. A progress bar is one line, with carriage returns between its states."""
    source: str = "train"
    """``train`` for the training script, ``setup`` for its setup, ``agent`` for cloudspot's agent."""


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that a sink keeps, lists and removes: a file, an object, or a whole stream."""

    stream: str
    name: str
    """The sink's name for it; where people can look it up, theirs too."""
    first_day: date
    """The UTC date of its first lines."""
    last_day: date
    """The UTC date of its newest lines."""
    num_bytes: int | None = None
    """None: unknown."""


DATA_CACHE: Final = "CLOUDSPOT_INPUT_CACHE"
"""The variable that names, on a machine, the directory in which files of ``[data]`` are kept."""


class BootProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How a provider's machines get from a bare boot to a running agent."""

    agent_python: str = "python3"
    """The interpreter that runs the agent or, on a stock image, creates its environment."""
    train_python: str = "python3"
    """The interpreter for setup and training if the job names none."""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Set in the boot script; holds no secret."""
    shutdown_command: str = "shutdown -h now"
    """Ends the machine from the inside."""
    end_code: str = ""
    """For clouds that keep and bill a machine that is only shut down: Python on the standard library alone
    that asks the cloud, with the machine's own rights, to remove it. Run before ``shutdown_command``, by
    ``agent_python``. Empty: the launch sets a switch of the cloud's by which a machine that is shut down is
    removed, or such machines are not billed."""
    has_cloudspot: bool = False
    """The image has this very version: nothing is installed."""
    own_disks: tuple[str, ...] = ()
    """Patterns of the paths of disks that are a part of the machine: fast, in its price and lost with it.
    Inputs are kept on those that are empty, unless ``environment`` has ``DATA_CACHE``."""
    own_directories: tuple[str, ...] = ()
    """Where the image mounts such disks itself."""
    fetch_code: str = ""
    """For images that may lack it: Python on the standard library alone that defines ``fetch(store_url, key,
    path)``, which writes the object to the file with the machine's own rights. An OSError is retried."""
    lacks: str = ""
    """What a training needs and the image lacks, with what to do, in sentences. Said of jobs with an
    accelerator, and of those that bring neither a setup nor a container's image."""


@dataclass(frozen=True, kw_only=True)
class RegistryLogin:
    """A log-in for a registry of container images; no representation shows the password."""

    user: str
    password: str = field(repr=False)
    origin: str
    """Whose it is, as the object of "the registry refuses": ``these credentials, which need ...``."""

    @property
    def basic(self) -> str:
        """Both, as HTTP's basic authentication and Docker's ``config.json`` have them."""
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``cloudspot providers check``."""

    name: str
    ok: bool
    detail: str = ""
    """What was found, on one line."""
    remedy: str = ""
    """What to do if it is not ok, on one line: a command, a right to grant, a setting."""
    is_known: bool = True
    """False: it could not be tried, and ``detail`` says why; ``ok`` is true then."""


class Severity(str, enum.Enum):
    """How grave a message is, the gravest last."""

    INFO = "info"
    SUCCESS = "success"
    WARNING = "warning"
    FAILURE = "failure"


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One of the events that a message is about."""

    kind: str
    """As in ``notify.events``; an unknown kind is one of a later cloudspot."""
    text: str
    """One line; empty where the kind and the state of the job say it all."""
    at: datetime


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What a job tells people, and what a plugin does that listens to its events."""

    job_id: str
    title: str
    """One line, which names the job and the kinds of its events."""
    body: str
    """Plain text of some lines."""
    severity: Severity
    events: tuple[MessageEvent, ...] = ()
    """What the text is made of, the earliest first; each is in one message only. Empty: a test."""
