"""``cloudspot setup aws``: the parts that an AWS account needs in one region before its first job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import botocore.exceptions

from cloudspot.calls import SetupRequest
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.interfaces import AccountSetup, SetupPart
from cloudspot.model import SetupSettings
from cloudspot_aws import drill, permissions
from cloudspot_aws.check import quota_notes
from cloudspot_aws.clients import AwsClients, caller
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.lookups import check_region
from cloudspot_aws.options import DEFAULT_INSTANCE_PROFILE, AwsOptions
from cloudspot_aws.setupbucket import Bucket
from cloudspot_aws.setupbudget import Budget
from cloudspot_aws.setupidentities import Grant, Policy, Profile, Role
from cloudspot_aws.setupnetwork import DefaultNetwork, NodeGroup

LIMIT_ROLE: Final = "cloudspot-limit"
NODE_GROUP: Final = "cloudspot-nodes"
BUDGET: Final = "cloudspot"
POLICIES: Final = {
    "submitter": "submits and drives jobs",
    "deploy": "makes and removes drivers in the cloud (`cloudspot driver`)",
    "reap": "finds and ends what jobs have left behind (`cloudspot reap`)",
}
"""The managed policies for submitters and their purposes, by file name."""
_PRINCIPAL: Final = re.compile(
    r"(?:arn:(?P<partition>[a-z-]+):iam::(?P<account>\d{12}):)?(?P<kind>user|group|role)/(?P<name>.+)"
)
_ASSUMED: Final = re.compile(r"arn:[a-z-]+:sts::\d{12}:assumed-role/([^/]+)/.+")
_SSO: Final = "AWSReservedSSO_"


class _Principal(NamedTuple):
    kind: str
    """``User``, ``Group`` or ``Role``, as in the names of IAM's API calls."""
    name: str


class AwsAccountSetup(AccountSetup):
    """The setup of one account and region."""

    def __init__(self, options: AwsOptions, clients: AwsClients) -> None:
        """Do no I/O."""
        self._options = options
        self._clients = clients
        self._account: str | None = None

    def account(self) -> str:
        """Return the account's ID and the region."""
        region = check_region(self._clients)
        if self._account is None:
            self._account = caller(self._clients).account
        wanted = self._options.account
        if wanted not in {None, self._account}:
            raise SpecError(
                f"providers.aws.account is {wanted}, but the credentials belong to {self._account}"
            )
        return f"{self._account} {region}"

    def parts(self, request: SetupRequest) -> Sequence[SetupPart]:
        """Return the bucket, roles, network, policies and grants; see AccountSetup."""
        self.account()
        clients, account, partition = self._clients, str(self._account), self._partition
        bucket = self._bucket(request)
        profile = self._options.instance_profile
        parts: list[SetupPart] = [Bucket(clients, bucket, account=account)]
        for name, file, purpose in (
            (DEFAULT_INSTANCE_PROFILE, "node", "lets machines use the bucket and write their logs"),
            (LIMIT_ROLE, "limit", "ends machines whose time is up, from outside"),
            (drill.ROLE, "drill", "reclaims a machine on purpose (`cloudspot preempt`)"),
        ):
            if file == "node" and profile != DEFAULT_INSTANCE_PROFILE:
                continue
            trust = permissions.trust(file, partition=partition)
            policy = permissions.policy(file, partition=partition, bucket=bucket)
            parts.append(Role(clients, name, purpose, trust=trust, policy=policy))
            if file == "node":
                parts.append(Profile(clients, name))
        if self._makes_network:
            parts += [DefaultNetwork(clients), NodeGroup(clients, NODE_GROUP)]
        for name, purpose in POLICIES.items():
            document = permissions.policy(name, partition=partition, bucket=bucket)
            arn = self._policy_arn(name)
            parts.append(Policy(clients, f"cloudspot-{name}", purpose, arn=arn, document=document))
        for grantee in request.grant_to:
            kind, found = self._principal(grantee)
            parts += [
                Grant(clients, kind, found, policy=f"cloudspot-{name}", arn=self._policy_arn(name))
                for name in POLICIES
            ]
        if request.monthly_limit is not None and request.warn is not None:
            limit, warn = request.monthly_limit, request.warn
            parts.append(Budget(clients, BUDGET, account=account, limit=limit, warn=warn))
        return parts

    def settings(self, request: SetupRequest) -> SetupSettings:
        """Return the store, and the options that name the parts that were made; see AccountSetup."""
        self.account()
        options: dict[str, Any] = {
            "region": self._clients.region,
            "limit_role": f"arn:{self._partition}:iam::{self._account}:role/{LIMIT_ROLE}",
        }
        group = NodeGroup(self._clients, NODE_GROUP).id() if self._makes_network else None
        if group is not None:
            options["security_groups"] = [group]
        notes: Sequence[str] = ()
        with suppress(CloudspotError):  # a launch reports quotas if they cannot be read here
            notes = quota_notes(self._clients)
        return SetupSettings(
            store_url=request.store_url or f"s3://{self._bucket(request)}",
            options=options,
            notes=tuple(notes),
        )

    @property
    def _partition(self) -> str:
        return str(self._clients.client("iam").meta.partition)

    @property
    def _makes_network(self) -> bool:
        """Whether to set up the default VPC, because the user has named no subnet or security group."""
        named = self._options.security_groups
        return not self._options.subnets and not [one for one in named if one != self._own_group(named)]

    def _own_group(self, named: Sequence[str]) -> str | None:
        """Return the id of the security group that an earlier setup wrote to the user's config file."""
        return NodeGroup(self._clients, NODE_GROUP).id() if named else None

    def _policy_arn(self, name: str) -> str:
        return f"arn:{self._partition}:iam::{self._account}:policy/cloudspot-{name}"

    def _bucket(self, request: SetupRequest) -> str:
        if request.store_url is None:
            return f"cloudspot-{self._account}-{self._clients.region}"
        scheme, _, rest = request.store_url.partition("://")
        if scheme != "s3":
            raise SpecError(
                f"--store {request.store_url}: setup aws makes a bucket in S3, so the URL must be s3://BUCKET"
            )
        return rest.partition("/")[0]

    def _principal(self, grantee: str) -> _Principal:
        """Return the principal that ``whom`` names; raise SpecError if no policy can be attached to it."""
        assumed = _ASSUMED.fullmatch(grantee)
        if assumed is not None:
            return self._principal(f"role/{assumed[1]}")
        if grantee == "root" or grantee.endswith(":root"):
            raise SpecError(
                f"--grant-to {grantee}: cloudspot never gives permissions to a root account; name a user, "
                "group or role"
            )
        match = _PRINCIPAL.fullmatch(grantee)
        if match is None:
            raise SpecError(f"--grant-to {grantee}: write user/NAME, group/NAME, role/NAME, or its ARN")
        if match["account"] not in {None, self._account}:
            raise SpecError(f"--grant-to {grantee}: this identity is not in account {self._account}")
        kind, name = match["kind"].capitalize(), match["name"].rpartition("/")[2]
        if name.startswith(_SSO):
            permission_set = name.removeprefix(_SSO).rpartition("_")[0]
            policies = ", ".join(f"cloudspot-{one}" for one in POLICIES)
            raise SpecError(
                f"--grant-to {grantee}: IAM Identity Center (SSO) owns this role and lets nobody else change "
                f"it. Run this without --grant-to, and add the customer managed policies {policies} to the "
                f"permission set {permission_set} there"
            )
        iam = self._clients.client("iam")
        try:
            getattr(iam, f"get_{kind.lower()}")(**{f"{kind}Name": name})
        except botocore.exceptions.ClientError as error:
            if ERRORS.code_of(error) == "NoSuchEntity":
                raise SpecError(
                    f"--grant-to {grantee}: account {self._account} has no such {kind.lower()}"
                ) from error
            raise ERRORS.translation(error, f"looking for {grantee}") from error
        except ERRORS.raised as error:
            raise ERRORS.translation(error, f"looking for {grantee}") from error
        return _Principal(kind, name)
