"""AMIs that hold a job's setup: made from a running machine, found by tags, removed with their snapshots.

Source: EC2 API reference, CreateImage, DescribeImages, DeregisterImage (checked 2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloudspot.errors import CloudspotError
from cloudspot.model import Instance, MachineImage
from cloudspot.plugin import setupimages
from cloudspot.plugin.answers import moment
from cloudspot_aws import tags
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS, ignored
from cloudspot_aws.options import AwsOptions


class AwsImageHost(setupimages.TaggedImageHost):
    """The images of one account and region. Thread-safe."""

    def __init__(self, options: AwsOptions, clients: AwsClients) -> None:
        """Do no I/O."""
        super().__init__(
            setupimages.base_digest(options.image_or_default, has_cloudspot=options.image_has_cloudspot)
        )
        self._clients = clients

    def begin(self, instance: Instance, name: str, own_tags: Mapping[str, str], *, description: str) -> None:
        specifications = [
            {"ResourceType": kind, "Tags": tags.to_list(own_tags)} for kind in ("image", "snapshot")
        ]
        client = self._clients.client("ec2")
        what = f"making an image of {instance.id} (ec2:CreateImage)"
        with ERRORS.translated(what), ignored("InvalidAMIName.Duplicate"):
            client.create_image(
                InstanceId=instance.id,
                Name=name,
                Description=description,
                NoReboot=True,  # the disk is synced, and the agent must keep running
                TagSpecifications=specifications,
            )

    def remove(self, image_id: str) -> None:
        """Deregister the image and delete its snapshots, which are billed."""
        client = self._clients.client("ec2")
        what = f"removing image {image_id} (ec2:DeregisterImage, ec2:DeleteSnapshot)"
        with ERRORS.translated(what):
            described: Sequence[Mapping[str, Any]] = ()
            with ignored("InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"):
                described = client.describe_images(ImageIds=[image_id])["Images"]
            for one in described:
                if setupimages.SETUP not in tags.from_list(one.get("Tags")):
                    raise CloudspotError(f"image {image_id} was not made by cloudspot")
                with ignored("InvalidAMIID.NotFound"):
                    answer = client.deregister_image(ImageId=image_id, DeleteAssociatedSnapshots=True)
                    _check_snapshots(image_id, answer.get("DeleteSnapshotResults", ()))

    def listed(self, wanted: Mapping[str, str]) -> list[MachineImage]:
        filters = [{"Name": f"tag:{name}", "Values": [value]} for name, value in wanted.items()]
        filters.append({"Name": "tag-key", "Values": [setupimages.SETUP]})
        with ERRORS.translated("looking for images that hold a setup"):
            pages = self._clients.client("ec2").get_paginator("describe_images")
            return [
                self._to_image(one)
                for page in pages.paginate(Owners=["self"], Filters=filters)
                for one in page["Images"]
            ]

    def _to_image(self, described: Mapping[str, Any]) -> MachineImage:
        own_tags = tags.from_list(described.get("Tags"))
        disks = [disk.get("Ebs", {}) for disk in described.get("BlockDeviceMappings", ())]
        state, created = str(described["State"]), described.get("CreationDate")
        is_under_way = state in {"available", "pending"}
        reason = (described.get("StateReason") or {}).get("Message") or f"EC2 says that it is {state}"
        return MachineImage(
            id=str(described["ImageId"]),
            key=own_tags[setupimages.SETUP],
            job_name=own_tags.get(setupimages.JOB_NAME, ""),
            is_ready=state == "available",
            failure="" if is_under_way else str(reason),
            created_at=moment(created),
            size_gib=sum(disk.get("VolumeSize", 0) for disk in disks) or None,
            where=self._clients.region,
        )


def _check_snapshots(image_id: str, results: Sequence[Mapping[str, Any]]) -> None:
    """Raise CloudspotError if a removed image's snapshot is left: it could not be found again later."""
    left = [one for one in results if one.get("ReturnCode") not in {"success", "skipped"}]
    if left:
        names = ", ".join(str(one.get("SnapshotId")) for one in left)
        why = str(left[0].get("ReturnCode"))
        raise CloudspotError(
            f"image {image_id} is removed, but its snapshot {names} is not, and is billed: {why}; grant "
            "ec2:DeleteSnapshot, and delete the snapshot"
        )
