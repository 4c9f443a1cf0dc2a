"""Roles, policies and grants of an AWS account's setup.

Source: IAM API reference, the operations' pages (checked 2026-11).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cloudspot.model import PartState
from cloudspot.plugin import policydocuments
from cloudspot.plugin.policydocuments import Document
from cloudspot.plugin.setupparts import state_of
from cloudspot_aws import permissions
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ignored
from cloudspot_aws.setupcalls import AwsCall
from cloudspot_aws.setuppart import TAGS, AwsPart, unless


class Role(AwsPart):
    """A role that one service assumes, with one policy."""

    def __init__(
        self,
        clients: AwsClients,
        name: str,
        purpose: str,
        *,
        trust: Document,
        policy: Document,
    ) -> None:
        """Do no I/O."""
        super().__init__(
            clients,
            "role",
            name,
            purpose,
            making=[
                AwsCall(
                    "iam",
                    "CreateRole",
                    {
                        "RoleName": name,
                        "AssumeRolePolicyDocument": json.dumps(trust),
                        "Description": f"cloudspot: {purpose}",
                        "Tags": list(TAGS),
                    },
                    ("EntityAlreadyExists",),
                ),
                AwsCall(
                    "iam", "UpdateAssumeRolePolicy", {"RoleName": name, "PolicyDocument": json.dumps(trust)}
                ),
                AwsCall(
                    "iam",
                    "PutRolePolicy",
                    {"RoleName": name, "PolicyName": name, "PolicyDocument": json.dumps(policy)},
                ),
            ],
            removing=[
                AwsCall("iam", "DeleteRolePolicy", {"RoleName": name, "PolicyName": name}, ("NoSuchEntity",)),
                AwsCall("iam", "DeleteRole", {"RoleName": name}, ("NoSuchEntity",)),
            ],
            rights=permissions.reasons(policy),
        )
        self._trust, self._policy = trust, policy

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the role's trust and policies grant more, or less, than this part."""
        iam = self.clients.client("iam")
        answer = unless("NoSuchEntity", lambda: iam.get_role(RoleName=self.name))
        if answer is None:
            return PartState(exists=False)
        role, partition = answer["Role"], str(iam.meta.partition)
        trust = [role["AssumeRolePolicyDocument"]]
        mine: list[Document] = []
        others: list[Document] = []
        for page in iam.get_paginator("list_role_policies").paginate(RoleName=self.name):
            for name in page["PolicyNames"]:
                found = iam.get_role_policy(RoleName=self.name, PolicyName=name)["PolicyDocument"]
                (mine if name == self.name else others).append(found)
        for page in iam.get_paginator("list_attached_role_policies").paginate(RoleName=self.name):
            others += [managed_document(iam, one["PolicyArn"]) for one in page["AttachedPolicies"]]
        mine, others = (_in_partition(one, partition) for one in (mine, others))
        own = [
            *policydocuments.excess(trust, [self._trust]),
            *policydocuments.excess(mine, [self._policy]),
        ]
        lacks = [
            *policydocuments.lacking(trust, [self._trust]),
            *policydocuments.lacking([*mine, *others], [self._policy]),
        ]
        state = state_of(is_own=is_own, differences=own, lacks=lacks)
        beyond = policydocuments.excess(others, [self._policy])
        return PartState(exists=True, excess=(*state.excess, *beyond), lacks=state.lacks)


class Profile(AwsPart):
    """The instance profile that gives machines the role of the same name."""

    def __init__(self, clients: AwsClients, name: str) -> None:
        """Do no I/O."""
        both = {"InstanceProfileName": name, "RoleName": name}
        super().__init__(
            clients,
            "instance profile",
            name,
            "gives machines their role",
            making=[
                AwsCall(
                    "iam",
                    "CreateInstanceProfile",
                    {"InstanceProfileName": name, "Tags": list(TAGS)},
                    ("EntityAlreadyExists",),
                ),
                # A profile holds one role, so this error means that it already has one.
                AwsCall("iam", "AddRoleToInstanceProfile", both, ("LimitExceeded", "EntityAlreadyExists")),
            ],
            removing=[
                AwsCall("iam", "RemoveRoleFromInstanceProfile", both, ("NoSuchEntity",)),
                AwsCall("iam", "DeleteInstanceProfile", {"InstanceProfileName": name}, ("NoSuchEntity",)),
            ],
        )

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the profile exists and contains the right role."""
        iam = self.clients.client("iam")
        answer = unless("NoSuchEntity", lambda: iam.get_instance_profile(InstanceProfileName=self.name))
        if answer is None:
            return PartState(exists=False)
        roles = [one["RoleName"] for one in answer["InstanceProfile"]["Roles"]]
        others = tuple(f"it gives machines the role {one}" for one in roles if one != self.name)
        lacks = () if roles else (f"it gives no role; add {self.name} to it",)
        return PartState(exists=True, excess=others, lacks=lacks)


class Policy(AwsPart):
    """A managed policy, which can be attached to principals."""

    def __init__(self, clients: AwsClients, name: str, purpose: str, *, arn: str, document: Document) -> None:
        """Do no I/O."""
        create = {
            "PolicyName": name,
            "PolicyDocument": json.dumps(document),
            "Description": f"cloudspot: {purpose}",
            "Tags": list(TAGS),
        }
        super().__init__(
            clients,
            "policy",
            name,
            purpose,
            making=[AwsCall("iam", "CreatePolicy", create, ("EntityAlreadyExists",))],
            removing=[AwsCall("iam", "DeletePolicy", {"PolicyArn": arn}, ("NoSuchEntity",))],
            rights=permissions.reasons(document),
        )
        self._arn, self._document = arn, document

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the policy exists, and how its default version differs."""
        iam = self.clients.client("iam")
        found = unless("NoSuchEntity", lambda: managed_document(iam, self._arn))
        if found is None:
            return PartState(exists=False)
        documents = _in_partition([found], str(iam.meta.partition))
        return state_of(
            is_own=is_own,
            differences=policydocuments.excess(documents, [self._document]),
            lacks=policydocuments.lacking(documents, [self._document]),
        )

    def create(self) -> None:
        """Make the policy, or a new version of it if the existing one differs."""
        super().create()
        iam = self.clients.client("iam")
        if managed_document(iam, self._arn) == self._document:
            return
        # A policy can have at most five versions.
        for one in self._versions()[3:]:
            iam.delete_policy_version(PolicyArn=self._arn, VersionId=one)
        iam.create_policy_version(
            PolicyArn=self._arn, PolicyDocument=json.dumps(self._document), SetAsDefault=True
        )

    def delete(self) -> None:
        """Delete the policy and its older versions."""
        iam = self.clients.client("iam")
        with ignored("NoSuchEntity"):
            for one in self._versions():
                iam.delete_policy_version(PolicyArn=self._arn, VersionId=one)
        super().delete()

    def _versions(self) -> list[str]:
        """Return the versions other than the default one, the newest first."""
        found = self.clients.client("iam").list_policy_versions(PolicyArn=self._arn)["Versions"]
        return [one["VersionId"] for one in found if not one["IsDefaultVersion"]]


class Grant(AwsPart):
    """A managed policy that is attached to a user, a group or a role."""

    def __init__(self, clients: AwsClients, kind: str, grantee: str, *, policy: str, arn: str) -> None:
        """Attach ``policy`` to ``whom``, a ``kind`` of principal: ``User``, ``Group`` or ``Role``."""
        both = {f"{kind}Name": grantee, "PolicyArn": arn}
        super().__init__(
            clients,
            "grant",
            f"{policy} to {kind.lower()}/{grantee}",
            "lets them submit and drive jobs, as you asked with --grant-to",
            making=[AwsCall("iam", f"Attach{kind}Policy", both)],
            removing=[AwsCall("iam", f"Detach{kind}Policy", both, ("NoSuchEntity",))],
        )
        self._kind, self._grantee, self._arn = kind, grantee, arn

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the policy is attached."""
        iam = self.clients.client("iam")
        pages = iam.get_paginator(f"list_attached_{self._kind.lower()}_policies")
        attached = {
            one["PolicyArn"]
            for page in pages.paginate(**{f"{self._kind}Name": self._grantee})
            for one in page["AttachedPolicies"]
        }
        return PartState(exists=self._arn in attached)


def managed_document(iam: Any, arn: str) -> Document:
    """Return the default version of a managed policy."""
    version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
    found: Document = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
    return found


def _in_partition(documents: Sequence[Document], partition: str) -> list[Document]:
    """Return the policies with ``partition`` in place of a wildcard: an account is in only one partition."""
    return [json.loads(json.dumps(one).replace('"arn:*:', f'"arn:{partition}:')) for one in documents]
