"""The typed contents of the files in a machine's directory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from cloudspot.decoding import Dated, NodeCount, Ordinal, OrdinalOrZero, Rank, Seconds, Tally
from cloudspot.model import EndReason, InstanceState, Market


class PlannedReclaim(msgspec.Struct, frozen=True, kw_only=True):
    """When this machine will be reclaimed: by whichever of these comes first."""

    after_steps: Tally | None = None
    """When the training begins this step (the job's count)."""
    after_share: float | None = None
    """When the training has begun this share of its steps, where it says how many there are."""
    after_seconds: Seconds | None = None
    """After the boot."""
    notice_seconds: Seconds


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Where an isolated machine's network ends on its host."""

    prefix_length: int
    """The prefix length of the network of the machine's address."""
    hosts: str
    """The file that its ``/etc/hosts`` is, shared by the machines so that they find each other."""


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine of an emulated cloud has beyond a plain one."""

    service: str
    """``module:attribute`` of its metadata service."""
    service_addresses: tuple[str, ...]
    service_port: int
    fetch_user_data: str
    """Shell commands that print the user data of the service at ``$METADATA_URL``."""
    fetch_shutdown_script: str
    """The same for what it runs at its end; empty: nothing."""
    shutdown_seconds: Seconds
    """How long before the end of a reclaim its power button is pressed; 0: never."""
    facts: Mapping[str, Any]
    host_name: str
    environment: Mapping[str, str]
    """What its image sets for every program."""
    image_path: tuple[str, ...]
    """Directories that come before the system's in PATH."""
    visible: tuple[str, ...]
    """Directories of the host that its image has too, wherever they lie."""
    hidden: tuple[str, ...]
    """Files and directories of the host that its image does not have."""
    programs: Mapping[str, str]
    """Programs below ``/opt`` of its image, and what of the host each runs."""
    shared: Mapping[str, str]
    """Directories of the host that it can write to, by its own paths."""
    disk: str | None
    """A copy of another machine's disk, with which its own begins: see ``guest.copy_disk``."""
    network: Network | None
    """None: it is not isolated, but a process tree with an address of its own."""
    owner_lock: str
    """The file that whoever started it keeps locked: free means that it ends too."""


class LaunchTerms(Dated, frozen=True, kw_only=True, omit_defaults=True):
    """What the machines of a launch have in common."""

    job_id: str
    launch: OrdinalOrZero
    """0: a sandbox's own machine, of no job."""
    num_nodes: NodeCount
    """How many machines the launch has."""
    zone: str
    instance_type: str
    market: Market
    boot_delay_seconds: Seconds
    max_seconds: Seconds
    notice_seconds: Seconds
    """The default notice of a reclaim."""
    store_url: str = ""
    """The job's."""
    job_nodes: NodeCount = 1
    """How many nodes train together at most: they share this host's cores."""


class MachineRecord(LaunchTerms, frozen=True, kw_only=True):
    """``machine.json``: what was created."""

    id: str
    request_sha256: str
    """The hash of the launch request: its token cannot be used for another one."""
    rank: Rank
    address: str
    reclaims: tuple[PlannedReclaim, ...]
    launched_at: datetime
    launched_boot: str = ""
    """The boot of this host in which that was; empty: an earlier version has created it."""
    launched_uptime: Seconds = 0.0
    """The same moment by ``boot_seconds``."""
    guest: Guest | None = None
    """None: a machine of the provider ``local`` itself."""


class MachineState(Dated, frozen=True, kw_only=True):
    """``state.json``: how far the machine is."""

    state: InstanceState
    end_reason: EndReason | None = None
    """Known from SHUTTING_DOWN on: RECLAIMED, TERMINATED (by request), SELF (it shut itself down) or
    LOST (its host failed)."""
    notice_deadline: datetime | None = None
    """When it will be taken; None: no reclaim has begun."""
    ended_at: datetime | None = None


class SupervisorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``supervisor.json``: written once, when the supervisor is ready."""

    pid: Ordinal
    metadata_url: str


class ReclaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``requests/reclaim-*``: take the machine, ``notice_seconds`` after saying so."""

    notice_seconds: Seconds
