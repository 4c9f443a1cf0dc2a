"""Renders the very RunInstances request of a launch; pure: all that must be looked up stands in the offer."""

from __future__ import annotations

import base64
import gzip
import hashlib
import math
from datetime import datetime, timezone
from typing import Any, Final

import msgspec

from cloudspot.decoding import convert
from cloudspot.errors import ProvisionError, SpecError
from cloudspot.model import DEFAULT_MASTER_PORT, InstanceGroup, LaunchRequest, Market
from cloudspot_aliyun import names, tags
from cloudspot_aliyun.options import AliyunOptions

MAX_USER_DATA_BYTES: Final = 32768
"""Raw, before base64 (ECS user guide, "Instance user data", checked 2026-11; it was 16 KB in years past)."""
MAX_AMOUNT: Final = 100
"""Machines of one RunInstances call (API reference; checked 2026-11)."""
MIN_DISK_GIB: Final = 20
RELEASE_GRACE_SECONDS: Final = 1800.0
"""The machine's own timer comes first and ends it in good order, though the machine may be made ten minutes
after the decision, by whoever sends the request again, and the clock be a quarter of an hour slow: with a
slower one ECS takes no signature."""
LEAST_RELEASE_SECONDS: Final = 3600.0
"""ECS takes none nearer than 30 minutes by its own clock (API reference, RunInstances; checked 2026-11)."""
GIB: Final = 2**30
DEFAULT_EXTRA_GIB: Final = 50
"""What is left free on the system disk where nobody says how much is needed."""


class EcsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a launch request."""

    region: str
    """A token counts per region: the same request in another one would launch again."""
    run_instances: dict[str, Any]
    """The parameters of RunInstances as ECS names them, but for ClientToken, UserData and what is not known
    before the launch."""
    user_data: str = ""
    """The boot script, as people can read it."""
    user_data_gzip: str | None = None
    """Compressed and in base64, where the script itself is too long for ECS."""
    made_deployment_set: str | None = None
    """The name of the set to make before the first machine, and to remove with the job."""


def decode_request(request: LaunchRequest) -> EcsRequest:
    """Return the body of a stored request.

    Raises:
        ProvisionError: it is none of this provider's.
    """
    try:
        body: EcsRequest = convert(request.body, EcsRequest)
        return body
    except msgspec.ValidationError as error:
        raise ProvisionError(f"the request is none of provider 'aliyun': {error}") from error


def render_request(options: AliyunOptions, group: InstanceGroup, *, provider: str) -> LaunchRequest:
    """Return one RunInstances call for all machines of the group.

    The limit that ECS itself keeps on the machines' lives (AutoReleaseTime) is a part of it, so that no
    machine is ever without one, whatever becomes of the controllers. It follows from the time of the
    decision: the same bytes are sent again later, and ECS refuses a token with other parameters.

    Raises:
        SpecError: the boot script is too long for ECS, even compressed, or there are too many machines.
    """
    if group.num_nodes > MAX_AMOUNT:
        raise SpecError(f"nodes: ECS launches {MAX_AMOUNT} machines at once at most; got {group.num_nodes}")
    details = group.offer.details
    parameters: dict[str, Any] = {
        "InstanceType": group.offer.instance_type,
        "ImageId": details["image"],
        "ZoneId": group.offer.zone,
        "VSwitchId": details["vswitch"],
        "SecurityGroupIds": details["security_groups"].split(","),
        "Amount": group.num_nodes,
        "MinAmount": group.min_nodes,
        "InstanceName": names.instance_name(group.job_id, group.launch, group.num_nodes),
        "HostName": names.host_name(group.job_id, group.launch, group.num_nodes),
        "InstanceChargeType": "PostPaid",
        **_market(options, group.offer.market),
        "SystemDisk": _system_disk(options, group),
        "RamRoleName": options.role,
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "InternetMaxBandwidthOut": options.public_bandwidth,
        "Tag": tags.to_list(_tags(options, group)),
    }
    if group.decided_at is not None:
        parameters["AutoReleaseTime"] = release_time(group.decided_at, group.max_seconds)
    if options.metadata_hops > 1:  # Not every account has the parameter (RunInstances, checked 2026-11).
        parameters["HttpPutResponseHopLimit"] = options.metadata_hops
    if options.public_bandwidth:
        parameters["InternetChargeType"] = "PayByTraffic"
    if options.key_pair is not None:
        parameters["KeyPairName"] = options.key_pair
    if options.resource_group is not None:
        parameters["ResourceGroupId"] = options.resource_group
    made_set = None
    if options.deployment_set == "auto":
        # One machine alone has nothing to keep away from.
        made_set = deployment_set_name(group.job_id, group.store_url) if group.num_nodes > 1 else None
    elif options.deployment_set is not None:
        parameters["DeploymentSetId"] = options.deployment_set
    body: dict[str, Any] = {
        "region": details["region"],
        "run_instances": parameters,
        **_user_data(group.user_data),
    }
    if made_set is not None:
        body["made_deployment_set"] = made_set
    return LaunchRequest(provider=provider, body=body)


def parameters_of(request: EcsRequest, token: str) -> dict[str, Any]:
    """Return what RunInstances is asked; the same request and token give the same bytes."""
    return {
        **request.run_instances,
        "UserData": base64.b64encode(user_data_of(request)).decode("ascii"),
        "ClientToken": token,
    }


def release_time(decided_at: datetime, seconds: float) -> str:
    """Return when ECS shall release a machine that may live for so long: a whole minute, never too early."""
    due = decided_at.timestamp() + max(seconds + RELEASE_GRACE_SECONDS, LEAST_RELEASE_SECONDS)
    return f"{datetime.fromtimestamp(math.ceil(due / 60) * 60, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def deployment_set_name(job_id: str, store_url: str) -> str:
    """Return the name of a job's set; another store may have a job of the same id."""
    store = hashlib.sha256(store_url.encode()).hexdigest()[:8]
    return f"cloudspot-{job_id}-{store}"


def user_data_of(request: EcsRequest) -> bytes:
    """Return the machines' user data as ECS will hand it to them."""
    if request.user_data_gzip is not None:
        return base64.b64decode(request.user_data_gzip)
    return request.user_data.encode()


def _user_data(script: str) -> dict[str, str]:
    """Return the script, or, where it is too long, the compressed script in base64.

    cloud-init unpacks gzip (its documentation, "User data formats"). A script that came from the bucket
    by a signed URL would need a secret that expires in a request that is stored and replayed.
    """
    raw = script.encode()
    if len(raw) <= MAX_USER_DATA_BYTES:
        return {"user_data": script}
    # Without a time and a file name: the same script gives the same bytes.
    packed = gzip.compress(raw, compresslevel=9, mtime=0)
    if len(packed) > MAX_USER_DATA_BYTES:
        raise SpecError(
            f"the boot script has {len(raw)} bytes and {len(packed)} compressed; ECS takes "
            f"{MAX_USER_DATA_BYTES}: put less into the boot profile"
        )
    return {"user_data_gzip": base64.b64encode(packed).decode("ascii")}


def _market(options: AliyunOptions, market: Market) -> dict[str, Any]:
    if market is not Market.SPOT:
        return {"SpotStrategy": "NoSpot"}
    spot: dict[str, Any] = {
        "SpotStrategy": "SpotAsPriceGo",
        # An hour's protection, or none.
        "SpotDuration": 1 if options.protected_hour else 0,
        "SpotInterruptionBehavior": "Terminate",
    }
    if options.max_price is not None:
        spot["SpotStrategy"] = "SpotWithPriceLimit"
        spot["SpotPriceLimit"] = options.max_price
    return spot


def _system_disk(options: AliyunOptions, group: InstanceGroup) -> dict[str, Any]:
    image_gib = int(group.offer.details["image_gib"])
    if options.disk:
        size_gib = math.ceil(options.disk / GIB)
    else:
        size_gib = image_gib + (math.ceil(group.resources.disk_bytes / GIB) or DEFAULT_EXTRA_GIB)
    disk = {"Category": options.disk_type, "Size": str(max(size_gib, image_gib, MIN_DISK_GIB))}
    if options.disk_performance is not None:
        disk["PerformanceLevel"] = options.disk_performance
    return disk


def _tags(options: AliyunOptions, group: InstanceGroup) -> dict[str, str]:
    own = {
        tags.JOB: group.job_id,
        tags.LAUNCH: str(group.launch),
        tags.NUM_NODES: str(group.num_nodes),
        tags.MAX_SECONDS: f"{group.max_seconds:.0f}",
        tags.MASTER_PORT: str(DEFAULT_MASTER_PORT),
    }
    if group.store_url:
        own[tags.STORE] = group.store_url
    return {**options.tags, **own}
