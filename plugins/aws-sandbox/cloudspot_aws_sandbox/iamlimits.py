"""IAM's limits on names and on the sizes and numbers of policies, which moto knows but does not enforce.

Source: IAM user guide, "IAM and AWS STS quotas": white space does not count, and all inline policies of a
user, group or role count together; IAM API reference, PutUserPolicy, CreatePolicy (checked 2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import botocore.session

from cloudspot_aws_sandbox.query import ApiError

_INLINE: Final = {"PutUserPolicy": "User", "PutGroupPolicy": "Group", "PutRolePolicy": "Role"}
_MANAGED: Final = frozenset({"CreatePolicy", "CreatePolicyVersion"})
_TRUSTS: Final = {"CreateRole": "AssumeRolePolicyDocument", "UpdateAssumeRolePolicy": "PolicyDocument"}
_ATTACHED: Final = {"AttachUserPolicy": "User", "AttachGroupPolicy": "Group", "AttachRolePolicy": "Role"}
_COUNTED: Final = {
    "CreateUser": ("Users", "UserName", "users"),
    "CreateGroup": ("Groups", "GroupName", "groups"),
    "CreateRole": ("Roles", "RoleName", "roles"),
    "CreateInstanceProfile": ("InstanceProfiles", "InstanceProfileName", "instance_profiles"),
    "CreatePolicy": ("Policies", "PolicyName", "managed_policies"),
}
"""For each call that creates an object: its kind in the account's summary, the parameter with its name, and
moto's attribute.
"""


def check(iam: Any, action: str, form: Mapping[str, str]) -> None:
    """Refuse a call that IAM refuses; ``iam`` is moto's account, whose summary names the quotas.

    Raises:
        ApiError: a name or another parameter has a wrong form, or a quota would be exceeded.
    """
    _check_forms(action, form)
    quotas = iam.account_summary.summary_map
    if action in _COUNTED:
        what, parameter, kept_as = _COUNTED[action]
        _check_case(form[parameter], getattr(iam, kept_as).values())
        _require(quotas[what] < quotas[f"{what}Quota"], f"{what}PerAccount: {quotas[f'{what}Quota']}")
    if action in _TRUSTS:
        most = quotas["AssumeRolePolicySizeQuota"]
        _require(_size(form.get(_TRUSTS[action], "")) <= most, f"ACLSizePerRole: {most}")
    if action in _MANAGED:
        most = quotas["PolicySizeQuota"]
        _require(_size(form.get("PolicyDocument", "")) <= most, f"PolicySize: {most}")
    if action in _INLINE:
        kind = _INLINE[action]
        others = dict(_holder(iam, kind, form).policies)
        others[form["PolicyName"]] = form["PolicyDocument"]
        most, name = quotas[f"{kind}PolicySizeQuota"], form[f"{kind}Name"]
        if sum(map(_size, others.values())) > most:
            text = f"Maximum policy size of {most} bytes exceeded for {kind.lower()} {name}"
            raise ApiError("LimitExceeded", text, status=409)
    if action in _ATTACHED:
        kind = _ATTACHED[action]
        most = quotas[f"AttachedPoliciesPer{kind}Quota"]
        attached = _holder(iam, kind, form).managed_policies
        _require(form["PolicyArn"] in attached or len(attached) < most, f"PoliciesPer{kind}: {most}")
    if action == "AddUserToGroup":
        most, user = quotas["GroupsPerUserQuota"], _holder(iam, "User", form)
        _require(sum(user in one.users for one in iam.groups.values()) < most, f"GroupsPerUser: {most}")


def _check_case(named: str, others: Iterable[Any]) -> None:
    """Refuse a name that differs from an existing one only by case (IAM API reference, CreateRole)."""
    for other in others:
        is_awss_own = getattr(other, "arn", "").split(":")[4:5] == ["aws"]
        if other.name != named and other.name.lower() == named.lower() and not is_awss_own:
            raise ApiError("EntityAlreadyExists", f"{other.name} already exists.", status=409)


def _holder(iam: Any, kind: str, form: Mapping[str, str]) -> Any:
    """Return the user, group or role; raise ApiError if it does not exist."""
    named = form[f"{kind}Name"]
    found = {"User": iam.users, "Group": iam.groups, "Role": iam.roles}[kind]
    for one in found.values():
        if one.name == named:
            return one
    raise ApiError("NoSuchEntity", f"The {kind.lower()} with name {named} cannot be found.", status=404)


def _require(is_within: bool, quota: str) -> None:  # noqa: FBT001
    if not is_within:
        raise ApiError("LimitExceeded", f"Cannot exceed quota for {quota}", status=409)


def _size(document: str) -> int:
    return len(re.sub(r"\s", "", document))


@cache
def _model() -> Any:
    return botocore.session.get_session().get_service_model("iam")


def _check_forms(action: str, form: Mapping[str, str]) -> None:
    """Check the parameters against IAM's own model, of which botocore checks only the minimum lengths."""
    if action not in _model().operation_names:
        return
    shape = _model().operation_model(action).input_shape
    for name, member in ({} if shape is None else shape.members).items():
        if name not in form or member.type_name != "string":
            continue
        value, rules = form[name], member.metadata
        if not rules.get("min", 0) <= len(value) <= rules.get("max", len(value)):
            _refuse_form(name, f"length from {rules.get('min', 0)} to {rules.get('max')}")
        if "pattern" in rules and not re.fullmatch(rules["pattern"], value, re.ASCII):
            _refuse_form(name, f"regular expression pattern: {rules['pattern']}")


def _refuse_form(name: str, rule: str) -> None:
    at = name[0].lower() + name[1:]
    text = f"1 validation error detected: Value at '{at}' failed to satisfy constraint: Member must satisfy"
    raise ApiError("ValidationError", f"{text} {rule}")
