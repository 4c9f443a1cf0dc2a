"""The kinds of parts that an AWS account's setup has: bucket, role, profile, policy, grant, network, budget.

Source: API references of S3, IAM, EC2 and Budgets, the operations' pages (checked 2026-11).
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import botocore.exceptions

from cloudspot.errors import AuthError
from cloudspot.interfaces import SetupPart
from cloudspot.model import PartState
from cloudspot.plugin import policydocuments
from cloudspot_aws import permissions
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS, ignored
from cloudspot_aws.setupcalls import AwsCall

Answer = TypeVar("Answer")

FREE: Final = "no charge"
TAG: Final = "cloudspot-setup"
"""On all that a setup makes, where it can be tagged: for people, and for bills."""
TAGS: Final = ({"Key": TAG, "Value": "cloudspot"},)
ABORT_DAYS: Final = 3
"""After how many days what is left of an upload is deleted."""
_BLOCKS: Final = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
_BY_AN_ADMINISTRATOR: Final = (
    "; run this as an administrator of the account, or give one what "
    "`cloudspot setup aws --print commands` prints"
)
_BY_THE_ORGANISATION: Final = "; a policy of your organisation forbids it: its administrators can allow it, or make this part themselves"
_FORBIDS: Final = ("service control policy", "permissions boundary", "resource control policy")


class AwsPart(SetupPart):
    """A part that some calls make and others remove."""

    is_store = False

    def __init__(
        self,
        clients: AwsClients,
        kind: str,
        name: str,
        purpose: str,
        *,
        making: Sequence[AwsCall],
        removing: Sequence[AwsCall],
        cost: str = FREE,
        rights: Sequence[str] = (),
    ) -> None:
        """Do no I/O."""
        self.clients = clients
        self.kind, self.name, self.purpose, self.cost = kind, name, purpose, cost
        self.rights = tuple(rights)
        self.making, self.removing = making, removing
        self.commands = tuple(call.command() for call in making)

    def look(self, *, is_own: bool) -> PartState:
        """Return what stands in its place; see SetupPart."""
        with ERRORS.translated(f"looking at {self.kind} {self.name}"):
            return self.state(is_own=is_own)

    def make(self) -> None:
        """Make the calls; see SetupPart."""
        with self._explained(f"making {self.kind} {self.name}"):
            for call in self.making:
                call.run(self.clients)

    def remove(self) -> None:
        """Make the calls that remove it; see SetupPart."""
        with self._explained(f"removing {self.kind} {self.name}"):
            for call in self.removing:
                call.run(self.clients)

    @abstractmethod
    def state(self, *, is_own: bool) -> PartState:
        """Return what ``look`` returns; the SDK's errors are translated."""

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            with ERRORS.translated(what):
                yield
        except AuthError as error:
            is_forbidden = any(word in str(error) for word in _FORBIDS)
            raise AuthError(
                f"{error}{_BY_THE_ORGANISATION if is_forbidden else _BY_AN_ADMINISTRATOR}"
            ) from error


def _unless(code: str, ask: Callable[[], Answer]) -> Answer | None:
    """Return the answer; None: the service says that there is none, with this code."""
    with ignored(code):
        return ask()
    return None


def _sorted(is_own: bool, differences: Sequence[str], lacks: Sequence[str]) -> PartState:  # noqa: FBT001
    """Return the state of what exists: what another has opened is excess, and one's own is mended."""
    if is_own:
        return PartState(exists=True, lacks=(*differences, *lacks))
    return PartState(exists=True, excess=tuple(differences), lacks=tuple(lacks))


class Bucket(AwsPart):
    """A bucket that is private, encrypted, and drops unfinished uploads."""

    is_store = True

    def __init__(self, clients: AwsClients, name: str, *, account: str) -> None:
        """Do no I/O but what finds the region."""
        owner: dict[str, Any] = {"Bucket": name, "ExpectedBucketOwner": account}
        region = clients.region
        place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        rule = {
            "ID": "cloudspot-unfinished-uploads",
            "Status": "Enabled",
            "Filter": {},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": ABORT_DAYS},
        }
        encryption = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
        blocks = dict.fromkeys(_BLOCKS, True)
        making = [
            AwsCall("s3", "CreateBucket", {"Bucket": name, **place}, ("BucketAlreadyOwnedByYou",)),
            AwsCall("s3", "PutPublicAccessBlock", {**owner, "PublicAccessBlockConfiguration": blocks}),
            AwsCall("s3", "PutBucketEncryption", {**owner, "ServerSideEncryptionConfiguration": encryption}),
            AwsCall(
                "s3",
                "PutBucketLifecycleConfiguration",
                {**owner, "LifecycleConfiguration": {"Rules": [rule]}},
            ),
            AwsCall("s3", "PutBucketTagging", {**owner, "Tagging": {"TagSet": list(TAGS)}}),
        ]
        super().__init__(
            clients,
            "bucket",
            name,
            "keeps all that jobs need and make; private, encrypted, and without unfinished uploads",
            making=making,
            removing=[AwsCall("s3", "DeleteBucket", owner, ("NoSuchBucket", "404"))],
            cost="about 0.023 USD for each GB that it keeps, and 0.005 USD for 1,000 writes",
        )
        self._owner = owner

    def state(self, *, is_own: bool) -> PartState:
        """Return whose bucket it is, and whether others can read it."""
        s3 = self.clients.client("s3")
        try:
            head = s3.head_bucket(**self._owner)
        except botocore.exceptions.ClientError as error:
            if ERRORS.status_of(error) == 404:
                return PartState(exists=False)
            if ERRORS.status_of(error) not in {400, 403}:
                raise
            taken = (
                "it belongs to another account, or you may not look at it: choose another name with --store"
            )
            return PartState(exists=True, excess=(taken,))
        region = head.get("BucketRegion", self.clients.region)
        if region != self.clients.region:
            return PartState(exists=True, excess=(f"it is in {region}, not in {self.clients.region}",))
        open_to: list[str] = []
        answer = _unless(
            "NoSuchPublicAccessBlockConfiguration", lambda: s3.get_public_access_block(**self._owner)
        )
        blocks = {} if answer is None else answer["PublicAccessBlockConfiguration"]
        open_to += [f"{name} is off" for name in _BLOCKS if not blocks.get(name)]
        others = self._others()
        lacks = []
        if (
            _unless(
                "ServerSideEncryptionConfigurationNotFoundError",
                lambda: s3.get_bucket_encryption(**self._owner),
            )
            is None
        ):
            lacks.append("it encrypts nothing")
        answer = _unless(
            "NoSuchLifecycleConfiguration", lambda: s3.get_bucket_lifecycle_configuration(**self._owner)
        )
        rules = () if answer is None else answer["Rules"]
        if not any("AbortIncompleteMultipartUpload" in one for one in rules):
            lacks.append("it keeps unfinished uploads")
        state = _sorted(is_own, open_to, lacks)
        return PartState(exists=True, excess=(*state.excess, *others), lacks=state.lacks)

    def _others(self) -> list[str]:
        """Return whom its policy and its access list let in."""
        s3 = self.clients.client("s3")
        lines = []
        answer = _unless("NoSuchBucketPolicy", lambda: s3.get_bucket_policy(**self._owner))
        if answer is not None:
            lines += policydocuments.excess([json.loads(answer["Policy"])], [])
        acl = s3.get_bucket_acl(**self._owner)
        for grant in acl["Grants"]:
            whom = grant["Grantee"]
            if whom.get("ID") != acl["Owner"]["ID"]:
                lines.append(
                    f"its access list gives {grant['Permission']} to {whom.get('URI', whom.get('ID'))}"
                )
        return lines


class Role(AwsPart):
    """A role that one service assumes, with one policy."""

    def __init__(
        self,
        clients: AwsClients,
        name: str,
        purpose: str,
        *,
        trust: permissions.Document,
        policy: permissions.Document,
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
        """Return whether it does more than the part: by its trust, or by any policy that it has."""
        iam = self.clients.client("iam")
        answer = _unless("NoSuchEntity", lambda: iam.get_role(RoleName=self.name))
        if answer is None:
            return PartState(exists=False)
        role, partition = answer["Role"], str(iam.meta.partition)
        trust = [role["AssumeRolePolicyDocument"]]
        mine: list[permissions.Document] = []
        others: list[permissions.Document] = []
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
        state = _sorted(is_own, own, lacks)
        beyond = policydocuments.excess(others, [self._policy])
        return PartState(exists=True, excess=(*state.excess, *beyond), lacks=state.lacks)


class Profile(AwsPart):
    """The instance profile that gives machines a role of the same name."""

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
                # A profile has room for one role: it is there already.
                AwsCall("iam", "AddRoleToInstanceProfile", both, ("LimitExceeded", "EntityAlreadyExists")),
            ],
            removing=[
                AwsCall("iam", "RemoveRoleFromInstanceProfile", both, ("NoSuchEntity",)),
                AwsCall("iam", "DeleteInstanceProfile", {"InstanceProfileName": name}, ("NoSuchEntity",)),
            ],
        )

    def state(self, *, is_own: bool) -> PartState:
        """Return which role it has."""
        iam = self.clients.client("iam")
        answer = _unless("NoSuchEntity", lambda: iam.get_instance_profile(InstanceProfileName=self.name))
        if answer is None:
            return PartState(exists=False)
        roles = [one["RoleName"] for one in answer["InstanceProfile"]["Roles"]]
        others = tuple(f"it gives machines the role {one}" for one in roles if one != self.name)
        lacks = () if roles else (f"it gives no role; add {self.name} to it",)
        return PartState(exists=True, excess=others, lacks=lacks)


class Policy(AwsPart):
    """A managed policy, which principals are given."""

    def __init__(
        self, clients: AwsClients, name: str, purpose: str, *, arn: str, document: permissions.Document
    ) -> None:
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
        """Return how its newest version differs."""
        iam = self.clients.client("iam")
        found = _unless("NoSuchEntity", lambda: managed_document(iam, self._arn))
        if found is None:
            return PartState(exists=False)
        documents = _in_partition([found], str(iam.meta.partition))
        return _sorted(
            is_own,
            policydocuments.excess(documents, [self._document]),
            policydocuments.lacking(documents, [self._document]),
        )

    def make(self) -> None:
        """Make it, or a new version of one that is older."""
        super().make()
        iam = self.clients.client("iam")
        with self._explained(f"updating policy {self.name}"):
            if managed_document(iam, self._arn) == self._document:
                return
            # A policy has five versions at the most.
            for one in self._versions()[4:]:
                iam.delete_policy_version(PolicyArn=self._arn, VersionId=one)
            iam.create_policy_version(
                PolicyArn=self._arn, PolicyDocument=json.dumps(self._document), SetAsDefault=True
            )

    def remove(self) -> None:
        """Delete its older versions, and it."""
        iam = self.clients.client("iam")
        with self._explained(f"removing policy {self.name}"), ignored("NoSuchEntity"):
            for one in self._versions():
                iam.delete_policy_version(PolicyArn=self._arn, VersionId=one)
        super().remove()

    def _versions(self) -> list[str]:
        """Return the versions that are not in force, the newest first."""
        found = self.clients.client("iam").list_policy_versions(PolicyArn=self._arn)["Versions"]
        return [one["VersionId"] for one in found if not one["IsDefaultVersion"]]


class Grant(AwsPart):
    """A managed policy that is attached to a user, a group or a role."""

    def __init__(self, clients: AwsClients, kind: str, whom: str, *, policy: str, arn: str) -> None:
        """``kind`` is ``User``, ``Group`` or ``Role``; ``policy`` is attached to the one of that name."""
        both = {f"{kind}Name": whom, "PolicyArn": arn}
        super().__init__(
            clients,
            "grant",
            f"{policy} to {kind.lower()}/{whom}",
            "lets them submit and drive jobs, as you asked with --grant-to",
            making=[AwsCall("iam", f"Attach{kind}Policy", both)],
            removing=[AwsCall("iam", f"Detach{kind}Policy", both, ("NoSuchEntity",))],
        )
        self._kind, self._whom, self._arn = kind, whom, arn

    def state(self, *, is_own: bool) -> PartState:
        """Return whether they have the policy."""
        iam = self.clients.client("iam")
        pages = iam.get_paginator(f"list_attached_{self._kind.lower()}_policies")
        attached = {
            one["PolicyArn"]
            for page in pages.paginate(**{f"{self._kind}Name": self._whom})
            for one in page["AttachedPolicies"]
        }
        return PartState(exists=self._arn in attached)


class DefaultNetwork(AwsPart):
    """The region's default VPC, which new accounts have and locked-down ones may lack."""

    def __init__(self, clients: AwsClients) -> None:
        """Do no I/O."""
        super().__init__(
            clients,
            "network",
            f"default VPC in {clients.region}",
            "is where machines are; its subnets lead to S3",
            making=[AwsCall("ec2", "CreateDefaultVpc", {}, ("DefaultVpcAlreadyExists",))],
            removing=[],
        )

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the region has one."""
        vpc = default_vpc(self.clients)
        if vpc is None:
            return PartState(exists=False)
        filters = [{"Name": "vpc-id", "Values": [vpc]}]
        subnets = self.clients.client("ec2").describe_subnets(Filters=filters)["Subnets"]
        none = "it has no subnet: aws ec2 create-default-subnet --availability-zone ZONE makes one"
        return PartState(exists=True, lacks=() if subnets else (none,))

    def remove(self) -> None:
        """Delete its subnets, its gateway and itself."""
        ec2, vpc = self.clients.client("ec2"), default_vpc(self.clients)
        if vpc is None:
            return
        filters = [{"Name": "vpc-id", "Values": [vpc]}]
        attached = [{"Name": "attachment.vpc-id", "Values": [vpc]}]
        with self._explained(f"removing {self.name}"):
            for one in ec2.describe_subnets(Filters=filters)["Subnets"]:
                ec2.delete_subnet(SubnetId=one["SubnetId"])
            for one in ec2.describe_internet_gateways(Filters=attached)["InternetGateways"]:
                gateway = one["InternetGatewayId"]
                ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
                ec2.delete_internet_gateway(InternetGatewayId=gateway)
            ec2.delete_vpc(VpcId=vpc)


class NodeGroup(AwsPart):
    """A security group of the default VPC, whose members reach one another and which lets nobody else in."""

    def __init__(self, clients: AwsClients, name: str) -> None:
        """Do no I/O."""
        members = {
            "IpProtocol": "tcp",
            "FromPort": 0,
            "ToPort": 65535,
            "UserIdGroupPairs": [{"GroupName": name}],
        }
        purpose = "lets the nodes of a job reach one another, and nobody else reach them"
        super().__init__(
            clients,
            "security group",
            name,
            purpose,
            making=[
                AwsCall(
                    "ec2",
                    "CreateSecurityGroup",
                    {
                        "GroupName": name,
                        "Description": f"cloudspot: {purpose}",
                        "TagSpecifications": [{"ResourceType": "security-group", "Tags": list(TAGS)}],
                    },
                    ("InvalidGroup.Duplicate",),
                ),
                AwsCall(
                    "ec2",
                    "AuthorizeSecurityGroupIngress",
                    {"GroupName": name, "IpPermissions": [members]},
                    ("InvalidPermission.Duplicate",),
                ),
            ],
            removing=[AwsCall("ec2", "DeleteSecurityGroup", {"GroupName": name}, ("InvalidGroup.NotFound",))],
        )

    def id(self) -> str | None:
        """Return its id; None: there is no such group."""
        with ERRORS.translated(f"looking at {self.kind} {self.name}"):
            found = self._describe()
        return None if found is None else str(found["GroupId"])

    def state(self, *, is_own: bool) -> PartState:
        """Return whom it lets in."""
        group = self._describe()
        if group is None:
            return PartState(exists=False)
        beyond, has_members = [], False
        for rule in group["IpPermissions"]:
            ports = f"{rule['IpProtocol']} {rule.get('FromPort', 'all')}-{rule.get('ToPort', 'all')}"
            ranges = [*rule.get("IpRanges", ()), *rule.get("Ipv6Ranges", ()), *rule.get("PrefixListIds", ())]
            beyond += [f"it lets in {next(iter(one.values()))} at {ports}" for one in ranges]
            for pair in rule.get("UserIdGroupPairs", ()):
                if pair.get("GroupId") != group["GroupId"]:
                    beyond.append(f"it lets in group {pair.get('GroupId')} at {ports}")
                elif rule["IpProtocol"] == "-1" or (rule.get("FromPort"), rule.get("ToPort")) == (0, 65535):
                    has_members = True
        lacks = () if has_members else ("its members do not reach one another",)
        return PartState(exists=True, excess=tuple(beyond), lacks=lacks)

    def _describe(self) -> Mapping[str, Any] | None:
        vpc = default_vpc(self.clients)
        if vpc is None:
            return None
        filters = [{"Name": "group-name", "Values": [self.name]}, {"Name": "vpc-id", "Values": [vpc]}]
        found = self.clients.client("ec2").describe_security_groups(Filters=filters)["SecurityGroups"]
        return found[0] if found else None


class Budget(AwsPart):
    """A budget of the account that sends a mail; it ends nothing."""

    def __init__(self, clients: AwsClients, name: str, *, account: str, limit: float, warn: str) -> None:
        """Warn at the ``limit``, in USD a month."""
        budget = {
            "BudgetName": name,
            "BudgetLimit": {"Amount": f"{limit:g}", "Unit": "USD"},
            "TimeUnit": "MONTHLY",
            "BudgetType": "COST",
        }
        alarm = {
            "Notification": {
                "NotificationType": "ACTUAL",
                "ComparisonOperator": "GREATER_THAN",
                "Threshold": 100.0,
                "ThresholdType": "PERCENTAGE",
            },
            "Subscribers": [{"SubscriptionType": "EMAIL", "Address": warn}],
        }
        super().__init__(
            clients,
            "budget",
            name,
            f"sends a mail to {warn} once a month's bill of the account is over {limit:g} USD; it "
            "ends nothing",
            making=[
                AwsCall(
                    "budgets",
                    "CreateBudget",
                    {"AccountId": account, "Budget": budget, "NotificationsWithSubscribers": [alarm]},
                    ("DuplicateRecordException",),
                )
            ],
            removing=[
                AwsCall(
                    "budgets",
                    "DeleteBudget",
                    {"AccountId": account, "BudgetName": name},
                    ("NotFoundException",),
                )
            ],
        )
        self._account, self._budget = account, budget

    def state(self, *, is_own: bool) -> PartState:
        """Return whether it is there, and for how much."""
        client = self.clients.client("budgets")
        answer = _unless(
            "NotFoundException",
            lambda: client.describe_budget(AccountId=self._account, BudgetName=self.name),
        )
        if answer is None:
            return PartState(exists=False)
        found = answer["Budget"].get("BudgetLimit", {})
        wanted = self._budget["BudgetLimit"]
        assert isinstance(wanted, dict)
        is_same = float(found.get("Amount", "nan")) == float(wanted["Amount"])
        return PartState(exists=True, lacks=() if is_same else (f"it warns at {found.get('Amount')} USD",))

    def make(self) -> None:
        """Make it, or change its limit."""
        super().make()
        with self._explained(f"changing budget {self.name}"):
            self.clients.client("budgets").update_budget(AccountId=self._account, NewBudget=self._budget)


def default_vpc(clients: AwsClients) -> str | None:
    """Return the id of the region's default VPC; None: there is none."""
    with ERRORS.translated("looking for the default VPC"):
        found = clients.client("ec2").describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])
    return str(found["Vpcs"][0]["VpcId"]) if found["Vpcs"] else None


def managed_document(iam: Any, arn: str) -> permissions.Document:
    """Return the version of a managed policy that is in force."""
    version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
    found: permissions.Document = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"][
        "Document"
    ]
    return found


def _in_partition(documents: Sequence[permissions.Document], partition: str) -> list[permissions.Document]:
    """Return the policies with their own partition in place of any: an account is in one only."""
    return [json.loads(json.dumps(one).replace('"arn:*:', f'"arn:{partition}:')) for one in documents]
