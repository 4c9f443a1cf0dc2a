"""The whole emulated Alibaba Cloud, which `cloudspot sandbox aliyun` and the tests of whole jobs start."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from cloudspot.emulation.cloud import Contrary, EmulatedMachine, MachineHost
from cloudspot.emulation.emulated_account import EmulatedAccount, common_contraries
from cloudspot.emulation.policies import is_allowed
from cloudspot.emulation.role_credentials import Credentials, Secrets
from cloudspot_aliyun import permissions
from cloudspot_aliyun.clients import ECS_ENDPOINT, OSS_DOMAINS, OSS_ENDPOINT
from cloudspot_aliyun.clients import REGION as REGION_VARIABLE
from cloudspot_aliyun.credentials import KEY_ID, KEY_SECRET
from cloudspot_aliyun.metadata import DISABLED, ENDPOINT, SPOT_NOTICE_SECONDS
from cloudspot_aliyun_sandbox.rights import resource_of, rights_of
from cloudspot_aliyun_sandbox.rolekeys import RoleKeys

if TYPE_CHECKING:
    from cloudspot_aliyun_sandbox.functions import StrictFunctions
    from cloudspot_aliyun_sandbox.ram import Ram
    from cloudspot_aliyun_sandbox.strict_ecs import StrictEcs
    from cloudspot_aliyun_sandbox.strict_oss import StrictOss

REGION: Final = "cn-hangzhou"
BUCKET: Final = "cloudspot-sandbox"
NODE_ROLE: Final = "cloudspot-node"
INTERRUPTION: Final = "ecs:Instance:PreemptibleInstanceInterruption"
KEY_LIFE: Final = timedelta(hours=6)
TRAIN_PYTHON: Final = "/opt/pytorch/bin/python"
"""A Python with torch on every image, even the bare one."""


class EmulatedAliyun(EmulatedAccount):
    """One account with a bucket, a network with a vSwitch in each zone, and a RAM role for nodes.

    OSS, ECS, Function Compute, and a job's calls to VPC, RAM and STS have one address.
    """

    name: ClassVar[str] = "aliyun"
    notice_seconds: ClassVar[float] = SPOT_NOTICE_SECONDS
    foreign_variables: ClassVar[tuple[str, ...]] = (
        "ALIBABA_CLOUD_",
        "ALIBABACLOUD_",
        "ALICLOUD_",
        "ALIYUN_",
        ENDPOINT,
        "ECS_",
        "OSS_",
        OSS_DOMAINS,
    )
    can_be_bare: ClassVar[bool] = True
    contraries: ClassVar[Mapping[str, Contrary]] = {
        **common_contraries("aliyun"),
        "creates-twice": Contrary(
            "OSS passes over x-oss-forbid-overwrite, and creates an object that is there",
            "aliyun-create-once",
        ),
        "host-names-with-gaps": Contrary(
            "the host names of a launch are numbered 0, 2, 4 and so on", "aliyun-host-names"
        ),
        "notice-late": Contrary(
            "a notice names a time that is four minutes nearer than it should be", "aliyun-notice"
        ),
        "self-release-refused": Contrary("a machine may not release itself", "aliyun-self-release"),
        "token-forgotten": Contrary("a client token is forgotten after 10 seconds", "aliyun-client-token"),
    }
    network: ClassVar[str] = "172.16.0.0/16"
    metadata_addresses: ClassVar[tuple[str, ...]] = ("100.100.100.200",)
    metadata_service: ClassVar[str] = "cloudspot_aliyun_sandbox.metadata_server:EcsMetadataService"
    # The same address as that of cloud-init's AliYun data source.
    fetch_user_data: ClassVar[str] = """\
token=$(curl -sf -X PUT -H "X-aliyun-ecs-metadata-token-ttl-seconds: 60" "$METADATA_URL/latest/api/token") &&
exec curl -sf -H "X-aliyun-ecs-metadata-token: $token" "$METADATA_URL/latest/user-data"
"""

    def __init__(self) -> None:
        super().__init__()
        self.credential_seconds: float | None = None
        """How long the keys of new machines are valid; None for as long as those of the real ECS."""
        self._key_id = f"LTAI5t{secrets.token_hex(9)}"
        self._key_secret = secrets.token_hex(15)
        self._keys = RoleKeys(secrets.token_hex(16))
        self.faults.is_machine = self._keys.is_role_key
        self._host: MachineHost | None = None
        self._ecs: StrictEcs | None = None
        self.oss: StrictOss | None = None
        """The account's buckets, which tests may modify."""
        self._functions: StrictFunctions | None = None
        self._roles: dict[str, str] = {}
        """The role of each function, by the function's key; all other role keys belong to machines."""

    def start(self, host: MachineHost, *, address: str, directory: Path) -> None:
        """Serve the account, and keep its trail in ``requests.jsonl``; see EmulatedCloud."""
        from cloudspot_aliyun_sandbox.functions import StrictFunctions
        from cloudspot_aliyun_sandbox.strict_ecs import StrictEcs
        from cloudspot_aliyun_sandbox.strict_oss import StrictOss

        keys = self._keys
        known = _Keys({self._key_id: self._key_secret}, keys)
        oss = StrictOss(faults=self.faults, secrets=known, roles=keys, is_granted=self._may)
        self._host = host
        self._ecs = StrictEcs(
            host, secrets=known, roles=keys, inner=oss, faults=self.faults, is_granted=self._may
        )
        known.ram = self._ecs.account.ram
        self.oss = oss
        if self.is_bare:
            self._ecs.account.roles.clear()
            self._ecs.account.place(REGION).remove_network()
        endpoints: dict[str, str] = {}
        self._functions = StrictFunctions(
            self._ecs,
            account=self._ecs.account,
            faults=self.faults,
            secrets=known,
            roles=keys,
            is_granted=self._may,
            issue=self._function_key,
            environment=endpoints,
            directory=directory,
        )
        self.serve(self._functions, address=address)
        endpoints.update({OSS_ENDPOINT: self.functions_url, ECS_ENDPOINT: self.functions_url})
        if not self.is_bare:
            self._make_bucket()
        self.begin(directory, rights=rights_of, resource=resource_of)

    def environment(self) -> Mapping[str, str]:
        """Return the variables with which the account's owner reaches it; see EmulatedCloud."""
        return {
            **self.machine_environment(),
            KEY_ID: self._key_id,
            KEY_SECRET: self._key_secret,
            REGION_VARIABLE: REGION,
            # The variables of oss2's own credentials provider and of ossutil.
            "OSS_ACCESS_KEY_ID": self._key_id,
            "OSS_ACCESS_KEY_SECRET": self._key_secret,
            "OSS_REGION": REGION,
            DISABLED: "true",
            **({} if self.is_bare else {"CLOUDSPOT_STORE": f"oss://{BUCKET}"}),
        }

    def machine_environment(self) -> Mapping[str, str]:
        """Return the endpoints' variables, which every image contains; see EmulatedCloud."""
        return {OSS_ENDPOINT: self.url, ECS_ENDPOINT: self.url}

    def metadata_environment(self, url: str) -> Mapping[str, str]:
        """Return the variable with the metadata service's address for the plugin's own client.

        The SDKs have no such variable and never call the service; their keys come from that client.
        """
        return {ENDPOINT: url}

    def close_functions(self) -> None:
        """End all functions; see EmulatedAccount."""
        assert self._functions is not None
        self._functions.close()

    def furnish(self, machine: EmulatedMachine) -> EmulatedMachine:
        """Add the seed of the roles' keys, and the programs of ECS's images; see EmulatedCloud."""
        facts = {**machine.metadata, "role-seed": self._keys.seed, "contrary": sorted(self.contrary)}
        if self.credential_seconds is not None:
            facts["credential-seconds"] = self.credential_seconds
        return msgspec.structs.replace(machine, metadata=facts, programs={TRAIN_PYTHON: sys.executable})

    def tick(self) -> None:
        """Run the timers, and publish notices; see EmulatedAccount."""
        assert self._functions is not None
        assert self._host is not None
        self._functions.run_due()
        for machine_id in self.newly_noticed(self._host):
            self._functions.publish(INTERRUPTION, {"instanceId": machine_id, "action": "delete"})

    def _function_key(self, role: str) -> Credentials:
        """Return a new key of a function's role."""
        found = self._keys.issue(f"function/{role}", expires_at=datetime.now(timezone.utc) + KEY_LIFE)
        self._roles[found.access_key] = role
        return found

    def _may(self, key: str, right: str, resource: str) -> bool:
        """Return whether the key's owner, a user or a role, has the permission on the resource."""
        assert self._ecs is not None
        if not self._keys.is_role_key(key):
            if key == self._key_id:
                return True
            user = self._ecs.account.ram.keys.get(key, ("", ""))[0]
            return is_allowed(self._ecs.account.ram.documents_of_user(user), right, resource)
        role = self._roles.get(key, NODE_ROLE)
        policies = self._ecs.account.ram.documents_of(role)
        if role == NODE_ROLE and not policies and not self.is_bare:
            policies = [json.dumps(permissions.policy("node", bucket=BUCKET))]
        return is_allowed(policies, right, resource)

    def _make_bucket(self) -> None:
        """Make the bucket through the API, as a user would; these calls do not count as a job's."""
        import oss2

        auth = oss2.AuthV4(self._key_id, self._key_secret)
        oss2.Bucket(auth, self.url, BUCKET, region=REGION).create_bucket()


class _Keys(Secrets):
    """The account's secrets and those of users' keys that were made through the API."""

    ram: Ram

    def __getitem__(self, access_key: str) -> str:
        user_key = self.ram.keys.get(access_key)
        return super().__getitem__(access_key) if user_key is None else user_key[1]
