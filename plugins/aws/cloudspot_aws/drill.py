"""Drills on EC2: AWS's Fault Injection Service (FIS) interrupts a spot machine as a real reclaim would.

Source: a template of AWS's own (github.com/awslabs/ec2-spot-workshops, workshops/fis; checked 2026-11) for
    the action, its parameter, its target and the role's permissions. The statement that an experiment
    outlives its
template is from memory of the FIS user guide. This drill has not yet run on the real service.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from cloudspot.errors import CloudspotError
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.imds import SPOT_NOTICE_SECONDS

ROLE: Final = "cloudspot-drill"
"""The role that FIS assumes; ``cloudspot setup aws`` makes it."""
ACTION: Final = "aws:ec2:send-spot-instance-interruptions"


def interrupt(clients: AwsClients, instance_id: str, *, notice_seconds: float | None) -> None:
    """Let FIS reclaim a running spot machine, with EC2's notice; raise CloudspotError for other machines."""
    if notice_seconds not in {None, SPOT_NOTICE_SECONDS}:
        raise CloudspotError(
            f"EC2 always reclaims a spot machine {SPOT_NOTICE_SECONDS:g} s after its notice; leave out "
            "--notice and --no-notice"
        )
    with ERRORS.translated(f"looking for {instance_id}"):
        reservations = clients.client("ec2").describe_instances(InstanceIds=[instance_id])["Reservations"]
    machine = reservations[0]["Instances"][0]
    if machine.get("InstanceLifecycle") != "spot" or machine["State"]["Name"] != "running":
        raise CloudspotError(
            f"{instance_id} is not a running spot machine, and EC2 reclaims only those; end it with: aws "
            f"ec2 terminate-instances --instance-ids {instance_id}"
        )
    fis, account = clients.client("fis"), reservations[0]["OwnerId"]
    partition = clients.client("ec2").meta.partition
    with ERRORS.translated(f"the drill (as role {ROLE}; cloudspot setup aws makes it)"):
        template = fis.create_experiment_template(
            clientToken=str(uuid.uuid4()),
            description=f"cloudspot: a drill that takes {instance_id}",
            roleArn=f"arn:{partition}:iam::{account}:role/{ROLE}",
            stopConditions=[{"source": "none"}],
            targets={"machine": _target(partition, clients.region, account, instance_id)},
            actions={
                "interrupt": {
                    "actionId": ACTION,
                    "parameters": {"durationBeforeInterruption": "PT2M"},
                    "targets": {"SpotInstances": "machine"},
                }
            },
        )["experimentTemplate"]["id"]
        try:
            fis.start_experiment(clientToken=str(uuid.uuid4()), experimentTemplateId=template)
        finally:
            # A running experiment does not need its template.
            fis.delete_experiment_template(id=template)


def _target(partition: str, region: str, account: str, instance_id: str) -> dict[str, Any]:
    return {
        "resourceType": "aws:ec2:spot-instance",
        "resourceArns": [f"arn:{partition}:ec2:{region}:{account}:instance/{instance_id}"],
        "selectionMode": "ALL",
    }
