"""Looks up in AWS the image, the network and the instance types that a launch needs.

:mod:`cloudspot_aws.offers` caches the answers. Each function raises SpecError if an option names something
that does not exist, AuthError if a permission is missing, and TransientError if AWS does not answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import Any, Final

import boto3
import botocore.exceptions
import msgspec

from cloudspot.errors import AuthError, SpecError
from cloudspot.plugin.answers import moment
from cloudspot.plugin.machinetypes import MachineType
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.options import AwsOptions, field_error, one_a_zone, unknown_region, unknown_type


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """The machine image of a launch."""

    id: str
    architecture: str
    boot_modes: tuple[str, ...]
    """The boot modes in which it can start: ``legacy-bios``, ``uefi``."""
    root_device: str
    size_gib: int
    created_at: datetime | None
    deprecated_at: datetime | None
    """When its owner begins to advise against its use."""


class Subnet(msgspec.Struct, frozen=True, kw_only=True):
    """The subnet for the machines of a zone."""

    id: str
    is_public: bool
    """Whether the subnet gives machines a public address by default."""


class InstanceType(MachineType, frozen=True, kw_only=True):
    """An instance type; its accelerator has EC2's name, such as ``A10G``."""

    architectures: tuple[str, ...]
    markets: frozenset[str]
    """``spot`` and ``on-demand``."""
    can_cluster: bool
    """Whether the type supports a cluster placement group."""
    boot_modes: tuple[str, ...]
    is_burstable: bool
    """Whether its processors, once their CPU credits are spent, slow down or cost more than its price."""
    has_ena: bool
    """Whether it has ENA, the network interface of all types since 2017; types without it are Xen machines.
    """
    is_special: bool
    """Whether it has only part of a GPU, has another accelerator (Neuron, FPGA, media), or is of the T
    family.
    """

    def boots(self, image: Image) -> bool:
        """Return whether the image can start on this type."""
        return image.architecture in self.architectures and bool({*self.boot_modes} & {*image.boot_modes})


@contextmanager
def _naming(field: str, value: str, codes: Sequence[str]) -> Iterator[None]:
    """Turn an error with one of these codes into a SpecError that names the option."""
    try:
        yield
    except botocore.exceptions.ClientError as error:
        if not ERRORS.code_of(error).startswith(tuple(codes)):
            raise
        raise field_error(field, f'there is no "{value}" in this region ({ERRORS.code_of(error)})') from error


def check_region(clients: AwsClients) -> str:
    """Return the region; raise SpecError if AWS has no such region."""
    region = clients.region
    known = _known_regions()
    if region not in known:
        raise unknown_region("region", region, known, where=" in this boto3")
    return region


@cache
def _known_regions() -> tuple[str, ...]:
    session = boto3.session.Session(region_name="us-east-1")
    return tuple(
        name
        for partition in session.get_available_partitions()
        for name in session.get_available_regions("ec2", partition)
    )


def find_image(clients: AwsClients, options: AwsOptions) -> Image:
    """Return the image that the option names, by its id or through a Systems Manager parameter."""
    named = options.image_or_default
    image_id = named if named.startswith("ami-") else _read_parameter(clients, named)
    with ERRORS.translated("looking up the image"), _naming("image", image_id, ["InvalidAMIID"]):
        images = clients.client("ec2").describe_images(ImageIds=[image_id])["Images"]
    if not images:
        raise field_error("image", f'there is no "{image_id}" in {clients.region}, or none that you may use')
    image = images[0]
    if image.get("State", "available") != "available":
        raise field_error("image", f'"{image_id}" is {image["State"]}, not available')
    root = str(image["RootDeviceName"])
    disks = {disk.get("DeviceName"): disk.get("Ebs") or {} for disk in image.get("BlockDeviceMappings", ())}
    architecture = str(image["Architecture"])
    return Image(
        id=image_id,
        architecture=architecture,
        boot_modes=_boot_modes(image.get("BootMode"), architecture),
        root_device=root,
        size_gib=int(disks.get(root, {}).get("VolumeSize") or 8),
        created_at=moment(image.get("CreationDate")),
        deprecated_at=moment(image.get("DeprecationTime")),
    )


def _boot_modes(named: str | None, architecture: str) -> tuple[str, ...]:
    """Return the modes in which an image starts; the default is that of its architecture.

    Source: EC2 user guide, "Instance launch behavior with Amazon EC2 boot modes" (checked 2026-11).
    """
    if named == "uefi-preferred":
        return ("legacy-bios", "uefi")
    return (named or ("uefi" if architecture == "arm64" else "legacy-bios"),)


def _read_parameter(clients: AwsClients, name: str) -> str:
    try:
        with (
            ERRORS.translated("looking up the image's parameter", {"ValidationException": SpecError}),
            _naming("image", name, ["ParameterNotFound"]),
        ):
            image_id = str(clients.client("ssm").get_parameter(Name=name)["Parameter"]["Value"])
    except AuthError as error:
        raise AuthError(f"{error}; alternatively, name an ami-... in providers.aws.image") from error
    if not image_id.startswith("ami-"):
        raise field_error("image", f'the parameter "{name}" does not hold an image\'s id')
    return image_id


def find_subnets(clients: AwsClients, options: AwsOptions) -> dict[str, Subnet]:
    """Return a subnet for each zone in which machines may run."""
    client = clients.client("ec2")
    if options.subnets:
        named = ", ".join(options.subnets)
        with ERRORS.translated("looking up the subnets"), _naming("subnets", named, ["InvalidSubnet"]):
            subnets = client.describe_subnets(SubnetIds=list(options.subnets))["Subnets"]
    else:
        with ERRORS.translated("looking up the default subnets"):
            filters = [{"Name": "default-for-az", "Values": ["true"]}]
            subnets = client.describe_subnets(Filters=filters)["Subnets"]
        if not subnets:
            raise field_error("subnets", f"missing; {clients.region} has no default VPC with default subnets")
    vpcs = sorted({str(one["VpcId"]) for one in subnets})
    if len(vpcs) > 1:
        why = "a job's nodes reach each other within one only, so name subnets of one"
        raise field_error("subnets", f"the subnets are in {len(vpcs)} VPCs ({', '.join(vpcs)}); {why}")
    pairs = [(str(one["AvailabilityZone"]), str(one["SubnetId"])) for one in subnets]
    public = {str(one["SubnetId"]) for one in subnets if one.get("MapPublicIpOnLaunch")}
    chosen = one_a_zone("subnets", "subnet", pairs, is_named=bool(options.subnets), zones=options.zones)
    return {zone: Subnet(id=one, is_public=one in public) for zone, one in chosen.items()}


def check_names(clients: AwsClients, options: AwsOptions) -> None:
    """Check that the groups, the key pair and the instance profile that the options name exist."""
    client = clients.client("ec2")
    if options.security_groups:
        named = ", ".join(options.security_groups)
        codes = ["InvalidGroup", "InvalidSecurityGroup"]
        with ERRORS.translated("looking up the security groups"), _naming("security_groups", named, codes):
            client.describe_security_groups(GroupIds=list(options.security_groups))
    if options.key_name is not None:
        with (
            ERRORS.translated("looking up the key pair"),
            _naming("key_name", options.key_name, ["InvalidKeyPair"]),
        ):
            client.describe_key_pairs(KeyNames=[options.key_name])
    if options.placement_group not in {None, "auto"}:
        name = str(options.placement_group)
        codes = ["InvalidPlacementGroup"]
        with ERRORS.translated("looking up the placement group"), _naming("placement_group", name, codes):
            client.describe_placement_groups(GroupNames=[name])
    check_profile(clients, options)


def check_profile(clients: AwsClients, options: AwsOptions) -> bool:
    """Check that the instance profile exists; return False if the credentials do not allow the check."""
    name = options.instance_profile.rpartition("/")[2]
    try:
        with ERRORS.translated("looking up the instance profile"):
            try:
                answer = clients.client("iam").get_instance_profile(InstanceProfileName=name)
            except botocore.exceptions.ClientError as error:
                if ERRORS.code_of(error) != "NoSuchEntity":
                    raise
                raise field_error(
                    "instance_profile", f'there is no "{name}"; cloudspot setup aws makes it'
                ) from error
    except AuthError:
        return False  # RunInstances itself reports the error then
    if not answer["InstanceProfile"]["Roles"]:
        raise field_error("instance_profile", f'"{name}" has no role; add one')
    return True


def named_types(clients: AwsClients, options: AwsOptions) -> list[InstanceType]:
    """Return the types that the options name."""
    client = clients.client("ec2")
    described: Sequence[Mapping[str, Any]] = ()
    with ERRORS.translated("looking up the instance types"):
        try:
            answer = client.describe_instance_types(InstanceTypes=list(options.instance_types))
            described = answer["InstanceTypes"]
        except botocore.exceptions.ClientError as error:
            if ERRORS.code_of(error) != "InvalidInstanceType":
                raise
            # EC2 names the unknown types only in prose, so they are searched here, to suggest similar names.
            known = set(offered_types(clients))
            if not set(options.instance_types) - known:
                raise
            described = [{"InstanceType": name} for name in set(options.instance_types) & known]
    by_name = {str(one["InstanceType"]): one for one in described}
    unknown = [name for name in options.instance_types if name not in by_name]
    if unknown:
        raise unknown_type("instance_types", unknown[0], offered_types(clients), where=clients.region)
    return [_to_type(by_name[name]) for name in options.instance_types]


def offered_types(clients: AwsClients) -> list[str]:
    """Return the names of all types in the region."""
    with ERRORS.translated("listing the region's instance types"):
        pages = clients.client("ec2").get_paginator("describe_instance_type_offerings")
        return sorted(
            str(offering["InstanceType"])
            for page in pages.paginate(LocationType="region")
            for offering in page["InstanceTypeOfferings"]
        )


def all_types(clients: AwsClients, architecture: str) -> list[InstanceType]:
    """Return the region's types of the given architecture, except bare metal."""
    filters = [
        {"Name": "bare-metal", "Values": ["false"]},
        {"Name": "processor-info.supported-architecture", "Values": [architecture]},
    ]
    with ERRORS.translated("looking for instance types that have the resources"):
        pages = clients.client("ec2").get_paginator("describe_instance_types")
        return [_to_type(one) for page in pages.paginate(Filters=filters) for one in page["InstanceTypes"]]


def zones_of_types(clients: AwsClients, names: Sequence[str]) -> dict[str, set[str]]:
    """Return the zones that offer each type."""
    zones: dict[str, set[str]] = {name: set() for name in names}
    with ERRORS.translated("looking for the zones of the instance types"):
        pages = clients.client("ec2").get_paginator("describe_instance_type_offerings")
        filters = [{"Name": "instance-type", "Values": list(names)}]
        for page in pages.paginate(LocationType="availability-zone", Filters=filters):
            for offering in page["InstanceTypeOfferings"]:
                zones[str(offering["InstanceType"])].add(str(offering["Location"]))
    return zones


_OTHER_ACCELERATORS: Final = ("FpgaInfo", "InferenceAcceleratorInfo", "MediaAcceleratorInfo", "NeuronInfo")
"""DescribeInstanceTypes' fields for accelerators other than GPUs (botocore's InstanceTypeInfo; checked
2026-11)."""


def _to_type(described: Mapping[str, Any]) -> InstanceType:
    gpus = (described.get("GpuInfo") or {}).get("Gpus") or ()
    gpu = gpus[0] if gpus else {}
    strategies = (described.get("PlacementGroupInfo") or {}).get("SupportedStrategies") or ()
    return InstanceType(
        name=str(described["InstanceType"]),
        architectures=tuple((described.get("ProcessorInfo") or {}).get("SupportedArchitectures") or ()),
        cpus=int(described["VCpuInfo"]["DefaultVCpus"]),
        memory_bytes=int(described["MemoryInfo"]["SizeInMiB"]) * 2**20,
        accelerator=gpu.get("Name"),
        accelerator_count=int(gpu.get("Count") or 0),
        markets=frozenset(described.get("SupportedUsageClasses") or ("on-demand", "spot")),
        can_cluster="cluster" in strategies,
        boot_modes=tuple(described.get("SupportedBootModes") or ("legacy-bios", "uefi")),
        is_burstable=bool(described.get("BurstablePerformanceSupported")),
        has_ena=(described.get("NetworkInfo") or {}).get("EnaSupport") != "unsupported",
        # A type with part of a GPU lists a GPU with the count 0.
        is_special=any(described.get(one) for one in _OTHER_ACCELERATORS)
        or (bool(gpus) and not gpu.get("Count"))
        # All types of the T family are burstable, although DescribeInstanceTypes denies it for the newest.
        or re.match(r"t\d", str(described["InstanceType"])) is not None,
    )
