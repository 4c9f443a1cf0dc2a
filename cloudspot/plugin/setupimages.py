"""The parts shared by plugins that keep machine images: tags, names, and finding and making images."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from cloudspot import __version__
from cloudspot.errors import TransientError
from cloudspot.interfaces import ImageHost
from cloudspot.model import Instance, MachineImage, Offer, Resources
from cloudspot.plugin.launchrequests import disk_gib

SETUP: Final = "cloudspot-setup"
"""The tag that holds the setup's key; only cloudspot's images have it."""
BASE: Final = "cloudspot-base"
"""The tag that holds the ``base_digest``."""
JOB_NAME: Final = "cloudspot-name"
"""The tag that holds the name in the job file."""
IMAGE_IS_GONE: Final = "the image with the job's setup was removed; machines run the setup again"
"""The reason given when a launch from such an image is refused; later launches start from the image that the
job names."""


class TaggedImageHost(ImageHost):
    """Images that are found by their tags, in a cloud that refuses a second image with the same name."""

    def __init__(self, base: str) -> None:
        """``base`` is the result of ``base_digest``; do no I/O."""
        self._base = base

    def find(self, key: str) -> MachineImage | None:
        """Return an image that is ready, else one that may become ready, else a failed one, else None."""
        ranked = sorted(
            self.listed({SETUP: key, BASE: self._base}),
            key=lambda one: (one.is_ready, not one.failure, str(one.created_at), one.id),
        )
        return ranked[-1] if ranked else None

    def images(self) -> Sequence[MachineImage]:
        """Return all of cloudspot's images in the account, for any setup."""
        return self.listed({})

    def save(self, instance: Instance, *, key: str, job_name: str) -> MachineImage:
        """Start making the image of a running machine that has written everything to its disk.

        The call is safe to repeat, because the image's name prevents a second image.
        """
        found = self.find(key)
        if found is not None and not found.failure:
            return found
        if found is not None:
            self.remove(found.id)
        name = f"cloudspot-{key}-{self._base}"[:63]
        self.begin(
            instance,
            name,
            {SETUP: key, BASE: self._base, JOB_NAME: job_name},
            description=f"The setup of {job_name}, by cloudspot image bake",
        )
        made = self.find(key)
        if made is None:
            raise TransientError(f"the new image {name} is not listed yet")
        return made

    @abstractmethod
    def listed(self, wanted: Mapping[str, str]) -> list[MachineImage]:
        """Return cloudspot's images that have all the tags, in any state except those being removed."""

    @abstractmethod
    def begin(self, instance: Instance, name: str, own_tags: Mapping[str, str], *, description: str) -> None:
        """Request an image with the tags; an existing image with the name is no error."""


def base_digest(image: str, *, has_cloudspot: bool) -> str:
    """Return the tag value for the image on which the setup ran, from that image's name in the options.

    An image that contains cloudspot is used only by that version, because nothing is installed on it.
    """
    text = f"{image} {__version__}" if has_cloudspot else image
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def image_of(offer: Offer) -> str | None:
    """Return the id of the image with which an offer's machines skip the setup, or None."""
    return offer.image.rpartition("/")[2] if offer.has_setup else None


def counted_gib(base_gib: int, image: MachineImage, resources: Resources, *, wanted_bytes: int) -> int:
    """Return the image size to pass to ``disk_gib``: the size of the setup's base image, if that is enough.

    The new image is as large as the whole disk of the machine that ran the setup, including its free space.
    """
    least = int(image.size_gib or 0)
    return base_gib if disk_gib(base_gib, resources, wanted_bytes=wanted_bytes) >= least else least
