"""Turns EC2's description of an instance into cloudspot's: its job, its state, and why it ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from cloudspot.model import EndReason, Instance, InstanceState, Market
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import moment
from cloudspot_aws import tags
from cloudspot_aws.errors import ERRORS

_STATES: Final = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.SHUTTING_DOWN,
    "terminated": InstanceState.ENDED,
}
# A machine in any other state was stopped by hand. A stopped machine may be started again, so it does not
# count as ended.
_STOPPED: Final = InstanceState.SHUTTING_DOWN
_REASONS: Final = {
    "Server.SpotInstanceTermination": EndReason.RECLAIMED,
    "Server.SpotInstanceShutdown": EndReason.RECLAIMED,
    "Client.UserInitiatedShutdown": EndReason.TERMINATED,
    "Client.InstanceInitiatedShutdown": EndReason.SELF,
    "Server.InternalError": EndReason.LOST,
    "Server.ScheduledStop": EndReason.LOST,
    "Server.InsufficientInstanceCapacity": EndReason.CAPACITY,
    "Client.VolumeLimitExceeded": EndReason.QUOTA,
    "Client.InternalError": EndReason.UNSTARTABLE,
    "Client.InvalidSnapshot.NotFound": EndReason.UNSTARTABLE,
}
"""Why a machine ended, by the code of its StateReason (EC2 API reference, StateReason; checked 2026-11)."""
_SAID_BY_THE_REASON: Final = frozenset({EndReason.RECLAIMED, EndReason.TERMINATED, EndReason.SELF})
_ADVICE: Final = {
    "Client.InternalError": "usually, its disk is encrypted with a key that you may not use",
    "Client.InvalidSnapshot.NotFound": "its image's snapshot is gone, or encrypted with a key that you may "
    "not use: name another providers.aws.image",
    "Client.VolumeLimitExceeded": "ask for more EBS storage in Service Quotas, or for a smaller disk",
}
"""Advice by the same code (EC2 user guide, "Instance terminates immediately", checked 2026-11)."""
_WHEN: Final = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def to_instance(described: Mapping[str, Any]) -> Instance | None:
    """Return the instance that EC2 describes, or None if it has none of cloudspot's tags.

    The rank is the machine's launch index in its RunInstances call, which never changes; the machine itself
    reads the same number.
    """
    own_tags = tags.from_list(described.get("Tags"))
    if not own_tags.get(machinetags.JOB):  # an empty tag names no job, and must not break the listing
        return None
    state = _STATES.get(described["State"]["Name"], _STOPPED)
    is_ending = state in {InstanceState.ENDED, InstanceState.SHUTTING_DOWN}
    state_reason = described.get("StateReason") or {}
    code = str(state_reason.get("Code", ""))
    reason = _REASONS.get(code, EndReason.UNKNOWN) if is_ending else None
    return Instance(
        id=described["InstanceId"],
        state=state,
        job_id=own_tags[machinetags.JOB],
        launch=machinetags.launch_of(own_tags),
        rank=described.get("AmiLaunchIndex"),
        end_reason=reason,
        detail=_detail(code, str(state_reason.get("Message", "")))
        if reason not in {None, *_SAID_BY_THE_REASON}
        else "",
        address=described.get("PrivateIpAddress") or None,
        zone=(described.get("Placement") or {}).get("AvailabilityZone"),
        instance_type=described.get("InstanceType"),
        market=Market.SPOT if described.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND,
        store_url=own_tags.get(machinetags.STORE, ""),
        launched_at=moment(described.get("LaunchTime")),
        ended_at=_ended_at(described.get("StateTransitionReason")) if state is InstanceState.ENDED else None,
    )


def _detail(code: str, message: str) -> str:
    """Return EC2's reason for a machine's end, beginning with its code and followed by any advice."""
    text = message if message.startswith(code) else f"{code}: {message}".strip(": ")
    return "; ".join(filter(None, (ERRORS.one_line(text), _ADVICE.get(code, ""))))


def _ended_at(reason: str | None) -> datetime | None:
    """Return the time in a reason such as ``User initiated (2026-11-20 08:22:00 GMT)``."""
    match = _WHEN.search(reason or "")
    return None if match is None else moment(match[1])
