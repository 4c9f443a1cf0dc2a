"""Looks up what a launch needs and only Google knows; says which option names something that does not exist.

Each function asks once; :mod:`cloudspot_gcp.offers` keeps the answers. All of them raise SpecError with
the option's name, AuthError with the missing right, and TransientError when Google did not answer.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec
from google.api_core import exceptions as api

from cloudspot.model import Resources
from cloudspot.plugin.machinetypes import MachineType
from cloudspot.retrying import doubling, retry
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.listing import last_part
from cloudspot_gcp.options import (
    DEFAULT_REGION,
    GcpOptions,
    field_error,
    region_of,
    unknown_region,
    unknown_type,
)

NUM_TRIES: Final = 4
"""How often a request is tried that may be repeated."""
ATTACHING_FAMILY: Final = "n1"
"""The one family whose machines can have accelerators attached; others have them built in ("GPU machine
types")."""
ATTACHABLE: Final = frozenset(
    {"nvidia-tesla-p100", "nvidia-tesla-p4", "nvidia-tesla-t4", "nvidia-tesla-v100"}
)
"""What can be attached; other accelerators are built into types of their own."""
COUNTS: Final = (1, 2, 4, 8)
"""How many of an accelerator can be attached, up to its own limit."""
HYPERDISK_ONLY: Final = frozenset({"a4", "a4x", "c4", "c4a", "c4d", "h4d", "m4", "n4", "n4a", "n4d", "x4"})
"""Families without Persistent Disk ("Hyperdisk", machine series support; from memory)."""
COMPACT_FAMILIES: Final = frozenset(
    {"a2", "a3", "a4", "c2", "c2d", "c3", "c3d", "c4", "c4d", "g2", "h3", "n2", "n2d"}
)
"""Families that a compact placement policy accepts ("About placement policies"; from memory)."""
_IMAGE: Final = re.compile(r"projects/(?P<project>[^/]+)/global/images/(?P<family>family/)?(?P<name>[^/]+)")

T = TypeVar("T")


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """The machine image of a launch."""

    path: str
    """``projects/PROJECT/global/images/NAME``: one image, even if a family was named."""
    architecture: str
    size_gib: int


class GcpMachineType(MachineType, frozen=True, kw_only=True):
    """A machine type with the accelerators attached to it; their name is such as ``nvidia-l4``."""

    architecture: str
    is_attached: bool = False
    """The accelerators are not the type's own."""
    is_shared: bool = False
    """It has a share of its processors only, and may use more for a while."""
    zones: tuple[str, ...] = ()
    """Where it can be had at all."""

    @property
    def family(self) -> str:
        """Return such as ``n2``."""
        return self.name.partition("-")[0]

    def is_called(self, accelerator: str) -> bool:
        """Return whether people mean this type's accelerator; see the function."""
        return is_called(self.accelerator, accelerator)


def is_called(accelerator: str | None, wanted: str) -> bool:
    """Return whether people mean this one: ``A100`` is ``nvidia-tesla-a100`` or ``nvidia-a100-80gb``."""
    name, word = _plain(accelerator or ""), _plain(wanted)
    return name == word or name.startswith(f"{word}-")


def _plain(name: str) -> str:
    word = re.sub(r"[\s_]+", "-", name.lower())
    return word.removeprefix("nvidia-").removeprefix("tesla-")


def wanted_regions(options: GcpOptions) -> tuple[str, ...]:
    """Return the regions to try, by the options, else by the zones in them or by gcloud's own variable."""
    if options.regions:
        return options.regions
    if options.zones:
        return tuple(dict.fromkeys(map(region_of, options.zones)))
    return (os.environ.get("CLOUDSDK_COMPUTE_REGION") or DEFAULT_REGION,)


def ask(what: str, call: Callable[[], T]) -> T:
    """Return what the call returns; it is tried again if Google fails in passing or throttles."""

    def once() -> T:
        with ERRORS.translated(what):
            return call()

    return retry(once, sleep=time.sleep, waits=doubling(0.1, num=NUM_TRIES - 1))


def list_all(clients: GcpClients, kind: str, what: str, **request: Any) -> list[Any]:
    """Return every item of every page of what a client of this kind lists."""
    asked = {"project": clients.project, "max_results": 500, **request}
    return ask(what, lambda: list(clients.call(kind, "list", asked)))


@contextmanager
def _naming(field: str, value: str, where: str = "") -> Iterator[None]:
    """Turn "not found" into an error about the option that names it."""
    try:
        yield
    except (api.NotFound, api.BadRequest) as error:
        if isinstance(error, api.BadRequest) and "Unknown" not in str(error):
            raise
        raise field_error(field, f'there is no "{value}"{where}') from error


def find_zones(clients: GcpClients, region: str) -> tuple[str, ...]:
    """Return the region's zones; refuse a region that does not exist."""
    own = {"project": clients.project}

    def call() -> tuple[str, ...]:
        try:
            found = clients.call("RegionsClient", "get", {**own, "region": region})
        except (api.NotFound, api.BadRequest) as error:
            known = sorted(one.name for one in clients.call("RegionsClient", "list", own))
            if region in known:
                raise
            raise unknown_region("regions", region, known) from error
        return tuple(sorted(map(last_part, found.zones)))

    return ask(f"looking up the region {region}", call)


def find_image(clients: GcpClients, options: GcpOptions) -> Image:
    """Return the image that the option names, by itself or by its family."""
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
    """Look up what the options name and a request would pass on unchecked."""
    networks = set()
    for path in options.subnetworks:
        parts = path.split("/")
        place = {"project": _project(clients, path), "region": parts[-3], "subnetwork": parts[-1]}
        subnetwork = _require(clients, "SubnetworksClient", "subnetworks", path, place)
        networks.add(str(subnetwork.network).partition("/projects/")[2])
    if len(networks) > 1:
        why = "a job's nodes, which may be in several regions, reach each other within one only"
        said = f"those named are in {len(networks)} networks ({', '.join(sorted(networks))}); {why}"
        raise field_error("subnetworks", said)
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
    """Return the project in a path, or ours if it has none."""
    parts = path.split("/")
    return parts[1] if parts[0] == "projects" else clients.project


def _require(clients: GcpClients, kind: str, field: str, value: str, place: Mapping[str, str]) -> Any:
    """Return what the option names; raise SpecError if there is no such thing."""

    def call() -> Any:
        with _naming(field, value):
            return clients.call(kind, "get", place)

    return ask(f"looking up providers.gcp.{field}", call)


def named_types(
    clients: GcpClients, options: GcpOptions, zones: Sequence[str], resources: Resources
) -> list[GcpMachineType]:
    """Return the machine types that the option names, with the accelerators to attach."""
    expression = " OR ".join(f'(name = "{name}")' for name in options.machine_types)
    found = {one.name: one for one in _types_in(clients, zones, expression)}
    unknown = [name for name in options.machine_types if name not in found]
    if unknown:
        known = [one.name for one in _types_in(clients, zones, "")]
        regions = ", ".join(sorted(set(map(region_of, zones))))
        raise unknown_type("machine_types", unknown[0], known, where=regions)
    types = [found[name] for name in options.machine_types]
    wrong = [one for one in types if (one.family in HYPERDISK_ONLY) != (options.disk_type[0] == "h")]
    if wrong and wrong[0].family in HYPERDISK_ONLY:
        raise field_error("disk_type", f'"{wrong[0].name}" takes "hyperdisk-balanced" only')
    return _attached(clients, types, zones, resources)


def all_types(
    clients: GcpClients, options: GcpOptions, zones: Sequence[str], resources: Resources
) -> list[GcpMachineType]:
    """Return the zones' machine types, with the accelerators to attach.

    Types with a shared core, and those that cannot have the kind of disk, are left out.
    """
    is_hyperdisk = options.disk_type.startswith("hyperdisk")
    types = [
        one
        for one in _types_in(clients, zones, "isSharedCpu = false")
        if (one.family in HYPERDISK_ONLY) == is_hyperdisk and not one.name.endswith("-metal")
    ]
    return _attached(clients, types, zones, resources)


def _types_in(clients: GcpClients, zones: Sequence[str], expression: str) -> list[GcpMachineType]:
    found: dict[str, GcpMachineType] = {}
    for zone in zones:
        what = f"looking for machine types in {zone}"
        for one in list_all(clients, "MachineTypesClient", what, zone=zone, filter=expression):
            before = found.get(one.name)
            if before is None:
                found[one.name] = _to_type(one, zone)
            else:
                found[one.name] = msgspec.structs.replace(before, zones=(*before.zones, zone))
    return list(found.values())


def _to_type(described: Any, zone: str) -> GcpMachineType:
    accelerators = list(described.accelerators)
    return GcpMachineType(
        name=described.name,
        architecture=described.architecture or "X86_64",
        cpus=described.guest_cpus,
        memory_bytes=described.memory_mb * 2**20,
        accelerator=accelerators[0].guest_accelerator_type if accelerators else None,
        accelerator_count=accelerators[0].guest_accelerator_count if accelerators else 0,
        is_shared=described.is_shared_cpu,
        zones=(zone,),
    )


def _attached(
    clients: GcpClients, types: Sequence[GcpMachineType], zones: Sequence[str], resources: Resources
) -> list[GcpMachineType]:
    """Return the types, with the wanted accelerator attached to those that can take it.

    Without its name nobody knows what to attach: then only types with accelerators of their own count.
    """
    wanted = resources.accelerator
    if wanted is None or not any(one.family == ATTACHING_FAMILY for one in types):
        return list(types)
    offered = _accelerators_in(clients, zones)
    found: list[GcpMachineType] = []
    for one in types:
        if one.family != ATTACHING_FAMILY:
            found.append(one)
            continue
        for name, places in offered.items():
            count = next((n for n in COUNTS if n >= resources.accelerator_count), COUNTS[-1])
            able = tuple(zone for zone in one.zones if places.get(zone, 0) >= count)
            if able and name in ATTACHABLE and is_called(name, wanted):
                found.append(
                    msgspec.structs.replace(
                        one, accelerator=name, accelerator_count=count, is_attached=True, zones=able
                    )
                )
    return found


def _accelerators_in(clients: GcpClients, zones: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return how many of each accelerator a machine can have, by zone."""
    found: dict[str, dict[str, int]] = {}
    for zone in zones:
        what = f"looking for accelerators in {zone}"
        for one in list_all(clients, "AcceleratorTypesClient", what, zone=zone):
            found.setdefault(one.name, {})[zone] = int(one.maximum_cards_per_instance)
    return found
