"""The parts of RAM that a driver's function or docs/aliyun.md needs: roles, policies and permissions.

Source: RAM API reference, version 2015-05-01 (checked 2026-11). From memory: a role or a policy with
    attachments cannot be deleted, and the codes of these refusals.
"""

from __future__ import annotations

import json
import secrets
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
    """The roles to which the policy is attached."""
    users: set[str] = field(default_factory=set)
    """The users to which the policy is attached."""
    groups: set[str] = field(default_factory=set)
    """The groups to which the policy is attached."""


class Ram:
    """Roles and policies of one account. The caller holds a lock."""

    def __init__(self, account_id: str, roles: dict[str, str]) -> None:
        """``roles`` maps each role to the service that it trusts; new roles are added to ``roles``."""
        self._account_id = account_id
        self._roles = roles
        self._described: dict[str, tuple[str, str]] = {}
        """The description and the creation time of each role that was made through the API."""
        self.policies: dict[str, Policy] = {}
        self.users: set[str] = set()
        self.groups: dict[str, set[str]] = {}
        """The users of each group."""
        self.keys: dict[str, tuple[str, str]] = {}
        """The user and the secret of each access key that was made through the API."""
        self.handlers: dict[str, Handler] = {
            "AttachPolicyToRole": self._attach,
            "AttachPolicyToGroup": self._attach_to_group,
            "AttachPolicyToUser": self._attach_to_user,
            "CreateAccessKey": self._create_key,
            "CreateGroup": self._create_group,
            "CreateUser": self._create_user,
            "DetachPolicyFromGroup": self._detach_from_group,
            "DetachPolicyFromUser": self._detach_from_user,
            "GetGroup": self._get_group,
            "GetUser": self._get_user,
            "ListPoliciesForGroup": lambda parameters, _: self._list("groups", parameters["GroupName"]),
            "ListPoliciesForRole": lambda parameters, _: self._list("roles", self._role(parameters)),
            "ListPoliciesForUser": lambda parameters, _: self._list("users", parameters["UserName"]),
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

    def documents_of_user(self, name: str) -> list[str]:
        """Return the policies of a user and of the user's groups, as JSON."""
        groups = {group for group, users in self.groups.items() if name in users}
        return [
            one.versions[-1] for one in self.policies.values() if name in one.users or groups & one.groups
        ]

    def _create_user(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        name = parameters.get("UserName", "")
        if name in self.users:
            raise ApiError("EntityAlreadyExists.User", f"The user {name} already exists.", status=409)
        self.users.add(name)
        return {"User": {"UserName": name}}

    def _get_user(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        name = parameters.get("UserName", "")
        if name not in self.users:
            raise ApiError("EntityNotExist.User", f"The user does not exist: {name}.", status=404)
        return {"User": {"UserName": name}}

    def _create_group(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        name = parameters.get("GroupName", "")
        if name in self.groups:
            raise ApiError("EntityAlreadyExists.Group", f"The group {name} already exists.", status=409)
        self.groups[name] = set()
        return {"Group": {"GroupName": name}}

    def _get_group(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        name = parameters.get("GroupName", "")
        if name not in self.groups:
            raise ApiError("EntityNotExist.Group", f"The group does not exist: {name}.", status=404)
        return {"Group": {"GroupName": name}}

    def _create_key(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        user = self._get_user(parameters, _region)["User"]["UserName"]
        key, secret = f"LTAI5t{secrets.token_hex(9)}", secrets.token_hex(15)
        self.keys[key] = user, secret
        return {"AccessKey": {"AccessKeyId": key, "AccessKeySecret": secret, "Status": "Active"}}

    def _list(self, kind: str, name: str) -> Mapping[str, Any]:
        found = [one for one, policy in self.policies.items() if name in getattr(policy, kind)]
        return {"Policies": {"Policy": [{"PolicyName": one, "PolicyType": "Custom"} for one in found]}}

    def _attach_to_group(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        policy = self._policy(parameters, has_type=True)
        name = self._get_group(parameters, _region)["Group"]["GroupName"]
        if name in policy.groups:
            message = "The policy is attached to the group already."
            raise ApiError("EntityAlreadyExists.Group.Policy", message, status=409)
        policy.groups.add(name)
        return {}

    def _detach_from_group(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        return self._drop(self._policy(parameters, has_type=True).groups, parameters["GroupName"], "Group")

    def _detach_from_user(self, parameters: Parameters, _region: str) -> Mapping[str, Any]:
        return self._drop(self._policy(parameters, has_type=True).users, parameters["UserName"], "User")

    def _drop(self, holders: set[str], name: str, kind: str) -> Mapping[str, Any]:
        if name not in holders:
            message = f"The policy is not attached to the {kind.lower()}."
            raise ApiError(f"EntityNotExist.{kind}.Policy", message, status=404)
        holders.remove(name)
        return {}

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
        self._described[name] = parameters.get("Description", ""), made_at
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
        described, made_at = self._described.get(name, ("", "2026-01-01T00:00:00Z"))
        fields = {"Description": described, "CreateDate": made_at}
        return {"Role": {"RoleName": name, "Arn": arn, "AssumeRolePolicyDocument": trust, **fields}}

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
        if policy.groups:
            raise ApiError("DeleteConflict.Policy.Group", "The policy is attached to a group.", status=409)
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
