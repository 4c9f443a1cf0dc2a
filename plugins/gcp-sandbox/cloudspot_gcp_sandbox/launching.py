"""Checks requests for machines as Compute Engine does, and decides the number and the zone of the machines.

The refusals' wording is from memory; the rules are from the API's reference ("REST Resource:
instances", "regionInstances.bulkInsert"), "Spot VMs", "Limit the run time of a VM" and "Set custom metadata".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cloudspot.emulation.api_faults import Faults
from cloudspot_gcp.options import region_of
from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.catalogue import (
    ATTACHABLE,
    COMPACT_FAMILIES,
    MACHINE_TYPES,
    ZONES,
    Image,
    is_in,
)
from cloudspot_gcp_sandbox.machines import Machines

NAME: Final = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
HOST: Final = re.compile(r"^https?://[^/]+/compute/v1/")
"""The prefix of resources' URLs, which requests may use instead of paths."""
_KEY: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_LABEL_KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE: Final = re.compile(r"[a-z0-9_-]{0,63}")
MAX_VALUE_BYTES: Final = 262144
MAX_METADATA_BYTES: Final = 524288
MAX_DISK_GB: Final = 65536
"""The maximum size of a Persistent Disk, 64 TiB ("Persistent Disk", limits; checked 2026-11)."""
MAX_TAGS: Final = 64
"""The maximum number of network tags of a machine ("Add network tags", restrictions; from memory)."""
MAX_RUN_SECONDS: Final = 120 * 24 * 3600
_SCOPE: Final = re.compile(r"https://(?:www\.googleapis\.com/auth/[a-z0-9._-]+|[a-z.]+\.google\.com/.*)")
_DISK_TYPES: Final = {"pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced"}


@dataclass
class Site:
    """The project's resources that a request may name."""

    project: str
    networks: Sequence[str]
    subnetworks: Mapping[str, str]
    """The network of each subnetwork, by the path ``regions/REGION/subnetworks/NAME``."""
    service_accounts: Sequence[str]
    policies: Mapping[str, Mapping[str, Any]]
    """Resource policies, by ``regions/REGION/resourcePolicies/NAME``."""
    images: Sequence[Image]
    """The images of Google's projects and of the account itself."""
    has_preemption_notice: bool = True
    """Whether the project has the notice, which is a preview feature ("Spot VMs", preemption process; checked
    2026-11).
    """


def bad(field: str, value: object, why: str) -> ApiError:
    """Return the refusal of a field's value."""
    return ApiError(400, "invalid", f"Invalid value for field '{field}': '{value}'. {why}")


def missing(site: Site, path: str) -> ApiError:
    """Return the refusal of a request that names a missing resource."""
    path = path if path.startswith("projects/") else f"projects/{site.project}/{path}"
    return ApiError(404, "notFound", f"The resource '{path}' was not found")


def check_properties(properties: Mapping[str, Any], site: Site, *, region: str, where: str) -> dict[str, str]:
    """Refuse properties that Compute Engine refuses before it looks for capacity; return the network's paths.

    Raises:
        ApiError: the properties are refused, with Compute Engine's wording (400, 404).
    """
    name = properties.get("machineType", "")
    if "/" in name or name not in MACHINE_TYPES:
        raise bad(f"{where}.machineType", name, "The referenced machine type does not exist.")
    image = source_image(properties, site, where)
    _check_disk(properties, image, where)
    if image.architecture != MACHINE_TYPES[name].architecture:
        raise bad(f"{where}.disks[0]", image.name, "The image's architecture is not the machine type's.")
    _check_accelerators(properties, where)
    _check_scheduling(properties, where)
    if not site.has_preemption_notice:
        refuse_notice(properties, where)
    _check_metadata(properties.get("metadata", {}).get("items", ()), f"{where}.metadata")
    check_labels(properties.get("labels", {}), f"{where}.labels")
    tags = properties.get("tags", {}).get("items", ())
    if len(tags) > MAX_TAGS:
        raise bad(f"{where}.tags", len(tags), f"At most {MAX_TAGS} tags.")
    for tag in tags:
        if not NAME.fullmatch(tag):
            raise bad(f"{where}.tags", tag, "Must be a match of regex '[a-z]([-a-z0-9]*[a-z0-9])?'")
    accounts = properties.get("serviceAccounts", ())
    if len(accounts) > 1:
        raise bad(f"{where}.serviceAccounts", len(accounts), "At most one service account.")
    for account in accounts:
        if not account.get("scopes"):
            raise bad(f"{where}.serviceAccounts[0].scopes", "", "At least one scope is needed.")
        wrong = [scope for scope in account["scopes"] if not _SCOPE.fullmatch(scope)]
        if wrong:
            raise ApiError(
                400, "invalid", f"One or more of the service account scopes are invalid: '{wrong[0]}'"
            )
        if account.get("email") not in site.service_accounts:
            raise account_not_found(str(account.get("email")))
    _check_policies(properties, site, region, where)
    return _check_network(properties, site, region, where)


def refuse_notice(properties: Mapping[str, Any], where: str) -> None:
    """Refuse a request for a notice, as a project without this feature does."""
    if "preemptionNoticeDuration" in properties.get("scheduling", {}):
        raise ApiError(
            400,
            "invalid",
            'Invalid JSON payload received. Unknown name "preemptionNoticeDuration" at '
            f"'{where}.scheduling': Cannot find field.",
        )


def account_not_found(email: str) -> ApiError:
    """Return the refusal of a service account that does not exist."""
    return ApiError(400, "invalid", f"The resource '{email}' of type 'serviceAccount' was not found.")


def check_labels(labels: Mapping[str, str], where: str) -> None:
    """Refuse labels that break the rules.

    Raises:
        ApiError: 400.
    """
    if len(labels) > 64:
        raise bad(where, len(labels), "At most 64 labels.")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            raise bad(where, key, "Label key must begin with a letter and be of [a-z0-9_-].")
        if not _LABEL_VALUE.fullmatch(value):
            raise bad(where, value, "Label value must be of [a-z0-9_-], 63 characters at most.")


def check_metadata(items: Sequence[Mapping[str, str]]) -> None:
    """Refuse attributes that break the rules.

    Raises:
        ApiError: 400.
    """
    _check_metadata(items, "metadata")


def zones_for(body: Mapping[str, Any], region: str) -> list[str]:
    """Return the zones in which a regional bulk insert may put its machines.

    Raises:
        ApiError: the location policy is not understood, or leaves no zone that has the machines.
    """
    policy = body.get("locationPolicy", {})
    if policy.get("targetShape", "ANY_SINGLE_ZONE") != "ANY_SINGLE_ZONE":
        raise ApiError(501, "notImplemented", "the emulated Compute Engine supports only ANY_SINGLE_ZONE")
    locations = policy.get("locations", {})
    ours = [f"{region}-{letter}" for letter in ZONES[region]]
    for location, configuration in locations.items():
        zone = location.removeprefix("zones/")
        if not location.startswith("zones/") or zone not in ours:
            raise bad("resource.locationPolicy.locations", location, f"It is not a zone of {region}.")
        if set(configuration) - {"preference"}:
            raise ApiError(501, "notImplemented", "the emulated Compute Engine supports no constraints")
    allowed = [zone for zone in ours if locations.get(f"zones/{zone}", {}).get("preference") != "DENY"]
    properties = body["instanceProperties"]
    machine_type = MACHINE_TYPES[properties["machineType"]]
    able = [zone for zone in allowed if is_in(machine_type, zone) and _has_accelerators(properties, zone)]
    if not able:
        raise ApiError(
            400,
            "invalid",
            f"Location policy leaves no zone of {region} where {machine_type.name} is available.",
        )
    for zone in able:
        check_attached(properties, zone, "resource.instanceProperties")
    return able


def grant(
    properties: Mapping[str, Any], zone: str, count: int, machines: Machines, faults: Faults
) -> tuple[int, list[dict[str, Any]]]:
    """Return how many such machines the zone has now, and the errors for the first missing machine."""
    machine_type = MACHINE_TYPES[properties["machineType"]]
    is_spot = properties.get("scheduling", {}).get("provisioningModel") == "SPOT"
    market = "spot" if is_spot else "on-demand"
    alive = machines.alive()
    errors: list[dict[str, Any]] = []
    region = region_of(zone)
    here = [one for one in alive if region_of(one.zone) == region]
    in_quota = faults.num_in_quota(count, here, market=market, vcpus=machine_type.cpus)
    if in_quota < count:
        metric, limit = "PREEMPTIBLE_CPUS" if is_spot else "CPUS", faults.vcpu_quota[market]
        message = f"Quota '{metric}' exceeded.  Limit: {limit:.1f} in region {region}."
        errors = [{"code": "QUOTA_EXCEEDED", "message": message}]
    granted = faults.num_in_stock(in_quota, alive, zone=zone, instance_type=machine_type.name, market=market)
    if granted < in_quota:
        message = (
            f"The zone 'projects/x/zones/{zone}' does not have enough resources available to fulfill the "
            f"request.  '(resource type:compute)'."
        )
        errors = [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "message": message}]
    return granted, errors


def names_of(body: Mapping[str, Any], taken: Sequence[str]) -> list[str]:
    """Return the names of the machines that a bulk insert requests.

    Raises:
        ApiError: the names cannot be determined, are malformed, or are not as many as requested.
    """
    count = int(body.get("count", 0))
    minimum = int(body.get("minCount", count))
    if not 1 <= count <= 1000:
        raise bad("resource.count", count, "Values must be within the range: [1, 1000]")
    if not 1 <= minimum <= count:
        raise bad("resource.minCount", minimum, "It must be within the range: [1, count]")
    named, pattern = body.get("perInstanceProperties", {}), body.get("namePattern", "")
    if bool(named) == bool(pattern):
        raise bad("resource.namePattern", pattern, "Exactly one of it and perInstanceProperties must be set.")
    if named:
        if len(named) != count:
            raise bad("resource.perInstanceProperties", len(named), "There must be as many as count.")
        names = sorted(named)
    else:
        match = re.fullmatch(r"([^#]*)(#+)([^#]*)", pattern)
        if match is None:
            raise bad("resource.namePattern", pattern, "One sequence of # is needed.")
        first = 1
        while any(f"{match[1]}{first + i:0{len(match[2])}}{match[3]}" in taken for i in range(count)):
            first += 1
        names = [f"{match[1]}{first + i:0{len(match[2])}}{match[3]}" for i in range(count)]
    for name in names:
        if not NAME.fullmatch(name):
            raise bad("resource.name", name, f"Must be a match of regex '{NAME.pattern}'")
    return names


def source_image(properties: Mapping[str, Any], site: Site, where: str) -> Image:
    """Return the image of the boot disk.

    Raises:
        ApiError: the number of boot disks is not one, or the image does not exist or is not ready.
    """
    disks = properties.get("disks", ())
    boots = [one for one in disks if one.get("boot")]
    if len(disks) != 1 or len(boots) != 1:
        raise bad(
            f"{where}.disks", len(disks), "Boot disk must be specified, and the emulation knows it alone."
        )
    source = HOST.sub("", boots[0].get("initializeParams", {}).get("sourceImage", ""))
    image = next((one for one in site.images if one.path == source), None)
    if image is None and ("/family/" in source or "/imageFamilyViews/" in source):
        family = source.rpartition("/")[2]
        image = next((one for one in site.images if one.family == family), None)
    if image is None:
        raise missing(site, source)
    if image.status != "READY":
        raise ApiError(400, "resourceNotReady", f"The resource '{image.path}' is not ready")
    return image


def _check_disk(properties: Mapping[str, Any], image: Image, where: str) -> None:
    (disk,) = properties["disks"]
    parameters = disk.get("initializeParams", {})
    if disk.get("type", "PERSISTENT") != "PERSISTENT":
        raise bad(f"{where}.disks[0].type", disk["type"], "Boot disk must be a persistent disk.")
    size = int(parameters.get("diskSizeGb", image.size_gib))
    if size > MAX_DISK_GB:
        raise bad(
            f"{where}.disks[0].initializeParams.diskSizeGb",
            size,
            f"Disk size must be at most {MAX_DISK_GB} GB.",
        )
    if size < image.size_gib:
        raise bad(
            f"{where}.disks[0].initializeParams.diskSizeGb",
            size,
            f"Requested disk size cannot be smaller than the image size ({image.size_gib} GB)",
        )
    kind = parameters.get("diskType", "pd-standard")
    machine_type = MACHINE_TYPES[properties["machineType"]]
    if kind not in _DISK_TYPES:
        raise bad(f"{where}.disks[0].initializeParams.diskType", kind, "The disk type does not exist.")
    if kind not in machine_type.disks:
        # The wording is from public reports of this refusal.
        raise ApiError(
            400, "badRequest", f"{kind} disk type cannot be used by {machine_type.name} machine type"
        )
    check_labels(parameters.get("labels", {}), f"{where}.disks[0].initializeParams.labels")


def _check_accelerators(properties: Mapping[str, Any], where: str) -> None:
    machine_type = MACHINE_TYPES[properties["machineType"]]
    for i, one in enumerate(properties.get("guestAccelerators", ())):
        kind, count = one.get("acceleratorType", ""), one.get("acceleratorCount", 0)
        field = f"{where}.guestAccelerators[{i}]"
        if kind not in ATTACHABLE:
            raise bad(f"{field}.acceleratorType", kind, "The referenced accelerator type does not exist.")
        if machine_type.family != "n1":
            raise incompatible(kind, machine_type.name)
        limits = ATTACHABLE[kind].limits
        if count not in limits:
            raise bad(
                f"{field}.acceleratorCount",
                count,
                f"Number of accelerator cards attached to an instance must be one of {list(limits)}.",
            )


def incompatible(one: str, other: str) -> ApiError:
    """Return the refusal to combine two features (wording: skypilot-org/skypilot#212)."""
    return ApiError(400, "badRequest", f"[{one}, {other}] features are not compatible for creating instance.")


def check_attached(properties: Mapping[str, Any], zone: str, where: str) -> None:
    """Refuse a machine that, in this zone, is too large for the accelerators attached to it.

    Source: "GPU machine types", N1 machine series; the wording about vCPUs is google/deepvariant#70's.

    Raises:
        ApiError: 400.
    """
    machine_type = MACHINE_TYPES[properties["machineType"]]
    for i, one in enumerate(properties.get("guestAccelerators", ())):
        count = one["acceleratorCount"]
        most_cpus, most_gb = ATTACHABLE[one["acceleratorType"]].limit(count, zone)
        cards = f"can be used along with {count} accelerator cards in an instance."
        field = f"{where}.guestAccelerators[{i}].acceleratorCount"
        if machine_type.cpus > most_cpus:
            raise bad(field, count, f"At most {most_cpus} vCPUs {cards}")
        if machine_type.memory_mib > most_gb * 1024:
            raise bad(field, count, f"At most {most_gb} GB of memory {cards}")


def _has_accelerators(properties: Mapping[str, Any], zone: str) -> bool:
    attached = properties.get("guestAccelerators", ())
    return all(zone in ATTACHABLE[one["acceleratorType"]].zones for one in attached)


def _check_scheduling(properties: Mapping[str, Any], where: str) -> None:
    scheduling = properties.get("scheduling", {})
    field = f"{where}.scheduling"
    model = scheduling.get("provisioningModel", "SPOT" if scheduling.get("preemptible") else "STANDARD")
    machine_type = MACHINE_TYPES[properties["machineType"]]
    is_spot = model == "SPOT"
    if scheduling.get("preemptible") and not is_spot:
        raise bad(
            f"{field}.provisioningModel",
            model,
            "For preemptible, only allowed provisioning_model value is SPOT",  # skypilot-org/skypilot#3235
        )
    if model not in machine_type.provisioning_models:
        how = " or ".join(sorted(machine_type.provisioning_models)) or "a reservation"
        raise bad(f"{field}.provisioningModel", model, f"{machine_type.name} machines need {how}.")
    maintenance = scheduling.get("onHostMaintenance", "TERMINATE" if is_spot else "MIGRATE")
    if is_spot and scheduling.get("automaticRestart", True):
        raise bad(field, "automaticRestart", "Scheduling must have automaticRestart be false for spot VMs.")
    if is_spot and maintenance != "TERMINATE":
        raise bad(field, "onHostMaintenance", "Spot VMs must have onHostMaintenance TERMINATE.")
    has_accelerators = bool(properties.get("guestAccelerators")) or bool(machine_type.accelerator)
    if has_accelerators and maintenance != "TERMINATE":
        raise bad(
            field, "onHostMaintenance", "Instances with guest accelerators do not support live migration."
        )
    limit = scheduling.get("maxRunDuration")
    if limit is not None and "terminationTime" in scheduling:
        raise bad(
            f"{field}.terminationTime",
            scheduling["terminationTime"],
            "Only one of it and maxRunDuration can be set.",
        )
    if limit is not None and not 30 <= int(limit.get("seconds", 0)) <= MAX_RUN_SECONDS:
        raise bad(f"{field}.maxRunDuration", limit.get("seconds"), "It must be from 30 seconds to 120 days.")
    if "instanceTerminationAction" in scheduling and not is_spot and limit is None:
        raise bad(
            f"{field}.instanceTerminationAction",
            scheduling["instanceTerminationAction"],
            "It needs a spot VM or a limit of its run time.",
        )
    notice = scheduling.get("preemptionNoticeDuration")
    if notice is not None and (not is_spot or not 0 <= int(notice.get("seconds", 0)) <= 120):
        raise bad(f"{field}.preemptionNoticeDuration", notice, "Spot VMs alone have it, 120 seconds at most.")


def _check_metadata(items: Sequence[Mapping[str, str]], field: str) -> None:
    keys = [item.get("key", "") for item in items]
    for item in items:
        key, value = item.get("key", ""), item.get("value", "")
        if not _KEY.fullmatch(key) or keys.count(key) > 1:
            raise bad(f"{field}.items", key, "Keys are unique, of [a-zA-Z0-9-_], 128 characters at most.")
        if len(value.encode()) > MAX_VALUE_BYTES:
            raise bad(f"{field}.items", key, f"The value has more than {MAX_VALUE_BYTES} bytes.")
    if (
        sum(len(item.get("key", "")) + len(item.get("value", "").encode()) for item in items)
        > MAX_METADATA_BYTES
    ):
        raise bad(f"{field}.items", "", f"All have more than {MAX_METADATA_BYTES} bytes.")


def _check_policies(properties: Mapping[str, Any], site: Site, region: str, where: str) -> None:
    for name in properties.get("resourcePolicies", ()):
        path = f"regions/{region}/resourcePolicies/{name}"
        if "/" in name or path not in site.policies:
            raise missing(site, path)
        machine_type = MACHINE_TYPES[properties["machineType"]]
        if "groupPlacementPolicy" in site.policies[path] and machine_type.family not in COMPACT_FAMILIES:
            raise bad(
                f"{where}.resourcePolicies", name, f"Compact placement does not support {machine_type.name}."
            )


def _check_network(properties: Mapping[str, Any], site: Site, region: str, where: str) -> dict[str, str]:
    interfaces = properties.get("networkInterfaces", ())
    if len(interfaces) != 1:
        raise bad(
            f"{where}.networkInterfaces", len(interfaces), "At least one network interface is required."
        )
    field, interface = f"{where}.networkInterfaces[0]", interfaces[0]
    for access in interface.get("accessConfigs", ()):
        if access.get("type", "ONE_TO_ONE_NAT") != "ONE_TO_ONE_NAT":
            raise bad(f"{field}.accessConfigs", access, "Its type must be ONE_TO_ONE_NAT.")
    subnetwork = _of_project(interface.get("subnetwork", ""), site)
    network = _of_project(interface.get("network", ""), site)
    if subnetwork:
        if subnetwork not in site.subnetworks:
            raise missing(site, subnetwork)
        if not subnetwork.startswith(f"regions/{region}/"):
            raise bad(f"{field}.subnetwork", subnetwork, f"It is not in the region {region}.")
        if network and network != site.subnetworks[subnetwork]:
            raise bad(f"{field}.subnetwork", subnetwork, f"It is not of the network {network}.")
        network = site.subnetworks[subnetwork]
    else:
        network = network or "global/networks/default"
        if network not in site.networks:
            raise missing(site, network)
        subnetwork = next(
            (
                one
                for one, of in site.subnetworks.items()
                if of == network and one.startswith(f"regions/{region}/")
            ),
            "",
        )
        if not subnetwork:
            raise bad(f"{field}.subnetwork", "", f"The network {network} has none in {region}: name one.")
    return {
        "network": f"projects/{site.project}/{network}",
        "subnetwork": f"projects/{site.project}/{subnetwork}",
    }


def _of_project(path: str, site: Site) -> str:
    path = re.sub(r"^https://[^/]+/compute/v1/", "", path)
    return HOST.sub("", path).removeprefix(f"projects/{site.project}/")
