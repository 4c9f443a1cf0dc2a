"""The Alibaba Cloud policies that cloudspot needs, one in each file: the only list of its permissions.

``cloudspot setup`` makes these policies, `cloudspot driver deploy` uses them, and docs/aliyun.md shows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cloudspot.plugin.policydocuments import Document, listed

DIRECTORY: Final = Path(__file__).with_name("policies")
REASONS: Final[Mapping[str, str]] = {
    "cr:GetAuthorizationToken": "logs in to the registry of containers",
    "cr:PullRepository": "pulls a job's image",
    "ecs:CreateDeploymentSet": "places the nodes of a job apart or together",
    "ecs:CreateImage": "makes images of cloudspot's machines",
    "ecs:DeleteDisk": "deletes disks with cloudspot's mark",
    "ecs:DeleteImage": "deletes cloudspot's images",
    "ecs:DeleteInstance": "ends machines with cloudspot's mark, and acts on no others",
    "ecs:DeleteSnapshot": "deletes the snapshots of cloudspot's images",
    "ecs:DescribeAvailableResource": "finds offers and machines, and checks options",
    "ecs:DescribeDisks": "finds what is left behind (`cloudspot reap`)",
    "ecs:RunInstances": "launches machines, and marks them as cloudspot's",
    "fc:CreateFunction": "makes, tries and removes drivers (`cloudspot driver`)",
    "fc:GetFunction": "finds drivers that are left behind",
    "fc:ListFunctions": "finds drivers that are left behind",
    "oss:AbortMultipartUpload": "reads and writes what jobs keep",
    "oss:GetBucketInfo": "lists the bucket, and checks its settings",
    "oss:ListMultipartUploads": "finds unfinished uploads",
    "ram:AttachPolicyToRole": "gives the roles of drivers their policies",
    "ram:CreatePolicy": "makes the roles of drivers",
    "ram:GetRole": "sees that a role exists",
    "ram:ListRoles": "finds the roles of drivers that are left behind",
    "ram:PassRole": "gives machines their role, and no other",
}
"""The reason for each statement, by its first action."""


def policy(name: str, *, bucket: str) -> Document:
    """Return the named policy, such as ``submitter``, for one bucket."""
    text = (DIRECTORY / f"policy-{name}.json").read_text(encoding="utf-8")
    found: Document = json.loads(text.replace("BUCKET", bucket))
    return found


def trust(name: str) -> Document:
    """Return the trust policy of the named role."""
    found: Document = json.loads((DIRECTORY / f"trust-{name}.json").read_text(encoding="utf-8"))
    return found


def reasons(document: Document) -> Sequence[str]:
    """Return a line for each statement, with its reason and its permissions."""
    return [
        f"{REASONS[actions[0]]}: {', '.join(actions)}"
        for actions in (listed(one["Action"]) for one in document["Statement"])
    ]
