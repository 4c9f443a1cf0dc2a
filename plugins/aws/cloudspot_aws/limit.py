"""Limits the life of machines from outside: a schedule terminates each machine when its time is up.

EC2 has no such limit, and the only other timer runs on the machine itself. Given a role, EventBridge
Scheduler calls TerminateInstances when the time is up, and then deletes the schedule.
Source: EventBridge Scheduler user guide, "Using universal targets" and "Deleting a schedule after
completion" (checked 2026-11).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Final

from cloudspot.model import Instance
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS, ignored

GRACE: Final = timedelta(minutes=10)
"""How long the schedule waits for the machine's own timer, which ends the machine in good order."""
ACTION: Final = ":aws-sdk:ec2:terminateInstances"
TARGET: Final = f"arn:aws:scheduler::{ACTION}"


def keep(clients: AwsClients, role: str, ends: Mapping[Instance, datetime]) -> None:
    """Schedule each machine's termination ten minutes after its time is up; keep existing schedules.

    Each machine has its own schedule, because TerminateInstances ends none of its machines if EC2 no longer
    knows one of them, such as one reclaimed over an hour ago (EC2 API reference, TerminateInstances, checked
    2026-11).

    Raises:
        AuthError: the permission ``scheduler:CreateSchedule`` or ``iam:PassRole`` is missing.
    """
    partition = role.split(":")[1]
    with ERRORS.translated("scheduling the machines' end (providers.aws.limit_role)"):
        for node, at in sorted(ends.items(), key=lambda end: end[0].id):
            when = (at + GRACE).astimezone(timezone.utc)
            with ignored("ConflictException"):
                clients.client("scheduler").create_schedule(
                    Name=f"{prefix_of(node.job_id, node.store_url)}{node.id}",
                    ScheduleExpression=f"at({when:%Y-%m-%dT%H:%M:%S})",
                    ScheduleExpressionTimezone="UTC",
                    FlexibleTimeWindow={"Mode": "OFF"},
                    ActionAfterCompletion="DELETE",
                    Description=f"cloudspot: ends {node.id} of job {node.job_id}, launch {node.launch}",
                    Target={
                        "Arn": TARGET.replace("arn:aws:", f"arn:{partition}:"),
                        "RoleArn": role,
                        "Input": json.dumps({"InstanceIds": [node.id]}),
                    },
                )


def remove(clients: AwsClients, job_id: str, *, store_url: str) -> None:
    """Remove the job's schedules; safe to repeat."""
    client = clients.client("scheduler")
    with ERRORS.translated("removing the job's schedules"):
        for page in client.get_paginator("list_schedules").paginate(NamePrefix=prefix_of(job_id, store_url)):
            for schedule in page["Schedules"]:
                with ignored("ResourceNotFoundException"):
                    client.delete_schedule(Name=schedule["Name"])


def prefix_of(job_id: str, store_url: str) -> str:
    """Return the prefix of the names of a job's schedules, which is followed by a machine's id."""
    # A schedule's name has at most 64 characters, and a job's id already up to 63.
    return f"cloudspot-{hashlib.sha256(f'{job_id} {store_url}'.encode()).hexdigest()[:20]}-"
