"""Renders the bulk insert of a launch, without I/O: the offer holds all looked-up values."""

from __future__ import annotations

import math
import uuid
from typing import Any, Final

import msgspec

from cloudspot.errors import SpecError
from cloudspot.model import DEFAULT_MASTER_PORT, InstanceGroup, LaunchRequest, Market
from cloudspot.plugin import machinetags
from cloudspot.plugin.launchrequests import boot_disk_gib
from cloudspot_gcp import attributes, shutdownscript
from cloudspot_gcp.options import GcpOptions, subnetwork_region

STARTUP_SCRIPT: Final = "startup-script"
"""The attribute whose value the guest agent runs as root at each boot."""
MAX_SCRIPT_BYTES: Final = 262144
"""The maximum length of one attribute (Compute Engine documentation, "Set custom metadata", limitations)."""
MIN_RUN_SECONDS: Final = 30
MAX_RUN_SECONDS: Final = 120 * 24 * 3600
"""The maximum of maxRunDuration ("Limit the run time of a VM"; checked 2026-11)."""
GRACE_SECONDS: Final = 600
"""How long Compute Engine waits for the machine's own timer, which ends the machine in good order."""
NOTICE_FIELD: Final = "preemptionNoticeDuration"
_TOKEN_SPACE: Final = uuid.UUID("6f2a4c7e-51d8-4d8b-9a35-0c3e8a6f1b27")


class ComputeRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a launch request."""

    project: str
    region: str
    """A request id is valid in one project and region; the same request elsewhere would launch again."""
    bulk_insert: dict[str, Any]
    """The body of regionInstances.bulkInsert in the REST API."""
    has_setup_image: bool = False
    """Whether the machines' image was made by ``cloudspot image bake``."""
    made_placement_policy: str | None = None
    """The placement policy to make before the first machine, and to remove with the job."""

    @property
    def machine_type(self) -> str:
        """Return the machine type, such as ``n2-standard-4``."""
        return str(self.bulk_insert["instanceProperties"]["machineType"])

    @property
    def market(self) -> Market:
        """Return the market of the machines."""
        scheduling = self.bulk_insert["instanceProperties"]["scheduling"]
        return Market.SPOT if scheduling["provisioningModel"] == "SPOT" else Market.ON_DEMAND

    @property
    def store_url(self) -> str:
        """Return the URL of the job's store in the machines' metadata."""
        items = self.bulk_insert["instanceProperties"]["metadata"]["items"]
        return next((str(one["value"]) for one in items if one["key"] == machinetags.STORE), "")

    @property
    def labels(self) -> dict[str, str]:
        """Return the machines' labels."""
        return dict(self.bulk_insert["instanceProperties"]["labels"])


def request_id(token: str) -> str:
    """Return the UUID that Compute Engine needs for a launch token; it is always the same."""
    return str(uuid.uuid5(_TOKEN_SPACE, token))


def without_notice(body: ComputeRequest) -> ComputeRequest:
    """Return the request without its reclaim notice, which its metadata then states as 0."""
    properties = body.bulk_insert["instanceProperties"]
    scheduling = {name: value for name, value in properties["scheduling"].items() if name != NOTICE_FIELD}
    items = [
        {**one, "value": "0"} if one["key"] == attributes.NOTICE_SECONDS else one
        for one in properties["metadata"]["items"]
    ]
    changed = {**properties, "scheduling": scheduling, "metadata": {**properties["metadata"], "items": items}}
    return msgspec.structs.replace(body, bulk_insert={**body.bulk_insert, "instanceProperties": changed})


def render_request(options: GcpOptions, group: InstanceGroup) -> LaunchRequest:
    """Return one bulk insert for the group; raise SpecError if the boot script is too long."""
    size = len(group.user_data.encode())
    if size > MAX_SCRIPT_BYTES:
        raise SpecError(
            f"the boot script has {size} bytes, but Compute Engine accepts only {MAX_SCRIPT_BYTES}: put "
            "less into the boot profile"
        )
    details = group.offer.details
    made_policy = None
    if options.placement_policy == "auto" and group.job_nodes > 1:
        made_policy = policy_name(group.job_id, group.store_url)
    names = [
        attributes.machine_name(group.job_id, group.store_url, group.launch, rank)
        for rank in range(group.num_nodes)
    ]
    policy = made_policy if options.placement_policy == "auto" else options.placement_policy
    body = ComputeRequest(
        project=details["project"],
        region=group.offer.region,
        bulk_insert={
            "count": str(group.num_nodes),
            "minCount": str(group.min_nodes),
            "perInstanceProperties": {name: {} for name in names},
            "locationPolicy": _location_policy(group),
            "instanceProperties": _properties(options, group, names[0], policy),
        },
        has_setup_image=group.offer.has_setup,
        made_placement_policy=made_policy,
    )
    return LaunchRequest(provider="gcp", body=msgspec.to_builtins(body))


def policy_name(job_id: str, store_url: str) -> str:
    """Return the name of the placement policy that is made for a job in a region.

    The name contains the store, because a job in another store may have the same id.
    """
    return f"{attributes.machine_stem(job_id)}-{machinetags.store_digest(store_url)}"


def _location_policy(group: InstanceGroup) -> dict[str, Any]:
    """Return the zones from which Compute Engine chooses one with capacity."""
    details = group.offer.details
    locations = {f"zones/{zone}": {"preference": "ALLOW"} for zone in details["zones"].split(",")}
    for zone in filter(None, details.get("other_zones", "").split(",")):
        locations[f"zones/{zone}"] = {"preference": "DENY"}
    return {"targetShape": "ANY_SINGLE_ZONE", "locations": locations}


def _properties(
    options: GcpOptions, group: InstanceGroup, first_name: str, policy: str | None
) -> dict[str, Any]:
    details = group.offer.details
    labels = {
        **options.labels,
        machinetags.JOB: group.job_id,
        machinetags.LAUNCH: str(group.launch),
        machinetags.STORE: machinetags.store_digest(group.store_url),
    }
    properties: dict[str, Any] = {
        "description": f"cloudspot: job {group.job_id}, launch {group.launch}",
        "machineType": group.offer.instance_type,
        "labels": labels,
        "disks": [_boot_disk(options, group, labels)],
        "networkInterfaces": [_interface(options, group.offer.region)],
        "serviceAccounts": [
            {"email": details["service_account"], "scopes": list(options.scopes)},
        ],
        "scheduling": _scheduling(options, group, is_placed=policy is not None),
        "metadata": {
            "items": [
                {"key": key, "value": text} for key, text in _attributes(options, group, first_name).items()
            ]
        },
    }
    if "accelerator" in details:
        properties["guestAccelerators"] = [
            {
                "acceleratorType": details["accelerator"],
                "acceleratorCount": int(details["accelerator_count"]),
            }
        ]
    if options.network_tags:
        properties["tags"] = {"items": list(options.network_tags)}
    if policy is not None:
        properties["resourcePolicies"] = [policy]
    return properties


def _boot_disk(options: GcpOptions, group: InstanceGroup, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": group.offer.image,
            "diskSizeGb": str(boot_disk_gib(group, wanted_bytes=options.disk)),
            "diskType": options.disk_type,
            "labels": labels,
        },
    }


def _interface(options: GcpOptions, region: str) -> dict[str, Any]:
    interface: dict[str, Any] = {}
    subnetwork = next((one for one in options.subnetworks if subnetwork_region(one) == region), None)
    if subnetwork is None:
        network = options.network
        interface["network"] = network if "/" in network else f"global/networks/{network}"
    else:
        interface["subnetwork"] = subnetwork
    if options.public_ip:
        interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    return interface


def _scheduling(options: GcpOptions, group: InstanceGroup, *, is_placed: bool) -> dict[str, Any]:
    """Return the scheduling, which deletes the machines at a reclaim or when their time is up.

    Source: Compute Engine documentation, "Create and use Spot VMs", "Limit the run time of a VM", and the
    description of Scheduling in the API's discovery document (checked 2026-11).
    """
    limit = math.ceil(group.max_seconds) + GRACE_SECONDS
    scheduling: dict[str, Any] = {
        "provisioningModel": "STANDARD",
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": str(min(max(limit, MIN_RUN_SECONDS), MAX_RUN_SECONDS))},
    }
    # Machines with accelerators, or placed close together, cannot move to another host while they run.
    can_move = not group.offer.details.get("has_accelerator") and not is_placed
    scheduling["onHostMaintenance"] = "MIGRATE" if can_move else "TERMINATE"
    if group.offer.market is Market.SPOT:
        scheduling |= {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE"}
        if options.preemption_notice:
            scheduling[NOTICE_FIELD] = {"seconds": f"{options.preemption_notice:.0f}"}
    return scheduling


def _attributes(options: GcpOptions, group: InstanceGroup, first_name: str) -> dict[str, str]:
    metadata = {
        machinetags.JOB: group.job_id,
        machinetags.LAUNCH: str(group.launch),
        machinetags.STORE: group.store_url,
        machinetags.MAX_SECONDS: f"{group.max_seconds:.0f}",
        attributes.NUM_NODES: str(group.job_nodes),
        attributes.MASTER_ADDR: first_name,
        machinetags.MASTER_PORT: str(DEFAULT_MASTER_PORT),
        STARTUP_SCRIPT: group.user_data,
        shutdownscript.KEY: shutdownscript.SCRIPT,
    }
    if group.offer.market is Market.SPOT:
        metadata[attributes.NOTICE_SECONDS] = f"{options.preemption_notice:.0f}"
    return metadata
