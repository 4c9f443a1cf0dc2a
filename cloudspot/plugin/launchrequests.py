"""The parts that plugins' launch requests share; requests are stored, read back and sent again unchanged."""

from __future__ import annotations

import base64
import gzip
import math
from typing import Final, TypeVar

import msgspec

from cloudspot.decoding import convert
from cloudspot.errors import ProvisionError, SpecError
from cloudspot.model import GIB, InstanceGroup, LaunchRequest, Resources

DEFAULT_EXTRA_GIB: Final = 50
"""The free space on the boot disk if the job does not request a size."""

Body = TypeVar("Body", bound=msgspec.Struct)


def decode_request(request: LaunchRequest, type_: type[Body]) -> Body:
    """Return the body of a stored request as the plugin's struct.

    ``Provisioner.render`` creates the body from this struct (``msgspec.to_builtins``), and ``create`` reads
    it back with this function, perhaps in a later version of the plugin. So a new field of the struct needs a
    default, so that requests stored without the field can still be sent.

    Raises:
        ProvisionError: another provider or version rendered the request.
    """
    try:
        body: Body = convert(request.body, type_)
        return body
    except msgspec.ValidationError as error:
        by = f" by {request.made_by}" if request.made_by else ""
        message = f"the stored request of provider {request.provider!r}{by} cannot be read here: {error}"
        raise ProvisionError(message) from error


def boot_disk_gib(group: InstanceGroup, *, wanted_bytes: int) -> int:
    """Return the size of the boot disk; see ``disk_gib``. The image's size comes from the offer."""
    return disk_gib(group.offer.image_gib, group.resources, wanted_bytes=wanted_bytes)


def disk_gib(image_gib: int, resources: Resources, *, wanted_bytes: int) -> int:
    """Return the size of the boot disk: the one in the options, or else the image plus the job's own needs.

    It is never smaller than the image.
    """
    if wanted_bytes:
        return max(math.ceil(wanted_bytes / GIB), image_gib)
    return image_gib + (math.ceil(resources.disk_bytes / GIB) or DEFAULT_EXTRA_GIB)


def pack_script(script: str, *, most: int, service: str) -> str | None:
    """Return None if the boot script has at most ``most`` bytes, else the compressed script in base64.

    cloud-init unpacks gzip (its documentation, "User data formats"). Fetching the script by a signed URL
    instead would put an expiring secret into a request that is stored and replayed.

    Raises:
        SpecError: the script is too long even when compressed.
    """
    raw = script.encode()
    if len(raw) <= most:
        return None
    # Without a time and a file name, the same script gives the same bytes.
    packed = gzip.compress(raw, compresslevel=9, mtime=0)
    if len(packed) > most:
        raise SpecError(
            f"the boot script has {len(raw)} bytes and {len(packed)} compressed; {service} accepts {most}: "
            "put less into the boot profile"
        )
    return base64.b64encode(packed).decode("ascii")
