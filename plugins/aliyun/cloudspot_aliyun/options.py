"""The table ``[providers.aliyun]`` of a job file: where and how its machines run."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from cloudspot.jobfile.quantities import Size
from cloudspot.plugin.optionchecks import NameRule, OptionChecks, ids_in, prices_in, region_of

DEFAULT_IMAGE_FAMILY: Final = "acs:ubuntu_24_04_x64"
"""Alibaba Cloud's public image of Ubuntu 24.04, the newest of its family."""
DEFAULT_ROLE: Final = "cloudspot-node"
MAX_GROUPS: Final = 5
"""The maximum number of a machine's security groups ("Security group limits"; from memory)."""
MAX_OWN_TAGS: Final = 8
"""How many of an instance's 20 tags are reserved for cloudspot's own."""

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
    """``[providers.aliyun]``: ECS machines. Every field is optional."""

    region: str | None = None
    """The region, such as ``"cn-hangzhou"``. The default is ``ALIBABA_CLOUD_REGION_ID``, else the profile's
    region, else the region of the machine on which cloudspot runs. The bucket should be in this region.
    """
    regions: tuple[str, ...] = ()
    """The regions where machines may run, such as ``["cn-hangzhou", "cn-beijing"]``. The default is only
    ``region``. The nodes of a job are in one region at a time.
    """
    account: str | None = None
    """The account's number. The default is the submitter's account. A driver whose credentials belong to
    another account cannot see the job's machines, and is refused.
    """
    zones: tuple[str, ...] = ()
    """The only zones to use, such as ``["cn-hangzhou-i"]``. The default is every zone that has the type and a
    vSwitch."""
    instance_types: tuple[str, ...] = ()
    """The only types to use, such as ``["ecs.gn7i-c8g1.2xlarge"]``. The default is the cheapest types that
    have ``resources``."""
    image: str | None = None
    """The id of an image, either your own (``"m-..."``) or a public one. The default is the newest image of
    ``image_family``. With ``regions``, name instead a family that exists in each of them.
    """
    image_family: str | None = None
    """An image family. The default is Alibaba Cloud's Ubuntu 24.04 (``"acs:ubuntu_24_04_x64"``), which has
    neither PyTorch nor a driver: install them in the job's setup, or use an image of your own."""
    setup_key: str | None = None
    """Set by cloudspot on submission: the key of the image from ``cloudspot image bake``, if it exists, from
    which machines start.
    """
    image_has_cloudspot: bool = False
    """Whether the image contains this exact version of cloudspot and this plugin, so that nothing is
    installed at boot."""
    agent_python: str = "python3"
    """The image's Python, 3.10 or newer, that runs the agent or makes the agent's environment."""
    train_python: str = "python3"
    """The image's Python for setup and training if the job does not name one."""
    data_cache: str | None = None
    """The absolute path of the directory in which machines keep the files of ``[data]``, such as a fast local
    disk that the image mounts. The default is in the agent's own directory on the boot disk."""
    role: str = DEFAULT_ROLE
    """The name of the machines' RAM role, which lets them use the bucket and release themselves."""
    vswitches: tuple[str, ...] = ()
    """At most one vSwitch for each zone; all vSwitches of a region must be in one VPC. The default is the
    vSwitches with the tag ``cloudspot``, else those of the region's default VPC. The vSwitches need a route
    to OSS and to the sources of packages that are installed. With ``regions``, write
    ``"cn-beijing/vsw-..."``.
    """
    security_groups: tuple[str, ...] = ()
    """Security groups that let the nodes of a job reach each other on every TCP port. The default is the
    VPC's group with the tag ``cloudspot``, else its only group. With ``regions``, write
    ``"cn-beijing/sg-..."``, at most five for each region."""
    public_bandwidth: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """The outgoing bandwidth of a public address, in Mbit/s; with 0, the machines get no public address."""
    key_pair: str | None = None
    """An ECS key pair, to log in by SSH; cloudspot itself does not use it."""
    resource_group: str | None = None
    """The resource group of the machines."""
    disk: Size = 0
    """The size of the system disk. The default is the image's own size plus ``resources.disk``, or plus 50
    GiB if that is not set."""
    disk_type: Literal["cloud_essd", "cloud_essd_entry", "cloud_auto", "cloud_ssd", "cloud_efficiency"] = (
        "cloud_essd"
    )
    """The kind of the system disk; the newest instance types support only ``cloud_essd`` and ``cloud_auto``.
    """
    disk_performance: Literal["PL0", "PL1", "PL2", "PL3"] | None = None
    """The performance level of a ``cloud_essd`` disk. The default is ECS's: PL1."""
    max_price: Price | None = None
    """The maximum price of a spot machine per hour, in the account's currency with up to three decimals. The
    default is the market's price, which is never above the pay-as-you-go price.
    """
    protected_hour: bool = False
    """Whether spot machines are protected from a reclaim in their first hour, which costs more in some zones.
    By default, a machine may be reclaimed at any time."""
    on_demand_prices: dict[str, float] = msgspec.field(default_factory=dict)
    """Prices per hour by instance type, such as ``{"ecs.gn7i-c8g1.2xlarge" = 10.5}``, for accounts that may
    not ask ECS for prices. A price given here is not looked up, and no disk is added to it. With ``regions``,
    a key may name one of them: ``"cn-beijing/ecs.gn7i-c8g1.2xlarge"``.
    """
    currency: Literal["CNY", "USD", "EUR", "JPY"] | None = None
    """The currency of the prices. The default is ECS's own, which is CNY for accounts of mainland China."""
    deployment_set: str | None = None
    """``"auto"`` makes a deployment set for a job of several nodes, which spreads them over hosts, and
    removes it with the job; ``ds-...`` names an existing set, and excludes ``regions``. A set holds at most
    20 machines in a zone, including machines that have been replaced but not yet released.
    """
    logs: Literal["oss", "bucket"] = "oss"
    """Where the nodes' logs go: to appendable objects below ``logs/``, as is usual on Alibaba Cloud, or
    beside the checkpoints in the bucket."""
    metadata_hops: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """How many network hops the metadata service's responses may travel; with 2, containers on the machine
    can use the service. Some accounts may set only 1.
    """
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    """Tags for every instance and disk, for example for billing, in addition to cloudspot's own."""


def base_image(options: AliyunOptions) -> str:
    """Return the id or the family of the image for machines that do not start from a setup image."""
    return options.image or options.image_family or DEFAULT_IMAGE_FAMILY


def check_options(options: AliyunOptions) -> None:
    """Raise SpecError, naming the field, for errors that can be found without asking Alibaba Cloud."""
    _CHECKS.require_valid_names(options)
    _CHECKS.require_zones_in(options.regions or tuple(filter(None, [options.region])), options.zones)
    _CHECKS.require_ids_in(
        options.regions,
        vswitches=options.vswitches,
        security_groups=options.security_groups,
    )
    if options.regions and options.image is not None:
        raise field_error("image", "an image is in one region only; with regions, name an image_family")
    if options.regions and options.deployment_set not in {None, "auto"}:
        raise field_error("deployment_set", 'a set is in one region only; with regions, use "auto"')
    _CHECKS.require_prices_in(options.regions, "on_demand_prices", options.on_demand_prices)
    if options.image is not None and options.image_family is not None:
        raise field_error("image_family", "has no effect with image; leave one of them out")
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
                raise field_error("tags", f'"{name}": ECS reserves tags that begin with aliyun or acs:')
        if not name:
            raise field_error("tags", "the name of a tag is empty")
    reserved = {"MASTER_ADDR", "MASTER_PORT", "NUM_NODES"}
    _CHECKS.require_free_tags("tags", options.tags, most=20 - MAX_OWN_TAGS, reserved=reserved)


def options_in(region: str, options: AliyunOptions) -> AliyunOptions:
    """Return the options for one of ``regions``."""
    return msgspec.structs.replace(
        options,
        region=region,
        regions=(),
        zones=tuple(zone for zone in options.zones if region_of(zone, options.regions) == region),
        vswitches=ids_in(region, options.vswitches),
        security_groups=ids_in(region, options.security_groups),
        on_demand_prices=prices_in(region, options.on_demand_prices),
    )
