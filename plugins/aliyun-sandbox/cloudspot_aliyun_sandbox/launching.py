"""Checks RunInstances requests as ECS does, and decides the number of machines for each.

Source: API reference, RunInstances and CreateInstance, parameters and error codes (as of 2026-01-15; checked
2026-11); the code for too many security groups is from memory.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from cloudspot.emulation.api_faults import Faults
from cloudspot_aliyun_sandbox.account import DEFAULT_RESOURCE_GROUP, Account, Place
from cloudspot_aliyun_sandbox.catalogue import Catalogue
from cloudspot_aliyun_sandbox.machines import Machines
from cloudspot_aliyun_sandbox.market import KINDS, Kind, zones_of
from cloudspot_aliyun_sandbox.rpc import ApiError, nested
from cloudspot_aliyun_sandbox.systemdisks import check_disk

Parameters = Mapping[str, str]
MAX_USER_DATA_BYTES: Final = 32768
TOKEN_SECONDS: Final = 600.0
"""How long a token is honoured, in seconds: only as long as the plugin assumes."""
FORGOTTEN_AFTER_SECONDS: Final = 10.0
"""How long a token is honoured if the fault ``token-forgotten`` is set."""
LEAST_RELEASE_SECONDS: Final = 30 * 60.0
MAX_GROUPS: Final = 5
"""The maximum number of security groups of a network interface ("Security group limits"; from memory)."""
MAX_IN_SET: Final = 20
"""The maximum number of machines in one zone of a deployment set with the strategy Availability ("Improve
business availability by using deployment sets"; checked 2026-11).
"""
MAX_TAGS: Final = 20
"""The maximum number of tags of an instance."""
ARCHITECTURES: Final = {"X86": "x86_64", "ARM": "arm64"}
_PATTERN: Final = re.compile(r"(.*)\[(\d*),?(\d*)\](.*)")
_NAME: Final = re.compile(r"[A-Za-z一-鿿][\w:.\-一-鿿]{1,127}")
_HOST_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Taken:
    """The launch that belongs to a client token."""

    request: str
    instance_ids: tuple[str, ...]
    at: float


def comparable(parameters: Parameters) -> str:
    """Return the parameters that must be the same when a request is repeated, as text."""
    changing = {"Signature", "SignatureNonce", "Timestamp", "SecurityToken", "AccessKeyId", "ClientToken"}
    return json.dumps(
        {name: value for name, value in parameters.items() if name not in changing}, sort_keys=True
    )


def check_request(parameters: Parameters, account: Account, place: Place, *, now: float) -> Kind:
    """Refuse a request that the real API refuses before it looks for stock; return the instance type.

    Raises:
        ApiError: the request is refused, with ECS's wording.
    """
    for name in ("ImageId", "InstanceType", "VSwitchId"):
        if not parameters.get(name):
            raise ApiError(
                "MissingParameter", f"The input parameter {name} that is mandatory is not supplied."
            )
    token = parameters.get("ClientToken", "")
    if len(token) > 64 or not token.isascii():
        raise ApiError("InvalidClientToken.ValueNotSupported", "The ClientToken provided is invalid.")
    amount, least = int(parameters.get("Amount", 1)), int(parameters.get("MinAmount", 1))
    if not 1 <= amount <= 100:
        raise ApiError("InvalidParam.Amount", "The specified parameter Amount is not valid.", status=403)
    if not 1 <= least <= amount:
        raise ApiError("InvalidMinAmount.Malformed", "The specified parameter MinAmount is not valid.")
    kind = KINDS.get(parameters["InstanceType"])
    if kind is None:
        raise ApiError(
            "InvalidInstanceType.ValueNotSupported",
            "The specified InstanceType does not exist or beyond the permitted range.",
        )
    image = account.images_in(place.region).get(parameters["ImageId"])
    if image is None:
        raise ApiError("InvalidImageId.NotFound", "The specified ImageId does not exist.", status=404)
    if image["Status"] != "Available":
        message = "The specified Image is disabled or is deleted."
        raise ApiError("OperationDenied.ImageNotValid", message, status=403)
    if image["Architecture"] != ARCHITECTURES[kind.architecture]:
        raise ApiError(
            "ImageNotSupportInstanceType",
            "The specified image don't support the InstanceType instance.",
            status=403,
        )
    _check_network(parameters, place)
    _check_spot(parameters)
    check_disk(parameters, image["Size"])
    check_metadata(parameters)
    _check_bandwidth(parameters)
    _check_user_data(parameters.get("UserData", ""))
    _check_role(parameters, account)
    if "KeyPairName" in parameters and parameters["KeyPairName"] not in place.key_pairs:
        message = "The specified parameter KeyPairName does not exist in our records."
        raise ApiError("InvalidKeyPairName.NotFound", message, status=404)
    if "DeploymentSetId" in parameters and parameters["DeploymentSetId"] not in place.deployment_sets:
        raise ApiError("DeploymentSet.NotFound", "The specified deployment set does not exist.", status=404)
    if parameters.get("ResourceGroupId", DEFAULT_RESOURCE_GROUP) not in account.resource_groups:
        message = "The ResourceGroup provided does not exist in our records."
        raise ApiError("InvalidResourceGroup.NotFound", message, status=404)
    check_tags(nested(parameters, "Tag"))
    numbered_names(parameters, amount)
    if "AutoReleaseTime" in parameters:
        release_time(parameters["AutoReleaseTime"], now=now)
    zone = parameters.get("ZoneId", place.vswitches[parameters["VSwitchId"]].zone)
    if zone not in zones_of(kind, place.region):
        raise ApiError(
            "InvalidResourceType.NotSupported",
            "This resource type is not supported; please try other resource types.",
            status=403,
        )
    return kind


def numbered_names(parameters: Parameters, amount: int) -> list[tuple[str, str]]:
    """Return the machines' instance and host names, numbered if they contain ``[begin,bits]``.

    Raises:
        ApiError: a name is malformed.
    """
    return list(
        zip(
            _names(parameters, "InstanceName", amount, most=128),
            _names(parameters, "HostName", amount, most=64),
            strict=True,
        )
    )


def release_time(text: str, *, now: float) -> float:
    """Return the moment of an AutoReleaseTime; its seconds are dropped.

    Raises:
        ApiError: the time is malformed, less than half an hour away, or more than three years.
    """
    error = ApiError(
        "InvalidAutoReleaseTime.Malformed", "The specified parameter AutoReleaseTime is not valid."
    )
    try:
        at = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(second=0, tzinfo=timezone.utc)
    except ValueError:
        raise error from None
    if not now + LEAST_RELEASE_SECONDS <= at.timestamp() <= now + 3 * 365 * 86400:
        raise error
    return at.timestamp()


def grant(
    parameters: Parameters, kind: Kind, machines: Machines, catalogue: Catalogue, faults: Faults
) -> int:
    """Return how many machines the request gets, at least MinAmount.

    Raises:
        ApiError: the bid is too low, a quota is reached, or there is no stock.
    """
    zone, is_spot = parameters["ZoneId"], parameters.get("SpotStrategy", "NoSpot") != "NoSpot"
    market = "spot" if is_spot else "on-demand"
    wanted, least = int(parameters.get("Amount", 1)), int(parameters.get("MinAmount", 1))
    if is_spot and not kind.has_spot:
        raise ApiError("InvalidSpotAuthorized", "The specified Spot param is unauthorized.")
    if parameters.get("SpotStrategy") == "SpotWithPriceLimit":
        is_protected = parameters.get("SpotDuration", "1") != "0"
        if float(parameters["SpotPriceLimit"]) < catalogue.price(kind, zone, is_protected=is_protected):
            raise ApiError(
                "OperationDenied.SpotPriceLowerThanPublicPrice",
                "The spot instance price is lower than public price.",
                status=403,
            )
    alive = machines.alive()
    if faults.num_in_quota(wanted, alive, market=market, vcpus=kind.cpus) < wanted:
        raise ApiError("QuotaExceed.AfterpayInstance", "Living afterpay instances quota exceeded.")
    in_set = parameters.get("DeploymentSetId")
    others = sum(one.deployment_set == in_set and one.zone == zone for one in alive)
    if in_set is not None and others + wanted > MAX_IN_SET:
        message = "Instance quota in one deployment set exceeded."
        raise ApiError("QuotaExceed.DeploymentSetInstanceQuotaFull", message, status=403)
    wanted = faults.num_in_stock(wanted, alive, zone=zone, instance_type=kind.name, market=market)
    if wanted < least:
        raise ApiError(
            "OperationDenied.NoStock",
            "The requested resource is sold out in the specified zone; try other types of resources or "
            "other regions and zones.",
            status=403,
        )
    return wanted


def check_tags(given: Sequence[Mapping[str, str]]) -> None:
    """Refuse tags that ECS refuses.

    Raises:
        ApiError: there are too many tags, or one is too long, repeated, or reserved by ECS.
    """
    if len(given) > MAX_TAGS:
        raise ApiError("InvalidTagCount", "The specified tags are beyond the permitted range.")
    names = [tag.get("Key", "") for tag in given]
    for tag in given:
        for part, text, limit in (("Key", tag.get("Key", ""), 64), ("Value", tag.get("Value", ""), 128)):
            is_bad = len(text) > limit or text.startswith(("aliyun", "acs:")) or re.search("https?://", text)
            if is_bad or (part == "Key" and not text):
                raise ApiError(f"InvalidTag{part}.Malformed", f"The specified Tag.n.{part} is not valid.")
        if names.count(tag["Key"]) > 1:
            raise ApiError("Duplicate.TagKey", "The Tag.N.Key contain duplicate key.")


def _names(parameters: Parameters, field: str, amount: int, *, most: int) -> list[str]:
    text = parameters.get(field, "iZbp1sandboxZ")
    match = _PATTERN.fullmatch(text)
    names = [text] * amount
    if match is not None:
        begin, bits = int(match[2] or 0), int(match[3] or 6)
        if not match[1] or begin > 999_999 or not 1 <= bits <= 6:
            raise ApiError(f"Invalid{field}.Malformed", f'The specified parameter "{field}" is not valid.')
        # If the first number needs more digits than ``bits``, ECS uses six digits.
        bits = bits if len(str(begin)) <= bits else 6
        names = [f"{match[1]}{begin + i:0{bits}d}{match[4]}" for i in range(amount)]
    elif parameters.get("UniqueSuffix") == "true":
        names = [f"{text}{i:03d}" for i in range(1, amount + 1)]
    for name in names:
        is_good = (
            _NAME.fullmatch(name) is not None
            if field == "InstanceName"
            else len(name) >= 2 and "--" not in name and all(map(_HOST_LABEL.fullmatch, name.split(".")))
        )
        if not is_good or len(name) > most or name.startswith(("http://", "https://")):
            raise ApiError(f"Invalid{field}.Malformed", f'The specified parameter "{field}" is not valid.')
    return names


def _check_network(parameters: Parameters, place: Place) -> None:
    vswitch = place.vswitches.get(parameters["VSwitchId"])
    if vswitch is None:
        raise ApiError("InvalidVSwitchId.NotFound", "Specified virtual switch does not exist.", status=404)
    if parameters.get("ZoneId", vswitch.zone) != vswitch.zone:
        raise ApiError("InvalidParameter.Mismatch", "Specified virtual switch is not in the specified zone.")
    named = nested(parameters, "SecurityGroupIds")
    if "SecurityGroupId" in parameters:
        if named:
            raise ApiError(
                "InvalidParameter.Conflict", "SecurityGroupId and SecurityGroupIds exclude each other."
            )
        named = [parameters["SecurityGroupId"]]
    if not named:
        raise ApiError("MissingParameter", "The input parameter SecurityGroupId is mandatory.")
    if len(named) > MAX_GROUPS:
        message = f"The maximum number of security groups of an instance is {MAX_GROUPS}."
        raise ApiError("InstanceSecurityGroupLimitExceeded", message, status=403)
    for group_id in named:
        if group_id not in place.groups:
            message = "The SecurityGroupId provided does not exist in our records."
            raise ApiError("InvalidSecurityGroupId.NotFound", message, status=404)
        if place.groups[group_id].vpc != vswitch.vpc:
            raise ApiError(
                "InvalidParameter.Mismatch",
                "Specified security group and virtual switch are not in the same VPC.",
            )


def _check_spot(parameters: Parameters) -> None:
    if parameters.get("InstanceChargeType", "PostPaid") != "PostPaid":
        raise ApiError("SandboxNotImplemented", "the emulated ECS sells only PostPaid machines")
    strategy = parameters.get("SpotStrategy", "NoSpot")
    if strategy not in {"NoSpot", "SpotAsPriceGo", "SpotWithPriceLimit"}:
        raise ApiError("InvalidSpotStrategy", "The specified SpotStrategy is not valid.")
    limit = parameters.get("SpotPriceLimit")
    if (strategy == "SpotWithPriceLimit") != (limit is not None):
        raise ApiError("InvalidSpotPriceLimit", "The specified SpotPriceLimitis not valid.")
    if limit is not None and (float(limit) <= 0 or not re.fullmatch(r"\d+(?:\.\d{1,3})?", limit)):
        raise ApiError("InvalidSpotPriceLimit", "The specified SpotPriceLimitis not valid.")
    if parameters.get("SpotDuration", "1") not in {"0", "1"}:
        raise ApiError("InvalidSpotDuration", "The specified SpotDuration is not valid.")
    if parameters.get("SpotInterruptionBehavior", "Terminate") not in {"Terminate", "Stop"}:
        raise ApiError(
            "InvalidSpotInterruptionBehavior", "The specified SpotInterruptionBehavior is not valid."
        )


def check_metadata(parameters: Parameters) -> None:
    """Refuse invalid values of the metadata service's options.

    Raises:
        ApiError: 400.
    """
    for name, allowed in (
        ("HttpEndpoint", ("enabled", "disabled")),
        ("HttpTokens", ("optional", "required")),
        ("InstanceMetadataTags", ("enabled", "disabled")),
    ):
        if parameters.get(name, allowed[0]) not in allowed:
            message = f"The specified {name} not supported, you can use {' or '.join(allowed)}."
            raise ApiError(f"Invalid{name}.NotSupported", message)
    if not 1 <= int(parameters.get("HttpPutResponseHopLimit", 1)) <= 64:
        raise ApiError(
            "InvalidHttpPutResponseHopLimit.NotSupported",
            "The specified HttpPutResponseHopLimit not supported, "
            "more than 1 and less than 64 is reasonable.",
        )


def _check_bandwidth(parameters: Parameters) -> None:
    if not 0 <= int(parameters.get("InternetMaxBandwidthOut", 0)) <= 100:
        message = "The specified parameter InternetMaxBandwidthOut is not valid."
        raise ApiError("InvalidInternetMaxBandwidthOut.Malformed", message)


def _check_user_data(encoded: str) -> None:
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError:
        raise ApiError("InvalidUserData.Base64FormatInvalid", "The specified UserData is not valid") from None
    if len(raw) > MAX_USER_DATA_BYTES:
        raise ApiError("InvalidUserData.SizeExceeded", 'The specified parameter "UserData" exceeds the size.')


def _check_role(parameters: Parameters, account: Account) -> None:
    name = parameters.get("RamRoleName")
    if not name:
        return
    if name not in account.roles:
        message = 'The specified parameter "RAMRoleName" does not exist.'
        raise ApiError("InvalidRamRole.NotFound", message, status=404)
    if account.roles[name] != "ecs.aliyuncs.com":
        message = "The specified ram role is not authorized for ecs, please check your role policy."
        raise ApiError("InvalidRamRole.NotEcsRole", message, status=401)
