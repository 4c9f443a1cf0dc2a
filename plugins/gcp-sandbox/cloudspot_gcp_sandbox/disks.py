"""Detached disks, and machines' boot disks, which are in use.

Source: Compute Engine API reference, disks (checked 2026-11).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.catalogue import BASE, number_of
from cloudspot_gcp_sandbox.launching import NAME, Site, bad, check_labels, missing
from cloudspot_gcp_sandbox.machines import Machine, Machines
from cloudspot_gcp_sandbox.operations import Operation, Operations, timestamp


class Disks:
    """The project's disks. The caller holds the machines' lock."""

    def __init__(
        self, site: Site, machines: Machines, operations: Operations, clock: Callable[[], float]
    ) -> None:
        self._site = site
        self._machines = machines
        self._operations = operations
        self._clock = clock
        self._alone: dict[str, Mapping[str, Any]] = {}
        """The detached disks, by ``zones/ZONE/disks/NAME``."""

    def in_zone(self, zone: str) -> Sequence[Mapping[str, Any]]:
        """Return the disks of a zone, by name."""
        alone = [one for path, one in self._alone.items() if path.startswith(f"zones/{zone}/")]
        attached = [
            {
                **self._value(zone, one.name, _body_of(one)),
                "users": [one.value["selfLink"]],
            }
            for one in self._machines.shown()
            if one.zone == zone
        ]
        return sorted([*alone, *attached], key=lambda one: str(one["name"]))

    def insert(
        self, path: Mapping[str, str], body: Mapping[str, Any], caller: str, _: Mapping[str, Any]
    ) -> Operation:
        """Make an empty disk."""
        zone, name = path["zone"], body.get("name", "")
        if not NAME.fullmatch(name):
            raise bad("resource.name", name, f"Must be a match of regex '{NAME.pattern}'")
        check_labels(body.get("labels", {}), "labels")
        own = f"zones/{zone}/disks/{name}"
        if any(one["name"] == name for one in self.in_zone(zone)):
            target = f"projects/{self._site.project}/{own}"
            raise ApiError(409, "alreadyExists", f"The resource '{target}' already exists")
        self._alone[own] = self._value(zone, name, body)
        return self._changed(own, "insert", caller)

    def delete(
        self, path: Mapping[str, str], _: Mapping[str, Any], caller: str, __: Mapping[str, Any]
    ) -> Operation:
        """Delete a detached disk."""
        own = f"zones/{path['zone']}/disks/{path['disk']}"
        for disk in self.in_zone(path["zone"]):
            if disk["name"] == path["disk"] and disk.get("users"):
                target = f"projects/{self._site.project}/{own}"
                message = f"The disk resource '{target}' is already being used by '{disk['users'][0]}'"
                raise ApiError(400, "resourceInUseByAnotherResource", message)
        if own not in self._alone:
            raise missing(self._site, own)
        del self._alone[own]
        return self._changed(own, "delete", caller)

    def attached(self, zone: str, name: str) -> Machine:
        """Return the machine whose boot disk has this name.

        Raises:
            ApiError: no machine uses the disk (501), or it does not exist (404).
        """
        own = f"zones/{zone}/disks/{name}"
        found = next((one for one in self._machines.shown() if (one.zone, one.name) == (zone, name)), None)
        if found is not None:
            return found
        if own in self._alone:
            raise ApiError(501, "notImplemented", "the emulated Compute Engine copies only machines' disks")
        raise missing(self._site, own)

    def _value(self, zone: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        place = f"{BASE}projects/{self._site.project}/zones/{zone}"
        return {
            "kind": "compute#disk",
            "id": number_of(f"{zone}/{name}"),
            "creationTimestamp": timestamp(self._clock()),
            "name": name,
            "zone": place,
            "selfLink": f"{place}/disks/{name}",
            "status": "READY",
            "sizeGb": str(body.get("sizeGb", "50")),
            "type": f"{place}/diskTypes/pd-balanced",
            "labels": dict(body.get("labels", {})),
        }

    def _changed(self, own: str, kind: str, caller: str) -> Operation:
        scope = own.partition("/disks/")[0]
        return self._operations.add(scope, kind, f"projects/{self._site.project}/{own}", user=caller)


def _body_of(machine: Machine) -> dict[str, Any]:
    """Return the boot disk of a machine, in the form of a request."""
    return {"labels": machine.value["labels"], "sizeGb": machine.value["disks"][0]["diskSizeGb"]}
