"""The emulated Compute Engine's reading methods: lists, aggregated lists, and single resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cloudspot.emulation.api_faults import Faults
from cloudspot.model import InstanceState
from cloudspot_gcp_sandbox import catalogue
from cloudspot_gcp_sandbox.apierror import ApiError, invalid
from cloudspot_gcp_sandbox.catalogue import BASE, CREATED, ZONES, number_of, zone_names
from cloudspot_gcp_sandbox.disks import Disks
from cloudspot_gcp_sandbox.filters import matching, page
from cloudspot_gcp_sandbox.launching import Site
from cloudspot_gcp_sandbox.machines import Machines
from cloudspot_gcp_sandbox.operations import Operations

Values = Sequence[Mapping[str, Any]]
Handler = Callable[[Mapping[str, str], Mapping[str, Any], Mapping[str, Any], str], Mapping[str, Any]]


SERIAL_BYTES = 1 << 20
"""How much of a serial port's output is kept (Compute Engine API reference, instances.getSerialPortOutput,
checked 2026-11). From memory: only a running machine has any output."""


class Lists:
    """The reading methods, by their ids. The caller holds the machines' lock."""

    def __init__(
        self, site: Site, machines: Machines, operations: Operations, disks: Disks, faults: Faults
    ) -> None:
        self._site = site
        self._machines = machines
        self._operations = operations
        self._disks = disks
        self._faults = faults
        self.rules: Mapping[str, Mapping[str, Any]] = {}
        """The firewall rules, by name."""
        self.unreachable: set[str] = set()
        """The zones that do not answer listings."""

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each method."""
        zonal: dict[str, Callable[[str], Values]] = {
            "disks": self._disks.in_zone,
            "instances": self._instances_in,
            "machineTypes": lambda zone: catalogue.machine_types_in(zone, self._site.project),
            "acceleratorTypes": lambda zone: catalogue.accelerator_types_in(zone, self._site.project),
            "zoneOperations": lambda zone: self._operations.by_scope().get(f"zones/{zone}", ()),
        }
        regional: dict[str, Callable[[str], Values]] = {
            "resourcePolicies": self._policies_in,
            "subnetworks": self._subnetworks_in,
            "regionOperations": lambda region: self._operations.by_scope().get(f"regions/{region}", ()),
        }
        everywhere: dict[str, Callable[[], Values]] = {
            "zones": lambda: [catalogue.zone_value(one, self._site.project) for one in zone_names()],
            "regions": lambda: [self._region(one) for one in ZONES],
            "firewalls": lambda: list(self.rules.values()),
            "networks": self._networks,
            "globalOperations": lambda: self._operations.by_scope().get("global", ()),
        }
        handlers: dict[str, Handler] = {
            "compute.projects.get": lambda *_: self._project(),
            "compute.images.get": lambda path, *_: self._image(path, by="name"),
            "compute.images.getFromFamily": lambda path, *_: self._image(path, by="family"),
            "compute.images.list": self._images,
            "compute.globalOperations.aggregatedList": self._all_operations,
            "compute.instances.getSerialPortOutput": self._serial_port,
        }
        for name, of_zone in zonal.items():
            handlers |= self._of_places(name, "zone", zone_names(), of_zone)
        for name, of_region in regional.items():
            handlers |= self._of_places(name, "region", list(ZONES), of_region)
        for name, of_all in everywhere.items():
            handlers |= self._of_all(name, of_all)
        for scope in ("zone", "region", "global"):
            answer = self._operation(scope)
            handlers[f"compute.{scope}Operations.get"] = handlers[f"compute.{scope}Operations.wait"] = answer
        del (
            handlers["compute.zoneOperations.aggregatedList"],
            handlers["compute.regionOperations.aggregatedList"],
        )
        return handlers

    def _of_places(
        self, name: str, kind: str, places: Sequence[str], of_place: Callable[[str], Values]
    ) -> dict[str, Handler]:
        return {
            f"compute.{name}.list": self._list(name, lambda path: of_place(path[kind])),
            f"compute.{name}.get": self._get(name, lambda path: of_place(path[kind])),
            f"compute.{name}.aggregatedList": self._aggregated(
                name, lambda: {f"{kind}s/{place}": of_place(place) for place in places}
            ),
        }

    def _of_all(self, name: str, values: Callable[[], Values]) -> dict[str, Handler]:
        return {
            f"compute.{name}.list": self._list(name, lambda _: values()),
            f"compute.{name}.get": self._get(name, lambda _: values()),
        }

    def _list(self, name: str, values: Callable[[Mapping[str, str]], Values]) -> Handler:
        def answer(path: Mapping[str, str], query: Mapping[str, Any], *_: Any) -> Mapping[str, Any]:
            items = _ordered(matching(values(path), query.get("filter")), query.get("orderBy", ""))
            items, token = page(items, query)
            found: dict[str, Any] = {"kind": f"compute#{_singular(name)}List", "id": f"projects/x/{name}"}
            found["items"] = items
            return found | ({"nextPageToken": token} if token else {})

        return answer

    def _aggregated(self, name: str, by_scope: Callable[[], Mapping[str, Values]]) -> Handler:
        field = re.sub(r"^(zone|region|global)O", "o", name)

        def answer(_: Mapping[str, str], query: Mapping[str, Any], *__: Any) -> Mapping[str, Any]:
            scopes = by_scope()
            silent = {scope for scope in scopes if scope.removeprefix("zones/") in self.unreachable}
            pairs = [
                (scope, item)
                for scope, items in scopes.items()
                for item in matching(items, query.get("filter"))
                if scope not in silent
            ]
            shown, token = page(pairs, query)
            items: dict[str, Any] = {}
            for scope in scopes:
                own = [item for at, item in shown if at == scope]
                items[scope] = {field: own} if own else {"warning": _nothing(scope)}
            for scope in silent:
                items[scope] = {"warning": _unreachable(scope)}
            found: dict[str, Any] = {"kind": f"compute#{_singular(field)}AggregatedList", "items": items}
            if silent:
                found["unreachables"] = sorted(silent)
            return found | ({"nextPageToken": token} if token else {})

        return answer

    def _get(self, name: str, values: Callable[[Mapping[str, str]], Values]) -> Handler:
        def answer(path: Mapping[str, str], *_: Any) -> Mapping[str, Any]:
            asked = path.get(_parameter(name), "")
            for value in values(path):
                if asked in {value["name"], value["id"]}:
                    return value
            place = "".join(f"{kind}s/{path[kind]}/" for kind in ("zone", "region") if kind in path)
            if name in {"zones", "regions"}:
                place = ""
            elif not place:
                place = "global/"
            resource = f"projects/{self._site.project}/{place}{name}/{asked}"
            raise ApiError(404, "notFound", f"The resource '{resource}' was not found")

        return answer

    def _operation(self, scope: str) -> Handler:
        def answer(path: Mapping[str, str], *_: Any) -> Mapping[str, Any]:
            where = scope if scope == "global" else f"{scope}s/{path[scope]}"
            return self._operations.show(self._operations.find(where, path["operation"]))

        return answer

    def _all_operations(self, _: Any, query: Mapping[str, Any], *__: Any) -> Mapping[str, Any]:
        def by_scope() -> Mapping[str, Values]:
            found: dict[str, Values] = {f"zones/{zone}": () for zone in zone_names()}
            return {"global": (), **found, **self._operations.by_scope()}

        return self._aggregated("globalOperations", by_scope)({}, query, {}, "")

    def _instances_in(self, zone: str) -> Values:
        return [self._machines.show(one) for one in self._machines.shown() if one.zone == zone]

    def _serial_port(self, path: Mapping[str, str], query: Mapping[str, Any], *_: Any) -> Mapping[str, Any]:
        shown = [one for one in self._machines.shown() if one.zone == path["zone"]]
        machine = next((one for one in shown if path["instance"] in {one.name, one.id}), None)
        where = f"projects/{self._site.project}/zones/{path['zone']}/instances/{path['instance']}"
        if machine is None:
            raise ApiError(404, "notFound", f"The resource '{where}' was not found")
        if machine.state is not InstanceState.RUNNING:
            raise ApiError(400, "resourceNotReady", f"The resource '{where}' is not ready")
        # The other ports are for debuggers; images write to the first one.
        data = self._machines.console(machine).encode() if int(query.get("port", 1)) == 1 else b""
        oldest, start = max(0, len(data) - SERIAL_BYTES), int(query.get("start", 0))
        start = min(max(oldest, len(data) + start if start < 0 else start), len(data))
        return {
            "kind": "compute#serialPortOutput",
            "contents": data[start:].decode("utf-8", "replace"),
            "start": str(start),
            "next": str(len(data)),
            "selfLink": f"{BASE}{where}/serialPort",
        }

    def _policies_in(self, region: str) -> Values:
        start = f"regions/{region}/"
        return [value for path, value in sorted(self._site.policies.items()) if path.startswith(start)]

    def _subnetworks_in(self, region: str) -> Values:
        return [
            {
                "kind": "compute#subnetwork",
                "id": number_of(path),
                "creationTimestamp": CREATED,
                "name": path.rpartition("/")[2],
                "region": f"{BASE}projects/{self._site.project}/regions/{region}",
                "network": f"{BASE}projects/{self._site.project}/{network}",
                "ipCidrRange": "10.77.0.0/16",
                "selfLink": f"{BASE}projects/{self._site.project}/{path}",
            }
            for path, network in self._site.subnetworks.items()
            if path.startswith(f"regions/{region}/")
        ]

    def _networks(self) -> Values:
        return [
            {
                "kind": "compute#network",
                "id": number_of(path),
                "creationTimestamp": CREATED,
                "name": path.rpartition("/")[2],
                "autoCreateSubnetworks": True,
                "selfLink": f"{BASE}projects/{self._site.project}/{path}",
            }
            for path in self._site.networks
        ]

    def _region(self, region: str) -> Mapping[str, Any]:
        alive = [one for one in self._machines.alive() if one.zone.startswith(region)]
        quotas = [
            {
                "metric": metric,
                "limit": float(self._faults.vcpu_quota.get(market, 1000)),
                "usage": float(sum(one.num_vcpus for one in alive if one.market == market)),
            }
            for metric, market in (("CPUS", "on-demand"), ("PREEMPTIBLE_CPUS", "spot"))
        ]
        return catalogue.region_value(region, self._site.project, quotas)

    def _project(self) -> Mapping[str, Any]:
        project = self._site.project
        return {
            "kind": "compute#project",
            "id": number_of(project),
            "creationTimestamp": CREATED,
            "name": project,
            "vmDnsSetting": "ZONAL_ONLY",
            "selfLink": f"{BASE}projects/{project}",
        }

    def _image(self, path: Mapping[str, str], *, by: str) -> Mapping[str, Any]:
        asked = path["image" if by == "name" else "family"]
        for image in reversed(self._site.images):
            if image.project == path["project"] and asked == getattr(image, by):
                return catalogue.image_value(image)
        kind = "images/" if by == "name" else "images/family/"
        resource = f"projects/{path['project']}/global/{kind}{asked}"
        raise ApiError(404, "notFound", f"The resource '{resource}' was not found")

    def _images(self, path: Mapping[str, str], query: Mapping[str, Any], *_: Any) -> Mapping[str, Any]:
        own = [
            catalogue.image_value(image) for image in self._site.images if image.project == path["project"]
        ]
        return self._list("images", lambda _: own)(path, query, {}, "")


def _ordered(items: list[Mapping[str, Any]], order: str) -> list[Mapping[str, Any]]:
    if order in {"", "name"}:
        return items
    if order != "creationTimestamp desc":
        raise invalid(f"Invalid value for field 'orderBy': '{order}'.")
    return sorted(
        items, key=lambda one: str(one.get("creationTimestamp", one.get("insertTime"))), reverse=True
    )


def _nothing(scope: str) -> Mapping[str, Any]:
    return {
        "code": "NO_RESULTS_ON_PAGE",
        "message": f"There are no results for scope '{scope}' on this page.",
        "data": [{"key": "scope", "value": scope}],
    }


def _unreachable(scope: str) -> Mapping[str, Any]:
    return {
        "code": "UNREACHABLE",
        "message": f"The scope '{scope}' is unreachable.",
        "data": [{"key": "scope", "value": scope}],
    }


def _singular(name: str) -> str:
    return name.removesuffix("ies") + "y" if name.endswith("ies") else name.removesuffix("s")


def _parameter(name: str) -> str:
    """Return the name of the path parameter for one resource of a collection."""
    return "resourcePolicy" if name == "resourcePolicies" else _singular(name)
