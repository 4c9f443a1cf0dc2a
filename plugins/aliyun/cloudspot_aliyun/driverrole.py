"""The RAM role of a driver's function, with a policy of its own.

Source: RAM API reference, version 2015-05-01: CreateRole, CreatePolicy, CreatePolicyVersion, DeletePolicy
(checked 2026-11).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from cloudspot.plugin.answers import moment
from cloudspot_aliyun.api import ask
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.errors import unless
from cloudspot_aliyun.permissions import DIRECTORY

DESCRIPTION: Final = "cloudspot: drives jobs on a schedule"
_TRUST: Final = json.dumps(
    {
        "Version": "1",
        "Statement": [
            {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": ["fc.aliyuncs.com"]}}
        ],
    }
)


def driver_policy(bucket: str, *, reaps: bool = False) -> str:
    """Return the RAM policy for a driver of the jobs in a bucket; with ``reaps``, for a reaper as well."""
    files = ("policy-driver.json", "policy-reap.json")[: 2 if reaps else 1]
    texts = [(DIRECTORY / name).read_text(encoding="utf-8") for name in files]
    statements = [one for text in texts for one in json.loads(text.replace("BUCKET", bucket))["Statement"]]
    # RAM accepts at most 6,144 characters.
    return json.dumps({"Version": "1", "Statement": statements}, separators=(",", ":"))


class DriverRole:
    """A role and a policy of the same name. Each method can be interrupted anywhere and then repeated."""

    def __init__(self, clients: AliyunClients, name: str) -> None:
        """Do no I/O."""
        self._clients = clients
        self._name = name

    def make(self, document: str) -> str:
        """Make or update the role with this policy; return the role's ARN."""
        name = self._name
        self._ask(
            "CreateRole",
            {
                "RoleName": name,
                "AssumeRolePolicyDocument": _TRUST,
                "Description": DESCRIPTION,
            },
            ignoring="EntityAlreadyExists.Role",
        )
        policy = {"PolicyName": name, "PolicyDocument": document}
        if self._ask("CreatePolicy", policy, ignoring="EntityAlreadyExists.Policy") is None:
            held = self._ask("GetPolicy", {"PolicyName": name, "PolicyType": "Custom"}) or {}
            if json.loads(held["DefaultPolicyVersion"]["PolicyDocument"]) != json.loads(document):
                rotate = {"RotateStrategy": "DeleteOldestNonDefaultVersionWhenLimitExceeded"}
                self._ask("CreatePolicyVersion", {**policy, **rotate, "SetAsDefault": True})
        self._ask("AttachPolicyToRole", self._attachment, ignoring="EntityAlreadyExists.Role.Policy")
        return str((self._ask("GetRole", {"RoleName": name}) or {})["Role"]["Arn"])

    def made_at(self) -> datetime | None:
        """Return when the role was made, or None if it does not exist or is not cloudspot's."""
        found = self._ask("GetRole", {"RoleName": self._name}, ignoring="EntityNotExist")
        role = {} if found is None else found["Role"]
        is_ours = role.get("Description") == DESCRIPTION
        return moment(role["CreateDate"]) if is_ours else None

    def remove(self) -> Sequence[str]:
        """Remove the policy and the role; return the names of those that existed."""
        name = self._name
        self._ask("DetachPolicyFromRole", self._attachment, ignoring="EntityNotExist")
        calls = (
            (f"policy {name}", "DeletePolicy", {"PolicyName": name, "CascadingDelete": True}),
            (f"role {name}", "DeleteRole", {"RoleName": name}),
        )
        found = [(what, self._ask(action, asked, ignoring="EntityNotExist")) for what, action, asked in calls]
        return [what for what, answer in found if answer is not None]

    @property
    def _attachment(self) -> dict[str, str]:
        return {"PolicyType": "Custom", "PolicyName": self._name, "RoleName": self._name}

    def _ask(self, action: str, parameters: dict[str, Any], *, ignoring: str = "") -> dict[str, Any] | None:
        return unless(
            f"the driver's role: ram:{action}",
            lambda: ask(self._clients, action, parameters, product="Ram"),
            ignoring,
        )
