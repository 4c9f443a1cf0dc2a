"""The table ``[providers.gcp]`` of a job file: where and how its machines run."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from cloudspot.jobfile.quantities import Duration, Size
from cloudspot.plugin.optionchecks import NameRule, OptionChecks

DEFAULT_IMAGE: Final = (
    "projects/deeplearning-platform-release/global/images/family/pytorch-2-7-cu128-ubuntu-2204-nvidia-570"
)
"""Google's Deep Learning VM image with PyTorch 2.7, Python 3.10 and NVIDIA driver 570, by its family. The
image has had no patches since 2026-04-13, and is available until 2027-04-13 (Deep Learning VM documentation,
"Choose an image", as of 2026-09-15, as quoted by a public note; checked 2026-11). The Python with PyTorch is
assumed to be the system's, which is 3.10 as well.
"""
DEFAULT_REGION: Final = "us-central1"
"""The largest region, and the cheapest one for most machine types (from memory)."""
DEFAULT_SERVICE_ACCOUNT: Final = "cloudspot-node"
CLOUD_PLATFORM: Final = "https://www.googleapis.com/auth/cloud-platform"
Price = Annotated[float, msgspec.Meta(gt=0)]
DiskType = Literal["pd-balanced", "pd-ssd", "pd-standard", "hyperdisk-balanced"]

_REGION: Final = r"[a-z]+-[a-z]+\d{1,2}"
_TYPE: Final = r"[a-z0-9]+(?:-[a-z0-9]+)+"
_NAME: Final = r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
PROJECT: Final = r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]"
"""A project's id, not its number (Resource Manager documentation, "Creating projects")."""
_CHECKS: Final = OptionChecks(
    "gcp",
    {
        "project": NameRule("a project's id", PROJECT, "my-project-123"),
        "regions": NameRule("a region", _REGION, "us-central1"),
        "zones": NameRule("a zone", rf"{_REGION}-[a-z]", "us-central1-a"),
        "machine_types": NameRule("a machine type", _TYPE, "g2-standard-8"),
        "image": NameRule(
            "an image",
            rf"projects/{PROJECT}/global/images/(?:family/)?{_NAME}",
            "projects/PROJECT/global/images/NAME or projects/PROJECT/global/images/family/FAMILY",
        ),
        "service_account": NameRule(
            "a service account",
            rf"{_NAME}|[a-z0-9.@-]+\.gserviceaccount\.com",
            "cloudspot-node or cloudspot-node@PROJECT.iam.gserviceaccount.com",
        ),
        "scopes": NameRule("a scope", r"https://www\.googleapis\.com/auth/[a-z0-9._-]+", CLOUD_PLATFORM),
        "network": NameRule(
            "a network",
            rf"(?:projects/{PROJECT}/global/networks/)?{_NAME}",
            "default or projects/PROJECT/global/networks/NAME",
        ),
        "subnetworks": NameRule(
            "a subnetwork",
            rf"(?:projects/{PROJECT}/)?regions/{_REGION}/subnetworks/{_NAME}",
            "regions/us-central1/subnetworks/NAME",
        ),
        "network_tags": NameRule("a network tag", _NAME, "training"),
        "placement_policy": NameRule("a placement policy", _NAME, "my-policy"),
        "log_name": NameRule("the name of a log", r"[A-Za-z0-9._-]{1,200}", "cloudspot-vision"),
    },
)
field_error = _CHECKS.error
unknown_region, unknown_type = _CHECKS.unknown_region, _CHECKS.unknown_type
# Compute Engine documentation, "Organize resources using labels".
_LABEL_KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE: Final = re.compile(r"[a-z0-9_-]{0,63}")
_PRICED: Final = re.compile(rf"(?:{_REGION}/)?{_TYPE}(?:\+\d+x[a-z0-9-]+)?")


class GcpOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[providers.gcp]``: Compute Engine machines. Every field is optional."""

    project: str | None = None
    """The project's id, such as ``"my-project-123"``. The default is ``GOOGLE_CLOUD_PROJECT``, else the
    credentials' project, else the project of the machine on which cloudspot runs.
    """
    regions: tuple[str, ...] = ()
    """The regions to use, such as ``["us-central1", "europe-west4"]``, tried in the order of their prices.
    The default is ``CLOUDSDK_COMPUTE_REGION``, else ``us-central1``. Name the bucket's region first, because
    the price of sending checkpoints is computed for the first region."""
    zones: tuple[str, ...] = ()
    """The only zones to use, such as ``["us-central1-a"]``. The default is any zone of a region that has the
    machines."""
    machine_types: tuple[str, ...] = ()
    """The only types to use, such as ``["g2-standard-8", "n1-standard-8"]``. The default is the cheapest
    types that have ``resources``."""
    image: str | None = None
    """``"projects/PROJECT/global/images/NAME"``, or ``".../images/family/FAMILY"`` for the newest image of a
    family. The default is Google's Deep Learning VM with PyTorch on Ubuntu 22.04.
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
    train_python: str = "python3"
    """The image's Python for setup and training if the job does not name one."""
    data_cache: str | None = None
    """The absolute path of the directory in which machines keep the files of ``[data]``. The default is on
    the machine's empty local disks, or, without any, in the agent's own directory on the boot disk.
    """
    service_account: str = DEFAULT_SERVICE_ACCOUNT
    """The machines' service account, which lets them use the bucket and write their logs: its name in the
    project, or its full address.
    """
    scopes: tuple[str, ...] = (CLOUD_PLATFORM,)
    """Access scopes, which limit the service account's permissions on the machines."""
    network: str = "default"
    """The VPC network; its firewall must let the nodes of a job reach each other on every TCP port, as that
    of the default network does.
    """
    subnetworks: tuple[str, ...] = ()
    """At most one subnetwork for each region, all in one network, such as
    ``["regions/us-central1/subnetworks/train"]``. The default is the network's own subnetwork, which an auto
    mode network has in each region.
    """
    network_tags: tuple[str, ...] = ()
    """The machines' network tags, for firewall rules."""
    public_ip: bool = True
    """Whether machines get a public address; without one, they need Cloud NAT or Private Google Access to
    reach the bucket.
    """
    disk: Size = 0
    """The size of the boot disk. The default is the image's own size plus ``resources.disk``, or plus 50 GiB
    if that is not set."""
    disk_type: DiskType = "pd-balanced"
    """The kind of disk. The newest machine types support only hyperdisk-balanced."""
    preemption_notice: Duration = 120.0
    """The notice of a reclaim to request for spot machines: ``"120s"``, which is followed by up to 30 s for
    the shutdown, or 0 for that shutdown alone."""
    on_demand_prices: dict[str, float] = msgspec.field(default_factory=dict)
    """Prices in USD an hour by machine type, such as ``{"g2-standard-8" = 0.85}``, or for one region, as in
    ``"europe-west4/g2-standard-8"``. A price is used if Google's price list does not have the type or cannot
    be read. No disk or address is added to it.
    """
    spot_prices: dict[str, float] = msgspec.field(default_factory=dict)
    """The same prices for the spot market."""
    placement_policy: str | None = None
    """``"auto"`` makes a compact placement policy for a job of several nodes, in each region that it uses,
    and removes it with the job; any other name is that of an existing policy. A policy makes traffic between
    nodes faster, but the nodes and their replacements compete for capacity close together.
    """
    logs: Literal["cloud-logging", "bucket"] = "cloud-logging"
    """Where the nodes' logs go: to Cloud Logging, or beside the checkpoints in the bucket."""
    log_name: str | None = None
    """The log in Cloud Logging, which jobs may share. The default is ``cloudspot``."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels for every machine and disk, for example for billing, in addition to cloudspot's own."""

    @property
    def image_or_default(self) -> str:
        """Return the image, or the family that names it."""
        return self.image or DEFAULT_IMAGE


def is_ai_zone(zone: str) -> bool:
    """Return whether ``zone`` is an AI zone such as ``us-central1-ai1a``, not a standard zone.

    Source: Compute Engine documentation, "AI zones" (checked 2026-11).
    """
    return re.fullmatch(r"ai\d+[a-z]", zone.rpartition("-")[2]) is not None


def region_of(zone: str) -> str:
    """Return the region of a zone: ``us-central1`` of ``us-central1-a``."""
    return zone.rpartition("-")[0]


def check_options(options: GcpOptions) -> None:
    """Raise SpecError, naming the field, for errors that can be found without asking Google."""
    for zone in filter(is_ai_zone, options.zones):
        raise field_error(
            "zones", f'"{zone}" is an AI zone, which cloudspot cannot use; name a standard zone'
        )
    _CHECKS.require_valid_names(options)
    if options.regions:
        wrong = [zone for zone in options.zones if region_of(zone) not in options.regions]
        if wrong:
            raise field_error("zones", f'"{wrong[0]}" is not in {" or ".join(options.regions)}')
    _CHECKS.require_unique(
        regions=options.regions,
        zones=options.zones,
        machine_types=options.machine_types,
        network_tags=options.network_tags,
        subnetworks=[subnetwork_region(one) for one in options.subnetworks],
    )
    for field, prices in (
        ("on_demand_prices", options.on_demand_prices),
        ("spot_prices", options.spot_prices),
    ):
        for name in prices:
            if not _PRICED.fullmatch(name):
                expected = '"g2-standard-8" or "us-central1/g2-standard-8"'
                raise field_error(field, f'"{name}" is not a machine type; expected {expected}')
        _CHECKS.require_positive_prices(field, prices)
    if not options.scopes:
        raise field_error("scopes", f'is empty; expected for instance ["{CLOUD_PLATFORM}"]')
    if options.preemption_notice not in {0.0, 120.0}:
        raise field_error(
            "preemption_notice", f'expected "120s" or 0, got {options.preemption_notice:g} seconds'
        )
    _check_labels(options.labels)


def subnetwork_region(subnetwork: str) -> str:
    """Return the region of ``regions/REGION/subnetworks/NAME``."""
    return subnetwork.partition("regions/")[2].partition("/")[0]


def _check_labels(labels: dict[str, str]) -> None:
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            rule = "a small letter, then at most 62 of a-z, 0-9, _ and -"
            raise field_error("labels", f'"{key}" is not a label; expected {rule}')
        if not _LABEL_VALUE.fullmatch(value):
            rule = "at most 63 of a-z, 0-9, _ and -"
            raise field_error("labels", f'"{value}" is not a value for "{key}"; expected {rule}')
    _CHECKS.require_free_tags("labels", labels, most=40, prefix="goog-")
