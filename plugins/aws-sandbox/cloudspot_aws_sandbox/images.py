"""The machine images of the emulated EC2: one that has cloudspot, one that is bare, one for ARM."""

from __future__ import annotations

from typing import Any, Final

from moto.ec2.models.amis import Ami

IMAGE_ID: Final = "ami-0c10d5b07ca5e0001"
"""It has this very cloudspot installed, as in the sandbox's own Python."""
BARE_IMAGE_ID: Final = "ami-0c10d5b07ca5e0002"
"""Like AWS's Deep Learning AMI, it has python3, curl and a Python with torch, but no cloudspot."""
ARM_IMAGE_ID: Final = "ami-0c10d5b07ca5e0003"
"""It is of another architecture, and boots like the first one."""
_IMAGES: Final = (
    (IMAGE_ID, "cloudspot-sandbox", "x86_64", "uefi-preferred"),
    (BARE_IMAGE_ID, "cloudspot-sandbox-bare", "x86_64", "uefi-preferred"),
    (ARM_IMAGE_ID, "cloudspot-sandbox-arm64", "arm64", "uefi"),
)


def install_images(backend: Any) -> None:
    """Make these the only images in moto's EC2 of one region."""
    backend.amis.clear()
    for image_id, name, architecture, boot_mode in _IMAGES:
        backend.amis[image_id] = Ami(
            backend,
            image_id,
            name=name,
            description="An image of cloudspot's emulated AWS",
            owner_id="137112412989",
            owner_alias="amazon",
            public=True,
            virtualization_type="hvm",
            architecture=architecture,
            boot_mode=boot_mode,
            hypervisor="xen",
            root_device_type="ebs",
            root_device_name="/dev/sda1",
            region_name=f"{backend.region_name}a",
        )
