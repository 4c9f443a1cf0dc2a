"""Looks up in Google Cloud the image, the network and the machine types that a launch needs.

:mod:`cloudspot_gcp.offers` caches the answers. Each function raises SpecError if an option names something
that does not exist, AuthError if a permission is missing, and TransientError if Google does not answer.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar, get_args

import msgspec
from google.api_core import exceptions as api

from cloudspot.calls.retrying import doubling, retry
from cloudspot.model import Offer, Resources
from cloudspot.plugin.machinetypes import MachineType
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.listing import last_part
from cloudspot_gcp.options import (
    DEFAULT_REGION,
    DiskType,
    GcpOptions,
    field_error,
    is_ai_zone,
    region_of,
    unknown_region,
    unknown_type,
)
from cloudspot_gcp.series import (
    ATTACHING_SERIES,
    count_to_attach,
    has_part_of_gpu,
    is_attachable,
    markets_of,
    series_of,
    takes_disk,
)

NUM_TRIES: Final = 4
"""How many times a repeatable request is tried."""
_IMAGE: Final = re.compile(r"projects/(?P<project>[^/]+)/global/images/(?P<family>family/)?(?P<name>[^/]+)")

T = TypeVar("T")


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """The machine image of a launch."""

    path: str
    """``projects/PROJECT/global/images/NAME``, which is a single image, even if the option names a family."""
    architecture: str
    size_gib: int
    """The size of the boot disk for which prices are computed."""
    setup_key: str | None = None
    """The key of the job's setup, if the image contains that setup."""


class GcpMachineType(MachineType, frozen=True, kw_only=True):
    """A machine type with its accelerators, which have names such as ``nvidia-l4``."""

    architecture: str
    is_attached: bool = False
    """Whether the accelerators are attached to the machine, rather than built in."""
    is_shared: bool = False
    """Whether it has only a share of its processors, which it may exceed for a while, or of an
    accelerator."""
    zones: tuple[str, ...] = ()
    """The zones that offer the type."""

    def is_called(self, accelerator: str) -> bool:
        """Return whether ``accelerator`` is a usual name of this type's accelerator; see ``is_called``."""
        return is_called(self.accelerator, accelerator)


def is_called(accelerator: str | None, wanted: str) -> bool:
    """Return whether the names match: ``A100`` is ``nvidia-tesla-a100`` or ``nvidia-a100-80gb``."""
    name, slug = _plain(accelerator or ""), _plain(wanted)
    return name == slug or name.startswith(f"{slug}-")


def _plain(name: str) -> str:
    slug = re.sub(r"[\s_]+", "-", name.lower())
    return slug.removeprefix("nvidia-").removeprefix("tesla-")


def wanted_regions(options: GcpOptions) -> tuple[str, ...]:
    """Return the regions to try: the options', else those of its zones, else that of gcloud's variable."""
    if options.regions:
        return options.regions
    if options.zones:
        return tuple(dict.fromkeys(map(region_of, options.zones)))
    return (os.environ.get("CLOUDSDK_COMPUTE_REGION") or DEFAULT_REGION,)


def ask(what: str, call: Callable[[], T]) -> T:
    """Make the call and return its result; repeat it if Google throttles it or fails temporarily."""

    def once() -> T:
        with ERRORS.translated(what):
            return call()

    return retry(once, sleep=time.sleep, waits=doubling(0.1, num=NUM_TRIES - 1))


def list_all(clients: GcpClients, kind: str, what: str, **request: Any) -> list[Any]:
    """Return all items, from all pages, that a client of this kind lists."""
    asked = {"project": clients.project, "max_results": 500, **request}
    return ask(what, lambda: list(clients.call(kind, "list", asked)))


@contextmanager
def _naming(field: str, value: str, where: str = "") -> Iterator[None]:
    """Turn "not found" into a SpecError that names the option."""
    try:
        yield
    except (api.NotFound, api.BadRequest) as error:
        if isinstance(error, api.BadRequest) and "Unknown" not in str(error):
            raise
        raise field_error(field, f'there is no "{value}"{where}') from error


def find_zones(clients: GcpClients, region: str) -> tuple[str, ...]:
    """Return the region's standard zones; raise SpecError if the region does not exist.

    A bulk insert puts no machine into an AI zone, and its list of locations may not name an AI zone
    (discovery document, LocationPolicy.locations; checked 2026-11).
    """
    own = {"project": clients.project}

    def call() -> tuple[str, ...]:
        try:
            described = clients.call("RegionsClient", "get", {**own, "region": region})
        except (api.NotFound, api.BadRequest) as error:
            known = sorted(one.name for one in clients.call("RegionsClient", "list", own))
            if region in known:
                raise
            raise unknown_region("regions", region, known) from error
        return tuple(sorted(zone for zone in map(last_part, described.zones) if not is_ai_zone(zone)))

    return ask(f"looking up the region {region}", call)


def find_image(clients: GcpClients, options: GcpOptions) -> Image:
    """Return the image that the option names, directly or by its family."""
    named = options.image_or_default
    match = _IMAGE.fullmatch(named)
    assert match is not None, "the options were checked"
    method, field = ("get_from_family", "family") if match["family"] else ("get", "image")
    wanted = {"project": match["project"], field: match["name"]}

    def call() -> Any:
        with _naming("image", named, ", or none that you may use"):
            return clients.call("ImagesClient", method, wanted)

    image = ask("looking up the image", call)
    if image.status not in {"", "READY"}:
        raise field_error("image", f'"{named}" is {image.status}, not READY')
    return Image(
        path=f"projects/{match['project']}/global/images/{image.name}",
        architecture=image.architecture or "X86_64",
        size_gib=int(image.disk_size_gb or 10),
    )


def check_names(clients: GcpClients, options: GcpOptions, regions: Sequence[str]) -> None:
    """Check that the networks and the placement policy that the options name exist."""
    networks = set()
    for path in options.subnetworks:
        parts = path.split("/")
        place = {"project": _project(clients, path), "region": parts[-3], "subnetwork": parts[-1]}
        subnetwork = _require(clients, "SubnetworksClient", "subnetworks", path, place)
        networks.add(str(subnetwork.network).partition("/projects/")[2])
    if len(networks) > 1:
        why = "a job's nodes reach each other within one only, so name subnetworks of one"
        problem = f"the subnetworks are in {len(networks)} networks ({', '.join(sorted(networks))}); {why}"
        raise field_error("subnetworks", problem)
    if not options.subnetworks:
        path = options.network
        place = {"project": _project(clients, path), "network": path.rpartition("/")[2]}
        _require(clients, "NetworksClient", "network", path, place)
    policy = options.placement_policy
    if policy is not None and policy != "auto":
        for region in regions:
            path = f"regions/{region}/resourcePolicies/{policy}"
            place = {"project": clients.project, "region": region, "resource_policy": policy}
            _require(clients, "ResourcePoliciesClient", "placement_policy", path, place)


def _project(clients: GcpClients, path: str) -> str:
    """Return the project in a path, or the clients' project if it has none."""
    parts = path.split("/")
    return parts[1] if parts[0] == "projects" else clients.project


def _require(clients: GcpClients, kind: str, field: str, value: str, place: Mapping[str, str]) -> Any:
    """Return the resource that the option names; raise SpecError if it does not exist."""

    def call() -> Any:
        with _naming(field, value):
            return clients.call(kind, "get", place)

    return ask(f"looking up providers.gcp.{field}", call)


def named_types(
    clients: GcpClients, options: GcpOptions, zones: Sequence[str], resources: Resources
) -> list[GcpMachineType]:
    """Return the machine types that the option names, with the accelerators to attach."""
    expression = " OR ".join(f'(name = "{name}")' for name in options.machine_types)
    by_name = {one.name: one for one in _types_in(clients, zones, expression)}
    unknown = [name for name in options.machine_types if name not in by_name]
    if unknown:
        known = [one.name for one in _types_in(clients, zones, "")]
        regions = ", ".join(sorted(set(map(region_of, zones))))
        raise unknown_type("machine_types", unknown[0], known, where=regions)
    types = [by_name[name] for name in options.machine_types]
    for type_ in types:
        if not markets_of(type_.name):
            raise field_error("machine_types", f'"{type_.name}" is only sold as capacity reserved beforehand')
        if not takes_disk(type_.name, options.disk_type):
            able = [kind for kind in get_args(DiskType) if takes_disk(type_.name, kind)]
            raise field_error(
                "disk_type", f'"{type_.name}" cannot have "{options.disk_type}"; it takes {" or ".join(able)}'
            )
    return _attached(clients, types, zones, resources)


def all_types(
    clients: GcpClients, options: GcpOptions, zones: Sequence[str], resources: Resources
) -> list[GcpMachineType]:
    """Return the zones' machine types, with the accelerators to attach.

    Types with a shared core, types that must be reserved, and types that cannot have this kind of disk are
    omitted.
    """
    types = [
        one
        for one in _types_in(clients, zones, "isSharedCpu = false")
        if takes_disk(one.name, options.disk_type)
        and markets_of(one.name)
        and not one.name.endswith("-metal")
    ]
    return _attached(clients, types, zones, resources)


def offered_type(clients: GcpClients, offer: Offer) -> GcpMachineType | None:
    """Return the machine type of an offer, with its accelerators, or None if it no longer exists."""
    details = offer.details
    zone = details["zones"].partition(",")[0]
    found = _types_in(clients, (zone,), f'(name = "{offer.instance_type}")')
    if not found or "accelerator" not in details:
        return found[0] if found else None
    return msgspec.structs.replace(
        found[0],
        accelerator=details["accelerator"],
        accelerator_count=int(details["accelerator_count"]),
        is_attached=True,
    )


def _types_in(clients: GcpClients, zones: Sequence[str], expression: str) -> list[GcpMachineType]:
    by_name: dict[str, GcpMachineType] = {}
    for zone in zones:
        what = f"looking for machine types in {zone}"
        for described in list_all(clients, "MachineTypesClient", what, zone=zone, filter=expression):
            before = by_name.get(described.name)
            if before is None:
                by_name[described.name] = _to_type(described, zone)
            else:
                by_name[described.name] = msgspec.structs.replace(before, zones=(*before.zones, zone))
    return list(by_name.values())


def find_machine_type(clients: GcpClients, zone: str, name: str) -> GcpMachineType | None:
    """Return the named machine type, or None if the zone does not have it."""
    what, wanted = f"looking for machine type {name} in {zone}", f'name = "{name}"'
    found = list_all(clients, "MachineTypesClient", what, zone=zone, filter=wanted)
    return _to_type(found[0], zone) if found else None


def _to_type(described: Any, zone: str) -> GcpMachineType:
    accelerators = list(described.accelerators)
    return GcpMachineType(
        name=described.name,
        architecture=described.architecture or "X86_64",
        cpus=described.guest_cpus,
        memory_bytes=described.memory_mb * 2**20,
        accelerator=accelerators[0].guest_accelerator_type if accelerators else None,
        accelerator_count=accelerators[0].guest_accelerator_count if accelerators else 0,
        is_shared=described.is_shared_cpu or has_part_of_gpu(described.name),
        zones=(zone,),
    )


def _attached(
    clients: GcpClients, types: Sequence[GcpMachineType], zones: Sequence[str], resources: Resources
) -> list[GcpMachineType]:
    """Return the types, with the wanted accelerator attached if they support it.

    If the accelerator is not named, nothing is attached, and only types with built-in accelerators count.
    """
    wanted = resources.accelerator
    attaching = [one for one in types if series_of(one.name) == ATTACHING_SERIES]
    if wanted is None or not attaching:
        return list(types)
    offered = {
        name: places
        for name, places in _accelerators_in(clients, zones).items()
        if is_attachable(name) and is_called(name, wanted)
    }
    attached = [one for one in types if one not in attaching]
    for type_ in attaching:
        for name, places in offered.items():
            counts = {
                zone: count_to_attach(
                    name,
                    at_least=resources.accelerator_count,
                    cpus=type_.cpus,
                    memory_bytes=type_.memory_bytes,
                    zone=zone,
                )
                for zone in type_.zones
            }
            # Zones differ only in whether they offer the accelerator, never in the number that a type needs.
            able = {zone: n for zone, n in counts.items() if n is not None and places.get(zone, 0) >= n}
            if able:
                attached.append(
                    msgspec.structs.replace(
                        type_,
                        accelerator=name,
                        accelerator_count=max(able.values()),
                        is_attached=True,
                        zones=tuple(able),
                    )
                )
    return attached


def _accelerators_in(clients: GcpClients, zones: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the maximum number of each accelerator on a machine, by zone."""
    most: dict[str, dict[str, int]] = {}
    for zone in zones:
        what = f"looking for accelerators in {zone}"
        for accelerator in list_all(clients, "AcceleratorTypesClient", what, zone=zone):
            most.setdefault(accelerator.name, {})[zone] = int(accelerator.maximum_cards_per_instance)
    return most
