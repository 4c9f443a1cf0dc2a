"""The emulated Compute Engine machines in the API's form; a machine host boots and ends them."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cloudspot.emulation.api_faults import Faults
from cloudspot.emulation.cloud import EmulatedMachine, JobHint, MachineHost, MachineStatus
from cloudspot.model import EndReason, InstanceState, Market
from cloudspot.plugin import machinetags
from cloudspot_gcp import attributes
from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.catalogue import BASE, MACHINE_TYPES, Image, number_of
from cloudspot_gcp_sandbox.operations import SYSTEM, Operation, Operations, timestamp

SHUTDOWN_SECONDS: Final = 30.0
"""The time from the power button to the end of a spot machine ("Spot VMs", Preemption process)."""
_FIRST_ID: Final = 7_000_000_000_000_000_000
_STATUS: Final = {
    InstanceState.PENDING: "STAGING",
    InstanceState.RUNNING: "RUNNING",
    InstanceState.SHUTTING_DOWN: "STOPPING",
    InstanceState.ENDED: "TERMINATED",
}
_END_OPERATIONS: Final = {
    EndReason.RECLAIMED: ("compute.instances.preempted", "Instance was preempted."),
    EndReason.SELF: ("compute.instances.guestTerminate", "Instance terminated by guest OS shutdown."),
    EndReason.LOST: ("compute.instances.hostError", "Instance terminated by Compute Engine."),
}


@dataclass
class Machine:
    """One machine, with details that the API does not show."""

    id: str
    """The id that the API shows, made of digits."""
    host_id: str
    """The machine's id at the machine host."""
    name: str
    zone: str
    value: dict[str, Any]
    """The fields that the API shows and that never change."""
    image: Image
    created_at: float
    visible_at: float
    ended_at: float | None = None
    state: InstanceState = InstanceState.PENDING
    deletion: Operation | None = None
    """The deletion that is in progress."""
    has_told_its_end: bool = False
    is_gone: bool = False
    """Whether the machine was removed; a machine that has only ended still exists."""

    @property
    def key(self) -> str:
        """Return ``zones/ZONE/instances/NAME``."""
        return f"zones/{self.zone}/instances/{self.name}"

    @property
    def instance_type(self) -> str:
        """Return the machine type, such as ``n2-standard-4``."""
        return str(self.value["machineType"]).rpartition("/")[2]

    @property
    def market(self) -> str:
        """Return ``spot`` or ``on-demand``."""
        return "spot" if self.value["scheduling"].get("provisioningModel") == "SPOT" else "on-demand"

    @property
    def num_vcpus(self) -> int:
        """Return the number of vCPUs by which it uses up a quota."""
        return MACHINE_TYPES[self.instance_type].cpus

    @property
    def is_alive(self) -> bool:
        """Return whether the machine counts towards capacity and quotas."""
        return self.state is not InstanceState.ENDED

    @property
    def metadata(self) -> dict[str, str]:
        """Return its attributes."""
        return {one["key"]: one.get("value", "") for one in self.value["metadata"].get("items", ())}

    @property
    def notice_seconds(self) -> float:
        """Return the time from the notice of a reclaim to the end of the notice, in seconds."""
        notice = self.value["scheduling"].get("preemptionNoticeDuration", {})
        return float(notice.get("seconds", 0)) + SHUTDOWN_SECONDS


class Machines:
    """All machines of one emulated project.

    The caller holds ``lock`` for the whole of a group of calls that belong together.
    """

    def __init__(
        self,
        host: MachineHost,
        operations: Operations,
        faults: Faults,
        clock: Callable[[], float],
        project: str,
    ) -> None:
        self.lock = threading.RLock()
        self.all: list[Machine] = []
        self._host = host
        self._operations = operations
        self._faults = faults
        self._clock = clock
        self._project = project
        self._numbers = itertools.count(1)

    def console(self, machine: Machine) -> str:
        """Return the machine's console output so far."""
        return self._host.console(machine.host_id)

    def start(
        self,
        name: str,
        zone: str,
        properties: Mapping[str, Any],
        addresses: Mapping[str, str],
        *,
        image: Image,
    ) -> Machine:
        """Make a machine from checked instance properties, and boot it from the image.

        ``addresses`` has the paths of its network and subnetwork.
        """
        number, now = str(_FIRST_ID + next(self._numbers)), self._clock()
        used = {one.host_id for one in self.all}
        host_id = name if name not in used and len(name) <= 64 else number
        address = self._host.allocate_address()
        machine = Machine(
            id=number,
            host_id=host_id,
            name=name,
            zone=zone,
            value=self._value(number, name, zone, properties, {**addresses, "address": address}),
            image=image,
            created_at=now,
            visible_at=now + self._faults.describe_lag_seconds,
        )
        self.all.append(machine)
        self._host.start(self._emulated(machine, properties, address))
        return machine

    def refresh(self) -> None:
        """Update the machines' states."""
        statuses = self._host.states()
        for machine in self.all:
            status = statuses.get(machine.host_id)
            if status is not None and not machine.is_gone:
                self._end_when_due(machine)
                self._follow(machine, status)

    def find(self, zone: str, name_or_id: str) -> Machine:
        """Return a machine that the API currently knows.

        Raises:
            ApiError: the machine does not exist (404).
        """
        for machine in self.all:
            if machine.zone == zone and name_or_id in {machine.name, machine.id} and self._is_shown(machine):
                return machine
        path = f"projects/{self._project}/zones/{zone}/instances/{name_or_id}"
        raise ApiError(404, "notFound", f"The resource '{path}' was not found")

    def has_name(self, zone: str, name: str) -> bool:
        """Return whether the zone has a machine of this name, even if it is not listed."""
        return any(one.zone == zone and one.name == name and not one.is_gone for one in self.all)

    def shown(self) -> list[Machine]:
        """Return the machines that listings show."""
        return sorted((one for one in self.all if self._is_shown(one)), key=lambda one: one.name)

    def alive(self) -> list[Machine]:
        """Return the machines that have not ended."""
        return [one for one in self.all if one.is_alive and not one.is_gone]

    def show(self, machine: Machine) -> dict[str, Any]:
        """Return the machine's current description."""
        resource = {**machine.value, "status": _STATUS[machine.state]}
        if machine.state is not InstanceState.PENDING:
            resource["lastStartTimestamp"] = resource["creationTimestamp"]
        return resource

    def delete(self, machine: Machine, *, user: str, request_id: str | None = None) -> Operation:
        """Begin to delete the machine."""
        if machine.deletion is None:
            machine.deletion = self._operations.add(
                f"zones/{machine.zone}",
                "delete",
                f"projects/{self._project}/{machine.key}",
                targetId=machine.id,
                user=user,
                seconds=float("inf"),
                clientOperationId=request_id,
            )
        if machine.is_alive:
            self._host.terminate(machine.host_id)
        else:
            self._vanish(machine)
        deletion = machine.deletion
        self.refresh()
        return deletion

    def reclaim(self, machine: Machine) -> None:
        """Reclaim the machine, as for lack of capacity."""
        self._host.reclaim(machine.host_id, notice_seconds=machine.notice_seconds)

    def set_metadata(self, machine: Machine, items: Sequence[Mapping[str, str]]) -> None:
        """Replace its attributes."""
        machine.value["metadata"] = metadata_value(items)
        self._host.set_tags(machine.host_id, machine.metadata)

    def set_labels(self, machine: Machine, labels: Mapping[str, str]) -> None:
        """Replace its labels."""
        machine.value["labels"] = dict(labels)
        machine.value["labelFingerprint"] = fingerprint(labels)

    def _is_shown(self, machine: Machine) -> bool:
        return not machine.is_gone and self._clock() >= machine.visible_at

    def _end_when_due(self, machine: Machine) -> None:
        seconds = machine.value["scheduling"].get("maxRunDuration", {}).get("seconds")
        if seconds is None or machine.deletion is not None or not machine.is_alive:
            return
        if self._clock() >= machine.created_at + float(seconds):
            self.delete(machine, user=SYSTEM)

    def _follow(self, machine: Machine, status: MachineStatus) -> None:
        if machine.state is InstanceState.ENDED:
            return
        machine.state = status.state
        if status.state not in {InstanceState.SHUTTING_DOWN, InstanceState.ENDED}:
            return
        # The host states no reason while a deleted machine shuts down.
        asked = EndReason.LOST if machine.deletion is None else EndReason.TERMINATED
        reason = status.end_reason or asked
        if not machine.has_told_its_end:
            machine.has_told_its_end = True
            if reason in _END_OPERATIONS:
                kind, text = _END_OPERATIONS[reason]
                self._operations.add(
                    f"zones/{machine.zone}",
                    kind,
                    f"projects/{self._project}/{machine.key}",
                    targetId=machine.id,
                    user=SYSTEM,
                    statusMessage=text,
                )
        if status.state is InstanceState.ENDED:
            machine.ended_at = self._clock()
            action = machine.value["scheduling"].get("instanceTerminationAction", "STOP")
            # A machine that shut itself down remains as a stopped machine, whatever its termination action.
            if (
                machine.deletion is not None
                or reason is EndReason.TERMINATED
                or (reason is EndReason.RECLAIMED and action == "DELETE")
            ):
                self._vanish(machine)

    def _vanish(self, machine: Machine) -> None:
        machine.state, machine.is_gone = InstanceState.ENDED, True
        if machine.deletion is not None:
            machine.deletion.done_at = self._clock()

    def _value(
        self,
        number: str,
        name: str,
        zone: str,
        properties: Mapping[str, Any],
        addresses: Mapping[str, str],
    ) -> dict[str, Any]:
        project = f"{BASE}projects/{self._project}"
        (interface,) = properties["networkInterfaces"]
        (disk,) = properties["disks"]
        labels = dict(properties.get("labels", {}))
        public = [
            {**one, "kind": "compute#accessConfig", "natIP": f"203.0.113.{int(number) % 250 + 1}"}
            for one in interface.get("accessConfigs", ())
        ]
        scheduling = {
            "automaticRestart": True,
            "onHostMaintenance": "MIGRATE",
            "provisioningModel": "STANDARD",
            **properties.get("scheduling", {}),
        }
        resource: dict[str, Any] = {
            "kind": "compute#instance",
            "id": number,
            "name": name,
            "creationTimestamp": timestamp(self._clock()),
            "zone": f"{project}/zones/{zone}",
            "selfLink": f"{project}/zones/{zone}/instances/{name}",
            "machineType": f"{project}/zones/{zone}/machineTypes/{properties['machineType']}",
            "labels": labels,
            "labelFingerprint": fingerprint(labels),
            "metadata": metadata_value(properties.get("metadata", {}).get("items", ())),
            "scheduling": {**scheduling, "preemptible": scheduling["provisioningModel"] == "SPOT"},
            "serviceAccounts": list(properties.get("serviceAccounts", ())),
            "tags": {
                **({"items": properties["tags"]["items"]} if properties.get("tags") else {}),
                "fingerprint": fingerprint(properties.get("tags", {})),
            },
            "networkInterfaces": [
                {
                    "kind": "compute#networkInterface",
                    "name": "nic0",
                    "network": BASE + addresses["network"],
                    "subnetwork": BASE + addresses["subnetwork"],
                    "networkIP": addresses["address"],
                    **({"accessConfigs": public} if public else {}),
                }
            ],
            "disks": [
                {
                    "kind": "compute#attachedDisk",
                    "type": "PERSISTENT",
                    "mode": "READ_WRITE",
                    "boot": True,
                    "autoDelete": disk.get("autoDelete", False),
                    "diskSizeGb": disk["initializeParams"].get("diskSizeGb", "50"),
                    "deviceName": "persistent-disk-0",
                    "index": 0,
                    "source": f"{project}/zones/{zone}/disks/{name}",
                }
            ],
        }
        accelerators = properties.get("guestAccelerators", ())
        built_in = MACHINE_TYPES[properties["machineType"]]
        if built_in.accelerator:
            accelerators = (
                {"acceleratorType": built_in.accelerator, "acceleratorCount": built_in.accelerator_count},
            )
        if accelerators:
            resource["guestAccelerators"] = [
                {
                    **one,
                    "acceleratorType": f"{project}/zones/{zone}/acceleratorTypes/{one['acceleratorType']}",
                }
                for one in accelerators
            ]
        if properties.get("resourcePolicies"):
            region = zone.rpartition("-")[0]
            resource["resourcePolicies"] = [
                f"{project}/regions/{region}/resourcePolicies/{one}" for one in properties["resourcePolicies"]
            ]
        return resource

    def _emulated(self, machine: Machine, properties: Mapping[str, Any], address: str) -> EmulatedMachine:
        labels, resource = properties.get("labels", {}), machine.value
        metadata = machine.metadata
        job = None
        named = attributes.launch_and_rank(machine.name)
        if machinetags.JOB in labels and named is not None:
            job = JobHint(
                job_id=labels[machinetags.JOB],
                launch=named[0],
                rank=named[1],
                num_nodes=int(metadata.get(attributes.NUM_NODES, "1")),
            )
        image = properties["disks"][0]["initializeParams"]["sourceImage"]
        return EmulatedMachine(
            id=machine.host_id,
            address=address,
            host_name=machine.name,
            user_data=metadata.get("startup-script", "").encode(),
            metadata={
                "id": int(machine.id),
                "name": machine.name,
                "project-id": self._project,
                "numeric-project-id": int(number_of(self._project)) % 10**12,
                "zone": machine.zone,
                "machine-type": machine.instance_type,
                "image": image,
                "hostname": f"{machine.name}.{machine.zone}.c.{self._project}.internal",
                "ip": address,
                "scheduling": resource["scheduling"],
                "service-accounts": resource["serviceAccounts"],
                "tags": resource["tags"].get("items", []),
                "access-configs": [
                    {"external-ip": one["natIP"], "type": one.get("type", "ONE_TO_ONE_NAT")}
                    for one in resource["networkInterfaces"][0].get("accessConfigs", ())
                ],
                "disk-name": resource["disks"][0]["deviceName"],
            },
            tags=metadata,
            market=Market(machine.market),
            notice_seconds=machine.notice_seconds,
            is_bare=machine.image.is_bare,
            disk=machine.image.disk,
            job=job,
        )


def metadata_value(items: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return attributes in the form in which the API shows them."""
    return {
        "kind": "compute#metadata",
        "fingerprint": fingerprint(list(items)),
        **({"items": [dict(one) for one in items]} if items else {}),
    }


def fingerprint(value: Any) -> str:
    """Return a fingerprint, which changes with the value."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:6]).decode()
