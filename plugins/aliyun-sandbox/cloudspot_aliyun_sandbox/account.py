"""An emulated account's resources other than machines: networks, groups, images, keys, roles, sets."""

from __future__ import annotations

import ipaddress
import itertools
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cloudspot_aliyun_sandbox.market import REGIONS
from cloudspot_aliyun_sandbox.ram import Ram
from cloudspot_aliyun_sandbox.rpc import ApiError, check_handled, json_list, nested

Parameters = Mapping[str, str]

ACCOUNT_ID: Final = "1234567890123456"
IMAGE_FAMILY: Final = "acs:ubuntu_24_04_x64"
IMAGE_ID: Final = "ubuntu_24_04_x64_20G_alibase_20261101.vhd"
"""The newest image of its family, with the sandbox's own Python and cloudspot. Like Alibaba Cloud's own
image, it has neither torch nor pip."""
TORCH_IMAGE_ID: Final = "m-bp1cloudspottorch001"
TORCH_IMAGE_FAMILY: Final = "cloudspot-torch"
"""The family of a training image with torch and pip, which the account has copied to all regions."""
BARE_IMAGE_ID: Final = "m-bp1cloudspotbare0001"
"""The account's own image with the system's python3 and curl, without cloudspot, only in
``OWN_IMAGES_REGION``.
"""
OWN_IMAGES_REGION: Final = "cn-hangzhou"
ARM_IMAGE_ID: Final = "ubuntu_24_04_arm64_20G_alibase_20261101.vhd"
DEFAULT_RESOURCE_GROUP: Final = "rg-acfmsandboxdefault"
NODE_ROLE: Final = "cloudspot-node"
_IMAGES: Final = (
    (IMAGE_ID, IMAGE_FAMILY, "x86_64"),
    (BARE_IMAGE_ID, "cloudspot-bare", "x86_64"),
    (TORCH_IMAGE_ID, TORCH_IMAGE_FAMILY, "x86_64"),
    (ARM_IMAGE_ID, "acs:ubuntu_24_04_arm64", "arm64"),
)
_IMAGE_FILTERS: Final = frozenset({"ImageId", "ImageOwnerAlias", "PageNumber", "PageSize", "Status", "Tag"})
_IMAGE_STATUSES: Final = frozenset(
    {"Creating", "Waiting", "Available", "UnAvailable", "CreateFailed", "Deprecated"}
)
_NOTHING: Final[Mapping[str, str]] = {}


@dataclass
class VSwitch:
    """A vSwitch: a subnet in one zone."""

    id: str
    vpc: str
    zone: str
    network: str
    is_default: bool
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class Group:
    """A security group."""

    id: str
    vpc: str
    tags: dict[str, str] = field(default_factory=dict)
    is_managed: bool = False
    rules: list[dict[str, str]] = field(default_factory=list)
    """The rules that admit others than the group's members, in the form of DescribeSecurityGroupAttribute."""


class Place:
    """One region of an account that has a default VPC with one vSwitch in each zone."""

    def __init__(self, region: str, network: str, number: int) -> None:
        self.region = region
        self.zones = REGIONS[region]
        self.vpc = f"vpc-bp1default{number:08d}"
        self.network = network
        self.vswitches: dict[str, VSwitch] = {}
        self.groups: dict[str, Group] = {}
        self.key_pairs: set[str] = set()
        self.deployment_sets: dict[str, str] = {}
        """The names of deployment sets, by id."""
        self.set_tokens: dict[str, str] = {}
        self._count = itertools.count(1)
        self.has_default_vpc = True
        for zone in self.zones:
            self.add_vswitch(zone, self.subnet_of(zone), vpc=self.vpc, is_default=True)
        self.add_group(vpc=self.vpc)

    def subnet_of(self, zone: str) -> str:
        """Return the address range of a zone's default vSwitch."""
        subnets = ipaddress.ip_network(self.network).subnets(prefixlen_diff=2)
        return str(next(itertools.islice(subnets, self.zones.index(zone), None)))

    def remove_network(self) -> None:
        """Remove the region's VPC."""
        self.has_default_vpc = False
        self.vswitches.clear()
        self.groups.clear()

    def add_vswitch(
        self,
        zone: str,
        network: str,
        *,
        vpc: str,
        is_default: bool = False,
        tags: Mapping[str, str] = _NOTHING,
    ) -> str:
        """Make a vSwitch and return its id."""
        made = f"vsw-bp1{self.region.replace('-', '')}{next(self._count):04d}"
        self.vswitches[made] = VSwitch(made, vpc, zone, network, is_default, dict(tags))
        return made

    def add_group(self, *, vpc: str, tags: Mapping[str, str] = _NOTHING, is_managed: bool = False) -> str:
        """Make a security group and return its id."""
        made = f"sg-bp1{self.region.replace('-', '')}{next(self._count):04d}"
        self.groups[made] = Group(made, vpc, dict(tags), is_managed)
        return made


class Account:
    """The resources of one account. The caller holds a lock."""

    def __init__(self, network: str) -> None:
        self._network = network
        self._places: dict[str, Place] = {}
        self.roles: dict[str, str] = {NODE_ROLE: "ecs.aliyuncs.com"}
        """The service that each role trusts, by the role's name."""
        self.ram = Ram(ACCOUNT_ID, self.roles)
        self.registries = {("cn-hangzhou", "sandbox"): "cri-sandbox000000001"}
        """The ids of Container Registry's instances, by region and name."""
        self.resource_groups = {DEFAULT_RESOURCE_GROUP}
        self.image_regions = {BARE_IMAGE_ID: OWN_IMAGES_REGION}
        """The region of each of the account's own images; all other images are public."""
        self.images: dict[str, dict[str, Any]] = {
            image_id: {
                "ImageId": image_id,
                "ImageName": image_id,
                "ImageFamily": family,
                "ImageOwnerAlias": "self" if image_id.startswith("m-") else "system",
                "Architecture": architecture,
                "Size": 20,
                "Status": "Available",
                "OSType": "linux",
                "IsSupportCloudinit": True,
            }
            for image_id, family, architecture in _IMAGES
        }

    def place(self, region: str) -> Place:
        """Return the region.

        Raises:
            ApiError: the region does not exist.
        """
        if region not in REGIONS:
            raise ApiError("InvalidRegionId.NotFound", "The specified RegionId does not exist.", status=404)
        if region not in self._places:
            self._places[region] = Place(region, self._network, len(self._places) + 1)
        return self._places[region]

    def images_in(self, region: str) -> Mapping[str, Mapping[str, Any]]:
        """Return the images of a region, by id; public images have the same ids in all regions."""
        return {
            name: one for name, one in self.images.items() if self.image_regions.get(name, region) == region
        }

    # --- answers --------------------------------------------------------------------------------

    def describe_regions(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeRegions."""
        return {"Regions": {"Region": [{"RegionId": name, "LocalName": name} for name in REGIONS]}}

    def describe_vswitches(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer VPC's DescribeVSwitches."""
        tags = wanted_tags(parameters)
        matching = [
            one
            for one in self.place(region).vswitches.values()
            if parameters.get("VSwitchId", one.id) == one.id
            and parameters.get("VpcId", one.vpc) == one.vpc
            and parameters.get("ZoneId", one.zone) == one.zone
            and parameters.get("IsDefault", str(one.is_default).lower()) == str(one.is_default).lower()
            and has_tags(one.tags, tags)
        ]
        rows = [
            {
                "VSwitchId": one.id,
                "VpcId": one.vpc,
                "ZoneId": one.zone,
                "CidrBlock": one.network,
                "IsDefault": one.is_default,
                "Status": "Available",
                "Tags": {"Tag": [{"Key": name, "Value": value} for name, value in one.tags.items()]},
            }
            for one in matching
        ]
        return numbered_page("VSwitches", "VSwitch", rows, parameters, most=50)

    def list_registries(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer Container Registry's ListInstance; it is undocumented whether its filter matches parts."""
        wanted = parameters.get("InstanceName", "")
        rows = [
            {"InstanceId": found, "InstanceName": name, "InstanceStatus": "RUNNING", "RegionId": place}
            for (place, name), found in self.registries.items()
            if place == region and wanted in name
        ]
        return {"Code": "success", "IsSuccess": True, "TotalCount": len(rows), "Instances": rows}

    def get_authorization_token(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer Container Registry's GetAuthorizationToken; the code of its refusal is from memory."""
        if (parameters.get("InstanceId"), region) not in {
            (found, place) for (place, _), found in self.registries.items()
        }:
            raise ApiError("INSTANCE_NOT_EXIST", "instance is not exist.")
        return {
            "Code": "success",
            "IsSuccess": True,
            "TempUsername": "cr_temp_user",
            "AuthorizationToken": f"token-{secrets.token_hex(8)}",
            "ExpireTime": int((time.time() + 3600) * 1000),
        }

    def describe_security_groups(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeSecurityGroups."""
        named, tags = json_list(parameters, "SecurityGroupIds"), wanted_tags(parameters)
        rows = [
            {
                "SecurityGroupId": one.id,
                "VpcId": one.vpc,
                "ServiceManaged": one.is_managed,
                "SecurityGroupType": "normal",
                "Tags": {"Tag": [{"TagKey": name, "TagValue": value} for name, value in one.tags.items()]},
            }
            for one in self.place(region).groups.values()
            if (named is None or one.id in named)
            and parameters.get("VpcId", one.vpc) == one.vpc
            and has_tags(one.tags, tags)
        ]
        return numbered_page("SecurityGroups", "SecurityGroup", rows, parameters, most=100)

    def create_default_vpc(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer VPC's CreateDefaultVpc; the code of its refusal is from memory."""
        place = self.place(region)
        if place.has_default_vpc:
            message = "The default VPC already exists in this region."
            raise ApiError("OperationDenied.DefaultVpcExist", message)
        place.has_default_vpc = True
        return {"VpcId": place.vpc}

    def create_default_vswitch(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer VPC's CreateDefaultVSwitch; the codes of its refusals are from memory."""
        place, zone = self.place(region), parameters.get("ZoneId", "")
        if zone not in place.zones:
            raise ApiError("InvalidZoneId.NotFound", "The specified zone does not exist.", status=404)
        if not place.has_default_vpc:
            raise ApiError("InvalidDefaultVpc.NotFound", "The default VPC does not exist.", status=404)
        if any(one.is_default and one.zone == zone for one in place.vswitches.values()):
            message = "The default VSwitch already exists in this zone."
            raise ApiError("OperationDenied.DefaultVSwitchExist", message)
        return {"VSwitchId": place.add_vswitch(zone, place.subnet_of(zone), vpc=place.vpc, is_default=True)}

    def create_security_group(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer CreateSecurityGroup."""
        check_handled(parameters, {"SecurityGroupName", "Tag", "VpcId"}, what="parameter")
        place, vpc = self.place(region), parameters.get("VpcId", "")
        if vpc != place.vpc or not place.has_default_vpc:
            raise ApiError("InvalidVpcId.NotFound", "The specified VPC does not exist.", status=404)
        tags = {one["Key"]: one.get("Value", "") for one in nested(parameters, "Tag")}
        return {"SecurityGroupId": place.add_group(vpc=vpc, tags=tags)}

    def delete_security_group(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DeleteSecurityGroup."""
        if self.place(region).groups.pop(parameters.get("SecurityGroupId", ""), None) is None:
            raise ApiError(
                "InvalidSecurityGroupId.NotFound", "The specified group does not exist.", status=404
            )
        return {}

    def describe_security_group_attribute(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeSecurityGroupAttribute with the group's ``rules``."""
        check_handled(parameters, {"Direction", "SecurityGroupId"}, what="filter")
        group = self.place(region).groups.get(parameters.get("SecurityGroupId", ""))
        if group is None:
            raise ApiError(
                "InvalidSecurityGroupId.NotFound", "The specified group does not exist.", status=404
            )
        return {"SecurityGroupId": group.id, "VpcId": group.vpc, "Permissions": {"Permission": group.rules}}

    def describe_images(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeImages; see the ECS API reference (checked 2026-11)."""
        check_handled(parameters, _IMAGE_FILTERS, what="filter")
        named, tags = parameters.get("ImageId", ""), wanted_tags(parameters)
        statuses = set(parameters.get("Status", "Available").split(","))
        if not statuses <= _IMAGE_STATUSES:
            raise ApiError("InvalidParamter", "Invalid Parameter.")
        owner = parameters.get("ImageOwnerAlias")
        if owner not in {None, "system", "self", "others", "marketplace"}:
            message = "The specified ImageOwnerAlias value is not supported."
            raise ApiError("InvalidImageOwnerAlias.ValueNotSupported", message)
        rows = [
            one
            for one in self.images_in(region).values()
            if (not named or one["ImageId"] in named.split(","))
            and one["Status"] in statuses
            and owner in {None, one["ImageOwnerAlias"]}
            and has_tags(tags_of(one), tags)
        ]
        return numbered_page("Images", "Image", rows, parameters, most=100)

    def describe_image_from_family(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeImageFromFamily; for a family that does not exist, the response has no image."""
        if "ImageFamily" not in parameters:
            raise ApiError("MissingParameter.ImageFamily", "ImageFamily is mandatory.")
        family = parameters["ImageFamily"]
        found = [one for one in self.images_in(region).values() if one["ImageFamily"] == family]
        return {"Image": found[-1]} if found else {}

    def describe_key_pairs(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeKeyPairs."""
        rows = [
            {"KeyPairName": name}
            for name in sorted(self.place(region).key_pairs)
            if parameters.get("KeyPairName", name) == name
        ]
        return numbered_page("KeyPairs", "KeyPair", rows, parameters, most=50)

    def create_deployment_set(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer CreateDeploymentSet."""
        place, token = self.place(region), parameters.get("ClientToken", "")
        if parameters.get("Strategy", "Availability") not in {
            "Availability",
            "AvailabilityGroup",
            "LowLatency",
        }:
            raise ApiError("InvalidParameter", "The specified parameter Strategy is not valid.")
        name = parameters.get("DeploymentSetName", "")
        if not 2 <= len(name) <= 128 or not name[0].isalpha():
            raise ApiError("InvalidParameter", "The specified parameter DeploymentSetName is not valid.")
        if token and place.set_tokens.get(token) in place.deployment_sets:
            return {"DeploymentSetId": place.set_tokens[token]}
        made = f"ds-bp1{place.region.replace('-', '')}{len(place.set_tokens) + 1:04d}"
        place.deployment_sets[made] = name
        place.set_tokens[token] = made
        return {"DeploymentSetId": made}

    def describe_deployment_sets(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeDeploymentSets; a name also matches the sets whose names contain it."""
        named = json_list(parameters, "DeploymentSetIds")
        rows = [
            {"DeploymentSetId": one, "DeploymentSetName": name}
            for one, name in self.place(region).deployment_sets.items()
            if (named is None or one in named) and parameters.get("DeploymentSetName", "") in name
        ]
        return numbered_page("DeploymentSets", "DeploymentSet", rows, parameters, most=50)


def tags_of(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags in a response, by name."""
    return {one["TagKey"]: one["TagValue"] for one in described.get("Tags", {}).get("Tag", ())}


def wanted_tags(parameters: Parameters) -> list[tuple[str, str | None]]:
    """Return the tags that a listing requests; a tag without a value matches any value.

    Raises:
        ApiError: a tag has no name.
    """
    found = [(str(one.get("Key", "")), one.get("Value")) for one in nested(parameters, "Tag")]
    if any(not name for name, _ in found):
        raise ApiError("InvalidTagKey.Malformed", "The specified Tag.n.Key is not valid.")
    return found


def has_tags(tags: Mapping[str, str], wanted: Sequence[tuple[str, str | None]]) -> bool:
    """Return whether all wanted tags are present."""
    return all(name in tags and value in {None, tags[name]} for name, value in wanted)


def numbered_page(
    outer: str, inner: str, rows: Sequence[Any], parameters: Parameters, *, most: int
) -> dict[str, Any]:
    """Return a page of a listing with numbered pages."""
    number, size = int(parameters.get("PageNumber", 1)), int(parameters.get("PageSize", 10))
    if number < 1 or not 1 <= size <= most:
        raise ApiError("InvalidParameter", "The specified PageNumber or PageSize is not valid.")
    start = (number - 1) * size
    return {
        outer: {inner: list(rows[start : start + size])},
        "TotalCount": len(rows),
        "PageNumber": number,
        "PageSize": size,
    }
