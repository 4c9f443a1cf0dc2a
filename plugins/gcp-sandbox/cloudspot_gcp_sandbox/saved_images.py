"""Images of the emulated Compute Engine that are made from machines by copying the disk, which takes a while.

Source: Compute Engine API reference, images (checked 2026-11). On a disk in use: ansible/ansible#61634; on
    several sources or none: ansible-collections/google.cloud#378.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cloudspot.emulation.api_faults import Faults
from cloudspot.emulation.cloud import MachineHost
from cloudspot.errors import CloudspotError
from cloudspot.model import InstanceState
from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.catalogue import BASE, Image
from cloudspot_gcp_sandbox.disks import Disks
from cloudspot_gcp_sandbox.launching import HOST, Site, bad, check_labels, missing
from cloudspot_gcp_sandbox.machines import Machine
from cloudspot_gcp_sandbox.operations import Operation, Operations, timestamp

COPY_SECONDS: Final = 3.0
"""How long an image is pending; Compute Engine's images are pending for minutes, depending on the disk's
content.
"""
_FIRST_ID: Final = 3_000_000_000_000_000_000
_SOURCES: Final = ("rawDisk", "sourceDisk", "sourceImage", "sourceSnapshot")
_OWN_FIELDS: Final = frozenset({"name", "description", "family", "labels", "sourceDisk"})
_DISK: Final = re.compile(r"(?:projects/(?P<project>[^/]+)/)?zones/(?P<zone>[^/]+)/disks/(?P<name>[^/]+)")


@dataclass
class _Copying:
    machine: Machine
    operation: Operation


class SavedImages:
    """Makes, completes and deletes the project's own images. The caller holds the machines' lock."""

    def __init__(
        self,
        site: Site,
        host: MachineHost,
        operations: Operations,
        disks: Disks,
        faults: Faults,
        clock: Callable[[], float],
    ) -> None:
        self._site, self._host, self._operations = site, host, operations
        self._disks, self._faults, self._clock = disks, faults, clock
        self._numbers = itertools.count(1)
        self._copying: dict[str, _Copying] = {}
        """The copies in progress, by the images' names."""
        self._going: dict[str, Operation] = {}
        """The deletions in progress, by the images' names."""

    def insert(
        self, path: Mapping[str, str], body: Mapping[str, Any], caller: str, query: Mapping[str, Any]
    ) -> Operation:
        """Begin to copy the current boot disk of a machine."""
        name = body["name"]
        check_labels(body.get("labels", {}), "resource.labels")
        if sum(source in body for source in _SOURCES) != 1:
            raise ApiError(
                400, "invalid", "Invalid resource usage: 'Must specify exactly one source for an image.'"
            )
        if set(body) - _OWN_FIELDS:
            raise ApiError(
                501, "notImplemented", f"the emulated Compute Engine supports only {sorted(_OWN_FIELDS)}"
            )
        if self._find(name) is not None:
            raise ApiError(409, "alreadyExists", f"The resource '{self._path(name)}' already exists")
        machine = self._source(body["sourceDisk"], is_forced=query.get("forceCreate", False))
        injected = self._faults.take("operation compute.images.insert")
        if injected is not None:
            errors = [{"code": injected.code, "message": injected.message}]
            return self._operations.add("global", "insert", self._path(name), user=caller, errors=errors)
        try:
            disk = self._host.save_disk(machine.host_id)
        except CloudspotError as error:
            raise ApiError(500, "internalError", str(error)) from error
        number = str(_FIRST_ID + next(self._numbers))
        image = Image(
            self._site.project,
            name,
            body.get("family", ""),
            int(machine.value["disks"][0]["diskSizeGb"]),
            machine.image.architecture,
            is_bare=machine.image.is_bare,
            status="PENDING",
            disk=disk,
            facts={
                "id": number,
                "creationTimestamp": timestamp(self._clock()),
                "description": body.get("description", ""),
                "labels": dict(body.get("labels", {})),
                "sourceDisk": machine.value["disks"][0]["source"],
                "sourceType": "RAW",
            },
        )
        self._site.images = (*self._site.images, image)
        operation = self._operations.add(
            "global", "insert", self._path(name), targetId=number, user=caller, seconds=COPY_SECONDS
        )
        self._copying[name] = _Copying(machine, operation)
        return operation

    def delete(self, name: str, caller: str, *, seconds: float) -> Operation:
        """Begin to delete an image, which takes ``seconds``."""
        image = self._find(name)
        if image is None:
            raise missing(self._site, f"global/images/{name}")
        if name not in self._going:
            self._copying.pop(name, None)
            self._put(image, "DELETING")
            self._going[name] = self._operations.add(
                "global", "delete", self._path(name), user=caller, seconds=seconds
            )
        operation = self._going[name]
        self.refresh()
        return operation

    def refresh(self) -> None:
        """Update the images' states; an image whose machine ended too early has failed."""
        for image in [one for one in self._site.images if one.project == self._site.project]:
            copying, going = self._copying.get(image.name), self._going.get(image.name)
            if going is not None and self._clock() >= going.done_at:
                self._site.images = [one for one in self._site.images if one.path != image.path]
                del self._going[image.name]
            elif copying is not None:
                self._follow(image, copying)

    def _follow(self, image: Image, copying: _Copying) -> None:
        operation, ended_at = copying.operation, copying.machine.ended_at
        if ended_at is not None and ended_at < operation.done_at:
            source = image.facts["sourceDisk"].removeprefix(BASE)
            operation.done_at = ended_at
            operation.errors = [
                {"code": "RESOURCE_NOT_FOUND", "message": f"The resource '{source}' was not found"}
            ]
            self._put(image, "FAILED")
        elif self._clock() >= operation.done_at:
            self._put(image, "READY")
        else:
            return
        del self._copying[image.name]

    def _source(self, url: str, *, is_forced: bool) -> Machine:
        """Return the machine whose disk is to be copied."""
        matched = _DISK.fullmatch(HOST.sub("", url))
        if matched is None:
            raise bad("resource.sourceDisk", url, "The URL is malformed.")
        if matched["project"] not in {None, self._site.project}:
            raise missing(self._site, matched[0])
        machine = self._disks.attached(matched["zone"], matched["name"])
        if machine.state is InstanceState.ENDED:
            raise ApiError(
                501, "notImplemented", "the emulated Compute Engine copies no disks of machines that stand"
            )
        if not is_forced:
            project = f"projects/{self._site.project}"
            raise ApiError(
                400,
                "resourceInUseByAnotherResource",
                f"The disk resource '{project}/zones/{machine.zone}/disks/{machine.name}' is already being "
                f"used by '{project}/{machine.key}'",
            )
        return machine

    def _find(self, name: str) -> Image | None:
        return next((one for one in self._site.images if one.path == self._path(name)), None)

    def _put(self, image: Image, status: str) -> None:
        changed = replace(image, status=status)
        self._site.images = [changed if one.path == image.path else one for one in self._site.images]

    def _path(self, name: str) -> str:
        return f"projects/{self._site.project}/global/images/{name}"
