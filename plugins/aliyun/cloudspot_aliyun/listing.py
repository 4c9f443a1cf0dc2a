"""Turns ECS's description of an instance into cloudspot's: its job, its state, and why it is ending."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from cloudspot.model import EndReason, Instance, InstanceState, Market
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import moment
from cloudspot_aliyun import tags
from cloudspot_aliyun.names import rank_of

RECYCLING: Final = "Recycling"
"""The lock of a spot machine that is being reclaimed (API reference, DescribeInstances, OperationLocks)."""
_STATES: Final = {
    "Pending": InstanceState.PENDING,
    "Starting": InstanceState.PENDING,
    "Running": InstanceState.RUNNING,
    "Stopping": InstanceState.SHUTTING_DOWN,
    # Such a machine exists, may be billed, and may be started again, so it does not count as ended. The
    # machine was stopped by hand, or it shut down because it could not release itself.
    "Stopped": InstanceState.SHUTTING_DOWN,
}
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d)(:\d\d)?Z", re.ASCII)


def to_instance(described: Mapping[str, Any]) -> Instance | None:
    """Return the instance that DescribeInstances describes, or None if it has none of cloudspot's tags.

    ECS forgets an instance as soon as it is released, so none is ever ENDED here. An instance that is being
    reclaimed counts as shutting down, whatever its status.
    """
    own_tags = tags.from_answer(described)
    if not own_tags.get(machinetags.JOB):  # an empty tag names no job, and must not break the listing
        return None
    state = _STATES.get(str(described.get("Status")), InstanceState.SHUTTING_DOWN)
    reason = None
    if is_being_taken(described):
        state, reason = InstanceState.SHUTTING_DOWN, EndReason.RECLAIMED
    return Instance(
        id=str(described["InstanceId"]),
        state=state,
        job_id=own_tags[machinetags.JOB],
        launch=machinetags.launch_of(own_tags),
        rank=rank_of(str(described.get("HostName") or "")),
        end_reason=reason,
        address=_address(described),
        zone=described.get("ZoneId"),
        instance_type=described.get("InstanceType"),
        market=market_of(described),
        store_url=own_tags.get(machinetags.STORE, ""),
        launched_at=parse_time(described.get("CreationTime")),
    )


def is_being_taken(described: Mapping[str, Any]) -> bool:
    """Return whether ECS has announced that it will reclaim the machine."""
    locks = (described.get("OperationLocks") or {}).get("LockReason") or ()
    return any(lock.get("LockReason") == RECYCLING for lock in locks)


def market_of(described: Mapping[str, Any]) -> Market:
    """Return the market of a machine, or of a request for a machine."""
    is_spot = str(described.get("SpotStrategy") or "NoSpot") != "NoSpot"
    return Market.SPOT if is_spot else Market.ON_DEMAND


def parse_time(text: str | None) -> datetime | None:
    """Parse one of ECS's times, ``2026-11-20T08:30Z`` or with seconds; return None if it is not a time."""
    return moment(text) if _TIME.fullmatch(str(text or "")) else None


def _address(described: Mapping[str, Any]) -> str | None:
    found = ((described.get("VpcAttributes") or {}).get("PrivateIpAddress") or {}).get("IpAddress") or ()
    return str(found[0]) if found else None
