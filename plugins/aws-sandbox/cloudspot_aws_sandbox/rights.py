"""Which rights a recorded request took, and on what, for comparison with what a policy grants.

Source: Service Authorization Reference, "Actions, resources, and condition keys" for Amazon EC2, S3,
CloudWatch Logs and EventBridge Scheduler (checked 2026-11).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cloudspot.emulation.api_faults import Call
from cloudspot_aws_sandbox.s3requests import RIGHTS

FREE: Final = frozenset({"sts:GetCallerIdentity"})
"""The actions that need no right."""

NODE_LOGS: Final = json.dumps(
    {
        "Statement": [
            {
                "Effect": "Allow",
                "Action": [
                    "logs:CreateLogGroup",
                    "logs:CreateLogStream",
                    "logs:GetLogEvents",
                    "logs:PutLogEvents",
                    "logs:PutRetentionPolicy",
                ],
                "Resource": "arn:*:logs:*:*:log-group:/cloudspot/*",
            }
        ]
    }
)
"""What docs/aws/policy-node.json lets a machine do with log groups."""
_PASSES_A_ROLE: Final = frozenset({"CreateExperimentTemplate", "CreateSchedule"})


def rights_of(call: Call) -> frozenset[str]:
    """Return the rights that the call took, such as ``ec2:RunInstances``."""
    if call.service == "s3":
        return frozenset({RIGHTS.get(call.action, f"s3:{call.action}")})
    rights = {f"{call.service}:{call.action}"}
    if call.service == "ec2" and "TagSpecifications" in call.parameters:
        rights.add("ec2:CreateTags")
    if call.parameters.get("DeleteAssociatedSnapshots"):
        rights.add("ec2:DeleteSnapshot")
    if "IamInstanceProfile" in call.parameters or call.action in _PASSES_A_ROLE:
        rights.add("iam:PassRole")
    return frozenset(rights - FREE)


_ON_MACHINES: Final = frozenset({"ec2:CreateTags", "ec2:GetConsoleOutput", "ec2:TerminateInstances"})
_ON_VOLUMES: Final = frozenset({"ec2:DeleteVolume"})
_ON_IMAGES: Final = frozenset({"ec2:CreateImage", "ec2:DeregisterImage"})
_ON_SNAPSHOTS: Final = frozenset({"ec2:DeleteSnapshot"})
_ON_GROUPS: Final = frozenset({"ec2:CreatePlacementGroup", "ec2:DeletePlacementGroup"})


def resource_of(call: Call, *, right: str = "", account: str) -> str:
    """Return the ARN of what the call was about, or of what its ``right`` is for; ``*`` where any will do."""
    parameters = call.parameters
    if right in _ON_IMAGES or (right == "ec2:CreateTags" and call.action == "CreateImage"):
        # EC2 has no account in the ARNs of images and snapshots.
        return f"arn:aws:ec2:{call.region}::image/{parameters.get('ImageId', 'ami-0')}"
    if right in _ON_SNAPSHOTS:
        return f"arn:aws:ec2:{call.region}::snapshot/{parameters.get('SnapshotId', '')}"
    if right in _ON_MACHINES:
        return f"arn:aws:ec2:{call.region}:{account}:instance/i-0"
    if right in _ON_GROUPS:
        return f"arn:aws:ec2:{call.region}:{account}:placement-group/{parameters.get('GroupName', '')}"
    if right in _ON_VOLUMES:
        return f"arn:aws:ec2:{call.region}:{account}:volume/{parameters.get('VolumeId', '')}"
    if call.service == "iam" and "RoleName" in parameters:
        return f"arn:aws:iam::{account}:role/{parameters['RoleName']}"
    if right == "iam:GetInstanceProfile":
        return f"arn:aws:iam::{account}:instance-profile/{parameters.get('InstanceProfileName', '')}"
    if right == "iam:PassRole":
        return _passed_role(parameters, account)
    if call.service == "s3":
        key = parameters.get("Key")
        return f"arn:aws:s3:::{parameters.get('Bucket', '')}" + (f"/{key}" if key else "")
    if call.service == "logs":
        stream = parameters.get("logStreamName")
        return f"arn:aws:logs:{call.region}:{account}:log-group:{parameters.get('logGroupName', '')}" + (
            f":log-stream:{stream}" if stream else ""
        )
    return "*"


def _passed_role(parameters: Mapping[str, Any], account: str) -> str:
    """Return the ARN of the role that is handed on; a profile has the role of its own name here."""
    profile = parameters.get("IamInstanceProfile") or {}
    name = profile.get("Name") or str(profile.get("Arn", "")).rpartition("/")[2]
    target = parameters.get("Target") or {}
    return (
        f"arn:aws:iam::{account}:role/{name}"
        if name
        else str(target.get("RoleArn") or parameters.get("roleArn") or parameters.get("Role") or "*")
    )
