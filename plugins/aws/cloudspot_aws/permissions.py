"""The AWS policies that cloudspot needs, one in each file: the only list of its permissions.

``cloudspot setup`` makes these policies, `cloudspot driver deploy` uses them, and docs/aws.md shows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cloudspot.plugin.policydocuments import Document, listed

DIRECTORY: Final = Path(__file__).with_name("policies")
REASONS: Final[Mapping[str, str]] = {
    "Look": "finds offers and machines, and checks options, quotas and denials",
    "Launch": "launches machines",
    "TagWhatIsLaunched": "marks them as cloudspot's",
    "OwnMachines": "acts on machines with cloudspot's mark, and on no others",
    "ImagesOfOwnMachines": "makes images of cloudspot's machines",
    "NewImages": "gives such an image its name",
    "OwnImages": "deletes cloudspot's images",
    "PlacementGroups": "places the nodes of a job near one another",
    "NodeProfile": "sees that the machines' profile exists",
    "NodeRole": "gives machines their role, and no other",
    "SpotOnce": "lets EC2 make the role that an account's first spot machine needs",
    "Bucket": "lists the bucket, and checks its settings",
    "Objects": "reads and writes what jobs keep",
    "Logs": "reads, writes or deletes the logs of jobs",
    "LimitFromOutside": "schedules the end of machines whose time is up",
    "LimitRole": "lets the scheduler act in its role",
    "Drill": "reclaims a machine on purpose (`cloudspot preempt`)",
    "DrillRole": "lets the drill act in its role",
    "DrillOnce": "lets FIS make the role that an account's first drill needs",
    "DriverFunctions": "makes, tries and removes drivers (`cloudspot driver`)",
    "DriverRules": "runs drivers on a schedule and at notices",
    "DriverRoles": "makes the roles of drivers",
    "DriverRoleForLambda": "gives drivers their roles",
    "DriverLogs": "makes and removes the logs of drivers",
    "LookForWhatIsLeft": "finds what is left behind (`cloudspot reap`)",
    "LookAtTags": "sees whose it is",
    "OwnVolumes": "deletes disks with cloudspot's mark",
    "Uploads": "finds unfinished uploads",
    "OwnLog": "lets a driver write its own log",
    "LogIn": "logs in to the registry of containers",
    "Pull": "pulls a job's image",
    "BucketKey": "encrypts and decrypts what jobs keep",
}
"""The reason for each statement, by its Sid."""


def policy(name: str, *, partition: str, bucket: str) -> Document:
    """Return the named policy, such as ``submitter``, for one partition and one bucket."""
    return _filled(f"policy-{name}.json", partition, bucket)


def trust(name: str, *, partition: str) -> Document:
    """Return the trust policy of the named role.

    Source: "Amazon Web Services in China", "Service principals": EC2's service principal ends in ``.cn``
        there (from memory).
    """
    document: dict[str, Any] = json.loads(json.dumps(_filled(f"trust-{name}.json", partition, "")))
    for statement in document["Statement"]:
        if partition == "aws-cn" and statement["Principal"]["Service"] == "ec2.amazonaws.com":
            statement["Principal"]["Service"] = "ec2.amazonaws.com.cn"
    return document


def reasons(document: Document) -> Sequence[str]:
    """Return a line for each statement, with its reason and its permissions."""
    return [f"{REASONS[one['Sid']]}: {', '.join(listed(one['Action']))}" for one in document["Statement"]]


def _filled(file: str, partition: str, bucket: str) -> Document:
    text = (DIRECTORY / file).read_text(encoding="utf-8")
    found: Document = json.loads(text.replace("arn:*:", f"arn:{partition}:").replace("BUCKET", bucket))
    return found
