"""Looks up in Alibaba Cloud the image, the network, the groups and the role that a launch needs.

:mod:`cloudspot_aliyun.offers` caches the answers. Each function raises SpecError if an option names something
that does not exist, AuthError if a permission is missing, and TransientError if there is no response.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot_aliyun import tags
from cloudspot_aliyun.api import items, read, read_numbered_pages
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.options import (
    DEFAULT_IMAGE_FAMILY,
    AliyunOptions,
    field_error,
    one_a_zone,
    unknown_region,
)

CENTRAL_REGION: Final = "cn-hangzhou"
_HOW: Final = f'name them, or tag those to use with "{tags.FOUND_BY}"'


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """The machine image of a launch."""

    id: str
    architecture: str
    """``x86_64`` or ``arm64``."""
    size_gib: int


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """The VPC in which machines may run."""

    vpc: str
    vswitches: dict[str, str]
    """The vSwitches' ids, by zone."""


class NotThere(CloudspotError):
    """The resource that was looked up does not exist."""


def check_region(clients: AliyunClients) -> str:
    """Return the region; raise SpecError if Alibaba Cloud has no such region.

    The central region is asked, because a region that does not exist has no address.
    """
    region = clients.region
    try:
        answer = read(clients, "listing the regions", "DescribeRegions", region=CENTRAL_REGION)
    except TransientError:
        if region == CENTRAL_REGION:
            raise
        return region  # If the central region is too far away, the region itself may still answer.
    known = [str(one["RegionId"]) for one in items(answer, "Regions", "Region")]
    if region not in known:
        raise unknown_region("region", region, known)
    return region


def find_image(clients: AliyunClients, options: AliyunOptions) -> Image:
    """Return the image that the options name, by its id or its family."""
    if options.image is not None:
        field, named = "image", options.image
        answer = read(clients, "looking up the image", "DescribeImages", {"ImageId": named})
        found = items(answer, "Images", "Image")
        image = found[0] if found else None
    else:
        field, named = "image_family", options.image_family or DEFAULT_IMAGE_FAMILY
        answer = read(
            clients, "looking up the newest image", "DescribeImageFromFamily", {"ImageFamily": named}
        )
        image = answer.get("Image") or None
    if not image or not image.get("ImageId"):
        raise field_error(field, f'there is no "{named}" in {clients.region}, or none that you may use')
    if image.get("Status", "Available") != "Available":
        raise field_error(field, f'"{named}" is {image["Status"]}, not Available')
    if image.get("IsSupportCloudinit") is False:
        raise field_error(
            field, f'"{named}" does not run cloud-init, which runs the boot script; use another'
        )
    return Image(
        id=str(image["ImageId"]),
        architecture=str(image.get("Architecture") or "x86_64"),
        size_gib=int(image.get("Size") or 20),
    )


def find_network(clients: AliyunClients, options: AliyunOptions) -> Network:
    """Return a vSwitch for each zone in which machines may run."""
    listed = _named_vswitches(clients, options) if options.vswitches else _default_vswitches(clients)
    vpcs = sorted({str(one["VpcId"]) for one in listed})
    if len(vpcs) > 1:
        what = "the vSwitches named" if options.vswitches else "the vSwitches found"
        raise field_error("vswitches", f"{what} are in {len(vpcs)} VPCs ({', '.join(vpcs)}); {_HOW}")
    pairs = [(str(one["ZoneId"]), str(one["VSwitchId"])) for one in listed]
    is_named = bool(options.vswitches)
    vswitches = one_a_zone("vswitches", "vSwitch", pairs, is_named=is_named, zones=options.zones)
    return Network(vpc=vpcs[0], vswitches=vswitches)


def _named_vswitches(clients: AliyunClients, options: AliyunOptions) -> list[dict[str, Any]]:
    vswitches = []
    for named in options.vswitches:
        answer = read(
            clients, "looking up the vSwitches", "DescribeVSwitches", {"VSwitchId": named}, product="Vpc"
        )
        listed = items(answer, "VSwitches", "VSwitch")
        if not listed:
            raise field_error("vswitches", f'there is no "{named}" in {clients.region}')
        vswitches += listed
    return vswitches


def _default_vswitches(clients: AliyunClients) -> list[dict[str, Any]]:
    """Return the tagged vSwitches, else those of the default VPC, else all."""
    for wanted in ({"Tag": [{"Key": tags.FOUND_BY}]}, {"IsDefault": True}, {}):
        vswitches = [
            one
            for one in read_numbered_pages(
                clients,
                "looking for vSwitches",
                "DescribeVSwitches",
                wanted,
                path=("VSwitches", "VSwitch"),
                product="Vpc",
            )
            if one.get("Status", "Available") == "Available"
        ]
        if vswitches:
            return vswitches
    raise field_error("vswitches", f"missing; {clients.region} has none: make a VPC with one in each zone")


def find_groups(clients: AliyunClients, options: AliyunOptions, vpc: str) -> tuple[str, ...]:
    """Return the security groups of the machines, which are all in the VPC."""
    what, path = "looking up the security groups", ("SecurityGroups", "SecurityGroup")
    if options.security_groups:
        wanted = {"SecurityGroupIds": json.dumps(list(options.security_groups))}
        vpcs = {
            str(one["SecurityGroupId"]): str(one["VpcId"])
            for one in read_numbered_pages(clients, what, "DescribeSecurityGroups", wanted, path=path)
        }
        for named in options.security_groups:
            if named not in vpcs:
                raise field_error("security_groups", f'there is no "{named}" in {clients.region}')
            if vpcs[named] != vpc:
                raise field_error(
                    "security_groups", f'"{named}" is in {vpcs[named]}, the vSwitches are in {vpc}'
                )
        return options.security_groups
    for tagged in ({"Tag": [{"Key": tags.FOUND_BY}]}, {}):
        groups = [
            str(one["SecurityGroupId"])
            for one in read_numbered_pages(
                clients, what, "DescribeSecurityGroups", {"VpcId": vpc, **tagged}, path=path
            )
            # A group that is managed by one of Alibaba Cloud's services accepts no other machines.
            if not one.get("ServiceManaged")
        ]
        if len(groups) == 1:
            return tuple(groups)
        if groups and tagged:
            raise field_error(
                "security_groups", f'{len(groups)} have the tag "{tags.FOUND_BY}" in {vpc}; {_HOW}'
            )
    count = f"{len(groups)} are" if groups else "none is"
    raise field_error("security_groups", f"missing; {count} in {vpc}; {_HOW}")


def check_names(clients: AliyunClients, options: AliyunOptions) -> None:
    """Check that the key pair, the deployment set and the role that the options name exist."""
    if options.key_pair is not None:
        answer = read(
            clients, "looking up the key pair", "DescribeKeyPairs", {"KeyPairName": options.key_pair}
        )
        if not items(answer, "KeyPairs", "KeyPair"):
            raise field_error("key_pair", f'there is no "{options.key_pair}" in {clients.region}')
    if options.deployment_set not in {None, "auto"}:
        wanted = {"DeploymentSetIds": json.dumps([options.deployment_set])}
        answer = read(clients, "looking up the deployment set", "DescribeDeploymentSets", wanted)
        if not items(answer, "DeploymentSets", "DeploymentSet"):
            raise field_error("deployment_set", f'there is no "{options.deployment_set}" in {clients.region}')
    check_role(clients, options)


def check_role(clients: AliyunClients, options: AliyunOptions) -> bool:
    """Check that the RAM role exists; return False if the credentials do not allow the check."""
    try:
        answer = read(
            clients,
            "looking up the RAM role",
            "GetRole",
            {"RoleName": options.role},
            product="Ram",
            codes={"EntityNotExist.Role": NotThere},
        )
    except AuthError:
        return False  # RunInstances itself reports the error then
    except NotThere as error:
        raise field_error("role", f'there is no "{options.role}"; cloudspot setup aliyun makes it') from error
    trust = str((answer.get("Role") or {}).get("AssumeRolePolicyDocument") or "")
    if "ecs.aliyuncs.com" not in trust:
        raise field_error(
            "role", f'"{options.role}" does not trust ecs.aliyuncs.com, so no machine can have it'
        )
    return True
