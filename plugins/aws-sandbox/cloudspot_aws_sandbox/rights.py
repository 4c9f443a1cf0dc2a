"""The permissions that a recorded request needed, and their resources, for comparison with a policy.

Source: Service Authorization Reference, "Actions, resources, and condition keys" for Amazon EC2, S3,
CloudWatch Logs and EventBridge Scheduler (checked 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cloudspot.emulation.api_faults import Call
from cloudspot_aws_sandbox.s3requests import RIGHTS

FREE: Final = frozenset({"sts:GetCallerIdentity"})
"""The actions that need no permission."""

_PASSES_A_ROLE: Final = frozenset({"CreateExperimentTemplate", "CreateFunction", "CreateSchedule"})
_NAMES: Final = {("lambda", "Invoke"): "lambda:InvokeFunction"}
"""The permission that a call needs, if it is not named after the call."""
_TAGGED: Final = {
    ("events", "PutRule"): "events:TagResource",
    ("iam", "CreateRole"): "iam:TagRole",
    ("lambda", "CreateFunction"): "lambda:TagResource",
    ("logs", "CreateLogGroup"): "logs:TagResource",
}
"""The additional permission that a call needs if it names tags."""


def rights_of(call: Call) -> frozenset[str]:
    """Return the permissions that the call needed, such as ``ec2:RunInstances``."""
    if call.service == "s3":
        return frozenset({RIGHTS.get(call.action, f"s3:{call.action}")})
    rights = {_NAMES.get((call.service, call.action), f"{call.service}:{call.action}")}
    if call.service == "ec2" and "TagSpecifications" in call.parameters:
        rights.add("ec2:CreateTags")
    if call.parameters.get("DeleteAssociatedSnapshots"):
        rights.add("ec2:DeleteSnapshot")
    if "IamInstanceProfile" in call.parameters or call.action in _PASSES_A_ROLE:
        rights.add("iam:PassRole")
    tagged = _TAGGED.get((call.service, call.action))
    if tagged is not None and any(one == "tags" or one.startswith("Tags") for one in call.parameters):
        rights.add(tagged)
    return frozenset(rights - FREE)


_ON_MACHINES: Final = frozenset({"ec2:CreateTags", "ec2:GetConsoleOutput", "ec2:TerminateInstances"})
_ON_VOLUMES: Final = frozenset({"ec2:DeleteVolume"})
_ON_IMAGES: Final = frozenset({"ec2:CreateImage", "ec2:DeregisterImage"})
_ON_SNAPSHOTS: Final = frozenset({"ec2:DeleteSnapshot"})
_ON_GROUPS: Final = frozenset({"ec2:CreatePlacementGroup", "ec2:DeletePlacementGroup"})


def resource_of(call: Call, *, right: str = "", account: str) -> str:
    """Return the ARN of the resource of the call, or of its permission ``right``, or ``*`` for any."""
    parameters = call.parameters
    if right in _ON_IMAGES or (right == "ec2:CreateTags" and call.action == "CreateImage"):
        # The ARNs of images and snapshots contain no account.
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
    if right == "iam:PassRole":
        return _passed_role(parameters, account)
    if call.service == "lambda":
        return f"arn:aws:lambda:{call.region}:{account}:function:{parameters.get('FunctionName', '')}"
    if call.service == "events":
        rule = parameters.get("Name") or parameters.get("Rule")
        named = f"arn:aws:events:{call.region}:{account}:rule/{rule}" if rule else "*"
        return str(parameters.get("ResourceARN", named))
    if right == "iam:GetInstanceProfile":
        return f"arn:aws:iam::{account}:instance-profile/{parameters.get('InstanceProfileName', '')}"
    if call.service == "s3":
        key = "*" if call.action == "DeleteObjects" else parameters.get("Key")
        return f"arn:aws:s3:::{parameters.get('Bucket', '')}" + (f"/{key}" if key else "")
    if call.service == "logs":
        stream = parameters.get("logStreamName")
        return f"arn:aws:logs:{call.region}:{account}:log-group:{parameters.get('logGroupName', '')}" + (
            f":log-stream:{stream}" if stream else ""
        )
    return "*"


def _passed_role(parameters: Mapping[str, Any], account: str) -> str:
    """Return the ARN of the role that is passed; here a profile and its role have the same name."""
    profile = parameters.get("IamInstanceProfile") or {}
    name = profile.get("Name") or str(profile.get("Arn", "")).rpartition("/")[2]
    target = parameters.get("Target") or {}
    return (
        f"arn:aws:iam::{account}:role/{name}"
        if name
        else str(target.get("RoleArn") or parameters.get("roleArn") or parameters.get("Role") or "*")
    )


def needs_of(call: Call, *, account: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yield each permission that the call needs, on each resource, with the values of its condition keys."""
    for right in sorted(rights_of(call)):
        context: dict[str, str] = {}
        if right == "ec2:CreateTags" and call.action != "CreateTags":
            context["ec2:CreateAction"] = call.action
        if right == "iam:PassRole":
            context["iam:PassedToService"] = f"{call.service}.amazonaws.com"
        for arn in _resources_of(call, right, account):
            yield right, arn, context


def _resources_of(call: Call, right: str, account: str) -> Sequence[str]:
    """Return the ARNs of all resources on which the call needs the permission."""
    parameters, ec2 = call.parameters, f"arn:aws:ec2:{call.region}:{account}"
    none = f"arn:aws:ec2:{call.region}:"
    if right == "ec2:CreateTags":
        named = parameters.get("Resources", ()) if call.action == "CreateTags" else ()
        return [_arn_of(one, call.region, account) for one in named] or [f"{ec2}:*/new"]
    if right == "ec2:TerminateInstances":
        return [f"{ec2}:instance/{one}" for one in parameters.get("InstanceIds", ())]
    if right == "ec2:GetConsoleOutput":
        return [f"{ec2}:instance/{parameters.get('InstanceId', '')}"]
    if right == "ec2:CreateImage":
        machine = parameters.get("InstanceId", "")
        return [f"{ec2}:instance/{machine}", f"{none}:image/new", f"{none}:snapshot/new"]
    if right == "ec2:DeleteSnapshot" and call.action == "DeregisterImage":
        # Here, snapshots have the tags of their image.
        return [f"{none}:snapshot/{parameters.get('ImageId', '')}"]
    return [resource_of(call, right=right, account=account)]


def _arn_of(resource: str, region: str, account: str) -> str:
    kinds = {"i": "instance", "vol": "volume", "ami": "image", "snap": "snapshot", "sg": "security-group"}
    kind = kinds.get(resource.partition("-")[0], "*")
    owner = "" if kind in {"image", "snapshot"} else account
    return f"arn:aws:ec2:{region}:{owner}:{kind}/{resource}"
