"""Frozen value types that every layer shares: machines, offers, notices, objects, log lines."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, Final

import msgspec


class Market(str, enum.Enum):
    """How a machine is paid for."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


class InstanceState(str, enum.Enum):
    """The life of a machine. Only ``ENDED`` proves that it runs nothing any more."""

    PENDING = "pending"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    ENDED = "ended"


class EndReason(str, enum.Enum):
    """Why a machine ended, as far as the provider can tell."""

    RECLAIMED = "reclaimed"
    """The provider took a spot machine back."""
    TERMINATED = "terminated"
    """Someone asked the provider to terminate it."""
    SELF = "self"
    """It shut itself down from the inside."""
    LOST = "lost"
    """The host failed."""
    UNKNOWN = "unknown"


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What one node must have. ``None`` or 0 leaves the choice to the provider."""

    accelerator: str | None = None
    """The provider's or vendor's name, such as ``A100``."""
    accelerator_count: int = 0
    cpus: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be bought: an instance type in a zone on a market, with its price."""

    instance_type: str
    zone: str
    market: Market
    price_per_hour: float
    """Of one node, in ``currency``."""
    on_demand_price_per_hour: float
    """What the same type costs on demand, for the comparison in the bill."""
    currency: str = "USD"
    details: Mapping[str, str] = msgspec.field(default_factory=dict)
    """What the plugin looked up for this offer and ``render`` needs, such as an image's id: rendering asks
    nobody. Stored with the launch; holds no secret."""

    @property
    def key(self) -> str:
        """Name the offer uniquely within its provider."""
        return f"{self.market.value}/{self.zone}/{self.instance_type}"


DEFAULT_MASTER_PORT: Final = 29500
"""torchrun's own."""
ANNOUNCED: Final = ("MASTER_ADDR", "MASTER_PORT", "NUM_NODES")
"""What machines are told of their launch: the first node's address, a port for setup scripts (each start of
torchrun agrees on a free one of its own), and how many nodes there are."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as its provider reports it."""

    id: str
    state: InstanceState
    job_id: str
    launch: int
    """Which launch of the job it belongs to, counted from 1 (a tag on the machine)."""
    rank: int | None = None
    """The node's index within the launch, from 0, when the provider knows it."""
    end_reason: EndReason | None = None
    address: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    market: Market | None = None
    launched_at: datetime | None = None
    ended_at: datetime | None = None
    store_url: str = ""
    """What its InstanceGroup said; empty where the provider cannot tell."""

    @property
    def node_name(self) -> str:
        """Return what people find the machine by: ``<job>-<launch>-<rank>``."""
        return f"{self.job_id}-{self.launch}" + ("" if self.rank is None else f"-{self.rank}")


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Who the machine is that this process runs on, from its metadata service."""

    instance_id: str
    rank: int
    """The node's index within its launch, from 0."""
    address: str
    """At which the other nodes of the launch reach it."""
    zone: str | None = None
    instance_type: str | None = None
    market: Market | None = None


class InstanceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch asks for: ``num_nodes`` equal machines, or (gang) none."""

    job_id: str
    launch: int
    num_nodes: int
    min_nodes: int
    """With fewer than this many machines the provider must end them and raise CapacityError."""
    offer: Offer
    resources: Resources
    user_data: str
    """The boot script, the same for each node; a node learns its rank from its metadata."""
    max_seconds: float
    """The cloud's own limit on a machine's life, where it has one."""
    decided_at: datetime | None = None
    """When the launch was decided, for a limit that the cloud takes as a point in time; None: not known. The
    machines come later, mostly at once and at most ``token_seconds``; and the clock is some controller's."""
    store_url: str = ""
    """Where the job's records lie, without credentials, for a tag: people find the job by it, and controllers
    tell the machine from those of another store's job of the same id."""


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The very request that ``create`` will send; stored in the intent and replayed as it is."""

    provider: str
    body: dict[str, Any]
    """JSON values only; holds no secret."""


class PreemptionNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's word that this machine will be taken."""

    deadline: datetime | None
    """When, by the provider's word (UTC); None when it names no time."""
    action: str = "terminate"
    """``terminate``, ``stop`` or ``hibernate``: all end the training on this machine."""
    source: str = ""
    """Which channel told, such as ``metadata`` or ``shutdown-script``."""


class ObjectMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What a store says of one object."""

    key: str
    size: int
    """Bytes."""
    modified_at: datetime


class ObjectPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a listing, in ascending order of keys."""

    objects: tuple[ObjectMeta, ...]
    next_after: str | None
    """Pass it as ``after`` for the next page; None when this was the last."""


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a node's log."""

    stream: str
    """``<launch>-<rank>``: one machine's log."""
    seq: int
    """Counts the lines of a stream from 0, without a gap; readers drop repeats by it."""
    time: datetime
    text: str
    """The line without its newline; a progress bar is one line, with carriage returns between its states."""
    source: str = "train"
    """``train`` for the training script, ``setup`` for its setup, ``agent`` for ours."""


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink keeps, shows and removes as one: a file, an object, or a whole stream."""

    stream: str
    name: str
    """What the sink finds it by; for people too, where they can look for it."""
    first_day: date
    """The UTC date of its first lines."""
    last_day: date
    """The UTC date of its newest lines."""
    num_bytes: int | None = None
    """None: the service does not tell."""


class BootProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How a provider's machines come from a bare boot to a running agent."""

    agent_python: str = "python3"
    """The interpreter that runs (or, on a stock image, creates the environment of) the agent."""
    train_python: str = "python3"
    """The interpreter for setup and training where the job names none."""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Set in the boot script; holds no secret."""
    shutdown_command: str = "shutdown -h now"
    """Ends the machine from the inside."""
    end_code: str = ""
    """For clouds that keep, and bill, what is only shut down: Python, of the standard library alone, run
    before ``shutdown_command``. It asks the cloud to remove the machine, by the machine's own rights."""
    has_cloudspot: bool = False
    """The image carries this very version: nothing is installed."""
    fetch_code: str = ""
    """For images that may not: Python, of the standard library alone, that defines ``fetch(store_url, key,
    path)``: write the object to the file, by the rights that the machine itself has. An OSError is tried
    again."""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``cloudspot providers check``."""

    name: str
    ok: bool
    detail: str = ""
    """What was found, in a line."""
    remedy: str = ""
    """What to do where it is not ok, in a line: a command, a right to be granted, a setting."""
