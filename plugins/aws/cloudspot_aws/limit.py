"""A limit on machines' life that EC2 itself has not: a schedule that terminates them from outside.

EC2 has no "end after" of its own, so that the timer on the machine is the machine itself. With a role to
act in, EventBridge Scheduler calls TerminateInstances when the time is up, and then forgets the schedule.
Source: EventBridge Scheduler user guide, "Using universal targets" and "Deleting a schedule after
completion" (checked 2026-11).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Final

import botocore.exceptions

from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import error_code, translated

GRACE: Final = timedelta(minutes=10)
"""The machine's own timer comes first: it ends the machine in good order."""
TARGET: Final = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"


def keep(
    clients: AwsClients,
    *,
    role: str,
    job_id: str,
    store_url: str,
    launch: int,
    instance_ids: Sequence[str],
    at: datetime,
) -> None:
    """Schedule the end of a launch's machines, of each on its own; what stands already stays as it is.

    TerminateInstances ends no machine of several where it does not know one any more, such as one that was
    reclaimed more than an hour ago (its page in the EC2 API reference, checked 2026-11).

    Raises:
        AuthError: a right is missing: ``scheduler:CreateSchedule`` or ``iam:PassRole``.
        TransientError: AWS did not answer.
    """
    when = (at + GRACE).astimezone(timezone.utc)
    partition = role.split(":")[1]
    with translated("scheduling the machines' end (providers.aws.limit_role)"):
        for instance_id in instance_ids:
            try:
                clients.client("scheduler").create_schedule(
                    Name=f"{_prefix(job_id, store_url)}{instance_id}",
                    ScheduleExpression=f"at({when:%Y-%m-%dT%H:%M:%S})",
                    ScheduleExpressionTimezone="UTC",
                    FlexibleTimeWindow={"Mode": "OFF"},
                    ActionAfterCompletion="DELETE",
                    Description=f"cloudspot: ends {instance_id} of job {job_id}, launch {launch}",
                    Target={
                        "Arn": TARGET.replace("arn:aws:", f"arn:{partition}:"),
                        "RoleArn": role,
                        "Input": json.dumps({"InstanceIds": [instance_id]}),
                    },
                )
            except botocore.exceptions.ClientError as error:
                if error_code(error) != "ConflictException":
                    raise


def remove(clients: AwsClients, job_id: str, *, store_url: str) -> None:
    """Remove the job's schedules; safe to repeat.

    Raises:
        AuthError: a right is missing.
        TransientError: AWS did not answer.
    """
    client = clients.client("scheduler")
    with translated("removing the job's schedules"):
        for page in client.get_paginator("list_schedules").paginate(NamePrefix=_prefix(job_id, store_url)):
            for schedule in page["Schedules"]:
                try:
                    client.delete_schedule(Name=schedule["Name"])
                except botocore.exceptions.ClientError as error:
                    if error_code(error) != "ResourceNotFoundException":
                        raise


def _prefix(job_id: str, store_url: str) -> str:
    # A schedule's name has 64 characters at the most, and a job's id may have 63.
    return f"cloudspot-{hashlib.sha256(f'{job_id} {store_url}'.encode()).hexdigest()[:20]}-"
