"""Images that hold a job's setup: made from a running machine's boot disk, and found by their labels.

A project's images are available in all its regions. An image inherits the architecture, the licenses and the
guest features of its disk.

Source: Compute Engine API reference, images, and "Create custom images" (checked 2026-11; what an image
inherits from memory).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.api_core import exceptions as api

from cloudspot.errors import CloudspotError, QuotaError, TransientError
from cloudspot.model import Instance, MachineImage
from cloudspot.plugin import setupimages
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.listing import is_done, place_of_id, to_time
from cloudspot_gcp.lookups import ask, list_all
from cloudspot_gcp.operations import wait_for_global
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.refusals import LAUNCH_CODES, causes_of

_READY: Final = "READY"
_UNDER_WAY: Final = frozenset({_READY, "PENDING"})
_GOING: Final = "DELETING"
_BUSY: Final = {"resourceNotReady": TransientError, "resourceInUseByAnotherResource": TransientError}
"""The error codes for an image or a disk that another operation is making or ending."""


def path_of(project: str, name: str) -> str:
    """Return the path that identifies an image in requests for machines."""
    return f"projects/{project}/global/images/{name}"


class GcpImageHost(setupimages.TaggedImageHost):
    """The images of one project; their ids are their names. Thread-safe."""

    def __init__(self, options: GcpOptions, clients: GcpClients) -> None:
        """Do no I/O."""
        super().__init__(
            setupimages.base_digest(options.image_or_default, has_cloudspot=options.image_has_cloudspot)
        )
        self._clients = clients

    def remove(self, image_id: str) -> None:
        """Delete the image, and wait until its name can be used again."""
        what = f"removing image {image_id} (compute.images.delete)"
        request = {"project": self._clients.project, "image": image_id}

        def call() -> Any:
            with ERRORS.translated(what, _BUSY):
                try:
                    image = self._clients.call("ImagesClient", "get", request)
                    if setupimages.SETUP not in image.labels:
                        raise CloudspotError(f"image {image_id} was not made by cloudspot")
                    return self._clients.call("ImagesClient", "delete_unary", request)
                except api.NotFound:
                    return None  # it is gone

        operation = ask(what, call)
        if operation is not None:
            _check(wait_for_global(self._clients, operation, what), what, unless="RESOURCE_NOT_FOUND")

    def begin(self, instance: Instance, name: str, own_tags: Mapping[str, str], *, description: str) -> None:
        what = f"making an image of {instance.id} (compute.images.create)"
        resource = {
            "name": name,
            "description": description,
            "labels": dict(own_tags),
            "source_disk": self._boot_disk(instance, what),
        }
        # The disk of a running machine is copied only with force_create.
        request = {"project": self._clients.project, "force_create": True, "image_resource": resource}

        def call() -> Any:
            with ERRORS.translated(what, {**LAUNCH_CODES, **_BUSY}):
                try:
                    return self._clients.call("ImagesClient", "insert_unary", request)
                except api.Conflict:
                    return None  # it exists

        operation = ask(what, call)
        if operation is not None and is_done(operation):
            _check(operation, what, unless="RESOURCE_ALREADY_EXISTS")

    def _boot_disk(self, instance: Instance, what: str) -> str:
        place = place_of_id(instance.id)
        if place is None:
            raise CloudspotError(f"{what}: this is not one of cloudspot's machines")
        request = {"project": self._clients.project, "zone": place.zone, "instance": place.instance}
        described = ask(what, lambda: self._clients.call("InstancesClient", "get", request))
        return next(str(one.source) for one in described.disks if one.boot)

    def listed(self, wanted: Mapping[str, str]) -> list[MachineImage]:
        terms = [f"(labels.{setupimages.SETUP}:*)"]
        terms += [f'(labels.{name} = "{value}")' for name, value in wanted.items()]
        what = "looking for images that hold a setup"
        found = list_all(self._clients, "ImagesClient", what, filter=" AND ".join(terms))
        return [_to_image(one) for one in found if one.status != _GOING]


def _to_image(described: Any) -> MachineImage:
    labels, status = dict(described.labels), str(described.status)
    return MachineImage(
        id=str(described.name),
        key=labels[setupimages.SETUP],
        job_name=labels.get(setupimages.JOB_NAME, ""),
        is_ready=status == _READY,
        failure="" if status in _UNDER_WAY else f"Compute Engine says that it is {status}",
        created_at=to_time(described.creation_timestamp),
        size_gib=float(described.disk_size_gb) or None,
    )


def _check(operation: Any, what: str, *, unless: str) -> None:
    """Raise the error of an operation, unless it has the code ``unless``, which counts as success."""
    for cause in causes_of(operation):
        if cause.code != unless:
            kind = QuotaError if LAUNCH_CODES.get(cause.code) is QuotaError else CloudspotError
            raise kind(f"{what}: {cause.message} ({cause.code})")
