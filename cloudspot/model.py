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
"""The maximum length, in characters, of a value unknown to this version."""


class OpenEnum(str, enum.Enum):
    """An enum to which later versions and providers add values; each class states how to treat unknown ones.

    An unknown value is equal to the same text, is stored and read back unchanged, and is not a member.
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
    """An ability of a provider besides creating, listing and ending machines."""

    CONTAINERS = "containers"
    """Its machines can run docker or podman, so that a job can use ``run.image``."""
    CONSOLE = "console"
    """``Provisioner.console`` returns the console output of a machine."""
    LOGS = "logs"
    """``Provider.log_sink`` can keep logs outside the object store."""
    REGISTRY = "registry"
    """``Provider.registry_login`` logs in to the provider's own container registry."""
    IMAGES = "images"
    """``Provider.image_host`` keeps images of machines, so that ``cloudspot image`` works."""
    FUNCTIONS = "functions"
    """``Provider.function_host`` runs drivers as functions, so that ``cloudspot driver`` works."""
    PREEMPT = "preempt"
    """``Provider.preempt`` reclaims a machine, so that ``cloudspot preempt`` works."""
    SETUP = "setup"
    """``Provider.account_setup`` creates what an account needs, so that ``cloudspot setup`` works."""
    THIS_COMPUTER = "this-computer"
    """Its machines are processes of the computer that drives them, and end when that computer is switched
    off. A job on them is driven only where it was submitted or adopted; otherwise anyone with write access to
    a store could choose what runs there."""


class InstanceState(OpenEnum):
    """The state of a machine. Only ``ENDED`` proves that it no longer runs anything.

    A machine in an unknown state is assumed to run and to be billed.
    """

    PENDING = "pending"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    ENDED = "ended"

    @property
    def is_up(self) -> bool:
        """Whether the machine runs or may run soon, and is not known to be shutting down."""
        return self not in (InstanceState.SHUTTING_DOWN, InstanceState.ENDED)


class EndReason(OpenEnum):
    """Why a machine ended, as far as the provider knows; an unknown reason is shown unchanged."""

    RECLAIMED = "reclaimed"
    """The provider reclaimed a spot machine."""
    TERMINATED = "terminated"
    """Someone asked the provider to terminate the machine."""
    SELF = "self"
    """The machine shut itself down from the inside."""
    LOST = "lost"
    """The machine's host failed."""
    CAPACITY = "capacity"
    """The machine never ran, because capacity was missing after all."""
    QUOTA = "quota"
    """The machine never ran, because a quota does not allow it."""
    UNSTARTABLE = "unstartable"
    """The machine never ran, for a reason that would also stop the next machine of the same request."""
    UNKNOWN = "unknown"


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """The minimum that one node must have; ``None`` or 0 leaves the choice to the provider."""

    accelerator: str | None = None
    """The vendor's or provider's name for the accelerator, such as ``A100``."""
    accelerator_count: int = 0
    cpus: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0


class Billing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The time for which a provider charges a machine; by default, each second that has begun."""

    minimum_seconds: Seconds = 0.0
    """A machine that ran for less than this is charged for this long."""
    increment_seconds: Annotated[float, msgspec.Meta(ge=1, le=1e10)] = 1.0
    """Time is rounded up to a multiple of this."""
    free_if_reclaimed_seconds: Seconds = 0.0
    """A spot machine that the provider reclaims within this time is not charged. Resources that are billed
    separately, such as its disk, are still charged."""

    def charged_seconds(self, seconds: float) -> float:
        """Return the seconds charged for a machine that ran for ``seconds`` and was not reclaimed."""
        return max(self.minimum_seconds, math.ceil(seconds / self.increment_seconds) * self.increment_seconds)


class PricePart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a price, such as that of the machine or of its disk."""

    name: str
    per_hour: Price | None
    """In the offer's currency; None if the cost is unknown and therefore not included in the price."""

    def __str__(self) -> str:
        if self.per_hour is None:
            return f"{self.name} not counted"
        return f"{self.name} {self.per_hour:.6f}".rstrip("0").rstrip(".")


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A purchasable unit: an instance type in a zone on a market, with its price."""

    instance_type: str
    zone: str
    market: Market
    price_per_hour: Price
    """The price of one node, in ``currency``: its machine, boot disk and public address."""
    on_demand_price_per_hour: Price
    """The on-demand price of the same type, for comparison in the bill."""
    currency: str = "USD"
    billing: Billing = Billing()
    """The machine time that is charged at these prices."""
    transfer_price_per_gib: Price = 0.0
    """The price of moving a GiB between such a machine and the job's bucket, in ``currency``, in the more
    expensive direction; 0 within the bucket's region. ``price_per_hour`` does not include it."""
    network: str = ""
    """Machines in different networks, such as two regions' VPCs, cannot reach each other. The empty string
    means that all of the provider's machines can reach each other."""
    extras_per_hour: Price = 0.0
    """The part of the price that does not pay for the machine, such as its disk."""
    price_parts: tuple[PricePart, ...] = ()
    """The parts of the price, to show to people; empty if unknown."""
    region: str = ""
    """The region in which the machine would be, if the provider uses several at once."""
    image: str = ""
    """The id of the image from which the machine would start, if the provider looks it up with the offer."""
    image_gib: Tally = 0
    """The size of that image; see ``cloudspot.plugin.launchrequests.disk_gib``."""
    has_setup: bool = False
    """Whether the image comes from ``ImageHost`` and already contains the job's setup."""
    details: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Facts that the plugin has looked up and that only the plugin needs, so that ``render`` needs no I/O.
    They are stored with the launch and must not contain secrets."""

    @property
    def key(self) -> str:
        """The offer's unique name within its provider."""
        return f"{self.market.value}/{self.zone}/{self.instance_type}"

    def reaches(self, other: Offer) -> bool:
        """Return whether machines of the two offers can reach each other, and so can train together."""
        return self.network == other.network or not (self.network and other.network)

    @property
    def price_text(self) -> str:
        """The parts of the price, such as ``machine 0.0318, disk 0.011``; empty if unknown."""
        return ", ".join(map(str, self.price_parts))


class DriverFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A program that drives a store's jobs: ``FunctionHost`` runs it once for each event."""

    name: str
    """At most 40 letters, digits and hyphens; the same store always gives the same name."""
    archive: bytes
    """A zip of all its Python code; the same code gives the same bytes."""
    unpacked_bytes: int
    """The size of the unpacked archive on disk."""
    needs_glibc: tuple[int, int] = (0, 0)
    """The minimum glibc version that its compiled code needs; (0, 0) means any."""
    handler: str
    """``module.function``. The function that receives the provider's event, and first waits for the event's
    ``wait_seconds``."""
    every_seconds: float
    """The time between the starts of two passes."""
    reaps: bool = False
    """Whether it is also run once a day with ``REAP_EVENT``; its role then has the permissions that
    ``cloudspot reap`` needs."""
    store_url: str
    environment: Mapping[str, str]


class MachineImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that the provider made of a machine's disk for ``cloudspot image bake``."""

    id: str
    key: str
    """The key of the setup in the image; see ``cloudspot.jobfile.setup_key``."""
    job_name: str
    """The name in the job file that the image was made for."""
    is_ready: bool
    """Whether machines can start from it. If not, the provider is still copying the disk, or has failed to.
    """
    failure: str = ""
    """Why the provider could not make the image."""
    created_at: datetime | None = None
    size_gib: float | None = None
    """The size that is stored and billed, if the provider reports it; otherwise the size of the disk."""
    where: str = ""
    """The region that has the image; the empty string means every region."""


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that cloudspot created and that a provider or a store keeps, needed or not."""

    kind: str
    """The kind of resource, in the provider's words, such as ``volume``."""
    id: str
    """The provider's id for the resource, unique within its kind and location."""
    where: str = ""
    """The resource's region or zone."""
    job_id: str = ""
    """The job that it was created for; empty if it does not belong to a single job, such as a driver's role.
    """
    store_url: str = ""
    """The store that it was created for, as in ``InstanceGroup.store_url``; empty if unknown."""
    created_at: datetime | None = None
    """When it was created; None if the provider does not report it."""
    is_in_use: bool = False
    """Whether it is used by something other than a job, such as a driver."""
    price_per_day: float | None = None
    """Its cost while it is kept, in ``currency``; None if unknown."""
    currency: str = "USD"
    detail: str = ""
    """Other facts to show to people, such as its size."""


class UnfinishedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload in parts that was begun and neither completed nor aborted."""

    key: str
    id: str
    """The store's id for the upload."""
    begun_at: datetime


REAP_EVENT: Final = {"reap": True}
"""The event that makes a function end resources that its store's jobs left behind, instead of driving the
jobs."""


class FunctionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's report about a function that it runs."""

    where: str
    """The function's full name at the provider, such as an ARN."""
    state: str
    """The function's state in the provider's words."""
    every_seconds: float | None
    """The period of its schedule, or None if it has no schedule."""
    version: str
    """The version of cloudspot that the function contains."""
    changed_at: datetime | None


DEFAULT_MASTER_PORT: Final = 29500
"""torchrun's default."""
ANNOUNCED: Final = ("MASTER_ADDR", "MASTER_PORT", "NUM_NODES")
"""The names of the facts about the newest generation that are announced to its machines: the address and port
where its ranks rendezvous, and its number of nodes."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as its provider reports it."""

    id: InstanceId
    state: InstanceState
    job_id: str
    launch: OrdinalOrZero
    """The launch to which it belongs, counted from 1 (a tag on the machine)."""
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
    """The ``store_url`` of its InstanceGroup; empty if the provider does not know it."""
    detail: str = ""
    """One line for people: why the machine ended or has not started, and what to change. Empty if the
    provider gives no reason, or if all is normal."""

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
    """The address at which the other nodes of the launch reach it."""
    zone: str | None = None
    instance_type: str | None = None
    market: Market | None = None


class InstanceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that a launch requests: ``num_nodes`` equal ones, or at least ``min_nodes``, or none."""

    job_id: str
    launch: int
    num_nodes: int
    min_nodes: int
    """With fewer machines than this, the provider must end them and raise CapacityError."""
    job_nodes: int
    """The maximum number of nodes that train together (``nodes.max``). This launch may replace only one of
    many nodes, so a resource for several nodes, such as a placement group, belongs to the job and not to the
    launch."""
    offer: Offer
    resources: Resources
    user_data: str
    """The boot script, the same for all nodes; a node learns its rank from its metadata."""
    max_seconds: float
    """The maximum life of a machine, for clouds that can enforce a limit."""
    decided_at: datetime | None = None
    """When a controller decided on the launch, by its own clock, for clouds whose limit is a point in time;
    None if unknown. The machines may come up as much as ``token_seconds`` later."""
    store_url: str = ""
    """The store of the job's records, without credentials, for a tag. The tag leads people to the job, and
    lets controllers distinguish jobs with the same id in different stores."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The job's own labels, for providers whose machines can carry labels."""
    drives: bool = False
    """Whether the nodes drive the job when they end (``nodes.drive``), for which they need a driver's
    permissions."""


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request that ``create`` sends. It is stored in the intent and repeated unchanged."""

    provider: str
    body: dict[str, Any]
    """Only JSON values, without secrets."""
    made_by: str = ""
    """The distribution and version of the plugin that rendered the request, such as ``cloudspot-acme 1.2``.
    Cloudspot sets it when it stores the request."""
    signature: str = ""
    """The provider's proof that it made the request, for providers whose ``create`` accepts only their own
    requests."""


class PreemptionNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's announcement that it will reclaim this machine."""

    deadline: datetime | None
    """When the machine will be reclaimed (UTC); None if the provider states no time."""
    deadline_monotonic: float | None = None
    """The same time by this machine's ``time.monotonic()``, for sources that count from now: "in 30 s" is
    ``time.monotonic() + 30``. If it is set, it is used unchanged instead of ``deadline``. A ``deadline`` is
    limited to ``PreemptionSource.notice_seconds`` from now, because this machine's clock may be wrong. It is
    None if the source states only a time of day."""
    action: str = "terminate"
    """``terminate``, ``stop`` or ``hibernate``; each of them ends the training on this machine."""
    source: str = ""
    """The channel that delivered the notice, such as ``metadata`` or ``shutdown-script``."""


class ObjectMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of an object in a listing."""

    key: str
    size: int
    """Bytes."""
    modified_at: datetime
    etag: str = ""
    """The store's identifier of these bytes, such as an entity tag or a generation. It is the same in a
    listing and from ``head``, and changes with each put of other bytes. It is empty if the store has no such
    identifier."""


class ObjectPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a listing, in ascending order of keys."""

    objects: tuple[ObjectMeta, ...]
    next_after: str | None
    """The ``after`` of the next page; None if this is the last page."""
    cursor: str = ""
    """The store's token for the next page, if its service continues listings by token. Callers pass it back
    with ``next_after``, to the same store and with the same prefix. It is empty if ``next_after`` suffices.
    """
    skipped: tuple[str, ...] = ()
    """Names that were skipped: symlinks and names that are not valid keys, such as non-ASCII ones. A name may
    appear on several pages. Markers of directories (``folder/``) are not included."""


class LogRecord(Dated, frozen=True, kw_only=True):
    """One line of a node's log."""

    stream: StreamName
    """``<launch>-<rank>``, which names one machine's log."""
    seq: Tally
    """The line's number in its stream, from 0, without gaps; readers use it to drop duplicates."""
    time: datetime
    text: str
    """The line without its final newline. A progress bar counts as one line, with carriage returns between
    its states."""
    source: str = "train"
    """``train`` for the training script, ``setup`` for its setup, ``agent`` for cloudspot's agent."""


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that a sink keeps, lists and removes: a file, an object or a whole stream."""

    stream: str
    name: str
    """The sink's name for the piece. If people can look the piece up in the service, this is also the
    service's name for it."""
    first_day: date
    """The UTC date of the piece's first lines."""
    last_day: date
    """The UTC date of the piece's last lines."""
    num_bytes: int | None = None
    """The piece's size; None if unknown."""


DATA_CACHE: Final = "CLOUDSPOT_INPUT_CACHE"
"""The variable that names the directory in which a machine keeps files of ``[data]``."""


class BootProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How a provider's machines get from their first boot to a running agent."""

    agent_python: str = "python3"
    """The interpreter that runs the agent or, on a stock image, creates its environment."""
    train_python: str = "python3"
    """The interpreter for setup and training, unless the job names another."""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Variables that the boot script sets; none contains a secret."""
    shutdown_command: str = "shutdown -h now"
    """The command that ends the machine from the inside."""
    end_code: str = ""
    """Python code that asks the cloud, with the machine's own permissions, to remove the machine; for clouds
    that keep and bill machines that merely shut down. It uses only the standard library. ``agent_python``
    runs it before ``shutdown_command``. It is empty if machines that shut down are not billed, or if the
    launch makes the cloud remove them."""
    has_cloudspot: bool = False
    """Whether the image contains exactly this version, so that nothing is installed."""
    own_disks: tuple[str, ...] = ()
    """Path patterns of disks that belong to the machine: they are fast, included in its price and lost with
    it. Inputs are kept on the empty disks, unless ``environment`` has ``DATA_CACHE``."""
    own_directories: tuple[str, ...] = ()
    """The directories where the image itself mounts such disks."""
    fetch_code: str = ""
    """Python code, using only the standard library, for images that may lack cloudspot. It defines
    ``fetch(store_url, key, path)``, which downloads the object to the file with the machine's own
    permissions. An OSError is retried."""
    lacks: str = ""
    """What the image lacks for training, and what to do about it, in sentences. It is shown for jobs with an
    accelerator, and for jobs with neither a setup nor a container image."""


@dataclass(frozen=True, kw_only=True)
class RegistryLogin:
    """Credentials for a registry of container images; no representation shows the password."""

    user: str
    password: str = field(repr=False)
    origin: str
    """The owner of the credentials, phrased to follow "the registry refuses": ``these credentials, which need
    ...``."""

    @property
    def basic(self) -> str:
        """User and password, encoded as for HTTP basic authentication and in Docker's ``config.json``."""
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class PartState(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of a part of an account's setup."""

    exists: bool
    excess: tuple[str, ...] = ()
    """Why the resource must not be used, one line each: who owns it, or what it allows beyond the part."""
    lacks: tuple[str, ...] = ()
    """What the part specifies and the resource lacks, one line each."""


class SetupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for the user's config file, once all parts of an account's setup exist."""

    store_url: str | None = None
    """The store that keeps the jobs; None if the setup creates none."""
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Options of the provider: JSON values by name."""
    notes: tuple[str, ...] = ()
    """Steps that only a person can take, such as asking for a quota; one line each."""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the output of ``cloudspot providers check``."""

    name: str
    ok: bool
    detail: str = ""
    """The finding, in one line."""
    remedy: str = ""
    """What to do, in one line: a command, a permission to grant, a setting. If the check succeeds, this is
    advice, such as how to avoid a cost.
    """
    is_known: bool = True
    """Whether the check could be made. If not, ``detail`` states why, and ``ok`` is true."""


class Severity(str, enum.Enum):
    """How serious a message is, in ascending order."""

    INFO = "info"
    SUCCESS = "success"
    WARNING = "warning"
    FAILURE = "failure"


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One of the events that a message is about."""

    kind: str
    """A kind from ``notify.events``; an unknown kind comes from a later version of cloudspot."""
    text: str
    """One line; empty if the kind of event and the state of the job need no explanation."""
    at: datetime


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message about a job's events, for people and for plugins that listen to events."""

    job_id: str
    title: str
    """One line that names the job and the kinds of its events."""
    body: str
    """Plain text of several lines."""
    severity: Severity
    events: tuple[MessageEvent, ...] = ()
    """The events described in the text, earliest first; each event is in only one message. A test message has
    no events."""
