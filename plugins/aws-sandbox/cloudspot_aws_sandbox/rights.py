"""Which rights a recorded request took, and on what, for comparison with what a policy grants.

Source: Service Authorization Reference, "Actions, resources, and condition keys" for Amazon EC2, S3,
CloudWatch Logs and EventBridge Scheduler (checked 2026-11).
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from typing import Final

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
                "Resource": "arn:aws:logs:*:*:log-group:/cloudspot/*",
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
    if "IamInstanceProfile" in call.parameters or call.action in _PASSES_A_ROLE:
        rights.add("iam:PassRole")
    return frozenset(rights - FREE)


def resource_of(call: Call, *, account: str) -> str:
    """Return the ARN of what the call was about; ``*`` except for S3 and CloudWatch Logs."""
    parameters = call.parameters
    if call.service == "s3":
        key = parameters.get("Key")
        return f"arn:aws:s3:::{parameters.get('Bucket', '')}" + (f"/{key}" if key else "")
    if call.service == "logs":
        stream = parameters.get("logStreamName")
        return f"arn:aws:logs:{call.region}:{account}:log-group:{parameters.get('logGroupName', '')}" + (
            f":log-stream:{stream}" if stream else ""
        )
    return "*"


def is_allowed(policies: Sequence[str], right: str, arn: str) -> bool:
    """Return whether one of the policies (JSON) grants a right on a resource; denials are not understood."""
    statements = [one for policy in policies for one in json.loads(policy)["Statement"]]
    return any(
        one["Effect"] == "Allow" and _matches(one["Action"], right) and _matches(one["Resource"], arn)
        for one in statements
    )


def _matches(patterns: str | Sequence[str], text: str) -> bool:
    listed = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatch.fnmatchcase(text, one) for one in listed)
