"""Images of the emulated ECS that are made from its machines, and their snapshots.

Source: ECS API reference, CreateImage, DescribeImages, DeleteImage, DeleteSnapshot (checked 2026-11). The
refusal to delete an image that is still being created is from memory.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from cloudspot.emulation.cloud import TRAINING_PACKAGES, MachineHost
from cloudspot.errors import CloudspotError
from cloudspot_aliyun_sandbox.account import BARE_IMAGE_ID, TORCH_IMAGE_ID, Account, numbered_page
from cloudspot_aliyun_sandbox.launching import ARCHITECTURES, check_tags
from cloudspot_aliyun_sandbox.machines import BootDisk, Machine, Machines
from cloudspot_aliyun_sandbox.market import KINDS
from cloudspot_aliyun_sandbox.rpc import ApiError, check_handled, json_list, nested
from cloudspot_aliyun_sandbox.systemdisks import check_disk

Parameters = Mapping[str, str]
COPY_SECONDS: Final = 3.0
"""How long creating an image takes; ECS takes minutes, depending on the disk's content."""
_CREATE: Final = frozenset({"Description", "ImageName", "InstanceId", "ResourceGroupId", "Tag"})
_NAME: Final = re.compile(r"(?!acs:|aliyun)[A-Za-z][A-Za-z0-9.:_-]{1,127}")
_DESCRIPTION: Final = re.compile(r"(?!https?://).{2,256}", re.DOTALL)


@dataclass(frozen=True)
class _Saved:
    row: dict[str, Any]
    """The image in the form of DescribeImages."""
    machine: Machine
    disk: str
    begun_at: float


@dataclass(frozen=True)
class _Snapshot:
    region: str
    image: str
    size_gib: int


class SavedImages:
    """The images of one account. The caller holds the machines' lock."""

    def __init__(
        self, account: Account, machines: Machines, host: MachineHost, clock: Callable[[], float]
    ) -> None:
        self._account, self._machines, self._host, self._clock = account, machines, host, clock
        self._saved: dict[str, _Saved] = {}
        self._snapshots: dict[str, _Snapshot] = {}

    def refresh(self) -> None:
        """Update the images' states; an image whose machine was released too early has failed."""
        for image in self._saved.values():
            if image.row["Status"] != "Creating":
                continue
            ready_at, released_at = image.begun_at + COPY_SECONDS, image.machine.released_at
            if released_at is not None and released_at < ready_at:
                image.row["Status"] = "CreateFailed"
            elif self._clock() >= ready_at:
                image.row.update(Status="Available", Progress="100%")
            else:
                share = (self._clock() - image.begun_at) / COPY_SECONDS
                image.row["Progress"] = f"{int(100 * share)}%"

    def boot_disk(self, parameters: Parameters) -> BootDisk:
        """Return the boot disk for the machines of a checked RunInstances request."""
        image = parameters["ImageId"]
        size_gib = check_disk(parameters, self._account.images[image]["Size"])
        saved = self._saved.get(image)
        if saved is None:
            packages = TRAINING_PACKAGES if image in {BARE_IMAGE_ID, TORCH_IMAGE_ID} else ()
            return BootDisk(size_gib, copied=None, is_bare=image == BARE_IMAGE_ID, packages=packages)
        of = saved.machine.boot_disk
        return BootDisk(size_gib, copied=saved.disk, is_bare=of.is_bare, packages=of.packages)

    # --- answers --------------------------------------------------------------------------------

    def create(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer CreateImage for a machine by copying its current disk."""
        check_handled(parameters, _CREATE, what="parameter")
        machine = self._source(parameters, region)
        self._check_names(parameters, region)
        given = nested(parameters, "Tag")
        check_tags(given)
        try:
            disk = self._host.save_disk(machine.id)
        except CloudspotError as error:
            raise ApiError("InternalError", str(error), status=500) from error
        made, snapshot = f"m-bp1{secrets.token_hex(9)[:17]}", f"s-bp1{secrets.token_hex(9)[:17]}"
        size_gib, now = machine.boot_disk.size_gib, self._clock()
        row = {
            "ImageId": made,
            "ImageName": parameters.get("ImageName", ""),
            "ImageFamily": "",
            "ImageOwnerAlias": "self",
            "Description": parameters.get("Description", ""),
            "Architecture": ARCHITECTURES[KINDS[machine.instance_type].architecture],
            "Size": size_gib,
            "Status": "Creating",
            "Progress": "0%",
            "CreationTime": f"{datetime.fromtimestamp(now, timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
            "OSType": "linux",
            "IsSupportCloudinit": True,
            "ResourceGroupId": parameters.get("ResourceGroupId", ""),
            "DiskDeviceMappings": {
                "DiskDeviceMapping": [
                    {
                        "Type": "system",
                        "Device": "/dev/xvda",
                        "Size": str(size_gib),
                        "SnapshotId": snapshot,
                    }
                ]
            },
            "Tags": {"Tag": [{"TagKey": one["Key"], "TagValue": one.get("Value", "")} for one in given]},
        }
        self._account.images[made] = row
        self._account.image_regions[made] = region
        self._saved[made] = _Saved(row, machine, disk, now)
        self._snapshots[snapshot] = _Snapshot(region, made, size_gib)
        return {"ImageId": made}

    def delete(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DeleteImage; the snapshot is kept."""
        image = parameters.get("ImageId", "")
        row = self._account.images_in(region).get(image)
        if row is None or row["ImageOwnerAlias"] != "self":
            raise ApiError("InvalidImageId.NotFound", "The specified ImageId does not exist.", status=404)
        if row["Status"] == "Creating":
            message = "The current status of the image does not support this operation."
            raise ApiError("IncorrectImageStatus", message, status=403)
        if self._is_in_use(image) and parameters.get("Force") != "true":
            message = (
                "The specified image has been used to create instances. You can use the DescribeInstances "
                "API to query these instances, or you can use the force parameter to proceed."
            )
            raise ApiError("ImageUsingByInstance", message, status=403)
        del self._account.images[image], self._account.image_regions[image]
        self._saved.pop(image, None)
        return {}

    def describe_snapshots(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeSnapshots."""
        check_handled(parameters, {"PageNumber", "PageSize", "SnapshotIds"}, what="filter")
        named = json_list(parameters, "SnapshotIds")
        rows = [
            {"SnapshotId": name, "SourceDiskSize": str(one.size_gib), "Usage": self._usage(one)}
            for name, one in self._snapshots.items()
            if one.region == region and (named is None or name in named)
        ]
        return numbered_page("Snapshots", "Snapshot", rows, parameters, most=100)

    def delete_snapshot(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DeleteSnapshot."""
        named = parameters.get("SnapshotId", "")
        snapshot = self._snapshots.get(named)
        if snapshot is None or snapshot.region != region:
            raise ApiError("InvalidSnapshotId.NotFound", "The specified snapshot is not found.", status=404)
        if snapshot.image in self._account.images:
            message = "The snapshot has been used to create user defined image(s)."
            raise ApiError("SnapshotCreatedImage", message, status=403)
        if self._is_in_use(snapshot.image) and parameters.get("Force") != "true":
            message = "The snapshot has been used to create disk(s)."
            raise ApiError("SnapshotCreatedDisk", message, status=403)
        del self._snapshots[named]
        return {}

    # --- parts ----------------------------------------------------------------------------------

    def _source(self, parameters: Parameters, region: str) -> Machine:
        """Return the machine from which an image is to be made.

        Raises:
            ApiError: the machine does not exist, or its state does not allow an image.
        """
        named = parameters.get("InstanceId", "")
        if not named:
            message = "The input parameter SnapshotId or InstanceId or DiskDeviceMapping is not supplied."
            raise ApiError("MissingParameter", message)
        if not self._machines.is_known(named, region):
            message = "The specified InstanceId does not exist."
            raise ApiError("InvalidInstanceId.NotFound", message, status=404)
        machine = self._machines.by_id[named]
        if machine.status not in {"Running", "Stopped"}:
            message = "The current status of the instance does not support this operation."
            raise ApiError("IncorrectInstanceStatus", message)
        return machine

    def _check_names(self, parameters: Parameters, region: str) -> None:
        name, description = parameters.get("ImageName", ""), parameters.get("Description", "")
        if name and not _NAME.fullmatch(name):
            raise ApiError("InvalidImageName.Malformed", "The specified Image name is wrongly formed.")
        rows = self._account.images_in(region).values()
        if name and any(row["ImageName"] == name and row["ImageOwnerAlias"] == "self" for row in rows):
            raise ApiError("InvalidImageName.Duplicated", "The specified image name is already in use.")
        if description and not _DESCRIPTION.fullmatch(description):
            raise ApiError("InvalidDescription.Malformed", "The specified description is wrongly formed.")
        if parameters.get("ResourceGroupId", "") not in {"", *self._account.resource_groups}:
            message = "The ResourceGroup provided does not exist in our records."
            raise ApiError("InvalidResourceGroup.NotFound", message, status=404)

    def _is_in_use(self, image: str) -> bool:
        return any(one.image == image for one in self._machines.alive())

    def _usage(self, snapshot: _Snapshot) -> str:
        has_image, has_disk = snapshot.image in self._account.images, self._is_in_use(snapshot.image)
        if has_image:
            return "image_disk" if has_disk else "image"
        return "disk" if has_disk else "none"
