"""The typed contents of the files in a machine's directory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from cloudspot.decoding import Dated, NodeCount, Ordinal, OrdinalOrZero, Rank, Seconds, Tally
from cloudspot.model import EndReason, InstanceState, Market


class PlannedReclaim(msgspec.Struct, frozen=True, kw_only=True):
    """A planned reclaim of this machine, at the earliest of the given times."""

    after_steps: Tally | None = None
    """When the training begins this step of the job."""
    after_share: float | None = None
    """When the training has begun this share of its steps, if it reports the total number of steps."""
    after_seconds: Seconds | None = None
    """This long after the boot."""
    notice_seconds: Seconds


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """The host's part of an isolated machine's network."""

    prefix_length: int
    """The prefix length of the network to which the machine's address belongs."""
    hosts: str
    """The file shown as ``/etc/hosts``, which the machines share so that they can find each other."""


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """The additional properties of an emulated cloud's machine."""

    service: str
    """The ``module:attribute`` of its metadata service."""
    service_addresses: tuple[str, ...]
    service_port: int
    fetch_user_data: str
    """Shell commands that print the user data from the service at ``$METADATA_URL``."""
    fetch_shutdown_script: str
    """Shell commands that print its shutdown script; empty if the service has none."""
    shutdown_seconds: Seconds
    """How long before the end of a reclaim the machine's power button is pressed; 0 means never."""
    facts: Mapping[str, Any]
    host_name: str
    environment: Mapping[str, str]
    """The variables that its image sets for every program."""
    image_path: tuple[str, ...]
    """Directories that precede the system's in PATH."""
    visible: tuple[str, ...]
    """Directories of the host, at any path, that its image contains too."""
    hidden: tuple[str, ...]
    """Files and directories of the host that its image lacks."""
    programs: Mapping[str, str]
    """The image's programs below ``/opt``, and the host's program that each of them runs."""
    shared: Mapping[str, str]
    """Directories of the host to which it can write, by the machine's paths."""
    disk: str | None
    """A copy of another machine's disk, with which this machine's disk begins; see ``guest.copy_disk``."""
    network: Network | None
    """None if the machine is not isolated, but a process tree with its own address."""
    owner_lock: str
    """The file that the machine's owner keeps locked; the machine ends when the lock becomes free."""


class LaunchTerms(Dated, frozen=True, kw_only=True, omit_defaults=True):
    """The properties that all machines of a launch share."""

    job_id: str
    launch: OrdinalOrZero
    """The launch's number, or 0 for a machine of the sandbox itself that belongs to no job."""
    num_nodes: NodeCount
    """The number of machines in the launch."""
    zone: str
    instance_type: str
    market: Market
    boot_delay_seconds: Seconds
    max_seconds: Seconds
    notice_seconds: Seconds
    """The default length of a reclaim's notice."""
    store_url: str = ""
    """The label that identifies the job's store."""
    job_nodes: NodeCount = 1
    """The maximum number of nodes that train together; they share this host's cores."""


class MachineRecord(LaunchTerms, frozen=True, kw_only=True):
    """``machine.json``: the machine's properties at its creation."""

    id: str
    request_sha256: str
    """The hash of the launch request, whose token cannot be used for another request."""
    rank: Rank
    address: str
    reclaims: tuple[PlannedReclaim, ...]
    launched_at: datetime
    launched_boot: str = ""
    """The host's boot at that time; empty if an earlier version of cloudspot created the machine."""
    launched_uptime: Seconds = 0.0
    """The same time according to ``boot_seconds``."""
    guest: Guest | None = None
    """None for a machine of the provider ``local`` itself."""


class MachineState(Dated, frozen=True, kw_only=True):
    """``state.json``: the state of the machine."""

    state: InstanceState
    end_reason: EndReason | None = None
    """Known once the machine is SHUTTING_DOWN: RECLAIMED, TERMINATED (by request), SELF (it shut itself down)
    or LOST (its host failed)."""
    notice_deadline: datetime | None = None
    """When the machine will be reclaimed; None if no reclaim has begun."""
    ended_at: datetime | None = None


class SupervisorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``supervisor.json``: written once, when the supervisor is ready."""

    pid: Ordinal
    metadata_url: str


class ReclaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``requests/reclaim-*``: reclaim the machine after a notice of ``notice_seconds``."""

    notice_seconds: Seconds
