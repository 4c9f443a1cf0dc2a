"""The table ``[providers.aws]`` of a job file: where and how its machines run."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from cloudspot.jobfile.quantities import Size
from cloudspot.plugin.optionchecks import NameRule, OptionChecks, ids_in, prices_in, region_of

DEFAULT_IMAGE: Final = (
    "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.11-ubuntu-24.04/latest/ami-id"
)
"""AWS's Deep Learning AMI with PyTorch and an NVIDIA driver, by its public parameter (DLAMI developer guide,
"Finding the ID of a DLAMI", and the release notes of 2026-08-15: driver 595; checked 2026-11). AWS patches an
image until one year after the release of its PyTorch, such as that with 2.9 until 2026-10-15 (DLAMI support
policy table)."""
DEFAULT_TRAIN_PYTHON: Final = "/opt/pytorch/bin/python"
"""The Python that has PyTorch on that image (its release notes, ``python_location``)."""
DEFAULT_INSTANCE_PROFILE: Final = "cloudspot-node"

RETENTION_DAYS: Final = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731),
    *(1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
"""The retention times that CloudWatch Logs accepts, in days (API reference, PutRetentionPolicy; checked
2026-11).
"""
Price = Annotated[float, msgspec.Meta(gt=0)]

_REGION: Final = r"[a-z]{2,}(?:-[a-z]+)+-\d+"

_CHECKS: Final = OptionChecks(
    "aws",
    {
        "region": NameRule("a region", _REGION, "us-east-1"),
        "regions": NameRule("a region", _REGION, "us-east-1"),
        "account": NameRule("an account", r"\d{12}", "123456789012"),
        "zones": NameRule("a zone", rf"{_REGION}(?:-[a-z]+-\d+)?[a-z]", "us-east-1a"),
        "instance_types": NameRule("an instance type", r"[a-z0-9-]+\.[a-z0-9-]+", "g5.xlarge"),
        "image": NameRule(
            "an image",
            r"ami-[0-9a-f]{8,17}|/[A-Za-z0-9_.\-/]+",
            "ami-0123456789abcdef0 or /aws/service/.../ami-id",
        ),
        "subnets": NameRule(
            "a subnet", rf"(?:{_REGION}/)?subnet-[0-9a-f]{{8,17}}", "subnet-0123456789abcdef0"
        ),
        "security_groups": NameRule(
            "a security group", rf"(?:{_REGION}/)?sg-[0-9a-f]{{8,17}}", "sg-0123456789abcdef0"
        ),
        "log_group": NameRule("a log group", r"[.\-_/#A-Za-z0-9]{1,512}", "/teams/vision"),
        "instance_profile": NameRule(
            "an instance profile",
            r"[A-Za-z0-9+=,.@_-]{1,128}|arn:aws[a-z-]*:iam::\d{12}:instance-profile/\S+",
            "cloudspot-node",
        ),
        "limit_role": NameRule(
            "the ARN of a role",
            r"arn:aws[a-z-]*:iam::\d{12}:role/\S+",
            "arn:aws:iam::123456789012:role/cloudspot-limit",
        ),
    },
)
field_error, one_a_zone = _CHECKS.error, _CHECKS.one_a_zone
unknown_region, unknown_type = _CHECKS.unknown_region, _CHECKS.unknown_type
# Instance metadata, from which a node reads its tags, allows no other characters in their names.
_TAG_NAME: Final = re.compile(r"[A-Za-z0-9+\-=._:@]{1,128}")


class AwsOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[providers.aws]``: EC2 machines. Every field is optional."""

    region: str | None = None
    """The region, such as ``"us-east-1"``. The default is ``AWS_REGION``, else the profile's region, else the
    region of the machine on which cloudspot runs. The nodes' logs are written in this region, and the bucket
    should be there.
    """
    regions: tuple[str, ...] = ()
    """The regions where machines may run, such as ``["us-east-1", "us-west-2"]``. The default is only
    ``region``. The nodes of a job are in one region at a time.
    """
    account: str | None = None
    """The account's ID, of 12 digits. The default is the submitter's account. A driver whose credentials
    belong to another account cannot see the job's machines, and is refused.
    """
    zones: tuple[str, ...] = ()
    """The only zones to use, such as ``["us-east-1a"]``. The default is every zone that has the type and a
    subnet."""
    instance_types: tuple[str, ...] = ()
    """The only types to use, such as ``["g5.xlarge", "g6.xlarge"]``. The default is the cheapest types that
    have ``resources``."""
    image: str | None = None
    """``"ami-..."``, or the Systems Manager parameter that names an image, such as ``"/aws/service/..."``.
    The default is AWS's Deep Learning AMI with PyTorch 2.11 on Ubuntu 24.04. With ``regions``, it must be a
    parameter that exists in each of them.
    """
    setup_key: str | None = None
    """Set by cloudspot on submission: the key of the image from ``cloudspot image bake``, if it exists, from
    which machines start.
    """
    image_has_cloudspot: bool = False
    """Whether the image contains this exact version of cloudspot and this plugin, so that nothing is
    installed at boot."""
    agent_python: str = "python3"
    """The image's Python, 3.10 or newer, that runs the agent or makes the agent's environment."""
    train_python: str | None = None
    """The image's Python for setup and training if the job does not name one. The default is the Deep
    Learning AMI's, or ``"python3"`` with an image of your own.
    """
    data_cache: str | None = None
    """The absolute path of the directory in which machines keep the files of ``[data]``. The default is on
    the machine's empty local disks, or, without any, in the agent's own directory on the boot disk.
    """
    instance_profile: str = DEFAULT_INSTANCE_PROFILE
    """The name or ARN of the instance profile whose role lets the machines use the bucket and write their
    logs."""
    subnets: tuple[str, ...] = ()
    """At most one subnet for each zone; all subnets of a region must be in one VPC. The default is the
    default subnets of the region's default VPC. The subnets need a route to S3. With ``regions``, write
    ``"us-west-2/subnet-..."``.
    """
    security_groups: tuple[str, ...] = ()
    """Security groups that let the nodes of a job reach each other on every TCP port. The default is the
    VPC's default group, which does this. With ``regions``, write ``"us-west-2/sg-..."``.
    """
    public_ip: bool | None = None
    """Whether machines get a public address. The default is the subnet's setting."""
    key_name: str | None = None
    """An EC2 key pair, to log in by SSH; cloudspot itself does not use it."""
    disk: Size = 0
    """The size of the root disk. The default is the image's own size plus ``resources.disk``, or plus 50 GiB
    if that is not set."""
    disk_type: Literal["gp3", "gp2", "io1", "io2"] = "gp3"
    """The kind of EBS volume."""
    disk_iops: Annotated[int, msgspec.Meta(ge=100)] | None = None
    """Operations a second. The default for gp3 is 3000; io1 and io2 have no default."""
    disk_throughput: Annotated[int, msgspec.Meta(ge=125, le=2000)] | None = None
    """MiB a second, for gp3 only. The default is 125."""
    max_price: Price | None = None
    """The maximum price of a spot machine, in USD an hour. The default is EC2's: the on-demand price."""
    on_demand_prices: dict[str, float] = msgspec.field(default_factory=dict)
    """Prices in USD an hour by instance type, such as ``{"g5.xlarge" = 1.006}``, for accounts that may not
    read AWS's price list. A price given here is not looked up, and no disk or address is added to it. With
    ``regions``, a key may name one of them: ``"us-west-2/g5.xlarge"``.
    """
    placement_group: str | None = None
    """``"auto"`` makes a cluster placement group for a job of several nodes, in each zone that it uses, and
    removes it with the job; any other name is that of an existing group. A group makes traffic between nodes
    faster, but the nodes and their replacements compete for the capacity of one rack.
    """
    logs: Literal["cloudwatch", "bucket"] = "cloudwatch"
    """Where the nodes' logs go: to CloudWatch Logs, or beside the checkpoints in the bucket."""
    log_group: str | None = None
    """The CloudWatch log group, which jobs then share. The default is ``/cloudspot/JOB``. The policies in the
    docs cover names that begin with ``/cloudspot/``; add any other name to the submitter's and the machines'
    policies.
    """
    log_retention_days: int = 30
    """How long CloudWatch keeps the lines of a group that cloudspot has made."""
    metadata_hops: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """How many network hops the metadata service's responses may travel; with 2, containers on the machine
    can use the service.
    """
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    """Tags for every instance and volume, for example for billing, in addition to cloudspot's own."""
    limit_role: str | None = None
    """The ARN of a role with which EventBridge Scheduler ends machines when their time is up. Without it,
    only the timer on the machine ends it. `cloudspot setup` makes such a role.
    """

    @property
    def image_or_default(self) -> str:
        """Return the image or the parameter that names it."""
        return self.image or DEFAULT_IMAGE

    @property
    def train_python_or_default(self) -> str:
        """Return the Python for setup and training on the image."""
        return self.train_python or ("python3" if self.image else DEFAULT_TRAIN_PYTHON)


def check_options(options: AwsOptions) -> None:
    """Raise SpecError, naming the field, for errors that can be found without asking AWS."""
    _CHECKS.require_valid_names(options)
    _CHECKS.require_zones_in(options.regions or tuple(filter(None, [options.region])), options.zones)
    _CHECKS.require_ids_in(
        options.regions,
        subnets=options.subnets,
        security_groups=options.security_groups,
    )
    if options.regions and (options.image or "").startswith("ami-"):
        raise field_error(
            "image", "an ami-... is in one region only; with regions, name a parameter that each has"
        )
    _CHECKS.require_prices_in(options.regions, "on_demand_prices", options.on_demand_prices)
    if options.log_retention_days not in RETENTION_DAYS:
        days = ", ".join(map(str, RETENTION_DAYS))
        raise field_error("log_retention_days", f"expected one of {days}; got {options.log_retention_days}")
    _CHECKS.require_unique(regions=options.regions, zones=options.zones, subnets=options.subnets)
    if options.disk_type in {"io1", "io2"} and options.disk_iops is None:
        raise field_error("disk_iops", f'missing; disk_type = "{options.disk_type}" needs it')
    if options.disk_type == "gp2" and options.disk_iops is not None:
        raise field_error("disk_iops", 'has no effect with disk_type = "gp2"')
    if options.disk_type != "gp3" and options.disk_throughput is not None:
        raise field_error("disk_throughput", 'works with disk_type = "gp3" only')
    for name, value in options.tags.items():
        if not _TAG_NAME.fullmatch(name) or name in {".", "..", "_index"}:
            text = f'a machine cannot read the tag "{name}"; use letters, digits and +-=._:@ only'
            raise field_error("tags", text)
        if len(value) > 256:
            raise field_error("tags", f'the value of "{name}" has {len(value)} characters; EC2 allows 256')
    reserved = {"Name", "MASTER_ADDR", "MASTER_PORT"}
    _CHECKS.require_free_tags("tags", options.tags, most=30, prefix="aws:", reserved=reserved)


def options_in(region: str, options: AwsOptions) -> AwsOptions:
    """Return the options for one of ``regions``."""
    return msgspec.structs.replace(
        options,
        region=region,
        regions=(),
        zones=tuple(zone for zone in options.zones if region_of(zone, options.regions) == region),
        subnets=ids_in(region, options.subnets),
        security_groups=ids_in(region, options.security_groups),
        on_demand_prices=prices_in(region, options.on_demand_prices),
    )
