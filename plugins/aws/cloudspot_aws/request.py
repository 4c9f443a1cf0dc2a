"""Renders the RunInstances request of a launch, without I/O: the offer holds all looked-up values."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from cloudspot.model import InstanceGroup, LaunchRequest, Market
from cloudspot.plugin.launchrequests import boot_disk_gib, pack_script
from cloudspot.plugin.machinetags import store_digest, tags_of
from cloudspot_aws import tags
from cloudspot_aws.options import AwsOptions

MAX_USER_DATA_BYTES: Final = 16384
"""The limit before base64 (EC2 API reference, RunInstances, UserData; checked 2026-11)."""


class Ec2Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a launch request."""

    region: str
    """A token is valid in one region; the same request in another region would launch again."""
    run_instances: dict[str, Any]
    """The parameters of RunInstances in boto3's form, without ClientToken and a compressed UserData."""
    user_data_gzip: str | None = None
    """The compressed boot script in base64, if the script itself is too long for EC2."""
    has_setup_image: bool = False
    """Whether the machines' image was made by ``cloudspot image bake``."""
    made_placement_group: str | None = None
    """The placement group to make before the first machine, and to remove with the job."""


def render_request(options: AwsOptions, group: InstanceGroup) -> LaunchRequest:
    """Return one RunInstances call for the group; raise SpecError if the script is too long."""
    details = group.offer.details
    made_group = None
    if options.placement_group == "auto" and group.job_nodes > 1:
        # A job in another store may have the same id.
        made_group = f"cloudspot-{group.job_id}-{store_digest(group.store_url)}-{group.offer.zone}"
    named_group = None if options.placement_group == "auto" else options.placement_group
    packed = pack_script(group.user_data, most=MAX_USER_DATA_BYTES, service="EC2")
    parameters: dict[str, Any] = {
        "ImageId": group.offer.image,
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
        # A machine that shuts itself down is terminated, and no longer billed.
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": _tag_specifications(options, group),
    }
    if "is_burstable" in details:
        # "unlimited", the default of most types, can cost more than the offer's price.
        parameters["CreditSpecification"] = {"CpuCredits": "standard"}
    if packed is None:
        parameters["UserData"] = group.user_data
    if made_group or named_group:
        parameters["Placement"]["GroupName"] = made_group or named_group
    if group.offer.market is Market.SPOT:
        parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": _spot(options)}
    if options.key_name is not None:
        parameters["KeyName"] = options.key_name
    body = Ec2Request(
        region=group.offer.region,
        run_instances=parameters,
        user_data_gzip=packed,
        has_setup_image=group.offer.has_setup,
        made_placement_group=made_group,
    )
    return LaunchRequest(provider="aws", body=msgspec.to_builtins(body))


def user_data_of(request: Ec2Request) -> bytes:
    """Return the machines' user data, in the form in which EC2 hands it to them."""
    if request.user_data_gzip is not None:
        return base64.b64decode(request.user_data_gzip)
    return str(request.run_instances.get("UserData", "")).encode()


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
    volume: dict[str, Any] = {
        "VolumeSize": boot_disk_gib(group, wanted_bytes=options.disk),
        "VolumeType": options.disk_type,
        "DeleteOnTermination": True,
    }
    if options.disk_iops is not None:
        volume["Iops"] = options.disk_iops
    if options.disk_throughput is not None:
        volume["Throughput"] = options.disk_throughput
    return {"DeviceName": group.offer.details["root_device"], "Ebs": volume}


def _spot(options: AwsOptions) -> dict[str, Any]:
    spot: dict[str, Any] = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    if options.max_price is not None:
        spot["MaxPrice"] = f"{options.max_price:.6f}".rstrip("0").rstrip(".")
    return spot


def _tag_specifications(options: AwsOptions, group: InstanceGroup) -> list[dict[str, Any]]:
    kinds = ["instance", "volume"]
    if group.offer.market is Market.SPOT:
        kinds.append("spot-instances-request")  # EC2 allows this only for spot machines
    found = {**options.tags, "Name": f"{group.job_id}-{group.launch}", **tags_of(group)}
    return [{"ResourceType": kind, "Tags": tags.to_list(found)} for kind in kinds]
