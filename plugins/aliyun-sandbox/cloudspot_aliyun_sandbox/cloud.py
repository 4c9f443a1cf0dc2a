"""The emulated Alibaba Cloud as a whole: what `cloudspot sandbox aliyun` and whole-job tests bring up."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from cloudspot.emulation.api_faults import Faults
from cloudspot.emulation.audit_trail import Trail
from cloudspot.emulation.cloud import EmulatedCloud, EmulatedMachine, MachineHost
from cloudspot.emulation.role_credentials import Secrets
from cloudspot.emulation.spot_plan import SpotPlan
from cloudspot.emulation.wsgi_server import Server
from cloudspot_aliyun.clients import ECS_ENDPOINT, OSS_ENDPOINT
from cloudspot_aliyun.clients import REGION as REGION_VARIABLE
from cloudspot_aliyun.credentials import KEY_ID, KEY_SECRET
from cloudspot_aliyun.metadata import DISABLED, ENDPOINT, SPOT_NOTICE_SECONDS
from cloudspot_aliyun_sandbox.rights import resource_of, rights_of
from cloudspot_aliyun_sandbox.rolekeys import RoleKeys

REGION: Final = "cn-hangzhou"
BUCKET: Final = "cloudspot-sandbox"
TRAIN_PYTHON: Final = "/opt/pytorch/bin/python"
"""A Python with torch, on each image, the bare one too."""


class EmulatedAliyun(EmulatedCloud):
    """One account with a bucket, a network with a vSwitch in each zone, and a RAM role for nodes.

    OSS, ECS, and what a job asks VPC, RAM and STS are served at one address.
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
    )
    network: ClassVar[str] = "172.16.0.0/16"
    metadata_addresses: ClassVar[tuple[str, ...]] = ("100.100.100.200",)
    metadata_service: ClassVar[str] = "cloudspot_aliyun_sandbox.metadata_server:EcsMetadataService"
    # As cloud-init's AliYun data source does it.
    fetch_user_data: ClassVar[str] = """\
token=$(curl -sf -X PUT -H "X-aliyun-ecs-metadata-token-ttl-seconds: 60" "$METADATA_URL/latest/api/token") &&
exec curl -sf -H "X-aliyun-ecs-metadata-token: $token" "$METADATA_URL/latest/user-data"
"""

    def __init__(self) -> None:
        self.faults = Faults()
        """What goes wrong, and every call that came; see :class:`Faults`."""
        self.credential_seconds: float | None = None
        """How long the keys of machines started from now on are valid; None: as long as ECS's."""
        self._key_id = f"LTAI5t{secrets.token_hex(9)}"
        self._key_secret = secrets.token_hex(15)
        self._keys = RoleKeys(secrets.token_hex(16))
        self.faults.is_machine = self._keys.is_role_key
        self._server: Server | None = None
        self._trail: Trail | None = None

    def follow(self, plan: SpotPlan) -> None:
        """Follow the plan; see EmulatedCloud."""
        self.faults.spot_plan = plan

    def start(self, host: MachineHost, *, address: str, directory: Path) -> None:
        """Serve the account, and keep its trail in ``requests.jsonl``; see EmulatedCloud."""
        from cloudspot_aliyun_sandbox.strict_ecs import StrictEcs
        from cloudspot_aliyun_sandbox.strict_oss import StrictOss

        keys = self._keys
        known = Secrets({self._key_id: self._key_secret}, keys)
        oss = StrictOss(faults=self.faults, secrets=known, roles=keys)
        ecs = StrictEcs(host, secrets=known, roles=keys, inner=oss, faults=self.faults)
        self._server = Server(ecs, host=address)
        self._make_bucket()
        self._trail = Trail(
            directory / "requests.jsonl", is_machine=keys.is_role_key, rights=rights_of, resource=resource_of
        )
        self.faults.on_call = self._trail

    def environment(self) -> Mapping[str, str]:
        """Return the variables that lead to the account, as its owner; see EmulatedCloud."""
        return {
            **self.machine_environment(),
            KEY_ID: self._key_id,
            KEY_SECRET: self._key_secret,
            REGION_VARIABLE: REGION,
            # What oss2's own provider of credentials, and ossutil, look for.
            "OSS_ACCESS_KEY_ID": self._key_id,
            "OSS_ACCESS_KEY_SECRET": self._key_secret,
            "OSS_REGION": REGION,
            DISABLED: "true",
            "CLOUDSPOT_STORE": f"oss://{BUCKET}",
        }

    def machine_environment(self) -> Mapping[str, str]:
        """Return the endpoints, which every image holds; see EmulatedCloud."""
        assert self._server is not None
        return {OSS_ENDPOINT: self._server.url, ECS_ENDPOINT: self._server.url}

    def metadata_environment(self, url: str) -> Mapping[str, str]:
        """Return the variable that tells our own client where the metadata service is.

        The SDKs have no such variable and never ask the service: their keys come from that client.
        """
        return {ENDPOINT: url}

    def stop(self) -> None:
        """End the server; see EmulatedCloud."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._trail is not None:
            self._trail.close()

    def furnish(self, machine: EmulatedMachine) -> EmulatedMachine:
        """Add the seed of the roles' keys, and what ECS's images have installed; see EmulatedCloud."""
        facts = {**machine.metadata, "role-seed": self._keys.seed}
        if self.credential_seconds is not None:
            facts["credential-seconds"] = self.credential_seconds
        return msgspec.structs.replace(machine, metadata=facts, programs={TRAIN_PYTHON: sys.executable})

    def _make_bucket(self) -> None:
        """Make the bucket through the API, as a user would; those calls do not count as a job's."""
        import oss2

        assert self._server is not None
        auth = oss2.AuthV4(self._key_id, self._key_secret)
        oss2.Bucket(auth, self._server.url, BUCKET, region=REGION).create_bucket()
        self.faults.calls.clear()
