"""Turns EC2's description of an instance into ours: its job, its state, and why it ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from cloudspot.model import EndReason, Instance, InstanceState, Market
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import moment
from cloudspot_aws import tags

_STATES: Final = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.SHUTTING_DOWN,
    "terminated": InstanceState.ENDED,
}
# Somebody stopped it by hand. It may be started again, so it is not dead.
_STOPPED: Final = InstanceState.SHUTTING_DOWN
_REASONS: Final = {
    "Server.SpotInstanceTermination": EndReason.RECLAIMED,
    "Server.SpotInstanceShutdown": EndReason.RECLAIMED,
    "Client.UserInitiatedShutdown": EndReason.TERMINATED,
    "Client.InstanceInitiatedShutdown": EndReason.SELF,
    "Server.InternalError": EndReason.LOST,
    "Server.ScheduledStop": EndReason.LOST,
    "Server.InsufficientInstanceCapacity": EndReason.LOST,
}
"""By the code of StateReason (EC2 API reference, StateReason; checked 2026-11)."""
_WHEN: Final = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def to_instance(described: Mapping[str, Any]) -> Instance | None:
    """Return the instance that EC2 describes, or None if it carries no tag of cloudspot's.

    Its rank is its index in its RunInstances call, which EC2 assigns at once and for good; the machine itself
    reads the same.
    """
    found = tags.from_list(described.get("Tags"))
    if not found.get(machinetags.JOB):  # an empty tag is nobody's, and spoils no list
        return None
    state = _STATES.get(described["State"]["Name"], _STOPPED)
    is_ending = state in {InstanceState.ENDED, InstanceState.SHUTTING_DOWN}
    code = (described.get("StateReason") or {}).get("Code", "")
    return Instance(
        id=described["InstanceId"],
        state=state,
        job_id=found[machinetags.JOB],
        launch=machinetags.launch_of(found),
        rank=described.get("AmiLaunchIndex"),
        end_reason=_REASONS.get(code, EndReason.UNKNOWN) if is_ending else None,
        address=described.get("PrivateIpAddress") or None,
        zone=(described.get("Placement") or {}).get("AvailabilityZone"),
        instance_type=described.get("InstanceType"),
        market=Market.SPOT if described.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND,
        store_url=found.get(machinetags.STORE, ""),
        launched_at=moment(described.get("LaunchTime")),
        ended_at=_ended_at(described.get("StateTransitionReason")) if state is InstanceState.ENDED else None,
    )


def _ended_at(reason: str | None) -> datetime | None:
    """Return the time in a reason such as ``User initiated (2026-11-20 08:22:00 GMT)``."""
    match = _WHEN.search(reason or "")
    return None if match is None else moment(match[1])
