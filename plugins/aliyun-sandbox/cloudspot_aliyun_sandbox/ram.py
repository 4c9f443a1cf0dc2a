"""RAM's roles and policies, as far as a driver's function or docs/aliyun.md needs them; and what they grant.

Source: RAM API reference, version 2015-05-01 (checked 2026-11). From memory: that a role or a policy with
attachments cannot be deleted, and the codes that say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from cloudspot_aliyun_sandbox.rpc import ApiError

Parameters = Mapping[str, str]
Handler = Callable[[Parameters, str], Mapping[str, Any]]
MAX_POLICY_CHARACTERS: Final = 6144
MAX_VERSIONS: Final = 5


@dataclass
class Policy:
    """A custom policy; the last of its versions is the default."""

    versions: list[str]
    roles: set[str] = field(default_factory=set)
    """Those that it is attached to."""
    users: set[str] = field(default_factory=set)
    """Those that it is attached to."""


class Ram:
    """Roles and policies of one account. The caller holds a lock."""

    def __init__(self, account_id: str, roles: dict[str, str]) -> None:
        """``roles`` has the service that each trusts; those made here are added."""
        self._account_id = account_id
        self._roles = roles
        self._told: dict[str, tuple[str, str]] = {}
        """Description and moment of each role that was made through the API."""
        self.policies: dict[str, Policy] = {}
        self.users: set[str] = set()
        self.handlers: dict[str, Handler] = {
            "AttachPolicyToRole": self._attach,
            "AttachPolicyToUser": self._attach_to_user,
            "CreatePolicy": self._create_policy,
            "CreatePolicyVersion": self._create_version,
            "CreateRole": self._create_role,
            "DeletePolicy": self._delete_policy,
            "DeleteRole": self._delete_role,
            "DetachPolicyFromRole": self._detach,
            "GetPolicy": self._get_policy,
            "GetRole": self._get_role,
        }

    def documents_of(self, role: str) -> list[str]:
        """Return the policies that a role has, as JSON."""
        return [one.versions[-1] for one in self.policies.values() if role in one.roles]

    def _create_role(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        name = parameters.get("RoleName", "")
        if not 1 <= len(name) <= 64 or not name.replace("-", "").replace(".", "").isalnum():
            raise ApiError("InvalidParameter.RoleName", "The parameter RoleName is invalid.")
        if name in self._roles:
            raise ApiError("EntityAlreadyExists.Role", f"The role {name} already exists.", status=409)
        try:
            (statement,) = json.loads(parameters.get("AssumeRolePolicyDocument", ""))["Statement"]
            (service,) = statement["Principal"]["Service"]
        except (ValueError, KeyError, TypeError):
            message = "The assume role policy document is invalid."
            raise ApiError("MalformedPolicyDocument", message) from None
        self._roles[name] = service
        made_at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._told[name] = parameters.get("Description", ""), made_at
        return self._get_role(parameters, _region)

    def _get_role(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        name = self._role(parameters)
        statement = {
            "Action": "sts:AssumeRole",
            "Effect": "Allow",
            "Principal": {"Service": [self._roles[name]]},
        }
        trust = json.dumps({"Statement": [statement], "Version": "1"})
        arn = f"acs:ram::{self._account_id}:role/{name}"
        described, made_at = self._told.get(name, ("", "2026-01-01T00:00:00Z"))
        told = {"Description": described, "CreateDate": made_at}
        return {"Role": {"RoleName": name, "Arn": arn, "AssumeRolePolicyDocument": trust, **told}}

    def _delete_role(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        name = self._role(parameters)
        if self.documents_of(name):
            raise ApiError("DeleteConflict.Role.Policy", f"The role {name} has policies.", status=409)
        del self._roles[name]
        return {}

    def _create_policy(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        name = parameters.get("PolicyName", "")
        if not 1 <= len(name) <= 128 or not name.replace("-", "").isalnum():
            raise ApiError("InvalidParameter.PolicyName", "The parameter PolicyName is invalid.")
        if name in self.policies:
            raise ApiError("EntityAlreadyExists.Policy", f"The policy {name} already exists.", status=409)
        self.policies[name] = Policy([_document(parameters)])
        return {"Policy": {"PolicyName": name, "PolicyType": "Custom"}}

    def _get_policy(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        policy = self._policy(parameters, has_type=True)
        newest = {"PolicyDocument": policy.versions[-1], "IsDefaultVersion": True}
        return {"Policy": {"PolicyName": parameters["PolicyName"]}, "DefaultPolicyVersion": newest}

    def _create_version(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        policy = self._policy(parameters)
        if parameters.get("SetAsDefault") != "true":
            raise ApiError("SandboxNotImplemented", "the emulated RAM makes each new version the default")
        if len(policy.versions) >= MAX_VERSIONS:
            if parameters.get("RotateStrategy") != "DeleteOldestNonDefaultVersionWhenLimitExceeded":
                message = "The policy has too many versions."
                raise ApiError("LimitExceeded.Policy.Version", message, status=409)
            del policy.versions[0]
        policy.versions.append(_document(parameters))
        return {"PolicyVersion": {"IsDefaultVersion": True}}

    def _delete_policy(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        policy = self._policy(parameters)
        if policy.users:
            raise ApiError("DeleteConflict.Policy.User", "The policy is attached to a user.", status=409)
        if policy.roles:
            raise ApiError("DeleteConflict.Policy.Role", "The policy is attached to a role.", status=409)
        if len(policy.versions) > 1 and parameters.get("CascadingDelete") != "true":
            raise ApiError("DeleteConflict.Policy.Version", "The policy has versions.", status=409)
        del self.policies[parameters["PolicyName"]]
        return {}

    def _attach(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        policy, role = self._policy(parameters, has_type=True), self._role(parameters)
        if role in policy.roles:
            message = "The policy is attached to the role already."
            raise ApiError("EntityAlreadyExists.Role.Policy", message, status=409)
        policy.roles.add(role)
        return {}

    def _attach_to_user(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        policy, user = self._policy(parameters, has_type=True), parameters.get("UserName", "")
        if user not in self.users:
            raise ApiError("EntityNotExist.User", f"The user does not exist: {user}.", status=404)
        if user in policy.users:
            message = "The policy is attached to the user already."
            raise ApiError("EntityAlreadyExists.User.Policy", message, status=409)
        policy.users.add(user)
        return {}

    def _detach(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        policy, role = self._policy(parameters, has_type=True), self._role(parameters)
        if role not in policy.roles:
            message = "The policy is not attached to the role."
            raise ApiError("EntityNotExist.Role.Policy", message, status=404)
        policy.roles.remove(role)
        return {}

    def _role(self, parameters: Parameters) -> str:
        name = parameters.get("RoleName", "")
        if name not in self._roles:
            raise ApiError("EntityNotExist.Role", f"The role not exists: {name}.", status=404)
        return name

    def _policy(self, parameters: Parameters, *, has_type: bool = False) -> Policy:
        name = parameters.get("PolicyName", "")
        if has_type and parameters.get("PolicyType") != "Custom":
            raise ApiError("InvalidParameter.PolicyType", "The parameter PolicyType is invalid.")
        if name not in self.policies:
            raise ApiError("EntityNotExist.Policy", f"The policy not exists: {name}.", status=404)
        return self.policies[name]


def _document(parameters: Parameters) -> str:
    text = parameters.get("PolicyDocument", "")
    try:
        is_good = isinstance(json.loads(text)["Statement"], list) and json.loads(text)["Version"] == "1"
    except (ValueError, KeyError, TypeError):
        is_good = False
    if not is_good or len(text) > MAX_POLICY_CHARACTERS:
        raise ApiError("MalformedPolicyDocument", "The policy document is invalid.")
    return text
