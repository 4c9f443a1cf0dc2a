"""Renders the RunInstances request of a launch, without I/O: the offer holds all looked-up values."""

from __future__ import annotations

import base64
import math
from datetime import datetime, timezone
from typing import Any, Final

import msgspec

from cloudspot.errors import SpecError
from cloudspot.model import InstanceGroup, LaunchRequest, Market, Resources
from cloudspot.plugin.launchrequests import disk_gib, pack_script
from cloudspot.plugin.machinetags import store_digest, tags_of
from cloudspot_aliyun import names, tags
from cloudspot_aliyun.options import AliyunOptions, field_error

MAX_USER_DATA_BYTES: Final = 32768
"""The limit before base64 (ECS user guide, "Instance user data", checked 2026-11)."""
MAX_AMOUNT: Final = 100
"""The maximum number of machines in one RunInstances call (API reference; checked 2026-11)."""
MAX_IN_SET: Final = 20
"""The maximum number of machines of a deployment set in one zone ("Improve business availability by using
deployment sets", strategy Availability; checked 2026-11).
"""
MIN_DISK_GIB: Final = 20
LEAST_GIB: Final = {"PL2": 461, "PL3": 1261}
"""The smallest cloud_essd disk for a performance level (API reference, CreateDisk; checked 2026-11)."""
RELEASE_GRACE_SECONDS: Final = 1800.0
"""How long ECS waits for the machine's own timer, which ends the machine in good order. The time allows for a
request that is repeated ten minutes after the decision, and for a clock that is a quarter of an hour slow;
ECS accepts no signature from a slower clock.
"""
LEAST_RELEASE_SECONDS: Final = 3600.0
"""By its own clock, ECS accepts no time within the next 30 minutes (API reference, RunInstances; checked
2026-11).
"""


class EcsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a launch request."""

    region: str
    """A token is valid in one region; the same request in another region would launch again."""
    run_instances: dict[str, Any]
    """The parameters of RunInstances under ECS's names, without ClientToken, UserData and the values that are
    not known before the launch.
    """
    user_data: str | None = None
    """The boot script, uncompressed."""
    user_data_gzip: str | None = None
    """The compressed boot script in base64, if the script itself is too long for ECS."""
    has_setup_image: bool = False
    """Whether the machines' image was made by ``cloudspot image bake``."""
    made_deployment_set: str | None = None
    """The name of the deployment set to make before the first machine, and to remove with the job."""


def render_request(options: AliyunOptions, group: InstanceGroup) -> LaunchRequest:
    """Return one RunInstances call for all machines of the group.

    The call includes ECS's own limit on the machines' lives (AutoReleaseTime), so that every machine has a
    limit, even if no controller runs any more. The limit depends on the time of the decision, because a
    repeated request must have the same bytes: ECS refuses a token with different parameters.

    Raises:
        SpecError: the boot script is too long for ECS, even compressed; there are too many machines, or too
            many for a deployment set; or the disk is too small for its performance level.
    """
    if group.num_nodes > MAX_AMOUNT:
        raise SpecError(f"nodes: ECS launches at most {MAX_AMOUNT} machines at once; got {group.num_nodes}")
    if options.deployment_set is not None and group.num_nodes > MAX_IN_SET:
        raise field_error(
            "deployment_set",
            f"a set holds at most {MAX_IN_SET} machines in a zone, and this launch has {group.num_nodes}; "
            "leave it out, or ask for fewer nodes",
        )
    details = group.offer.details
    parameters: dict[str, Any] = {
        "InstanceType": group.offer.instance_type,
        "ImageId": group.offer.image,
        "ZoneId": group.offer.zone,
        "VSwitchId": details["vswitch"],
        "SecurityGroupIds": details["security_groups"].split(","),
        "Amount": group.num_nodes,
        "MinAmount": group.min_nodes,
        "InstanceName": names.instance_name(group.job_id, group.launch, group.num_nodes),
        "HostName": names.host_name(group.job_id, group.launch, group.num_nodes),
        "InstanceChargeType": "PostPaid",
        **_market(options, group.offer.market),
        "SystemDisk": system_disk(options, image_gib=group.offer.image_gib, resources=group.resources),
        "RamRoleName": options.role,
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "InternetMaxBandwidthOut": options.public_bandwidth,
        "Tag": tags.to_list({**options.tags, **tags_of(group)}),
    }
    if group.decided_at is not None:
        parameters["AutoReleaseTime"] = release_time(group.decided_at, group.max_seconds)
    if options.metadata_hops > 1:  # Some accounts lack this parameter (RunInstances, checked 2026-11).
        parameters["HttpPutResponseHopLimit"] = options.metadata_hops
    if options.public_bandwidth:
        parameters["InternetChargeType"] = "PayByTraffic"
    if options.key_pair is not None:
        parameters["KeyPairName"] = options.key_pair
    if options.resource_group is not None:
        parameters["ResourceGroupId"] = options.resource_group
    made_set = None
    if options.deployment_set == "auto":
        # A job with a single machine needs no set.
        made_set = deployment_set_name(group.job_id, group.store_url) if group.job_nodes > 1 else None
    elif options.deployment_set is not None:
        parameters["DeploymentSetId"] = options.deployment_set
    packed = pack_script(group.user_data, most=MAX_USER_DATA_BYTES, service="ECS")
    body = EcsRequest(
        region=group.offer.region,
        run_instances=parameters,
        user_data=group.user_data if packed is None else None,
        user_data_gzip=packed,
        has_setup_image=group.offer.has_setup,
        made_deployment_set=made_set,
    )
    return LaunchRequest(provider="aliyun", body=msgspec.to_builtins(body))


def parameters_of(request: EcsRequest, token: str) -> dict[str, Any]:
    """Return the parameters to send; the same request and token give the same bytes."""
    return {
        **request.run_instances,
        "UserData": base64.b64encode(user_data_of(request)).decode("ascii"),
        "ClientToken": token,
    }


def release_time(decided_at: datetime, seconds: float) -> str:
    """Return when ECS releases a machine that may live for ``seconds``, rounded up to a minute."""
    due = decided_at.timestamp() + max(seconds + RELEASE_GRACE_SECONDS, LEAST_RELEASE_SECONDS)
    return f"{datetime.fromtimestamp(math.ceil(due / 60) * 60, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def deployment_set_name(job_id: str, store_url: str) -> str:
    """Return the name of a job's set, with its store, because a job in another store may have the same id."""
    return f"cloudspot-{job_id}-{store_digest(store_url)}"


def user_data_of(request: EcsRequest) -> bytes:
    """Return the machines' user data, in the form in which ECS hands it to them."""
    if request.user_data_gzip is not None:
        return base64.b64decode(request.user_data_gzip)
    return (request.user_data or "").encode()


def _market(options: AliyunOptions, market: Market) -> dict[str, Any]:
    if market is not Market.SPOT:
        return {"SpotStrategy": "NoSpot"}
    spot: dict[str, Any] = {
        "SpotStrategy": "SpotAsPriceGo",
        # Protection from a reclaim for an hour, or none.
        "SpotDuration": 1 if options.protected_hour else 0,
        "SpotInterruptionBehavior": "Terminate",
    }
    if options.max_price is not None:
        spot["SpotStrategy"] = "SpotWithPriceLimit"
        spot["SpotPriceLimit"] = options.max_price
    return spot


def system_disk(options: AliyunOptions, *, image_gib: int, resources: Resources) -> dict[str, Any]:
    """Return the parameters of the system disk in a request.

    Raises:
        SpecError: the disk is too small for its performance level.
    """
    size_gib = max(disk_gib(image_gib, resources, wanted_bytes=options.disk), MIN_DISK_GIB)
    least = LEAST_GIB.get(options.disk_performance or "", 0)
    if size_gib < least:
        raise field_error(
            "disk_performance",
            f"a disk of {options.disk_performance} has at least {least} GiB, and this one would have "
            f"{size_gib}; set providers.aliyun.disk",
        )
    disk = {"Category": options.disk_type, "Size": str(size_gib)}
    if options.disk_performance is not None:
        disk["PerformanceLevel"] = options.disk_performance
    return disk
