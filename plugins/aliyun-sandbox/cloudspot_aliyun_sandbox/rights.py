"""The permissions that a recorded request needed, and their resources, for comparison with a policy.

Source: RAM authorization of ECS, VPC, RAM and OSS (checked 2026-11): a permission is named after its action,
    except for passing a role and for OSS.
"""

from __future__ import annotations

from typing import Final

from cloudspot.emulation.api_faults import Call
from cloudspot_aliyun_sandbox.ossrequests import RIGHTS

FREE: Final = frozenset({"sts:GetCallerIdentity"})
"""The actions that need no permission."""


def rights_of(call: Call) -> frozenset[str]:
    """Return the permissions that the call needed, such as ``ecs:RunInstances``."""
    if call.service == "oss":
        right = RIGHTS.get(call.action, f"oss:{call.action}")
        return frozenset({right, RIGHTS["GetObject"]} if call.action == "CopyObject" else {right})
    rights = {f"{call.service}:{call.action}"}
    if "RamRoleName" in call.parameters or (call.service == "fc" and "role" in call.parameters):
        rights.add("ram:PassRole")
    has_tags = any(name.startswith("Tag.") for name in call.parameters)
    if has_tags and call.action in {"CreateImage", "RunInstances"}:
        rights.add("ecs:TagResources")
    return frozenset(rights - FREE)


_ON_MACHINES: Final = frozenset(
    {
        "ecs:DeleteInstance",
        "ecs:DeleteInstances",
        "ecs:GetInstanceConsoleOutput",
        "ecs:ModifyInstanceMetadataOptions",
    }
)
_ON_IMAGES: Final = frozenset({"ecs:CreateImage", "ecs:DeleteImage"})


def resource_of(call: Call, *, right: str = "") -> str:
    """Return the name of the resource of the call, or of its permission ``right``, or ``*`` for any."""
    if right in _ON_MACHINES:
        return "acs:ecs:*:*:instance/i-0"
    if right in _ON_IMAGES:
        return f"acs:ecs:*:*:image/{call.parameters.get('ImageId', 'm-0')}"
    if right == "ecs:DeleteSnapshot":
        return f"acs:ecs:*:*:snapshot/{call.parameters.get('SnapshotId', '')}"
    if right in {"ram:GetRole", "ram:PassRole"}:
        named = call.parameters.get("RamRoleName") or call.parameters.get("RoleName") or ""
        return f"acs:ram:*:*:role/{named}"
    if call.service != "oss":
        return "*"
    key = call.parameters.get("Key")
    return f"acs:oss:*:*:{call.parameters.get('Bucket', '')}" + (f"/{key}" if key else "")
