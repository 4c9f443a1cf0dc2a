"""What plugins that keep images of machines have in common: the tags, the names and the choice among them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from cloudspot import __version__
from cloudspot.model import MachineImage, Offer, Resources
from cloudspot.plugin.launchrequests import disk_gib

SETUP: Final = "cloudspot-setup"
"""The tag with the key of the setup; all of cloudspot's images have it, and nothing else has."""
BASE: Final = "cloudspot-base"
"""The tag with ``base_digest``."""
JOB_NAME: Final = "cloudspot-name"
"""The tag with the name in the job file."""
IMAGE_IS_GONE: Final = "the image that held the job's setup was removed: machines run the setup again"
"""Why a launch from it is refused; a later one, of newer offers, starts from the image that the job names."""


def base_digest(image: str, *, has_cloudspot: bool) -> str:
    """Return what stands in a tag for the image on which the setup ran, as the options name it.

    One that brings cloudspot itself serves that version only: nothing is installed on it.
    """
    said = f"{image} {__version__}" if has_cloudspot else image
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def image_name(key: str, base: str) -> str:
    """Return the name of an image; clouds refuse a second one of the same name."""
    return f"cloudspot-{key}-{base}"[:63]


def tags_of_image(*, key: str, base: str, job_name: str) -> dict[str, str]:
    """Return the tags of an image."""
    return {SETUP: key, BASE: base, JOB_NAME: job_name}


def best(images: Iterable[MachineImage]) -> MachineImage | None:
    """Return the image to use among those of one setup: one that is ready, else one that may become so."""
    ranked = sorted(images, key=lambda one: (one.is_ready, not one.failure, str(one.created_at), one.id))
    return ranked[-1] if ranked else None


def image_of(offer: Offer) -> str | None:
    """Return the id of the image with which an offer's machines skip the setup, or None."""
    return offer.details["image"].rpartition("/")[2] if SETUP in offer.details else None


def counted_gib(base_gib: int, image: MachineImage, resources: Resources, *, wanted_bytes: int) -> int:
    """Return how large the image is for ``disk_gib``: as the one on which the setup ran, if that is enough.

    The disk of the machine that ran the setup had free room, and its image is as large as all of it.
    """
    least = int(image.size_gib or 0)
    return base_gib if disk_gib(base_gib, resources, wanted_bytes=wanted_bytes) >= least else least
