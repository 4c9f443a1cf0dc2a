"""The table ``[providers.aliyun]`` of a job file: where machines run, on what and with which rights."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from cloudspot.jobfile.quantities import Size
from cloudspot.plugin.optionchecks import NameRule, OptionChecks, ids_in, prices_in, region_of

DEFAULT_IMAGE_FAMILY: Final = "acs:ubuntu_24_04_x64"
"""Alibaba Cloud's public image of Ubuntu 24.04, the newest of its family."""
DEFAULT_ROLE: Final = "cloudspot-node"
MAX_GROUPS: Final = 5
"""The most security groups of a machine ("Security group limits"; from memory)."""
MAX_OWN_TAGS: Final = 8
"""How many of an instance's 20 tags are kept for cloudspot's own."""

Price = Annotated[float, msgspec.Meta(gt=0)]

_REGION: Final = r"[a-z]{2}-[a-z0-9]+(?:-[a-z0-9]+)*"

_CHECKS: Final = OptionChecks(
    "aliyun",
    {
        "region": NameRule("a region", _REGION, "cn-hangzhou"),
        "regions": NameRule("a region", _REGION, "cn-hangzhou"),
        "account": NameRule("an account", r"\d{6,20}", "1234567890123456"),
        "zones": NameRule("a zone", rf"{_REGION}-?[a-z]", "cn-hangzhou-i"),
        "instance_types": NameRule(
            "an instance type", r"ecs\.[a-z0-9-]+(?:\.[a-z0-9-]+)+", "ecs.gn7i-c8g1.2xlarge"
        ),
        "image": NameRule(
            "an image",
            r"[A-Za-z0-9_.\-]{2,128}",
            "m-bp1234567890abcdefgh or ubuntu_24_04_x64_20G_alibase_20260101.vhd",
        ),
        "image_family": NameRule(
            "an image family", r"[A-Za-z][A-Za-z0-9_.:\-]{1,127}", "acs:ubuntu_24_04_x64"
        ),
        "vswitches": NameRule(
            "a vSwitch", rf"(?:{_REGION}/)?vsw-[a-z0-9]{{8,32}}", "vsw-bp1234567890abcdefgh"
        ),
        "security_groups": NameRule(
            "a security group", rf"(?:{_REGION}/)?sg-[a-z0-9]{{8,32}}", "sg-bp1234567890abcdefgh"
        ),
        "deployment_set": NameRule(
            "a deployment set", r"auto|ds-[a-z0-9]{8,32}", '"auto" or ds-bp1234567890abcdefgh'
        ),
        "role": NameRule("a RAM role", r"[A-Za-z0-9.\-]{1,64}", "cloudspot-node"),
        "key_pair": NameRule("a key pair", r"[A-Za-z][A-Za-z0-9:_\-]{1,127}", "my-key"),
        "resource_group": NameRule("a resource group", r"rg-[a-z0-9]{8,32}", "rg-acfm1234567890a"),
    },
)
field_error, one_a_zone = _CHECKS.error, _CHECKS.one_a_zone
unknown_region, unknown_type = _CHECKS.unknown_region, _CHECKS.unknown_type


class AliyunOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[providers.aliyun]``: ECS machines. Every field may be left out."""

    region: str | None = None
    """Such as ``"cn-hangzhou"``; left out: ``ALIBABA_CLOUD_REGION_ID``, the profile's, or the one this
    machine is in. The bucket should be there."""
    regions: tuple[str, ...] = ()
    """Where machines may be, such as ``["cn-hangzhou", "cn-beijing"]``; left out: in ``region`` only. The
    nodes of a job are in one of them at a time."""
    account: str | None = None
    """The account's number; left out: that of whoever submits. A controller with credentials of another
    account would see none of the job's machines and must not judge by that."""
    zones: tuple[str, ...] = ()
    """Only in these, such as ``["cn-hangzhou-i"]``; left out: every zone that has the type and a vSwitch."""
    instance_types: tuple[str, ...] = ()
    """Only these, such as ``["ecs.gn7i-c8g1.2xlarge"]``; left out: the cheapest that have ``resources``."""
    image: str | None = None
    """An image's id, your own (``"m-..."``) or a public one; left out: the newest of ``image_family``. With
    ``regions``, name a family, which each of them has."""
    image_family: str | None = None
    """Left out: Alibaba Cloud's Ubuntu 24.04 (``"acs:ubuntu_24_04_x64"``), which has neither PyTorch nor a
    driver: the job's setup installs them, or an image of your own brings them along."""
    setup_key: str | None = None
    """Set by cloudspot on submission: which image of ``cloudspot image bake`` machines start from, if it is
    there."""
    image_has_cloudspot: bool = False
    """The image carries this very version of cloudspot, with this plugin: nothing is installed at boot."""
    agent_python: str = "python3"
    """The image's Python, 3.10 or newer, that runs the agent or makes the agent's environment."""
    train_python: str = "python3"
    """The image's Python for setup and training where the job names none."""
    data_cache: str | None = None
    """An absolute path: the directory in which machines keep the files of ``[data]``, such as a fast local
    disk that the image mounts. If left out: below the agent's own directory, on the boot disk."""
    role: str = DEFAULT_ROLE
    """Name of the RAM role that the machines have: it gives them the bucket, and the right to end
    themselves."""
    vswitches: tuple[str, ...] = ()
    """At most one a zone, all of a region in one VPC; left out: those that carry the tag ``cloudspot``, else
    those of the region's default VPC. They must lead to OSS, and the images' packages. With ``regions``, each
    as ``"cn-beijing/vsw-..."``."""
    security_groups: tuple[str, ...] = ()
    """Must let the nodes of a job reach each other on every TCP port; left out: the one of the VPC that
    carries the tag ``cloudspot``, else the only one there is. With ``regions``, each as
    ``"cn-beijing/sg-..."``, at most five in each."""
    public_bandwidth: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Mbit/s out of a public address; 0: the machines get none."""
    key_pair: str | None = None
    """An ECS key pair, to log in by SSH; cloudspot needs none."""
    resource_group: str | None = None
    """Put machines into this resource group."""
    disk: Size = 0
    """The system disk; left out: the image's own size and 50 GiB, or what ``resources.disk`` asks on top."""
    disk_type: Literal["cloud_essd", "cloud_essd_entry", "cloud_auto", "cloud_ssd", "cloud_efficiency"] = (
        "cloud_essd"
    )
    """The kind of the system disk; the newest instance types have ``cloud_essd`` and ``cloud_auto`` only."""
    disk_performance: Literal["PL0", "PL1", "PL2", "PL3"] | None = None
    """Of a ``cloud_essd`` disk; left out: PL1, as ECS does it."""
    max_price: Price | None = None
    """In the account's currency an hour, what a spot machine may cost at most; three decimals. Left out:
    the market's price goes, which is never above the pay-as-you-go price."""
    protected_hour: bool = False
    """A spot machine is not taken in its first hour. It costs more in some zones; left out: the price is the
    market's, and the machine may be taken at any time."""
    on_demand_prices: dict[str, float] = msgspec.field(default_factory=dict)
    """An hour by instance type, such as ``{"ecs.gn7i-c8g1.2xlarge" = 10.5}``, for accounts that may not ask
    ECS for prices; what stands here is not asked for there, and no disk is added to it. With ``regions``,
    also for one of them, as ``"cn-beijing/ecs.gn7i-c8g1.2xlarge"``."""
    currency: Literal["CNY", "USD", "EUR", "JPY"] | None = None
    """Of the prices; left out: what ECS answers, which is CNY for accounts of mainland China."""
    deployment_set: str | None = None
    """``"auto"`` makes a deployment set for a job of several nodes, which spreads them over hosts, and
    removes it with the job; a ``ds-...`` is one of yours, not with ``regions``. A set holds at most 20
    machines in a zone, old and new ones together."""
    logs: Literal["oss", "bucket"] = "oss"
    """Where the nodes' logs go: into appendable objects below ``logs/`` as people of Alibaba Cloud know them,
    or beside the checkpoints as on every provider."""
    metadata_hops: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """How far answers of the metadata service travel: 2 lets containers on the machine ask it. Not every
    account has more than 1."""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    """Put on every instance and disk, beside cloudspot's own; for your bills."""


def base_image(options: AliyunOptions) -> str:
    """Return what names the image of machines without a setup of their own: an id or a family."""
    return options.image or options.image_family or DEFAULT_IMAGE_FAMILY


def check_options(options: AliyunOptions) -> None:
    """Raise SpecError, which names the field, for what is wrong without asking Alibaba Cloud."""
    _CHECKS.require_valid_names(options)
    _CHECKS.require_zones_in(options.regions or tuple(filter(None, [options.region])), options.zones)
    _CHECKS.require_ids_in(
        options.regions,
        vswitches=options.vswitches,
        security_groups=options.security_groups,
    )
    if options.regions and options.image is not None:
        raise field_error("image", "an image is of one region; with regions, name an image_family")
    if options.regions and options.deployment_set not in {None, "auto"}:
        raise field_error("deployment_set", 'a set is of one region; with regions, only "auto" will do')
    _CHECKS.require_prices_in(options.regions, "on_demand_prices", options.on_demand_prices)
    if options.image is not None and options.image_family is not None:
        raise field_error("image_family", "has no effect beside image; leave one of them out")
    if options.max_price is not None and round(options.max_price, 3) != options.max_price:
        raise field_error("max_price", f"expected at most three decimals, got {options.max_price:g}")
    given = max((len(ids_in(one, options.security_groups)) for one in options.regions), default=0)
    given = given or len(options.security_groups)
    if given > MAX_GROUPS:
        raise field_error("security_groups", f"a machine has at most {MAX_GROUPS}, got {given}")
    if options.disk_performance is not None and options.disk_type != "cloud_essd":
        raise field_error("disk_performance", 'works with disk_type = "cloud_essd" only')
    _CHECKS.require_unique(
        regions=options.regions,
        zones=options.zones,
        vswitches=options.vswitches,
        security_groups=options.security_groups,
        instance_types=options.instance_types,
    )
    for name, value in options.tags.items():
        for text, limit in ((name, 64), (value, 128)):
            if len(text) > limit:
                raise field_error("tags", f'"{name}": {len(text)} characters are more than {limit}')
            if "http://" in text or "https://" in text:
                raise field_error("tags", f'"{name}": ECS allows neither http:// nor https:// in a tag')
            if text.startswith(("aliyun", "acs:")):
                raise field_error("tags", f'"{name}": ECS reserves what begins with aliyun or acs:')
        if not name:
            raise field_error("tags", "the name of a tag is empty")
    reserved = {"MASTER_ADDR", "MASTER_PORT", "NUM_NODES"}
    _CHECKS.require_free_tags("tags", options.tags, most=20 - MAX_OWN_TAGS, reserved=reserved)


def options_in(region: str, options: AliyunOptions) -> AliyunOptions:
    """Return what the options with ``regions`` mean in one of these."""
    return msgspec.structs.replace(
        options,
        region=region,
        regions=(),
        zones=tuple(zone for zone in options.zones if region_of(zone, options.regions) == region),
        vswitches=ids_in(region, options.vswitches),
        security_groups=ids_in(region, options.security_groups),
        on_demand_prices=prices_in(region, options.on_demand_prices),
    )
