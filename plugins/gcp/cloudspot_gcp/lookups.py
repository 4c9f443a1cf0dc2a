"""Looks up what a launch needs and Google alone knows, and says which option names what does not exist.

Each function asks once; :mod:`cloudspot_gcp.offers` keeps the answers. All of them raise SpecError with
the option's name, AuthError with the right that is missing, and TransientError when Google did not answer.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec
from google.api_core import exceptions as api

from cloudspot.model import Resources
from cloudspot.retrying import doubling, retry
from cloudspot_gcp.clients import READ_SECONDS, GcpClients
from cloudspot_gcp.errors import translated
from cloudspot_gcp.listing import last_part
from cloudspot_gcp.options import DEFAULT_REGION, GcpOptions, field_error, region_of

MIN_CPUS: Final = 2
MIN_MEMORY_BYTES: Final = 8 * 2**30
"""What a machine has at the least where the job does not say: torch, the agent and an arena need room."""
NUM_TRIES: Final = 4
"""How often a question is asked that may be asked again."""
ATTACHING_FAMILY: Final = "n1"
"""Whose machines alone can have accelerators attached; others have them built in ("GPU machine types")."""
ATTACHABLE: Final = frozenset(
    {"nvidia-tesla-p100", "nvidia-tesla-p4", "nvidia-tesla-t4", "nvidia-tesla-v100"}
)
"""What can be attached to them; other accelerators are built into types of their own."""
COUNTS: Final = (1, 2, 4, 8)
"""How many of an accelerator can be attached, as far as it allows so many."""
HYPERDISK_ONLY: Final = frozenset({"a4", "a4x", "c4", "c4a", "c4d", "h4d", "m4", "n4", "n4a", "n4d", "x4"})
"""Families that take no Persistent Disk ("Hyperdisk", machine series support; from memory)."""
COMPACT_FAMILIES: Final = frozenset(
    {"a2", "a3", "a4", "c2", "c2d", "c3", "c3d", "c4", "c4d", "g2", "h3", "n2", "n2d"}
)
"""Families that a compact placement policy takes ("About placement policies"; from memory)."""
_IMAGE: Final = re.compile(r"projects/(?P<project>[^/]+)/global/images/(?P<family>family/)?(?P<name>[^/]+)")

T = TypeVar("T")


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """The machine image of a launch."""

    path: str
    """``projects/PROJECT/global/images/NAME``: the very image, also where a family was named."""
    architecture: str
    size_gib: int


class MachineType(msgspec.Struct, frozen=True, kw_only=True):
    """What of a machine type matters for the choice, with the accelerators that are attached to it."""

    name: str
    architecture: str
    cpus: int
    memory_mib: int
    accelerator: str | None = None
    """Such as ``nvidia-l4``."""
    accelerator_count: int = 0
    is_attached: bool = False
    """The accelerators are not the type's own."""
    zones: tuple[str, ...] = ()
    """Where it can be had at all."""

    @property
    def family(self) -> str:
        """Return such as ``n2``."""
        return self.name.partition("-")[0]

    def fits(self, resources: Resources) -> bool:
        """Say whether it has what one node must have."""
        if resources.accelerator is not None and not is_called(self.accelerator, resources.accelerator):
            return False
        if resources.accelerator_count and self.accelerator_count < resources.accelerator_count:
            return False
        return self.cpus >= resources.cpus and self.memory_mib * 2**20 >= resources.memory_bytes


def is_called(accelerator: str | None, wanted: str) -> bool:
    """Say whether people mean this accelerator: ``A100`` is ``nvidia-tesla-a100`` or ``nvidia-a100-80gb``."""
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
    """Return what the call returns, asked again where Google fails in passing or throttles."""

    def once() -> T:
        with translated(what):
            return call()

    return retry(once, sleep=time.sleep, waits=doubling(0.1, num=NUM_TRIES - 1))


def list_all(clients: GcpClients, kind: str, what: str, **request: Any) -> list[Any]:
    """Return every item of every page of what a client of this kind lists."""
    client = clients.compute(kind)
    asked = {"project": clients.project, "max_results": 500, **request}
    return ask(what, lambda: list(client.list(request=asked, retry=None, timeout=READ_SECONDS)))


@contextmanager
def _naming(field: str, value: str, where: str = "") -> Iterator[None]:
    """Say of what is not found that the option names what does not exist."""
    try:
        yield
    except (api.NotFound, api.BadRequest) as error:
        if isinstance(error, api.BadRequest) and "Unknown" not in str(error):
            raise
        raise field_error(field, f'there is no "{value}"{where}') from error


def find_zones(clients: GcpClients, region: str) -> tuple[str, ...]:
    """Return the region's zones; refuse a region that Google does not have."""
    client = clients.compute("RegionsClient")

    def call() -> tuple[str, ...]:
        try:
            found = client.get(project=clients.project, region=region, retry=None, timeout=READ_SECONDS)
        except (api.NotFound, api.BadRequest) as error:
            listed = client.list(project=clients.project, retry=None, timeout=READ_SECONDS)
            known = sorted(one.name for one in listed)
            if region in known:
                raise
            near = difflib.get_close_matches(region, known, n=1)
            advice = f'did you mean "{near[0]}"?' if near else f"there are {', '.join(known[:5])}, ..."
            raise field_error("regions", f'"{region}" is no region; {advice}') from error
        return tuple(sorted(map(last_part, found.zones)))

    return ask(f"looking up the region {region}", call)


def find_image(clients: GcpClients, options: GcpOptions) -> Image:
    """Return the image that the option names, by itself or by its family."""
    named = options.image_or_default
    match = _IMAGE.fullmatch(named)
    assert match is not None, "the options were checked"
    client = clients.compute("ImagesClient")

    def call() -> Any:
        with _naming("image", named, ", or none that you may use"):
            if match["family"]:
                return client.get_from_family(
                    project=match["project"], family=match["name"], retry=None, timeout=READ_SECONDS
                )
            return client.get(project=match["project"], image=match["name"], retry=None, timeout=READ_SECONDS)

    image = ask("looking up the image", call)
    if image.status not in {"", "READY"}:
        raise field_error("image", f'"{named}" is {image.status}, not READY')
    return Image(
        path=f"projects/{match['project']}/global/images/{image.name}",
        architecture=image.architecture or "X86_64",
        size_gib=int(image.disk_size_gb or 10),
    )


def check_names(clients: GcpClients, options: GcpOptions, regions: Sequence[str]) -> None:
    """Look for the things that the options name and a request passes on unseen."""
    for path in options.subnetworks:
        parts = path.split("/")
        place = {"project": _project(clients, path), "region": parts[-3], "subnetwork": parts[-1]}
        _require(clients, "SubnetworksClient", "subnetworks", path, place)
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
    """Return the project in a path, or ours where it has none."""
    parts = path.split("/")
    return parts[1] if parts[0] == "projects" else clients.project


def _require(clients: GcpClients, kind: str, field: str, value: str, place: Mapping[str, str]) -> None:
    client = clients.compute(kind)

    def call() -> None:
        with _naming(field, value):
            client.get(request=dict(place), retry=None, timeout=READ_SECONDS)

    ask(f"looking up providers.gcp.{field}", call)


def named_types(
    clients: GcpClients, options: GcpOptions, zones: Sequence[str], resources: Resources
) -> list[MachineType]:
    """Return the machine types that the option names, with what is attached to them for the resources."""
    expression = " OR ".join(f'(name = "{name}")' for name in options.machine_types)
    found = {one.name: one for one in _types_in(clients, zones, expression)}
    unknown = [name for name in options.machine_types if name not in found]
    if unknown:
        known = [one.name for one in _types_in(clients, zones, "")]
        near = difflib.get_close_matches(unknown[0], known, n=1)
        advice = f'; did you mean "{near[0]}"?' if near else ""
        regions = ", ".join(sorted(set(map(region_of, zones))))
        raise field_error("machine_types", f'{regions} has no "{unknown[0]}"{advice}')
    types = [found[name] for name in options.machine_types]
    wrong = [one for one in types if (one.family in HYPERDISK_ONLY) != (options.disk_type[0] == "h")]
    if wrong and wrong[0].family in HYPERDISK_ONLY:
        raise field_error("disk_type", f'"{wrong[0].name}" takes "hyperdisk-balanced" only')
    return _attached(clients, types, zones, resources)


def all_types(
    clients: GcpClients, options: GcpOptions, zones: Sequence[str], resources: Resources
) -> list[MachineType]:
    """Return the machine types of the zones that the options leave to us, with what is attached to them.

    None with a shared core, and none that cannot have the kind of disk.
    """
    is_hyperdisk = options.disk_type.startswith("hyperdisk")
    types = [
        one
        for one in _types_in(clients, zones, "isSharedCpu = false")
        if (one.family in HYPERDISK_ONLY) == is_hyperdisk and not one.name.endswith("-metal")
    ]
    return _attached(clients, types, zones, resources)


def fitting_types(types: Sequence[MachineType], resources: Resources) -> list[MachineType]:
    """Return the types that have what one node must have, the smallest first.

    A job that asks for no accelerator gets none, and at least ``MIN_CPUS`` and ``MIN_MEMORY_BYTES``.
    """
    wanted = msgspec.structs.replace(
        resources,
        cpus=resources.cpus or MIN_CPUS,
        memory_bytes=resources.memory_bytes or MIN_MEMORY_BYTES,
    )
    asks = asks_for_accelerator(resources)
    fitting = [one for one in types if one.fits(wanted) and (asks or not one.accelerator_count)]
    return sorted(fitting, key=lambda one: (one.accelerator_count, one.cpus, one.memory_mib, one.name))


def asks_for_accelerator(resources: Resources) -> bool:
    """Say whether a node must have an accelerator."""
    return bool(resources.accelerator or resources.accelerator_count)


def _types_in(clients: GcpClients, zones: Sequence[str], expression: str) -> list[MachineType]:
    found: dict[str, MachineType] = {}
    for zone in zones:
        what = f"looking for machine types in {zone}"
        for one in list_all(clients, "MachineTypesClient", what, zone=zone, filter=expression):
            before = found.get(one.name)
            if before is None:
                found[one.name] = _to_type(one, zone)
            else:
                found[one.name] = msgspec.structs.replace(before, zones=(*before.zones, zone))
    return list(found.values())


def _to_type(described: Any, zone: str) -> MachineType:
    accelerators = list(described.accelerators)
    return MachineType(
        name=described.name,
        architecture=described.architecture or "X86_64",
        cpus=described.guest_cpus,
        memory_mib=described.memory_mb,
        accelerator=accelerators[0].guest_accelerator_type if accelerators else None,
        accelerator_count=accelerators[0].guest_accelerator_count if accelerators else 0,
        zones=(zone,),
    )


def _attached(
    clients: GcpClients, types: Sequence[MachineType], zones: Sequence[str], resources: Resources
) -> list[MachineType]:
    """Return the types, those that can take it with the accelerator that is asked for by its name.

    Without a name nobody knows what to attach: then only types count that have accelerators of their own.
    """
    wanted = resources.accelerator
    if wanted is None or not any(one.family == ATTACHING_FAMILY for one in types):
        return list(types)
    offered = _accelerators_in(clients, zones)
    found: list[MachineType] = []
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
    """Return in which zones each accelerator is, and how many of it a machine can have there."""
    found: dict[str, dict[str, int]] = {}
    for zone in zones:
        what = f"looking for accelerators in {zone}"
        for one in list_all(clients, "AcceleratorTypesClient", what, zone=zone):
            found.setdefault(one.name, {})[zone] = int(one.maximum_cards_per_instance)
    return found
