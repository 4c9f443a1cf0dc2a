"""The machine images of the emulated EC2: one with cloudspot, one without, and one for ARM.

Each region has its own copies, as in EC2. The constants are the images' ids in ``HOME``.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

HOME: Final = "us-east-1"
IMAGE_ID: Final = "ami-0c10d5b07ca5e0001"
"""The image with the sandbox's own Python and cloudspot."""
BARE_IMAGE_ID: Final = "ami-0c10d5b07ca5e0002"
"""The image without cloudspot; like AWS's Deep Learning AMI, it has python3, curl and a Python with torch."""
ARM_IMAGE_ID: Final = "ami-0c10d5b07ca5e0003"
"""The image for another architecture, which boots like the first one."""
_IMAGES: Final = (
    (IMAGE_ID, "cloudspot-sandbox", "x86_64", "uefi-preferred"),
    (BARE_IMAGE_ID, "cloudspot-sandbox-bare", "x86_64", "uefi-preferred"),
    (ARM_IMAGE_ID, "cloudspot-sandbox-arm64", "arm64", "uefi"),
)


def image_in(region: str, image_id: str) -> str:
    """Return the id that an image in ``HOME`` has in another region."""
    if region == HOME:
        return image_id
    return f"ami-0{hashlib.sha256(f'{region}/{image_id}'.encode()).hexdigest()[:16]}"


def install_images(backend: Any) -> None:
    """Make these the only images in moto's EC2 for one region."""
    from moto.ec2.models.amis import Ami  # importing moto's tables takes a second

    backend.amis.clear()
    for at_home, name, architecture, boot_mode in _IMAGES:
        image_id = image_in(backend.region_name, at_home)
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
