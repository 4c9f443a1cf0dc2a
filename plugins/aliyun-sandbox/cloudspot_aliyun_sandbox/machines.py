"""The emulated instances in ECS's form; a machine host boots and ends them."""

from __future__ import annotations

import base64
import ipaddress
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

from cloudspot.emulation.api_faults import Faults, LateChanges
from cloudspot.emulation.cloud import EmulatedMachine, JobHint, MachineHost, MachineStatus
from cloudspot.model import EndReason, InstanceState, Market
from cloudspot_aliyun_sandbox.account import ACCOUNT_ID
from cloudspot_aliyun_sandbox.market import KINDS

_STATUSES: Final = {
    InstanceState.PENDING: "Pending",
    InstanceState.RUNNING: "Running",
    InstanceState.SHUTTING_DOWN: "Stopping",
}
NUM_RESERVED: Final = 10
"""The number of addresses at the start of a vSwitch that are not given to machines."""


@dataclass(frozen=True)
class BootDisk:
    """The disk from which a machine starts."""

    size_gib: int
    copied: str | None
    """The path of the disk of which it is a copy, for the machine host; None if it is not a copy."""
    is_bare: bool
    """Whether its image has no cloudspot."""
    packages: tuple[str, ...]
    """The packages of the image's Python; see EmulatedMachine."""


@dataclass
class Machine:
    """One instance."""

    id: str
    region: str
    zone: str
    instance_type: str
    market: str
    name: str
    host_name: str
    address: str
    created_at: float
    visible_at: float
    vpc: str
    vswitch: str
    groups: tuple[str, ...]
    image: str
    boot_disk: BootDisk
    spot_strategy: str
    metadata: dict[str, Any]
    """HttpEndpoint, HttpTokens, HttpPutResponseHopLimit and InstanceMetadataTags."""
    deployment_set: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    status: str = "Pending"
    is_taken: bool = False
    """Whether the machine has received the notice of a reclaim."""
    released_at: float | None = None
    auto_release_at: float | None = None

    @property
    def is_released(self) -> bool:
        """Return whether the machine has been released."""
        return self.released_at is not None

    @property
    def num_vcpus(self) -> int:
        """Return the number of vCPUs by which it uses up a quota."""
        return KINDS[self.instance_type].cpus

    def describe(self) -> dict[str, Any]:
        """Return the instance in the form of DescribeInstances."""
        locks = [{"LockReason": "Recycling", "LockMsg": ""}] if self.is_taken else []
        return {
            "InstanceId": self.id,
            "InstanceName": self.name,
            "HostName": self.host_name,
            "RegionId": self.region,
            "ZoneId": self.zone,
            "InstanceType": self.instance_type,
            "Status": self.status,
            "InstanceChargeType": "PostPaid",
            "SpotStrategy": self.spot_strategy,
            "ImageId": self.image,
            "CreationTime": written_time(self.created_at),
            "AutoReleaseTime": "" if self.auto_release_at is None else written_time(self.auto_release_at),
            "DeploymentSetId": self.deployment_set or "",
            "SecurityGroupIds": {"SecurityGroupId": list(self.groups)},
            "VpcAttributes": {
                "VpcId": self.vpc,
                "VSwitchId": self.vswitch,
                "PrivateIpAddress": {"IpAddress": [self.address]},
            },
            "MetadataOptions": {
                "HttpEndpoint": self.metadata["HttpEndpoint"],
                "HttpTokens": self.metadata["HttpTokens"],
            },
            "OperationLocks": {"LockReason": locks},
            "Tags": {"Tag": [{"TagKey": name, "TagValue": value} for name, value in self.tags.items()]},
        }


class Machines:
    """All machines of one emulated account.

    The caller holds ``lock`` for the whole of a group of calls that belong together.
    """

    def __init__(self, host: MachineHost, faults: Faults, clock: Callable[[], float]) -> None:
        self.lock = threading.RLock()
        self.by_id: dict[str, Machine] = {}
        self._host = host
        self._faults = faults
        self._clock = clock
        self._late_tags = LateChanges(clock)

    def console(self, machine: Machine) -> str:
        """Return the machine's console output so far."""
        return self._host.console(machine.id)

    def make(
        self,
        parameters: Mapping[str, str],
        *,
        region: str,
        network: str,
        names: Sequence[tuple[str, str]],
        groups: Sequence[str],
        vpc: str,
        found: Mapping[str, str],
        boot_disk: BootDisk,
    ) -> list[str]:
        """Make and boot machines, one for each (name, host name); return their ids."""
        made = []
        if "host-names-with-gaps" in self._faults.contrary:
            names = [(name, _doubled(host_name)) for name, host_name in names]
        for rank, (name, host_name) in enumerate(names):
            machine = Machine(
                id=f"i-bp1{secrets.token_hex(9)[:17]}",
                region=region,
                zone=parameters["ZoneId"],
                instance_type=parameters["InstanceType"],
                market="on-demand" if parameters.get("SpotStrategy", "NoSpot") == "NoSpot" else "spot",
                name=name,
                host_name=host_name,
                address=self._free_address(network),
                created_at=self._clock(),
                visible_at=self._clock() + self._faults.describe_lag_seconds,
                vpc=vpc,
                vswitch=parameters["VSwitchId"],
                groups=tuple(groups),
                image=parameters["ImageId"],
                boot_disk=boot_disk,
                spot_strategy=parameters.get("SpotStrategy", "NoSpot"),
                metadata={
                    "HttpEndpoint": parameters.get("HttpEndpoint", "enabled"),
                    "HttpTokens": parameters.get("HttpTokens", "optional"),
                    "HttpPutResponseHopLimit": int(parameters.get("HttpPutResponseHopLimit", 1)),
                    "InstanceMetadataTags": "disabled",
                },
                deployment_set=parameters.get("DeploymentSetId"),
                tags=dict(found),
            )
            self.by_id[machine.id] = machine
            self._host.start(_emulated(machine, parameters, rank=rank, network=network))
            made.append(machine.id)
        return made

    def refresh(self) -> None:
        """Update the machines' states, and release those whose time is up."""
        for machine in self.alive():
            if machine.auto_release_at is not None and self._clock() >= machine.auto_release_at:
                machine.auto_release_at = None
                self.release(machine)
        statuses = self._host.states()
        for machine in self.alive():
            if machine.id in statuses:
                self._follow(machine, statuses[machine.id])
        self._late_tags.catch_up()

    def is_known(self, instance_id: str, region: str) -> bool:
        """Return whether the API knows the instance now, in the given region."""
        machine = self.by_id.get(instance_id)
        if machine is None or machine.region != region:
            return False
        return self._clock() >= machine.visible_at and not machine.is_released

    def known(self, region: str) -> list[Machine]:
        """Return the machines of a region that the API knows."""
        return [one for one in self.by_id.values() if self.is_known(one.id, region)]

    def alive(self) -> list[Machine]:
        """Return the machines that count towards stock and quotas, including stopped ones."""
        return [one for one in self.by_id.values() if not one.is_released]

    def release(self, machine: Machine) -> None:
        """Stop and release the machine; one that has shut itself down is released at once."""
        if machine.status == "Stopped":
            machine.released_at = self._clock()
        else:
            self._host.terminate(machine.id)

    def stop(self, machine: Machine) -> None:
        """Stop the machine, which then still exists and is billed."""
        machine.status = "Stopped"
        self._host.terminate(machine.id)

    def tag(self, instance_ids: Iterable[str], values: Mapping[str, str]) -> None:
        """Set tags, which become visible at once or after the lag."""
        for instance_id in instance_ids:
            change = partial(self._tag, instance_id, dict(values))
            self._late_tags.make(change, after_seconds=self._faults.tag_lag_seconds)

    def show_tags(self, machine: Machine) -> None:
        """Show the current tags in the machine's metadata, if that is enabled."""
        shown = machine.tags if machine.metadata["InstanceMetadataTags"] == "enabled" else {}
        self._host.set_tags(machine.id, shown)

    def _tag(self, instance_id: str, values: Mapping[str, str]) -> None:
        machine = self.by_id[instance_id]
        machine.tags.update(values)
        self.show_tags(machine)

    def _follow(self, machine: Machine, status: MachineStatus) -> None:
        if machine.status == "Stopped":
            return
        machine.is_taken = machine.market == "spot" and status.notice_deadline is not None
        if status.state is not InstanceState.ENDED:
            machine.status = _STATUSES[status.state]
        elif status.end_reason is EndReason.SELF:
            # A machine that has shut itself down still exists, and is billed.
            machine.status = "Stopped"
        else:
            machine.released_at = self._clock()

    def _free_address(self, network: str) -> str:
        taken = {one.address for one in self.by_id.values() if not one.is_released}
        for i, address in enumerate(ipaddress.ip_network(network).hosts()):
            if i >= NUM_RESERVED and str(address) not in taken:
                return str(address)
        raise AssertionError("the addresses are checked before machines are granted")


def written_time(seconds: float) -> str:
    """Return a time in the form of ECS's listings, to the minute."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%MZ}"


def _emulated(machine: Machine, parameters: Mapping[str, str], *, rank: int, network: str) -> EmulatedMachine:
    facts = {
        "hostname": machine.host_name,
        "http-endpoint": machine.metadata["HttpEndpoint"],
        "http-put-response-hop-limit": machine.metadata["HttpPutResponseHopLimit"],
        "http-tokens": machine.metadata["HttpTokens"],
        "image-id": machine.image,
        "instance-id": machine.id,
        "instance-name": machine.name,
        "instance-type": machine.instance_type,
        "mac": ":".join(f"{byte:02x}" for byte in (0, 0x16, 0x3E, *secrets.token_bytes(3))),
        "market": machine.market,
        "owner-account-id": ACCOUNT_ID,
        "private-ipv4": machine.address,
        "region-id": machine.region,
        "serial-number": secrets.token_hex(16),
        "vpc-cidr-block": network,
        "vpc-id": machine.vpc,
        "vswitch-cidr-block": network,
        "vswitch-id": machine.vswitch,
        "zone-id": machine.zone,
    }
    if parameters.get("RamRoleName"):
        facts["role"] = parameters["RamRoleName"]
    return EmulatedMachine(
        id=machine.id,
        address=machine.address,
        host_name=machine.host_name,
        user_data=base64.b64decode(parameters.get("UserData", "")),
        metadata=facts,
        market=Market(machine.market),
        is_bare=machine.boot_disk.is_bare,
        packages=machine.boot_disk.packages,
        disk=machine.boot_disk.copied,
        job=JobHint.of_tags(machine.tags, rank=rank),
    )


def _doubled(host_name: str) -> str:
    """Return the host name with its number doubled."""
    stem, dash, number = host_name.rpartition("-")
    return f"{stem}{dash}{2 * int(number)}"
