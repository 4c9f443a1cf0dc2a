"""The emulated Compute Engine's writing methods: machines in bulk and singly, and placement policies."""

from __future__ import annotations

import json
import re
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cloudspot.emulation.api_faults import Faults
from cloudspot_gcp.options import region_of
from cloudspot_gcp_sandbox.apierror import ApiError, invalid
from cloudspot_gcp_sandbox.catalogue import BASE, MACHINE_TYPES, is_in, number_of
from cloudspot_gcp_sandbox.computelists import Handler
from cloudspot_gcp_sandbox.disks import Disks
from cloudspot_gcp_sandbox.launching import (
    NAME,
    Site,
    account_not_found,
    bad,
    check_attached,
    check_labels,
    check_metadata,
    check_properties,
    grant,
    missing,
    names_of,
    refuse_notice,
    source_image,
    zones_for,
)
from cloudspot_gcp_sandbox.machines import Machine, Machines
from cloudspot_gcp_sandbox.networks import Networks
from cloudspot_gcp_sandbox.operations import Operation, Operations, timestamp
from cloudspot_gcp_sandbox.saved_images import SavedImages

FORGOTTEN_AFTER_SECONDS: Final = 10.0
ACCOUNT_UNKNOWN_SECONDS: Final = 60.0
"""The durations of two of the faults in ``faults.contrary``."""
REQUEST_ID_SECONDS: Final = 3600.0
"""How long a request id is remembered, in seconds. Google states no time for Compute Engine; its newer APIs
state "at least 60 minutes".
"""
_INSERT: Final = "insert"
_OWN_FIELDS: Final = frozenset({"kind", "name", "zone", "description", "params"})
"""The fields of an inserted instance that are not among its properties."""


@dataclass(frozen=True)
class _Seen:
    """The operation that belongs to a request id."""

    request: str
    operation: Operation
    at: float


class Writes:
    """The writing methods, by their ids. The caller holds the machines' lock."""

    def __init__(
        self,
        site: Site,
        machines: Machines,
        operations: Operations,
        disks: Disks,
        images: SavedImages,
        faults: Faults,
        clock: Callable[[], float],
    ) -> None:
        self.operation_seconds = 0.0
        """How long an operation that makes or removes something takes, in seconds."""
        self.networks = Networks(site, operations, clock)
        self._site = site
        self._machines = machines
        self._operations = operations
        self._disks = disks
        self._images = images
        self._faults = faults
        self._clock = clock
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._first_launch_at: float | None = None

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each method."""
        writes = {
            "compute.regionInstances.bulkInsert": self._bulk_insert,
            "compute.instances.bulkInsert": self._bulk_insert,
            "compute.disks.insert": self._disks.insert,
            "compute.disks.delete": self._disks.delete,
            "compute.images.insert": self._images.insert,
            "compute.images.delete": self._delete_image,
            "compute.instances.insert": self._insert,
            "compute.instances.delete": self._delete,
            "compute.instances.setLabels": self._set_labels,
            "compute.instances.setMetadata": self._set_metadata,
            "compute.instances.simulateMaintenanceEvent": self._simulate_maintenance,
            "compute.firewalls.insert": self.networks.insert_rule,
            "compute.firewalls.delete": self.networks.delete_rule,
            "compute.networks.insert": self.networks.insert,
            "compute.networks.delete": self.networks.delete,
            "compute.resourcePolicies.insert": self._insert_policy,
            "compute.resourcePolicies.delete": self._delete_policy,
        }
        return {name: self._once(name, write) for name, write in writes.items()}

    def _once(self, name: str, write: Callable[..., Operation]) -> Handler:
        """Return the same operation as before for a repeated request id."""

        def answer(
            path: Mapping[str, str], query: Mapping[str, Any], body: Mapping[str, Any], caller: str
        ) -> Mapping[str, Any]:
            request_id = query.get("requestId")
            if request_id is None:
                return self._operations.show(write(path, body, caller, query))
            _check_request_id(request_id)
            request = json.dumps([name, dict(path), body], sort_keys=True)
            key = (path.get("region", path.get("zone", "")), request_id)
            seen = self._seen.get(key)
            is_short = "request-id-forgotten" in self._faults.contrary
            limit = FORGOTTEN_AFTER_SECONDS if is_short else REQUEST_ID_SECONDS
            if seen is None or self._clock() - seen.at >= limit:
                seen = _Seen(request, write(path, body, caller, query), self._clock())
                self._seen[key] = seen
            elif seen.request != request:
                raise invalid(f"The request id {request_id} was used for another request.", field="requestId")
            return self._operations.show(seen.operation)

        return answer

    # --- machines ---------------------------------------------------------------------------------

    def _bulk_insert(
        self, path: Mapping[str, str], body: Mapping[str, Any], caller: str, query: Mapping[str, Any]
    ) -> Operation:
        properties = body.get("instanceProperties")
        if properties is None:
            raise bad("resource.instanceProperties", "", "It is needed: the emulation knows no templates.")
        region = path.get("region") or region_of(path["zone"])
        taken = [one.name for one in self._machines.all if not one.is_gone]
        names = names_of(body, taken)
        where = "resource.instanceProperties"
        place = check_properties(properties, self._site, region=region, where=where)
        self._check_contraries(properties, where)
        if "zone" in path:
            action, scope, zones = "compute.instances.bulkInsert", f"zones/{path['zone']}", [path["zone"]]
            check_attached(properties, path["zone"], "resource.instanceProperties")
        else:
            action, scope = "compute.regionInstances.bulkInsert", f"regions/{region}"
            zones = zones_for(body, region)
        group = str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))
        zone, granted, errors = self._choose(properties, zones, len(names))
        doubles = [name for name in names if self._machines.has_name(zone, name)]
        if doubles:
            target = f"projects/{self._site.project}/zones/{zone}/instances/{doubles[0]}"
            granted = 0
            errors = [
                {"code": "RESOURCE_ALREADY_EXISTS", "message": f"The resource '{target}' already exists"}
            ]
        minimum, failure = int(body.get("minCount", len(names))), []
        if granted < minimum:
            message = f"Requested minimum count of {minimum} VMs could not be created."
            failure = [{"code": "VM_MIN_COUNT_NOT_REACHED", "message": message}]
        injected = self._faults.take(f"operation {action}")
        if injected is not None:
            failure = [{"code": injected.code, "message": injected.message}]
        # If some machines fail, those that were made before are removed, and no error mentions them.
        num_made = 0 if failure and not (injected is not None and injected.happens) else granted
        for name in names[:num_made]:
            self._make(name, zone, properties, place, group, caller)
        for i, name in enumerate(names[num_made:], start=num_made):
            self._add_insert_operation(name, zone, group, caller, errors if i >= granted else ())
        return self._operations.add(
            scope,
            "bulkInsert",
            f"projects/{self._site.project}/{scope}",
            user=caller,
            seconds=self.operation_seconds,
            errors=failure,
            operationGroupId=group,
            clientOperationId=query.get("requestId"),
            more=_bulk_counts(zone, len(names), num_made),
        )

    def _check_contraries(self, properties: Mapping[str, Any], where: str) -> None:
        """Refuse a request if a fault in ``faults.contrary`` demands it."""
        if "notice-refused" in self._faults.contrary:
            refuse_notice(properties, where)
        if "account-unknown" in self._faults.contrary and properties.get("serviceAccounts"):
            now = self._clock()
            self._first_launch_at = now if self._first_launch_at is None else self._first_launch_at
            if now - self._first_launch_at < ACCOUNT_UNKNOWN_SECONDS:
                raise account_not_found(str(properties["serviceAccounts"][0].get("email")))

    def _choose(
        self, properties: Mapping[str, Any], zones: Sequence[str], count: int
    ) -> tuple[str, int, list[dict[str, Any]]]:
        """Return the zone that has most of the requested machines, their number, and the errors."""
        found = [(zone, *grant(properties, zone, count, self._machines, self._faults)) for zone in zones]
        return max(found, key=lambda one: one[1])

    def _insert(
        self, path: Mapping[str, str], body: Mapping[str, Any], caller: str, _: Mapping[str, Any]
    ) -> Operation:
        name, zone = body.get("name", ""), path["zone"]
        if not NAME.fullmatch(name):
            raise bad("resource.name", name, f"Must be a match of regex '{NAME.pattern}'")
        properties = _properties_of(body)
        place = check_properties(properties, self._site, region=region_of(zone), where="resource")
        target = f"projects/{self._site.project}/zones/{zone}/instances/{name}"
        if self._machines.has_name(zone, name):
            raise ApiError(409, "alreadyExists", f"The resource '{target}' already exists")
        if not is_in(MACHINE_TYPES[properties["machineType"]], zone):
            raise bad("resource.machineType", properties["machineType"], f"It is not available in {zone}.")
        check_attached(properties, zone, "resource")
        granted, errors = grant(properties, zone, 1, self._machines, self._faults)
        if not granted:
            return self._add_insert_operation(name, zone, "", caller, errors)
        return self._make(name, zone, properties, place, "", caller)

    def _make(
        self,
        name: str,
        zone: str,
        properties: Mapping[str, Any],
        place: Mapping[str, str],
        group: str,
        caller: str,
    ) -> Operation:
        image = source_image(properties, self._site, "resource")
        machine = self._machines.start(name, zone, properties, place, image=image)
        operation = self._add_insert_operation(name, zone, group, caller, (), target_id=machine.id)
        if self._faults.take("preemption") is not None:
            self._machines.reclaim(machine)
        return operation

    def _add_insert_operation(
        self,
        name: str,
        zone: str,
        group: str,
        caller: str,
        errors: Sequence[Mapping[str, Any]],
        *,
        target_id: str = "",
    ) -> Operation:
        return self._operations.add(
            f"zones/{zone}",
            _INSERT,
            f"projects/{self._site.project}/zones/{zone}/instances/{name}",
            targetId=target_id,
            user=caller,
            seconds=self.operation_seconds,
            errors=errors,
            operationGroupId=group,
        )

    def _delete(
        self, path: Mapping[str, str], _: Mapping[str, Any], caller: str, query: Mapping[str, Any]
    ) -> Operation:
        machine = self._machines.find(path["zone"], path["instance"])
        return self._machines.delete(machine, user=caller, request_id=query.get("requestId"))

    def _set_metadata(
        self, path: Mapping[str, str], body: Mapping[str, Any], caller: str, _: Mapping[str, Any]
    ) -> Operation:
        machine = self._machines.find(path["zone"], path["instance"])
        items = body.get("items", ())
        check_metadata(items)
        _check_fingerprint(body.get("fingerprint"), machine.value["metadata"]["fingerprint"])
        self._machines.set_metadata(machine, items)
        return self._changed(machine, "setMetadata", caller)

    def _set_labels(
        self, path: Mapping[str, str], body: Mapping[str, Any], caller: str, _: Mapping[str, Any]
    ) -> Operation:
        machine = self._machines.find(path["zone"], path["instance"])
        check_labels(body.get("labels", {}), "labels")
        _check_fingerprint(body.get("labelFingerprint"), machine.value["labelFingerprint"])
        self._machines.set_labels(machine, body.get("labels", {}))
        return self._changed(machine, "setLabels", caller)

    def _simulate_maintenance(
        self, path: Mapping[str, str], _: Mapping[str, Any], caller: str, __: Mapping[str, Any]
    ) -> Operation:
        """Reclaim a spot machine ("Simulate preemption" in the documentation of Spot VMs)."""
        machine = self._machines.find(path["zone"], path["instance"])
        if machine.value["scheduling"].get("provisioningModel") == "SPOT":
            self._machines.reclaim(machine)
        return self._changed(machine, "simulateMaintenanceEvent", caller)

    def _changed(self, machine: Machine, kind: str, caller: str) -> Operation:
        return self._operations.add(
            f"zones/{machine.zone}",
            kind,
            f"projects/{self._site.project}/{machine.key}",
            targetId=machine.id,
            user=caller,
        )

    def _delete_image(
        self, path: Mapping[str, str], _: Mapping[str, Any], caller: str, __: Mapping[str, Any]
    ) -> Operation:
        return self._images.delete(path["image"], caller, seconds=self.operation_seconds)

    # --- placement policies -----------------------------------------------------------------------

    def _insert_policy(
        self, path: Mapping[str, str], body: Mapping[str, Any], caller: str, _: Mapping[str, Any]
    ) -> Operation:
        region, name = path["region"], body.get("name", "")
        if not NAME.fullmatch(name):
            raise bad("resource.name", name, f"Must be a match of regex '{NAME.pattern}'")
        if set(body) - {"name", "description", "groupPlacementPolicy", "region"}:
            raise ApiError(
                501, "notImplemented", "the emulated Compute Engine supports only placement policies"
            )
        placement = body.get("groupPlacementPolicy", {})
        if placement.get("collocation") != "COLLOCATED":
            raise bad(
                "resource.groupPlacementPolicy", placement, "A compact policy has collocation COLLOCATED."
            )
        own = f"regions/{region}/resourcePolicies/{name}"
        target = f"projects/{self._site.project}/{own}"
        if own in self._site.policies:
            raise ApiError(409, "alreadyExists", f"The resource '{target}' already exists")
        policies = dict(self._site.policies)
        policies[own] = {
            "kind": "compute#resourcePolicy",
            "id": number_of(own),
            "creationTimestamp": timestamp(self._clock()),
            "name": name,
            "description": body.get("description", ""),
            "region": f"{BASE}projects/{self._site.project}/regions/{region}",
            "selfLink": BASE + target,
            "status": "READY",
            "groupPlacementPolicy": placement,
        }
        self._site.policies = policies
        return self._policy_changed(region, target, _INSERT, caller)

    def _delete_policy(
        self, path: Mapping[str, str], _: Mapping[str, Any], caller: str, __: Mapping[str, Any]
    ) -> Operation:
        region, own = path["region"], f"regions/{path['region']}/resourcePolicies/{path['resourcePolicy']}"
        if own not in self._site.policies:
            raise missing(self._site, own)
        target = f"projects/{self._site.project}/{own}"
        for machine in self._machines.all:
            used = machine.value.get("resourcePolicies", ())
            if not machine.is_gone and f"{BASE}{target}" in used:
                raise ApiError(
                    400,
                    "resourceInUseByAnotherResource",
                    f"The resource_policy resource '{target}' is already being used by "
                    f"'projects/{self._site.project}/{machine.key}'",
                )
        self._site.policies = {name: one for name, one in self._site.policies.items() if name != own}
        return self._policy_changed(region, target, "delete", caller)

    def _policy_changed(self, region: str, target: str, kind: str, caller: str) -> Operation:
        return self._operations.add(
            f"regions/{region}", kind, target, user=caller, seconds=self.operation_seconds
        )


def _bulk_counts(zone: str, num_wanted: int, num_made: int) -> Mapping[str, Any]:
    counts = {
        "targetVmCount": num_wanted,
        "createdVmCount": num_made,
        "failedToCreateVmCount": num_wanted - num_made,
        "deletedVmCount": 0,
        "status": "DONE",
    }
    return {"instancesBulkInsertOperationMetadata": {"perLocationStatus": {f"zones/{zone}": counts}}}


def _check_request_id(text: str) -> None:
    try:
        is_good = uuid.UUID(text).int != 0 and str(uuid.UUID(text)) == text.lower()
    except ValueError:
        is_good = False
    if not is_good:
        raise bad("requestId", text, "It must be a valid UUID, and not zero.")


def _check_fingerprint(given: object, own: str) -> None:
    if given != own:
        raise ApiError(
            412, "conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint."
        )


def _properties_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an instance's properties in the form of a bulk insert, with names in place of URLs."""
    properties = {name: value for name, value in body.items() if name not in _OWN_FIELDS}
    properties["machineType"] = str(body.get("machineType", "")).rpartition("/")[2]
    disks = []
    for disk in body.get("disks", ()):
        parameters = dict(disk.get("initializeParams", {}))
        if "diskType" in parameters:
            parameters["diskType"] = re.sub(r".*/", "", parameters["diskType"])
        disks.append({**disk, "initializeParams": parameters})
    properties["disks"] = disks
    if "guestAccelerators" in body:
        properties["guestAccelerators"] = [
            {**one, "acceleratorType": one.get("acceleratorType", "").rpartition("/")[2]}
            for one in body["guestAccelerators"]
        ]
    if "resourcePolicies" in body:
        properties["resourcePolicies"] = [one.rpartition("/")[2] for one in body["resourcePolicies"]]
    return properties
