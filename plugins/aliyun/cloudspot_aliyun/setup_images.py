"""Images that hold a job's setup: made from a running machine, found by tags, removed with their snapshots.

Source: ECS API reference, CreateImage, DescribeImages, DeleteImage, DeleteSnapshot (checked 2026-11). The
codes OperationConflict, and IncorrectImageStatus for an image that is still being made, are from memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from cloudspot.calls.retrying import doubling, retry
from cloudspot.decoding import MAX_TALLY
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.model import Instance, MachineImage
from cloudspot.plugin import setupimages
from cloudspot.plugin.answers import number, readable
from cloudspot.plugin.sdkerrors import Codes
from cloudspot_aliyun import tags
from cloudspot_aliyun.api import items, read, read_numbered_pages
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.listing import parse_time
from cloudspot_aliyun.options import AliyunOptions, base_image

SNAPSHOT_TRIES: Final = 6
"""How often a deletion is tried, after 1, 2, 4, ... seconds, because a deleted image may still be listed."""
_ANY_STATUS: Final = "Creating,Waiting,Available,UnAvailable,CreateFailed,Deprecated"
"""The filter for images in any status; without it, only available ones are listed."""
_UNDER_WAY: Final = frozenset({"Creating", "Waiting"})


class _DoneError(CloudspotError):
    """There is nothing to do: the image exists already, or no longer exists."""


_CREATE_CODES: Final[Codes] = {
    "InvalidImageName.Duplicated": _DoneError,
    # Another snapshot of the disk is being made.
    "IncorrectDiskStatus.CreatingSnapshot": TransientError,
    "QuotaExceed.ConcurrentSnapshotQuota": TransientError,
    "TooManySnapshot.Unfinished": TransientError,
}
_DELETE_CODES: Final[Codes] = {
    "InvalidImageId.NotFound": _DoneError,
    "IncorrectImageStatus": TransientError,
    "OperationConflict": TransientError,
}
_SNAPSHOT_CODES: Final[Codes] = {
    "InvalidSnapshotId.NotFound": _DoneError,
    "IncorrectDiskStatus.CreatingSnapshot": TransientError,
    "Operation.Conflict": TransientError,
    "OperationConflict": TransientError,
    "SnapshotCreatedImage": TransientError,
}


class AliyunImageHost(setupimages.TaggedImageHost):
    """The images of one account and region. Thread-safe."""

    def __init__(self, options: AliyunOptions, clients: AliyunClients) -> None:
        """Do no I/O."""
        super().__init__(
            setupimages.base_digest(base_image(options), has_cloudspot=options.image_has_cloudspot)
        )
        self._options, self._clients = options, clients

    def begin(self, instance: Instance, name: str, own_tags: Mapping[str, str], *, description: str) -> None:
        # No client token is used, because ECS could answer a later call that has the same token with a
        # removed image.
        wanted: dict[str, Any] = {
            "InstanceId": instance.id,
            "ImageName": name,
            "Description": description,
            "Tag": tags.to_list(own_tags),
        }
        if self._options.resource_group is not None:
            # A user whose permissions cover only this group may not create the image in the default one.
            wanted["ResourceGroupId"] = self._options.resource_group
        what = f"making an image of {instance.id} (ecs:CreateImage, ecs:TagResources)"
        with suppress(_DoneError):
            read(self._clients, what, "CreateImage", wanted, codes=_CREATE_CODES)

    def remove(self, image_id: str) -> None:
        """Delete the image, and then its snapshots, which ECS keeps and bills.

        Machines that started from the image keep running, but their disks cannot be initialized again.
        """
        wanted = {"ImageId": image_id, "Status": _ANY_STATUS}
        answer = read(self._clients, f"looking for image {image_id}", "DescribeImages", wanted)
        for image in items(answer, "Images", "Image"):
            if image.get("ImageOwnerAlias") != "self" or setupimages.SETUP not in tags.from_answer(image):
                raise CloudspotError(f"image {image_id} was not made by cloudspot")
            with suppress(_DoneError):
                what = f"removing image {image_id} (ecs:DeleteImage)"
                forced = {"ImageId": image_id, "Force": True}
                read(self._clients, what, "DeleteImage", forced, codes=_DELETE_CODES)
            for disk in items(image, "DiskDeviceMappings", "DiskDeviceMapping"):
                if disk.get("SnapshotId"):
                    self._remove_snapshot(str(disk["SnapshotId"]), image_id)

    def _remove_snapshot(self, snapshot_id: str, image_id: str) -> None:
        """Delete the snapshot of a removed image, because it could not be found later."""
        what = f"removing snapshot {snapshot_id}, which is billed, of image {image_id} (ecs:DeleteSnapshot)"
        wanted = {"SnapshotId": snapshot_id, "Force": True}

        def once() -> None:
            with suppress(_DoneError):
                read(self._clients, what, "DeleteSnapshot", wanted, codes=_SNAPSHOT_CODES)

        retry(once, sleep=time.sleep, waits=doubling(1.0, num=SNAPSHOT_TRIES - 1))

    def listed(self, wanted: Mapping[str, str]) -> list[MachineImage]:
        filters = tags.to_list(wanted) or [{"Key": setupimages.SETUP}]
        what = "looking for images that hold a setup (ecs:DescribeImages)"
        asked = {"ImageOwnerAlias": "self", "Status": _ANY_STATUS, "Tag": filters}
        with readable(what):
            pages = read_numbered_pages(
                self._clients, what, "DescribeImages", asked, path=("Images", "Image")
            )
            return [self._to_image(one) for one in pages]

    def _to_image(self, described: Mapping[str, Any]) -> MachineImage:
        own_tags, status = tags.from_answer(described), str(described.get("Status"))
        is_ready = status == "Available"
        return MachineImage(
            id=str(described["ImageId"]),
            key=own_tags[setupimages.SETUP],
            job_name=own_tags.get(setupimages.JOB_NAME, ""),
            is_ready=is_ready,
            failure="" if is_ready or status in _UNDER_WAY else f"ECS says that it is {status}",
            created_at=parse_time(described.get("CreationTime")),
            size_gib=number(described.get("Size"), most=MAX_TALLY) or None,
            where=self._clients.region,
        )
