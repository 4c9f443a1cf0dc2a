"""The parts of an Alibaba Cloud account's setup: bucket, role, policies, attachments and network.

Source: API references of OSS, RAM (2015-05-01), VPC (2016-04-28) and ECS (2014-05-26), the operations' pages
(checked 2026-11).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import oss2
from oss2.models import (
    AbortMultipartUpload,
    BucketLifecycle,
    LifecycleRule,
    ServerSideEncryptionRule,
)

from cloudspot.errors import CloudspotError
from cloudspot.model import PartState
from cloudspot.plugin import policydocuments
from cloudspot.plugin.policydocuments import Document
from cloudspot.plugin.setupparts import FREE, CloudPart, state_of
from cloudspot_aliyun import permissions, tags
from cloudspot_aliyun.api import ask, flatten, items
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.errors import ERRORS
from cloudspot_aliyun.ossbucket import bucket_client

ABORT_DAYS: Final = 3
"""The age, in days, at which the parts of an unfinished upload are deleted."""
_ROTATE: Final = {"RotateStrategy": "DeleteOldestNonDefaultVersionWhenLimitExceeded", "SetAsDefault": True}


@dataclass(frozen=True)
class AliyunCall:
    """A call of the control plane that is safe to repeat."""

    product: str
    """The product's name in the SDK, such as ``Ram``."""
    action: str
    parameters: Mapping[str, Any]
    done: str = ""
    """The error code, or its prefix, that means that the call was made before."""

    def run(self, clients: AliyunClients) -> dict[str, Any] | None:
        """Make the call; return the response, or None if the call was made before."""
        try:
            return ERRORS.unless_throttled(
                lambda: ask(clients, self.action, self.parameters, product=self.product)
            )
        except ERRORS.raised as error:
            code = ERRORS.code_of(error)
            if self.done and (code == self.done or code.startswith(f"{self.done}.")):
                return None
            raise

    def command(self, region: str) -> str:
        """Return the call as a shell command."""
        arguments = ["aliyun", self.product.lower(), self.action]
        if self.product != "Ram":
            arguments += ["--RegionId", region]
        for name, value in flatten(self.parameters).items():
            arguments += [f"--{name}", value]
        return shlex.join(arguments)


class AliyunPart(CloudPart):
    """A part that is made and removed by lists of calls."""

    provider = "aliyun"
    errors = ERRORS
    forbids = ("control policy", "ControlPolicy", "resource directory")

    def __init__(
        self,
        clients: AliyunClients,
        kind: str,
        name: str,
        purpose: str,
        *,
        making: Sequence[AliyunCall] = (),
        removing: Sequence[AliyunCall] = (),
        cost: str = FREE,
        rights: Sequence[str] = (),
        commands: Sequence[str] = (),
    ) -> None:
        """Do no I/O; ``commands`` replaces the shell commands of the calls."""
        lines = commands or [call.command(clients.region) for call in making]
        super().__init__(kind, name, purpose, cost=cost, rights=rights, commands=lines)
        self.clients = clients
        self.making, self.removing = making, removing

    def find(
        self, action: str, parameters: Mapping[str, Any], *, product: str = "Ram"
    ) -> dict[str, Any] | None:
        """Return the response, or None if the resource does not exist."""
        return AliyunCall(product, action, parameters, "EntityNotExist").run(self.clients)

    def create(self) -> None:
        """Make the calls; see CloudPart."""
        for call in self.making:
            call.run(self.clients)

    def delete(self) -> None:
        """Make the calls that remove the part; see CloudPart."""
        for call in self.removing:
            call.run(self.clients)


class Bucket(AliyunPart):
    """A private, encrypted bucket without versioning that deletes unfinished uploads."""

    is_store = True

    def __init__(self, clients: AliyunClients, name: str, *, account: str) -> None:
        """Do no I/O except to find the region."""
        encryption = "--sse-algorithm AES256"
        rule = (
            "<LifecycleConfiguration><Rule><ID>cloudspot-unfinished-uploads</ID><Prefix></Prefix>"
            f"<Status>Enabled</Status><AbortMultipartUpload><Days>{ABORT_DAYS}</Days></AbortMultipartUpload>"
            "</Rule></LifecycleConfiguration>"
        )
        super().__init__(
            clients,
            "bucket",
            name,
            "keeps all that jobs need and make; private, encrypted, and without unfinished uploads",
            cost="about 0.12 CNY for each GB that it keeps, and 0.01 CNY for 10,000 requests",
            commands=[
                f"aliyun oss mb oss://{name} --acl private",
                f"aliyun oss bucket-encryption --method put oss://{name} {encryption}",
                f"aliyun oss lifecycle --method put oss://{name} /dev/stdin <<< {shlex.quote(rule)}",
            ],
        )
        self._account = account

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the bucket exists, belongs to the account, and is closed to others."""
        bucket = bucket_client(self.clients, self.name)
        try:
            info = bucket.get_bucket_info()
        except oss2.exceptions.NoSuchBucket:
            return PartState(exists=False)
        except oss2.exceptions.AccessDenied as error:
            elsewhere = (error.details or {}).get("Endpoint")
            taken = "it belongs to another account, or you may not look at it: choose another with --store"
            return PartState(exists=True, excess=(f"it is at {elsewhere}" if elsewhere else taken,))
        if info.owner.id != self._account:
            return PartState(exists=True, excess=("it belongs to another account",))
        open_to, lacks = [], []
        if info.acl.grant != "private":
            open_to.append(f"its access list is {info.acl.grant}")
        if info.versioning_status:
            open_to.append("it has versions: OSS then ignores the condition of create-only writes")
        if not getattr(info.bucket_encryption_rule, "sse_algorithm", None):
            lacks.append("it encrypts nothing")
        if not any(one.abort_multipart_upload for one in self._rules(bucket)):
            lacks.append("it keeps unfinished uploads")
        try:
            policy = json.loads(bucket.get_bucket_policy().policy)
        except oss2.exceptions.NoSuchBucketPolicy:
            policy = {}
        state = state_of(is_own=is_own, differences=open_to, lacks=lacks)
        beyond = policydocuments.excess([policy], [])
        return PartState(exists=True, excess=(*state.excess, *beyond), lacks=state.lacks)

    def create(self) -> None:
        """Make the bucket, and correct its settings."""
        bucket = bucket_client(self.clients, self.name)
        try:
            bucket.create_bucket(oss2.BUCKET_ACL_PRIVATE)
        except oss2.exceptions.ServerError as error:
            if error.code != "BucketAlreadyExists" or self.state(is_own=True).excess:
                raise CloudspotError(
                    f"bucket {self.name}: {error.message}; choose another bucket with --store"
                ) from error
        rule = LifecycleRule(
            "cloudspot-unfinished-uploads",
            "",
            status=LifecycleRule.ENABLED,
            abort_multipart_upload=AbortMultipartUpload(days=ABORT_DAYS),
        )
        bucket.put_bucket_encryption(
            ServerSideEncryptionRule(sse_algorithm=oss2.SERVER_SIDE_ENCRYPTION_AES256)
        )
        bucket.put_bucket_lifecycle(BucketLifecycle([rule]))

    def delete(self) -> None:
        """Delete it."""
        try:
            bucket_client(self.clients, self.name).delete_bucket()
        except oss2.exceptions.NoSuchBucket:
            return

    def _rules(self, bucket: oss2.Bucket) -> Sequence[Any]:
        try:
            found: Sequence[Any] = bucket.get_bucket_lifecycle().rules
        except oss2.exceptions.NoSuchLifecycle:
            return ()
        return found


class Role(AliyunPart):
    """The machines' role; its policies are attached to it."""

    def __init__(self, clients: AliyunClients, name: str, purpose: str, *, trust: Document) -> None:
        """Do no I/O."""
        text = json.dumps(trust)
        asked = {
            "RoleName": name,
            "AssumeRolePolicyDocument": text,
            "Description": f"cloudspot: {purpose}",
        }
        super().__init__(
            clients,
            "role",
            name,
            purpose,
            making=[AliyunCall("Ram", "CreateRole", asked, "EntityAlreadyExists.Role")],
            removing=[AliyunCall("Ram", "DeleteRole", {"RoleName": name}, "EntityNotExist.Role")],
        )
        self._trust = trust

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the role exists, and whether its trust or policies grant more than they should."""
        found = self.find("GetRole", {"RoleName": self.name})
        if found is None:
            return PartState(exists=False)
        trust = json.loads(found["Role"]["AssumeRolePolicyDocument"])
        beyond = policydocuments.excess([trust], [self._trust])
        listed = items(self.find("ListPoliciesForRole", {"RoleName": self.name}) or {}, "Policies", "Policy")
        others = [
            f"it has the policy {one['PolicyName']}" for one in listed if one["PolicyName"] != self.name
        ]
        return PartState(exists=True, excess=(*beyond, *others))


class Policy(AliyunPart):
    """A custom policy, which can be attached to roles and people."""

    def __init__(self, clients: AliyunClients, name: str, purpose: str, *, document: Document) -> None:
        """Do no I/O."""
        text = json.dumps(document, separators=(",", ":"))  # RAM accepts at most 6,144 characters
        asked = {"PolicyName": name, "PolicyDocument": text}
        super().__init__(
            clients,
            "policy",
            name,
            purpose,
            making=[AliyunCall("Ram", "CreatePolicy", asked, "EntityAlreadyExists.Policy")],
            removing=[
                AliyunCall(
                    "Ram",
                    "DeletePolicy",
                    {"PolicyName": name, "CascadingDelete": True},
                    "EntityNotExist.Policy",
                )
            ],
            rights=permissions.reasons(document),
        )
        self._document, self._asked = document, asked

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the policy exists, and how its default version differs."""
        found = self._found()
        if found is None:
            return PartState(exists=False)
        return state_of(
            is_own=is_own,
            differences=policydocuments.excess([found], [self._document]),
            lacks=policydocuments.lacking([found], [self._document]),
        )

    def create(self) -> None:
        """Make the policy, or a new version of it if the existing one differs."""
        super().create()
        if self._found() != self._document:
            AliyunCall("Ram", "CreatePolicyVersion", {**self._asked, **_ROTATE}).run(self.clients)

    def _found(self) -> Document | None:
        answer = self.find("GetPolicy", {"PolicyName": self.name, "PolicyType": "Custom"})
        if answer is None:
            return None
        found: Document = json.loads(answer["DefaultPolicyVersion"]["PolicyDocument"])
        return found


class Grant(AliyunPart):
    """A custom policy that is attached to a user, a group or a role."""

    def __init__(self, clients: AliyunClients, kind: str, grantee: str, *, policy: str, purpose: str) -> None:
        """Do no I/O; ``kind`` is ``User``, ``Group`` or ``Role``."""
        asked = {"PolicyType": "Custom", "PolicyName": policy, f"{kind}Name": grantee}
        super().__init__(
            clients,
            "grant",
            f"{policy} to {kind.lower()}/{grantee}",
            purpose,
            making=[AliyunCall("Ram", f"AttachPolicyTo{kind}", asked, f"EntityAlreadyExists.{kind}.Policy")],
            removing=[AliyunCall("Ram", f"DetachPolicyFrom{kind}", asked, "EntityNotExist")],
        )
        self._kind, self._grantee, self._policy = kind, grantee, policy

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the policy is attached."""
        asked = {f"{self._kind}Name": self._grantee}
        found = items(self.find(f"ListPoliciesFor{self._kind}", asked) or {}, "Policies", "Policy")
        return PartState(exists=any(one["PolicyName"] == self._policy for one in found))


class DefaultNetwork(AliyunPart):
    """The region's default VPC with a vSwitch in each zone; both are free, and are never removed."""

    def __init__(self, clients: AliyunClients, zones: Sequence[str]) -> None:
        """Do no I/O; ``zones`` are those of the region."""
        making = [
            AliyunCall("Vpc", "CreateDefaultVpc", {}, "OperationDenied.DefaultVpcExist"),
            *(
                AliyunCall(
                    "Vpc",
                    "CreateDefaultVSwitch",
                    {"ZoneId": zone},
                    "OperationDenied.DefaultVSwitchExist",
                )
                for zone in zones
            ),
        ]
        super().__init__(
            clients,
            "network",
            f"default VPC in {clients.region}",
            "holds the machines, with a vSwitch in each zone; it stays after --remove",
            making=making,
        )

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the region has a vSwitch, in any VPC."""
        return PartState(exists=bool(vswitches(self.clients)))

    def delete(self) -> str:  # type: ignore[override]
        """Leave the network in place: it is free, and others may use it by now."""
        return "stays, because something else may use it by now"


class NodeGroup(AliyunPart):
    """A basic security group whose members can reach one another, and which admits nobody else."""

    def __init__(self, clients: AliyunClients, name: str) -> None:
        """Do no I/O. The group is found by its tag, so no option names it."""
        super().__init__(
            clients,
            "security group",
            name,
            "lets the nodes of a job reach one another, and nobody else reach them",
            commands=[
                (
                    f"aliyun ecs CreateSecurityGroup --RegionId {clients.region} --SecurityGroupName {name} "
                    f"--Tag.1.Key {tags.FOUND_BY} --Tag.1.Value setup --VpcId VPC  # the vSwitches' VPC"
                )
            ],
        )

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the group exists, and whether its rules admit others."""
        group = self._find()
        if group is None:
            return PartState(exists=False)
        asked = {"SecurityGroupId": group, "Direction": "ingress"}
        found = ask(self.clients, "DescribeSecurityGroupAttribute", asked)
        beyond = [
            f"it lets in {one.get('SourceCidrIp') or one.get('SourceGroupId')} at "
            f"{one.get('IpProtocol')} {one.get('PortRange')}"
            for one in items(found, "Permissions", "Permission")
        ]
        return PartState(exists=True, excess=tuple(beyond))

    def create(self) -> None:
        """Make the group in the VPC of the vSwitches."""
        if self._find() is not None:
            return
        vpcs = sorted({str(one["VpcId"]) for one in vswitches(self.clients)})
        if len(vpcs) != 1:
            raise CloudspotError(
                f"security group {self.name}: the vSwitches are in {len(vpcs)} VPCs; name the vSwitches of "
                "one VPC in providers.aliyun.vswitches, and a security group of that VPC in "
                "providers.aliyun.security_groups"
            )
        asked = {
            "SecurityGroupName": self.name,
            "VpcId": vpcs[0],
            "Tag": [{"Key": tags.FOUND_BY, "Value": "setup"}],
        }
        ask(self.clients, "CreateSecurityGroup", asked)

    def delete(self) -> None:
        """Delete it."""
        group = self._find()
        if group is not None:
            asked = {"SecurityGroupId": group}
            ask(self.clients, "DeleteSecurityGroup", asked)

    def _find(self) -> str | None:
        asked = {"Tag": [{"Key": tags.FOUND_BY, "Value": "setup"}]}
        found = items(ask(self.clients, "DescribeSecurityGroups", asked), "SecurityGroups", "SecurityGroup")
        return str(found[0]["SecurityGroupId"]) if found else None


def vswitches(clients: AliyunClients) -> list[dict[str, Any]]:
    """Return the region's vSwitches."""
    answer = ask(clients, "DescribeVSwitches", {"PageSize": 50}, product="Vpc")
    return items(answer, "VSwitches", "VSwitch")
