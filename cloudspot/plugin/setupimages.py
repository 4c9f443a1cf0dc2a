"""What plugins that keep images of machines have in common: tags, names, and how one is found and made."""

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
"""The tag with the key of the setup; all of cloudspot's images have it, and nothing else has."""
BASE: Final = "cloudspot-base"
"""The tag with ``base_digest``."""
JOB_NAME: Final = "cloudspot-name"
"""The tag with the name in the job file."""
IMAGE_IS_GONE: Final = "the image that held the job's setup was removed: machines run the setup again"
"""Why a launch from it is refused; a later one, of newer offers, starts from the image that the job names."""


class TaggedImageHost(ImageHost):
    """Images that are found by their tags, in a cloud that refuses a second one of the same name."""

    def __init__(self, base: str) -> None:
        """Take what ``base_digest`` returns; do no I/O."""
        self._base = base

    def find(self, key: str) -> MachineImage | None:
        """Return one that is ready, else one that may become so, else one that failed, else None."""
        ranked = sorted(
            self.listed({SETUP: key, BASE: self._base}),
            key=lambda one: (one.is_ready, not one.failure, str(one.created_at), one.id),
        )
        return ranked[-1] if ranked else None

    def images(self) -> Sequence[MachineImage]:
        """Return all of cloudspot's images in the account, of any setup."""
        return self.listed({})

    def save(self, instance: Instance, *, key: str, job_name: str) -> MachineImage:
        """Begin to make the image of the machine as it runs: it has written everything to its disk.

        The name makes it safe to repeat.
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
        """Return cloudspot's images that have all the tags, in any state but that of being removed."""

    @abstractmethod
    def begin(self, instance: Instance, name: str, own_tags: Mapping[str, str], *, description: str) -> None:
        """Ask for an image with the tags; return, too, if there is one of the name."""


def base_digest(image: str, *, has_cloudspot: bool) -> str:
    """Return what stands in a tag for the image on which the setup ran, as the options name it.

    One that brings cloudspot itself serves that version only: nothing is installed on it.
    """
    said = f"{image} {__version__}" if has_cloudspot else image
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def image_of(offer: Offer) -> str | None:
    """Return the id of the image with which an offer's machines skip the setup, or None."""
    return offer.image.rpartition("/")[2] if offer.has_setup else None


def counted_gib(base_gib: int, image: MachineImage, resources: Resources, *, wanted_bytes: int) -> int:
    """Return how large the image is for ``disk_gib``: as the one on which the setup ran, if that is enough.

    The disk of the machine that ran the setup had free room, and its image is as large as all of it.
    """
    least = int(image.size_gib or 0)
    return base_gib if disk_gib(base_gib, resources, wanted_bytes=wanted_bytes) >= least else least
