"""What stands in the files of a machine's directory, typed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from cloudspot.model import EndReason, InstanceState, Market


class PlannedReclaim(msgspec.Struct, frozen=True, kw_only=True):
    """When this machine will be reclaimed: after either of the two, whichever comes first."""

    after_steps: int | None = None
    """When the training begins this step (the job's count)."""
    after_seconds: float | None = None
    """After the boot."""
    notice_seconds: float


class MachineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``machine.json``: what was created."""

    id: str
    request_sha256: str
    """Of the launch request, so that a token cannot come back with another one."""
    job_id: str
    launch: int
    rank: int
    num_nodes: int
    """Of its launch: the machines share this host's cores."""
    address: str
    zone: str
    instance_type: str
    market: Market
    user_data: str
    boot_delay_seconds: float
    max_seconds: float
    reclaims: tuple[PlannedReclaim, ...]
    notice_seconds: float
    """Of a reclaim that names none."""
    launched_at: datetime


class MachineState(msgspec.Struct, frozen=True, kw_only=True):
    """``state.json``: how far the machine is."""

    state: InstanceState
    end_reason: EndReason | None = None
    """Known from SHUTTING_DOWN on."""
    ended_at: datetime | None = None


class SupervisorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``supervisor.json``: written once, when the supervisor is ready."""

    pid: int
    metadata_url: str


class ReclaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``requests/reclaim-*``: take the machine, ``notice_seconds`` after saying so."""

    notice_seconds: float


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """All that was asked of a machine so far."""

    terminate: bool
    shutdown: bool
    reclaims: Mapping[str, ReclaimRequest]
    """By file name."""
