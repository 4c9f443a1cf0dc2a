"""The limit on a machine's life that ECS itself keeps: AutoReleaseTime, set on each machine.

RunInstances takes it too, as a point in time; but the stored request is sent again by whoever follows, and
ECS refuses a token with another time. So it follows from what the machine says of itself: when it was
created, and for how long.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Final

from cloudspot.errors import TransientError
from cloudspot.model import Instance
from cloudspot_aliyun.api import read
from cloudspot_aliyun.clients import AliyunClients

GRACE_SECONDS: Final = 600.0
"""The machine's own timer comes first: it ends the machine in good order."""
LEAST_SECONDS: Final = 31 * 60.0
"""ECS takes no time that is nearer than 30 minutes (API reference, ModifyInstanceAutoReleaseTime)."""
MOST_SECONDS: Final = 3 * 365 * 86400.0 - 86400.0
"""Nor one later than in three years."""
_CODES: Final = {
    "IncorrectInstanceStatus": TransientError,
    "IncorrectInstanceStatus.Initializing": TransientError,
    "InvalidInstanceId.NotFound": TransientError,
    "OperationConflict": TransientError,
}


def release_time(created_at: datetime, seconds: float, *, now: float) -> datetime:
    """Return when ECS shall release a machine: a whole minute (UTC), never before its time is up."""
    due = created_at.timestamp() + seconds + GRACE_SECONDS
    due = min(max(due, now + LEAST_SECONDS), now + MOST_SECONDS)
    return datetime.fromtimestamp(0, timezone.utc) + timedelta(minutes=math.ceil(due / 60))


def keep_limit(clients: AliyunClients, instance: Instance, *, now: float, seconds: float | None) -> None:
    """Let ECS release the machine when its time is up.

    Raises:
        AuthError: the right ``ecs:ModifyInstanceAutoReleaseTime`` is missing.
        TransientError: ECS does not know the machine yet, or did not answer.
    """
    if seconds is None or instance.launched_at is None:
        return
    at = release_time(instance.launched_at, seconds, now=now)
    wanted = {"InstanceId": instance.id, "AutoReleaseTime": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
    read(clients, "limiting the machines' lives", "ModifyInstanceAutoReleaseTime", wanted, codes=_CODES)
