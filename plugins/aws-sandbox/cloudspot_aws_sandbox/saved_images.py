"""Images of the emulated EC2 that are made from its machines by copying the disk, which takes a while."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ec2.utils import random_ami_id

from cloudspot.emulation.cloud import MachineHost
from cloudspot.errors import CloudspotError
from cloudspot_aws_sandbox.launching import check_tags
from cloudspot_aws_sandbox.machines import Machine, Machines
from cloudspot_aws_sandbox.query import ApiError

COPY_SECONDS: Final = 3.0
"""How long an image is pending; EC2's images are pending for minutes, depending on the disk's size."""
_NAME: Final = re.compile(r"[A-Za-z0-9()\[\] ./\-'@_]{3,128}")


class _SavedAmi(Ami):  # type: ignore[misc] # moto has no types
    """An image with the size of its source; moto's own images always have 15 GiB."""

    size_gib = 15

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        (root,) = super().block_device_mappings
        return [{**root, "Ebs": {**root["Ebs"], "VolumeSize": self.size_gib}}]


@dataclass
class _Saved:
    ami: _SavedAmi
    machine: Machine
    disk: str
    is_bare: bool
    ready_at: float


class SavedImages:
    """The images of one account. The caller holds the machines' lock."""

    def __init__(self, machines: Machines, host: MachineHost, clock: Callable[[], float]) -> None:
        self._machines, self._host, self._clock = machines, host, clock
        self._saved: dict[str, _Saved] = {}

    def create(self, parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
        """Copy a machine's current disk; see CreateImage in the EC2 API reference (checked 2026-11)."""
        machine = self._machines.by_id[parameters["InstanceId"]]
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
        name = parameters["Name"]
        if not _NAME.fullmatch(name):
            raise ApiError("InvalidAMIName.Malformed", "AMI names must be between 3 and 128 characters long")
        for ami in backend.amis.values():
            if ami.name == name and ami.owner_id == DEFAULT_ACCOUNT_ID:
                raise ApiError(
                    "InvalidAMIName.Duplicate", f"AMI name {name} is already in use by AMI {ami.id}"
                )
        if machine.instance.state not in {"running", "stopped"}:
            raise ApiError("IncorrectState", f"Instance {machine.id} is not in state 'running' or 'stopped'.")
        if not parameters.get("NoReboot"):
            # The real EC2 would reboot the machine.
            raise ApiError("Unsupported", "the emulated EC2 cannot boot a machine again: set NoReboot")
        tags = _tags_of(parameters)
        source = backend.amis[machine.instance.image_id]
        try:
            disk = self._host.save_disk(machine.id)
        except CloudspotError as error:
            raise ApiError("InternalError", str(error), status=500) from error
        ami = _SavedAmi(
            backend,
            random_ami_id(),
            instance=machine.instance,
            name=name,
            description=parameters.get("Description", ""),
            state="pending",
            root_device_type="ebs",
            root_device_name=source.root_device_name,
            boot_mode=source.boot_mode,
            region_name=machine.zone,
        )
        ami.architecture = source.architecture
        ami.size_gib = max(int(block.size) for _, block in machine.instance.get_block_device_mapping)
        backend.amis[ami.id] = ami
        for kind, resource in (("image", ami.id), ("snapshot", ami.ebs_snapshot.id)):
            if kind in tags:
                backend.create_tags([resource], tags[kind])
        is_bare = machine.is_bare
        self._saved[ami.id] = _Saved(ami, machine, disk, is_bare, self._clock() + COPY_SECONDS)
        return {"ImageId": ami.id}

    def deregister(
        self, parameters: Mapping[str, Any], region: str, *, may_delete_snapshots: bool
    ) -> Mapping[str, Any]:
        """Remove an image, and its snapshot if that is requested and permitted."""
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
        image_id = parameters["ImageId"]
        ami = backend.amis.get(image_id)
        if ami is None:
            raise ApiError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
        if ami.owner_id != DEFAULT_ACCOUNT_ID:
            raise ApiError("AuthFailure", f"Not authorized for image:{image_id}")
        backend.deregister_image(image_id)
        self._saved.pop(image_id, None)
        if not parameters.get("DeleteAssociatedSnapshots"):
            return {"Return": True}
        code = "success" if may_delete_snapshots else "missing-permissions"
        if may_delete_snapshots:
            backend.delete_snapshot(ami.ebs_snapshot.id)
        return {
            "Return": True,
            "DeleteSnapshotResults": [{"SnapshotId": ami.ebs_snapshot.id, "ReturnCode": code}],
        }

    def refresh(self) -> None:
        """Update the images' states; an image whose machine ended too early has failed."""
        for image in self._saved.values():
            if image.ami.state != "pending":
                continue
            ended_at = image.machine.ended_at
            if ended_at is not None and ended_at < image.ready_at:
                image.ami.state = "failed"
            elif self._clock() >= image.ready_at:
                image.ami.state = "available"

    def disk_of(self, image_id: str) -> tuple[str, bool] | None:
        """Return a saved image's disk, and whether its source lacked cloudspot, or None for other images.

        Raises:
            ApiError: the image is not available yet.
        """
        image = self._saved.get(image_id)
        if image is None:
            return None
        if image.ami.state != "available":
            raise ApiError("InvalidAMIID.Unavailable", f"The image ID '{image_id}' is not available")
        return image.disk, image.is_bare


def _tags_of(parameters: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    by_kind: dict[str, dict[str, str]] = {}
    for specification in parameters.get("TagSpecifications", ()):
        kind = specification.get("ResourceType")
        if kind not in {"image", "snapshot"} or kind in by_kind:
            raise ApiError(
                "InvalidParameterValue", f"'{kind}' is not a valid taggable resource type for this operation."
            )
        check_tags(specification.get("Tags", ()))
        by_kind[kind] = {tag["Key"]: tag.get("Value", "") for tag in specification.get("Tags", ())}
    return by_kind
