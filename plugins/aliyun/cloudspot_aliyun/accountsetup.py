"""``cloudspot setup aliyun``: the parts that an account needs in one region before its first job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from cloudspot.calls import SetupRequest
from cloudspot.errors import SpecError
from cloudspot.interfaces import AccountSetup, SetupPart
from cloudspot.model import SetupSettings
from cloudspot_aliyun import permissions
from cloudspot_aliyun.api import caller, items, read
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.errors import ERRORS
from cloudspot_aliyun.lookups import check_region
from cloudspot_aliyun.options import DEFAULT_ROLE, AliyunOptions
from cloudspot_aliyun.setupparts import (
    AliyunCall,
    Bucket,
    DefaultNetwork,
    Grant,
    NodeGroup,
    Policy,
    Role,
)

NODE_GROUP: Final = "cloudspot-nodes"
POLICIES: Final = {
    "submitter": "submits and drives jobs",
    "deploy": "makes and removes drivers in the cloud (`cloudspot driver`)",
    "reap": "finds and ends what jobs have left behind (`cloudspot reap`)",
}
"""The policies for submitters and their purposes, by file name."""
_PRINCIPAL: Final = re.compile(r"(?:acs:ram::(?P<account>\d+):)?(?P<kind>user|group|role)/(?P<name>[^/]+)")


class _Principal(NamedTuple):
    kind: str
    """``User``, ``Group`` or ``Role``, as in the names of RAM's API calls."""
    name: str


class AliyunAccountSetup(AccountSetup):
    """The setup of one account and region."""

    def __init__(self, options: AliyunOptions, clients: AliyunClients) -> None:
        """Do no I/O."""
        self._options = options
        self._clients = clients
        self._account: str | None = None

    def account(self) -> str:
        """Return the account's ID and the region."""
        region = check_region(self._clients)
        if self._account is None:
            self._account = caller(self._clients).account
        return f"{self._account} {region}"

    def parts(self, request: SetupRequest) -> Sequence[SetupPart]:
        """Return the bucket, role, network, policies and grants; see AccountSetup."""
        self.account()
        if request.monthly_limit is not None:
            raise SpecError(
                "--budget: cloudspot cannot make a budget on Alibaba Cloud; make an alarm in the console, "
                "under Expenses > Budgets"
            )
        clients, bucket = self._clients, self._bucket(request)
        node = DEFAULT_ROLE
        parts: list[SetupPart] = [Bucket(clients, bucket, account=str(self._account))]
        if self._options.role == node:
            document = permissions.policy("node", bucket=bucket)
            parts += [
                Policy(clients, node, "lets machines use the bucket, and end themselves", document=document),
                Role(clients, node, "is the role of the machines", trust=permissions.trust("node")),
                Grant(clients, "Role", node, policy=node, purpose="gives machines their rights"),
            ]
        if not self._options.vswitches and not self._options.security_groups:
            parts += [DefaultNetwork(clients, self._zones()), NodeGroup(clients, NODE_GROUP)]
        for name, purpose in POLICIES.items():
            document = permissions.policy(name, bucket=bucket)
            parts.append(Policy(clients, f"cloudspot-{name}", purpose, document=document))
        for grantee in request.grant_to:
            kind, found = self._principal(grantee)
            parts += [
                Grant(clients, kind, found, policy=f"cloudspot-{name}", purpose=f"{why}, as you asked")
                for name, why in POLICIES.items()
            ]
        return parts

    def settings(self, request: SetupRequest) -> SetupSettings:
        """Return the store and the region; the network is found by its tag. See AccountSetup."""
        self.account()
        return SetupSettings(
            store_url=request.store_url or f"oss://{self._bucket(request)}",
            options={"region": self._clients.region},
        )

    def _zones(self) -> list[str]:
        what = f"looking for the zones of {self._clients.region}"
        asked = {"DestinationResource": "InstanceType"}
        answer = read(self._clients, what, "DescribeAvailableResource", asked)
        return sorted(str(one["ZoneId"]) for one in items(answer, "AvailableZones", "AvailableZone"))

    def _bucket(self, request: SetupRequest) -> str:
        if request.store_url is None:
            return f"cloudspot-{self._account}-{self._clients.region}"
        scheme, _, rest = request.store_url.partition("://")
        if scheme != "oss":
            raise SpecError(
                f"--store {request.store_url}: setup aliyun makes a bucket in OSS, so the URL must be "
                "oss://BUCKET"
            )
        return rest.partition("/")[0]

    def _principal(self, grantee: str) -> _Principal:
        """Return the principal that ``whom`` names; raise SpecError if no policy can be attached to it."""
        if grantee == "root" or grantee.endswith(":root"):
            raise SpecError(
                f"--grant-to {grantee}: cloudspot never gives permissions to a root account; name a user, "
                "group or role"
            )
        match = _PRINCIPAL.fullmatch(grantee)
        if match is None:
            raise SpecError(f"--grant-to {grantee}: write user/NAME, group/NAME or role/NAME")
        if match["account"] not in {None, self._account}:
            raise SpecError(f"--grant-to {grantee}: this identity is not in account {self._account}")
        kind, name = match["kind"].capitalize(), match["name"]
        with ERRORS.translated(f"looking for {grantee}"):
            call = AliyunCall("Ram", f"Get{kind}", {f"{kind}Name": name}, "EntityNotExist")
            found = call.run(self._clients)
        if found is None:
            raise SpecError(f"--grant-to {grantee}: account {self._account} has no such {match['kind']}")
        return _Principal(kind, name)
