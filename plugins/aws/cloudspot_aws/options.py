"""The table ``[providers.aws]`` of a job file: where, on what and with which rights machines run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from cloudspot.jobfile.quantities import Size
from cloudspot.jobfile.tables import FieldError

DEFAULT_IMAGE: Final = (
    "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04/latest/ami-id"
)
"""AWS's Deep Learning AMI with PyTorch, by its public parameter (DLAMI developer guide, "Finding the ID
of a DLAMI", checked 2026-11)."""
DEFAULT_TRAIN_PYTHON: Final = "/opt/pytorch/bin/python"
"""Where that image has PyTorch (its release notes, ``python_location``)."""
DEFAULT_INSTANCE_PROFILE: Final = "cloudspot-node"
OWN_TAG_PREFIX: Final = "cloudspot-"

RETENTION_DAYS: Final = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731),
    *(1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
"""What CloudWatch Logs knows (API reference, PutRetentionPolicy; checked 2026-11)."""
Price = Annotated[float, msgspec.Meta(gt=0)]

_NAMES: Final = {
    "region": re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d+"),
    "account": re.compile(r"\d{12}"),
    "zones": re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d+(?:-[a-z]+-\d+)?[a-z]"),
    "instance_types": re.compile(r"[a-z0-9-]+\.[a-z0-9-]+"),
    "image": re.compile(r"ami-[0-9a-f]{8,17}|/[A-Za-z0-9_.\-/]+"),
    "subnets": re.compile(r"subnet-[0-9a-f]{8,17}"),
    "security_groups": re.compile(r"sg-[0-9a-f]{8,17}"),
    "log_group": re.compile(r"[.\-_/#A-Za-z0-9]{1,512}"),
    "instance_profile": re.compile(
        r"[A-Za-z0-9+=,.@_-]{1,128}|arn:aws[a-z-]*:iam::\d{12}:instance-profile/\S+"
    ),
    "limit_role": re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/\S+"),
}
_EXAMPLES: Final = {
    "region": "us-east-1",
    "account": "123456789012",
    "zones": "us-east-1a",
    "instance_types": "g5.xlarge",
    "image": "ami-0123456789abcdef0 or /aws/service/.../ami-id",
    "subnets": "subnet-0123456789abcdef0",
    "security_groups": "sg-0123456789abcdef0",
    "log_group": "/teams/vision",
    "instance_profile": "cloudspot-node",
    "limit_role": "arn:aws:iam::123456789012:role/cloudspot-limit",
}
# What a node reads its tags by: instance metadata allows no other characters in their names.
_TAG_NAME: Final = re.compile(r"[A-Za-z0-9+\-=._:@]{1,128}")


class AwsOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[providers.aws]``: EC2 machines. Every field may be left out."""

    region: str | None = None
    """Such as ``"us-east-1"``; left out: ``AWS_REGION``, the profile's, or the one this machine is in."""
    account: str | None = None
    """The account's 12 digits; left out: that of whoever submits. A controller with credentials of another
    account would see none of the job's machines and must not judge by that."""
    zones: tuple[str, ...] = ()
    """Only in these, such as ``["us-east-1a"]``; left out: every zone that has the type and a subnet."""
    instance_types: tuple[str, ...] = ()
    """Only these, such as ``["g5.xlarge", "g6.xlarge"]``; left out: the cheapest that have ``resources``."""
    image: str | None = None
    """``"ami-..."``, or the Systems Manager parameter that names one, such as ``"/aws/service/..."``. Left
    out: AWS's Deep Learning AMI with PyTorch 2.9 on Ubuntu 24.04."""
    image_has_cloudspot: bool = False
    """The image carries this very version of cloudspot, with this plugin: nothing is installed at boot."""
    agent_python: str = "python3"
    """The image's Python, 3.10 or newer, that runs the agent or makes the agent's environment."""
    train_python: str | None = None
    """The image's Python for setup and training where the job names none; left out: the Deep Learning AMI's,
    or ``"python3"`` with an image of your own."""
    instance_profile: str = DEFAULT_INSTANCE_PROFILE
    """Name or ARN of the instance profile whose role the machines have: it gives them the bucket and the
    logs."""
    subnets: tuple[str, ...] = ()
    """At most one a zone; left out: the default ones of the region's default VPC. They must lead to S3."""
    security_groups: tuple[str, ...] = ()
    """Must let the nodes of a job reach each other on every TCP port; left out: the VPC's default group,
    which does."""
    public_ip: bool | None = None
    """Whether machines get a public address; left out: as the subnet says."""
    key_name: str | None = None
    """An EC2 key pair, to log in by SSH; cloudspot needs none."""
    disk: Size = 0
    """The root disk; left out: the image's own size and 50 GiB, or what ``resources.disk`` asks on top."""
    disk_type: Literal["gp3", "gp2", "io1", "io2"] = "gp3"
    """The kind of EBS volume."""
    disk_iops: Annotated[int, msgspec.Meta(ge=100)] | None = None
    """Operations a second; left out: 3000 for gp3. io1 and io2 need it."""
    disk_throughput: Annotated[int, msgspec.Meta(ge=125, le=2000)] | None = None
    """MiB a second, gp3 only; left out: 125."""
    max_price: Price | None = None
    """USD an hour that a spot machine may cost at most; left out: the on-demand price, as EC2 does it."""
    on_demand_prices: dict[str, float] = msgspec.field(default_factory=dict)
    """USD an hour by instance type, such as ``{"g5.xlarge" = 1.006}``, for accounts that may not read AWS's
    price list; what stands here is not asked for there."""
    placement_group: str | None = None
    """``"auto"`` puts the nodes of a launch into a cluster placement group, which is made for the job and
    removed with it; another name is one of yours. For several nodes that talk much: they then compete for
    capacity in one rack."""
    logs: Literal["cloudwatch", "bucket"] = "cloudwatch"
    """Where the nodes' logs go: to CloudWatch Logs, or beside the checkpoints."""
    log_group: str | None = None
    """The CloudWatch log group, which jobs then share; left out: ``/cloudspot/JOB``."""
    log_retention_days: int = 30
    """How long CloudWatch keeps the lines of a group that cloudspot has made."""
    metadata_hops: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """How far answers of the metadata service travel: 2 lets containers on the machine ask it."""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    """Put on every instance and volume, beside cloudspot's own; for your bills."""
    limit_role: str | None = None
    """ARN of a role by which EventBridge Scheduler ends the machines when their time is up, from outside;
    left out: only the timer on the machine does. docs/aws.md tells how to make it."""

    @property
    def image_or_default(self) -> str:
        """Return the image or the parameter that names it."""
        return self.image or DEFAULT_IMAGE

    @property
    def train_python_or_default(self) -> str:
        """Return the Python for setup and training on the image."""
        return self.train_python or ("python3" if self.image else DEFAULT_TRAIN_PYTHON)


def field_error(field: str, text: str) -> FieldError:
    """Return the error that says what is wrong with ``providers.aws.<field>``."""
    return FieldError(("providers", "aws", field), text)


def check_options(options: AwsOptions) -> None:
    """Refuse what can be seen to be wrong without asking AWS.

    Raises:
        SpecError: names the field, what was found, and what it should look like.
    """
    for field in _NAMES:
        value = getattr(options, field)
        for one in (value,) if isinstance(value, str) else value or ():
            if not _NAMES[field].fullmatch(one):
                raise field_error(field, f'"{one}" is none; expected one such as {_EXAMPLES[field]}')
    if options.region is not None:
        wrong = [zone for zone in options.zones if not zone.startswith(options.region)]
        if wrong:
            raise field_error("zones", f'"{wrong[0]}" is not in region {options.region}')
    for name, price in options.on_demand_prices.items():
        if price <= 0:
            raise field_error("on_demand_prices", f'the price of "{name}" must be > 0, got {price:g}')
    if options.log_retention_days not in RETENTION_DAYS:
        days = ", ".join(map(str, RETENTION_DAYS))
        raise field_error("log_retention_days", f"expected one of {days}; got {options.log_retention_days}")
    _check_once("zones", options.zones)
    _check_once("subnets", options.subnets)
    if options.disk_type in {"io1", "io2"} and options.disk_iops is None:
        raise field_error("disk_iops", f'missing; disk_type = "{options.disk_type}" needs it')
    if options.disk_type == "gp2" and options.disk_iops is not None:
        raise field_error("disk_iops", 'has no effect with disk_type = "gp2"')
    if options.disk_type != "gp3" and options.disk_throughput is not None:
        raise field_error("disk_throughput", 'works with disk_type = "gp3" only')
    _check_tags(options.tags)


def _check_once(field: str, values: Sequence[str]) -> None:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise field_error(field, f'names "{value}" twice')


def _check_tags(tags: dict[str, str]) -> None:
    if len(tags) > 30:
        raise field_error("tags", f"{len(tags)} are too many; expected 30 at most")
    for name, value in tags.items():
        if not _TAG_NAME.fullmatch(name) or name in {".", "..", "_index"}:
            raise field_error(
                "tags", f'"{name}" is no name of a tag that a machine can read: letters, digits, +-=._:@ only'
            )
        if name.startswith((OWN_TAG_PREFIX, "aws:")) or name in {"Name", "MASTER_ADDR", "MASTER_PORT"}:
            raise field_error("tags", f'"{name}" is not yours to set')
        if len(value) > 256:
            raise field_error("tags", f'the value of "{name}" has {len(value)} characters; EC2 allows 256')
