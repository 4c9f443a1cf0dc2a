"""RunInstances with the real EC2's tokens, capacity, quotas, prices and refusals."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.iam.models import iam_backends

from cloudspot.emulation.api_faults import Faults
from cloudspot_aws_sandbox import prices
from cloudspot_aws_sandbox.machines import Machines
from cloudspot_aws_sandbox.query import ApiError

MAX_USER_DATA_BYTES: Final = 16384
_TAGGED: Final = {"instance", "volume", "network-interface", "spot-instances-request", "elastic-gpu"}


@dataclass(frozen=True)
class Taken:
    """The launch that belongs to a client token."""

    request: str
    instance_ids: tuple[str, ...]
    at: float = 0.0
    """When it was launched, by the account's clock."""


def zone_of(parameters: Mapping[str, Any], region: str) -> str:
    """Return the zone that the request names, directly or by its subnet.

    Raises:
        ApiError: the zone or the subnet does not exist, or they contradict each other.
    """
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    named = parameters.get("Placement", {}).get("AvailabilityZone")
    zones = sorted(backend.get_default_subnets())
    if named is not None and named not in zones:
        raise ApiError("InvalidParameterValue", f"Invalid availability zone: [{named}]")
    subnet_ids = [one["SubnetId"] for one in parameters.get("NetworkInterfaces", ()) if "SubnetId" in one]
    subnet_ids += [parameters["SubnetId"]] if "SubnetId" in parameters else []
    by_id = {subnet.id: subnet for zoned in backend.subnets.values() for subnet in zoned.values()}
    for subnet_id in subnet_ids:
        if subnet_id not in by_id:
            raise ApiError("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist")
        zone = by_id[subnet_id].availability_zone
        if named is not None and zone != named:
            raise ApiError(
                "InvalidParameterValue", f"The specified subnet {subnet_id} is not in zone {named}"
            )
        named = zone
    return str(named or zones[0])


def subnet_form(parameters: Mapping[str, Any], region: str, zone: str) -> dict[str, str]:
    """Return the form's field for the zone's default subnet if the request names no subnet.

    Without this field, moto would put the machine into no network.
    """
    interfaces = parameters.get("NetworkInterfaces", ())
    if "SubnetId" in parameters or any("SubnetId" in one for one in interfaces):
        return {}
    field = "NetworkInterface.1.SubnetId" if interfaces else "SubnetId"
    return {field: ec2_backends[DEFAULT_ACCOUNT_ID][region].get_default_subnets()[zone].id}


def check_request(parameters: Mapping[str, Any], region: str, zone: str) -> None:
    """Refuse a request that the real API refuses before it looks for capacity.

    Raises:
        ApiError: the request is refused, with EC2's wording.
    """
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    if parameters["MinCount"] < 1 or parameters["MaxCount"] < parameters["MinCount"]:
        raise ApiError("InvalidParameterValue", "Value for parameter maxCount is invalid: less than minCount")
    _check_token(parameters.get("ClientToken", ""))
    image = _check_image(backend, parameters.get("ImageId", ""))
    type_ = _check_type(parameters.get("InstanceType", ""), zone, region)
    if image.architecture not in type_["ProcessorInfo"]["SupportedArchitectures"]:
        raise ApiError(
            "InvalidParameterValue",
            f"The architecture of the specified instance type does not match the architecture "
            f"'{image.architecture}' of the specified AMI.",
        )
    if image.boot_mode != "uefi-preferred" and image.boot_mode not in type_["SupportedBootModes"]:
        raise ApiError(
            "UnsupportedOperation",
            f"The instance type {type_['InstanceType']} does not support the boot mode {image.boot_mode} of "
            "the specified AMI.",
        )
    _check_credits(parameters.get("CreditSpecification"), type_)
    if "SubnetId" in parameters and "NetworkInterfaces" in parameters:
        raise ApiError(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level subnet ID may not be specified on the same request",
        )
    if "SecurityGroupIds" in parameters and "NetworkInterfaces" in parameters:
        raise ApiError(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level security groups may not be specified together",
        )
    _check_groups(backend, parameters)
    if "KeyName" in parameters and parameters["KeyName"] not in backend.key_pairs:
        raise ApiError("InvalidKeyPair.NotFound", f"The key pair '{parameters['KeyName']}' does not exist")
    _check_profile(parameters.get("IamInstanceProfile", {}))
    _check_user_data(parameters.get("UserData", ""))
    _check_disks(image, parameters.get("BlockDeviceMappings", ()))
    _check_tags(parameters)
    spot = parameters.get("InstanceMarketOptions", {}).get("SpotOptions", {})
    if spot.get("SpotInstanceType") == "one-time" and spot.get("InstanceInterruptionBehavior") in {
        "stop",
        "hibernate",
    }:
        raise ApiError(
            "InvalidParameterCombination",
            "one-time requests support only the interruption behavior terminate",
        )


def _check_credits(specification: Mapping[str, Any] | None, type_: Mapping[str, Any]) -> None:
    if specification is None:
        return
    if not type_["BurstablePerformanceSupported"]:
        raise ApiError(
            "InvalidParameterCombination",
            f"The instance type {type_['InstanceType']} does not support a credit specification.",
        )
    if specification.get("CpuCredits") not in {"standard", "unlimited"}:
        raise ApiError("InvalidParameterValue", "Value for parameter cpuCredits is invalid")


def check_price(parameters: Mapping[str, Any], zone: str, price_factor: float) -> None:
    """Refuse a spot request whose price limit is below the market's price.

    Raises:
        ApiError: SpotMaxPriceTooLow.
    """
    limit = parameters.get("InstanceMarketOptions", {}).get("SpotOptions", {}).get("MaxPrice")
    price = prices.spot_price(INSTANCE_TYPES[parameters["InstanceType"]], zone, price_factor)
    if limit is not None and float(limit) < price:
        raise ApiError(
            "SpotMaxPriceTooLow",
            f"Your Spot request price of {limit} is lower than the minimum required Spot request fulfillment "
            f"price of {price}.",
        )


def grant(parameters: Mapping[str, Any], zone: str, machines: Machines, faults: Faults) -> int:
    """Return how many machines the request gets, at least MinCount.

    Raises:
        ApiError: a quota is reached, or there is no capacity.
    """
    type_name = parameters["InstanceType"]
    is_spot = parameters.get("InstanceMarketOptions", {}).get("MarketType") == "spot"
    market = "spot" if is_spot else "on-demand"
    vcpus = INSTANCE_TYPES[type_name]["VCpuInfo"]["DefaultVCpus"]
    alive, least = machines.alive(), parameters["MinCount"]
    wanted = faults.num_in_quota(parameters["MaxCount"], alive, market=market, vcpus=vcpus)
    if wanted < least:
        if is_spot:
            raise ApiError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
        raise ApiError(
            "VcpuLimitExceeded",
            f"You have requested more vCPU capacity than your current vCPU limit of "
            f"{faults.vcpu_quota[market]} allows for the instance bucket that the specified instance type "
            "belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment "
            "to this limit.",
        )
    wanted = faults.num_in_stock(wanted, alive, zone=zone, instance_type=type_name, market=market)
    if wanted < least:
        raise ApiError(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient {type_name} capacity in the Availability Zone you "
            f"requested ({zone}). Our system will be working on provisioning additional capacity.",
            status=500,
        )
    return wanted


def comparable(parameters: Mapping[str, Any]) -> str:
    """Return the part of a request that must not differ between uses of its token, as text."""
    return json.dumps(
        {name: value for name, value in parameters.items() if name not in {"ClientToken", "DryRun"}},
        sort_keys=True,
    )


def _check_token(token: str) -> None:
    if len(token) > 64 or not token.isascii():
        raise ApiError("InvalidParameterValue", "Client token must be at most 64 ASCII characters")


def _check_image(backend: Any, image_id: str) -> Any:
    if not re.fullmatch(r"ami-[0-9a-f]{8}(?:[0-9a-f]{9})?", image_id):
        raise ApiError("InvalidAMIID.Malformed", f'Invalid id: "{image_id}"')
    if image_id not in backend.amis:
        raise ApiError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
    return backend.amis[image_id]


def _check_type(name: str, zone: str, region: str) -> Mapping[str, Any]:
    if name not in INSTANCE_TYPES:
        raise ApiError("InvalidParameterValue", f"Invalid value '{name}' for InstanceType.")
    zones = {
        offering["Location"]
        for offering in INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ())
        if offering["InstanceType"] == name
    }
    if zone not in zones:
        raise ApiError(
            "Unsupported",
            f"Your requested instance type ({name}) is not supported in your requested Availability Zone "
            f"({zone}). Please retry your request by choosing {', '.join(sorted(zones))}.",
        )
    found: Mapping[str, Any] = INSTANCE_TYPES[name]
    return found


def _check_groups(backend: Any, parameters: Mapping[str, Any]) -> None:
    named = list(parameters.get("SecurityGroupIds", ()))
    for interface in parameters.get("NetworkInterfaces", ()):
        named += interface.get("Groups", ())
    for group_id in named:
        if backend.get_security_group_from_id(group_id) is None:
            raise ApiError("InvalidGroup.NotFound", f"The security group '{group_id}' does not exist")


def _check_profile(profile: Mapping[str, str]) -> None:
    if not profile:
        return
    known = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].instance_profiles.values()
    if not any(profile.get("Name") == one.name or profile.get("Arn") == one.arn for one in known):
        field, value = next(iter(profile.items()))
        raise ApiError(
            "InvalidParameterValue",
            f"Value ({value}) for parameter iamInstanceProfile.{field.lower()} is invalid. "
            f"Invalid IAM Instance Profile {'name' if field == 'Name' else 'ARN'}",
        )


def _check_user_data(encoded: str) -> None:
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError:
        raise ApiError("InvalidParameterValue", "Invalid BASE64 encoding of user data.") from None
    if len(raw) > MAX_USER_DATA_BYTES:
        raise ApiError("InvalidParameterValue", "User data is limited to 16384 bytes")


def _check_disks(image: Any, disks: Sequence[Mapping[str, Any]]) -> None:
    for disk in disks:
        ebs = disk.get("Ebs", {})
        size, kind = ebs.get("VolumeSize", 0), ebs.get("VolumeType", "gp2")
        least = image.block_device_mappings[0]["Ebs"]["VolumeSize"]
        if disk.get("DeviceName") == image.root_device_name and size and size < least:
            raise ApiError(
                "InvalidBlockDeviceMapping",
                f"Volume of size {size}GB is smaller than snapshot '{image.ebs_snapshot.id}', "
                f"expect size >= {least}GB",
            )
        if kind in {"io1", "io2"} and "Iops" not in ebs:
            raise ApiError("MissingParameter", "The parameter iops must be specified for io1 volumes.")
        if "Throughput" in ebs and kind != "gp3":
            raise ApiError(
                "InvalidParameterDependency", f"The parameter throughput is not supported for {kind}."
            )


def _check_tags(parameters: Mapping[str, Any]) -> None:
    seen = set()
    for specification in parameters.get("TagSpecifications", ()):
        kind = specification.get("ResourceType")
        if kind not in _TAGGED:
            raise ApiError(
                "InvalidParameterValue", f"'{kind}' is not a valid taggable resource type for this operation."
            )
        if kind in seen:
            raise ApiError(
                "InvalidParameterValue", f"The same resource type may not be specified more than once: {kind}"
            )
        seen.add(kind)
        if kind == "spot-instances-request" and "InstanceMarketOptions" not in parameters:
            raise ApiError(
                "InvalidParameterCombination",
                "You cannot specify tags for Spot instances requests if there are no Spot instances "
                "requests being created by the request.",
            )
        check_tags(specification.get("Tags", ()))
        if (
            kind == "instance"
            and parameters.get("MetadataOptions", {}).get("InstanceMetadataTags") == "enabled"
        ):
            for tag in specification.get("Tags", ()):
                if not re.fullmatch(r"[A-Za-z0-9+\-=._:,@]+", tag["Key"]) or tag["Key"] in {
                    ".",
                    "..",
                    "_index",
                }:
                    raise ApiError(
                        "InvalidParameterValue",
                        f"'{tag['Key']}' is not a valid tag key. Tag keys must match pattern "
                        "([0-9a-zA-Z\\-_+=,.@:]{1,255}), and must not be a reserved name",
                    )


def check_tags(given: Sequence[Mapping[str, str]]) -> None:
    """Refuse tags that EC2 refuses.

    Raises:
        ApiError: there are too many tags, or one is too long, repeated, or reserved by AWS.
    """
    names = [tag.get("Key", "") for tag in given]
    if len(names) > 50:
        raise ApiError("TagLimitExceeded", "More than 50 tags specified")
    for tag in given:
        name, value = tag.get("Key", ""), tag.get("Value", "")
        if not name or len(name) > 128 or len(value) > 256 or names.count(name) > 1:
            raise ApiError("InvalidParameterValue", f"Tag '{name}' is not valid")
        if name.lower().startswith("aws:"):
            raise ApiError(
                "InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use"
            )
