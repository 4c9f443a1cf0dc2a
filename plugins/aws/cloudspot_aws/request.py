"""Renders the very RunInstances request of a launch; pure: all that must be looked up stands in the offer."""

from __future__ import annotations

import base64
import gzip
import math
from typing import Any, Final

import msgspec

from cloudspot.decoding import convert
from cloudspot.errors import ProvisionError, SpecError
from cloudspot.model import DEFAULT_MASTER_PORT, InstanceGroup, LaunchRequest, Market
from cloudspot_aws import tags
from cloudspot_aws.options import AwsOptions

MAX_USER_DATA_BYTES: Final = 16384
"""Raw, before base64 (EC2 API reference, RunInstances, UserData; checked 2026-11)."""
GIB: Final = 2**30
DEFAULT_EXTRA_GIB: Final = 50
"""What is left free on the root disk where nobody says how much is needed."""


class LimitPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The limit on the machines' life that EventBridge Scheduler keeps."""

    role: str
    max_seconds: float


class Ec2Request(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a launch request."""

    region: str
    """A token counts per region: the same request in another one would launch again."""
    run_instances: dict[str, Any]
    """The parameters of RunInstances as boto3 takes them, but for ClientToken and a compressed UserData."""
    user_data_gzip: str | None = None
    """The compressed boot script in base64, where the script itself is too long for EC2."""
    made_placement_group: str | None = None
    """The group to make before the first machine, and to remove with the job."""
    limit: LimitPlan | None = None


def decode_request(request: LaunchRequest) -> Ec2Request:
    """Return the body of a stored request.

    Raises:
        ProvisionError: it is none of this provider's.
    """
    try:
        body: Ec2Request = convert(request.body, Ec2Request)
        return body
    except msgspec.ValidationError as error:
        raise ProvisionError(f"the request is none of provider 'aws': {error}") from error


def render_request(options: AwsOptions, group: InstanceGroup, *, provider: str) -> LaunchRequest:
    """Return one RunInstances call for all machines of the group.

    Raises:
        SpecError: the boot script is too long for EC2, even compressed.
    """
    details = group.offer.details
    made_group = None
    if options.placement_group == "auto" and group.num_nodes > 1:
        # Another store may have a job of the same id.
        store = tags.store_digest(group.store_url)
        made_group = f"cloudspot-{group.job_id}-{store}-{group.offer.zone}"
    named_group = None if options.placement_group == "auto" else options.placement_group
    text, packed = _user_data(group.user_data)
    parameters: dict[str, Any] = {
        "ImageId": details["image"],
        "InstanceType": group.offer.instance_type,
        "MinCount": group.min_nodes,
        "MaxCount": group.num_nodes,
        "Placement": {"AvailabilityZone": group.offer.zone},
        "NetworkInterfaces": [_interface(options, details["subnet"])],
        "IamInstanceProfile": _profile(options.instance_profile),
        "BlockDeviceMappings": [_root_disk(options, group)],
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": options.metadata_hops,
            "InstanceMetadataTags": "enabled",
        },
        # A machine that shuts itself down is gone, and bills no more.
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": _tag_specifications(options, group),
    }
    if text is not None:
        parameters["UserData"] = text
    if made_group or named_group:
        parameters["Placement"]["GroupName"] = made_group or named_group
    if group.offer.market is Market.SPOT:
        parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": _spot(options)}
    if options.key_name is not None:
        parameters["KeyName"] = options.key_name
    body = Ec2Request(
        region=details["region"],
        run_instances=parameters,
        user_data_gzip=packed,
        made_placement_group=made_group,
        limit=None
        if options.limit_role is None
        else LimitPlan(role=options.limit_role, max_seconds=group.max_seconds),
    )
    value: dict[str, Any] = msgspec.to_builtins(body)
    return LaunchRequest(
        provider=provider, body={name: item for name, item in value.items() if item is not None}
    )


def user_data_of(request: Ec2Request) -> bytes:
    """Return the machines' user data as EC2 will hand it to them."""
    if request.user_data_gzip is not None:
        return base64.b64decode(request.user_data_gzip)
    return str(request.run_instances.get("UserData", "")).encode()


def _user_data(script: str) -> tuple[str | None, str | None]:
    """Return (the script, None), or (None, the compressed script in base64) where it is too long.

    cloud-init unpacks gzip (its documentation, "User data formats"). A script that came from the bucket
    by a signed URL would need a secret that expires in a request that is stored and replayed.
    """
    raw = script.encode()
    if len(raw) <= MAX_USER_DATA_BYTES:
        return script, None
    # Without a time and a file name: the same script gives the same bytes.
    packed = gzip.compress(raw, compresslevel=9, mtime=0)
    if len(packed) > MAX_USER_DATA_BYTES:
        raise SpecError(
            f"the boot script has {len(raw)} bytes and {len(packed)} compressed; EC2 takes "
            f"{MAX_USER_DATA_BYTES}: put less into the boot profile"
        )
    return None, base64.b64encode(packed).decode("ascii")


def _interface(options: AwsOptions, subnet: str) -> dict[str, Any]:
    interface: dict[str, Any] = {"DeviceIndex": 0, "SubnetId": subnet, "DeleteOnTermination": True}
    if options.security_groups:
        interface["Groups"] = list(options.security_groups)
    if options.public_ip is not None:
        interface["AssociatePublicIpAddress"] = options.public_ip
    return interface


def _profile(name_or_arn: str) -> dict[str, str]:
    return {"Arn" if name_or_arn.startswith("arn:") else "Name": name_or_arn}


def _root_disk(options: AwsOptions, group: InstanceGroup) -> dict[str, Any]:
    details = group.offer.details
    image_gib = int(details["image_gib"])
    if options.disk:
        size_gib = math.ceil(options.disk / GIB)
    else:
        size_gib = image_gib + (math.ceil(group.resources.disk_bytes / GIB) or DEFAULT_EXTRA_GIB)
    volume: dict[str, Any] = {
        "VolumeSize": max(size_gib, image_gib),
        "VolumeType": options.disk_type,
        "DeleteOnTermination": True,
    }
    if options.disk_iops is not None:
        volume["Iops"] = options.disk_iops
    if options.disk_throughput is not None:
        volume["Throughput"] = options.disk_throughput
    return {"DeviceName": details["root_device"], "Ebs": volume}


def _spot(options: AwsOptions) -> dict[str, Any]:
    spot: dict[str, Any] = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    if options.max_price is not None:
        spot["MaxPrice"] = f"{options.max_price:.6f}".rstrip("0").rstrip(".")
    return spot


def _tag_specifications(options: AwsOptions, group: InstanceGroup) -> list[dict[str, Any]]:
    own = {
        "Name": f"{group.job_id}-{group.launch}",
        tags.JOB: group.job_id,
        tags.LAUNCH: str(group.launch),
        tags.NUM_NODES: str(group.num_nodes),
        tags.STORE: group.store_url,
        tags.MAX_SECONDS: f"{group.max_seconds:.0f}",
        tags.MASTER_PORT: str(DEFAULT_MASTER_PORT),
    }
    kinds = ["instance", "volume"]
    if group.offer.market is Market.SPOT:
        kinds.append("spot-instances-request")  # refused by EC2 in a request for other machines
    both = {**options.tags, **{name: value for name, value in own.items() if value}}
    return [{"ResourceType": kind, "Tags": tags.to_list(both)} for kind in kinds]
