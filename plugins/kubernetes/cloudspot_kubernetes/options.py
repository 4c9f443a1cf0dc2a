"""The table ``[providers.kubernetes]`` of a job file: where pods run, on which nodes, and at what price."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from cloudspot.jobfile.quantities import Duration, PositiveDuration, Size
from cloudspot.plugin.optionchecks import NameRule, OptionChecks

Price = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
ANY_ZONE: Final = "any"
"""The zone of offers where ``zones`` is left out: the scheduler chooses."""

_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_TAINT: Final = (
    r"[A-Za-z0-9][A-Za-z0-9./_-]*(?:=[A-Za-z0-9._-]*)?(?::(?:NoSchedule|PreferNoSchedule|NoExecute))?"
)
_NAME: Final = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_KEY: Final = rf"(?:{_NAME}/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{{0,61}}[A-Za-z0-9])?"
_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_MAX_MARKS: Final = 64
_MILLI: Final = 1000

_CHECKS: Final = OptionChecks(
    "kubernetes",
    {
        "namespace": NameRule("a namespace", _LABEL, "training"),
        "service_account": NameRule("a service account", _NAME, "cloudspot-node"),
        "priority_class": NameRule("a priority class", _NAME, "training"),
        "image_pull_secrets": NameRule("a secret", _NAME, "registry"),
        "secrets": NameRule("a secret", _NAME, "bucket-keys"),
        "tolerations": NameRule("a taint", _TAINT, "spot=true:NoSchedule, or spot for all with that key"),
        "spot_tolerations": NameRule(
            "a taint", _TAINT, "spot=true:NoSchedule, or spot for all with that key"
        ),
        "labels": NameRule("a label's name", _KEY, "kueue.x-k8s.io/queue-name"),
        "annotations": NameRule("an annotation's name", _KEY, "karpenter.sh/do-not-disrupt"),
        "types": NameRule("a type's name", r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62})", "a10-small"),
    },
)
field_error = _CHECKS.error


class PodType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of pod that can be had: what it asks for, on which nodes, and what it costs.

    It must be named with a price for each market on which it is offered.
    """

    cpus: Annotated[float, msgspec.Meta(ge=0, le=1e4)] = 0
    """Its request for CPUs, such as ``7.5``: a node keeps some of its own back."""
    cpu_limit: Annotated[float, msgspec.Meta(gt=0, le=1e4)] | None = None
    """How many CPUs it may use; left out: as many as are free. A namespace may insist on one."""
    memory: Size = 0
    """Its request for memory, and its limit."""
    accelerator: str | None = None
    """What the job calls it, such as ``A100``; ``selector`` must lead to nodes that have it."""
    accelerator_count: Annotated[int, msgspec.Meta(ge=0)] = 0
    selector: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of the nodes, such as ``{"node.kubernetes.io/instance-type" = "ecs.gn7i-c8g1.2xlarge"}``."""
    spot_price: Price | None = None
    """An hour; left out: it is not offered on the spot market."""
    on_demand_price: Price | None = None
    """An hour; left out: it is not offered on demand."""


MAX_CAPACITY_WAIT = 600.0
"""A driver leaves a call that makes machines alone after 15 minutes."""


class KubernetesOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[providers.kubernetes]``: pods of a cluster. ``image`` and ``types`` must be named."""

    namespace: str | None = None
    """Where the pods are; left out: the kubeconfig's context's, or ``default``."""
    kubeconfig: str | None = None
    """Left out: ``KUBECONFIG``, ``~/.kube/config``, or, in a pod, its service account."""
    context: str | None = None
    """Of the kubeconfig; left out: its current one."""
    cluster: str | None = None
    """A digest of the cluster's certificate authority; left out: that of the submitter's cluster. A driver
    whose kubeconfig leads elsewhere would see no pod of the job, and must not judge by that."""
    image: str | None = None
    """It has bash, the job's Python with torch, and this very version of cloudspot with this plugin and the
    store's."""
    image_pull_secrets: tuple[str, ...] = ()
    agent_python: str = "python3"
    """The image's Python that has cloudspot."""
    train_python: str = "python3"
    """The image's Python for setup and training where the job names none."""
    data_cache: str | None = None
    """An absolute path: the directory in which pods keep the files of ``[data]``, such as a volume that pods
    of a node share. If left out: below the agent's own directory."""
    types: dict[str, PodType] = msgspec.field(default_factory=dict)
    """The kinds of pods by name, such as ``types.a10 = {cpus = 8, memory = "30GiB", spot_price = 0.4}``."""
    currency: Literal["USD", "CNY", "EUR", "JPY"] = "USD"
    """Of the prices."""
    zones: tuple[str, ...] = ()
    """Values of the nodes' label ``topology.kubernetes.io/zone``: the nodes of a launch are in one of these.
    Left out: the scheduler chooses for each."""
    spot_selector: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of spot nodes, such as ``{"karpenter.sh/capacity-type" = "spot"}``."""
    spot_tolerations: tuple[str, ...] = ()
    """Taints of spot nodes, as ``kubectl taint`` writes them: ``"spot=true:NoSchedule"``; without a value or
    an effect, all with that key: ``"spot"``."""
    tolerations: tuple[str, ...] = ()
    """Taints of any nodes, written likewise."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of the pods, besides those of the job and cloudspot's own, such as a queue's for Kueue."""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """Annotations of the pods, such as ``{"karpenter.sh/do-not-disrupt" = "true"}``."""
    restricted: bool = False
    """Give the pods the security context that the Pod Security Standard *restricted* asks for: no root, no
    capabilities, no more privileges, the runtime's seccomp profile."""
    run_as_user: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None
    """The number of the user, and of the group, that the pods run as; left out: the image's."""
    fs_group: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None
    """The number of the group that owns the files of the pods' volumes; left out: it stays as it is."""
    priority_class: str | None = None
    accelerator_resource: str = "nvidia.com/gpu"
    """The extended resource that ``accelerator_count`` asks for."""
    service_account: str = "cloudspot-node"
    """The pods'. Its token is in them only with ``read_deadline``, ``watch_taints`` or the job's
    ``nodes.drive``, which need its rights."""
    read_deadline: bool = False
    """Let a pod that is ended ask when (``role-node.yaml`` gives that right). If left out, it counts on
    ``shutdown_grace``."""
    secrets: tuple[str, ...] = ()
    """Secrets of the namespace whose entries become environment variables, such as a bucket's keys."""
    claims: dict[str, str] = msgspec.field(default_factory=dict)
    """Persistent volume claims by the path where they are mounted, such as ``{"/data" = "datasets"}``."""
    grace: PositiveDuration = 120.0
    """The pods' termination grace period: how long a node has to save when its pod is evicted. On spot
    nodes, less than the cloud's notice."""
    shutdown_grace: PositiveDuration = 15.0
    """How long a pod has when its node shuts down and nobody deletes it, 15 s on GKE's spot nodes; and what
    a pod counts on that cannot ask. Where nodes are drained first, as by Karpenter, it may be ``grace``."""
    watch_taints: bool = False
    """Take known taints of the node for a notice, too; this takes a right (``role-node-taints.yaml``)."""
    capacity_wait: Duration = 10.0
    """How long the scheduler may find no room before the launch is refused. A driver waits for this long;
    with an autoscaler, as long as a new node takes. At most 10 minutes."""


def check_options(options: KubernetesOptions) -> None:
    """Raise SpecError, which names the field, for what is wrong without asking the cluster."""
    named = msgspec.structs.replace(
        options, namespace=options.namespace or "default", priority_class=options.priority_class or "none"
    )
    _CHECKS.require_valid_names(named)
    _CHECKS.require_unique(zones=options.zones, secrets=options.secrets)
    for field, marks in (("labels", options.labels), ("annotations", options.annotations)):
        _CHECKS.require_free_tags(field, marks, most=_MAX_MARKS)
    for name, value in options.labels.items():
        if not is_label(value):
            raise field_error("labels", f'"{name}" cannot have the value "{value}"; expected one such as a-1')
    if options.capacity_wait > MAX_CAPACITY_WAIT:
        raise field_error("capacity_wait", "a launch waits for no more than 10 minutes")
    if options.restricted and options.run_as_user == 0:
        raise field_error("run_as_user", "0 is root, which restricted forbids; name another user")
    for name, kind in options.types.items():
        if kind.spot_price is None and kind.on_demand_price is None:
            raise field_error("types", f'"{name}" has no price; give it spot_price, on_demand_price or both')
        if any(one is not None and _is_too_fine(one) for one in (kind.cpus, kind.cpu_limit)):
            raise field_error("types", f'"{name}" asks for CPUs finer than 0.001; give it fewer digits')
        if kind.cpu_limit is not None and kind.cpu_limit < kind.cpus:
            raise field_error(
                "types", f'"{name}" may use {kind.cpu_limit:g} CPUs, fewer than its cpus: raise it'
            )
    for path in options.claims:
        if not path.startswith("/") or path in {"/", "/dev/shm", "/var/lib/cloudspot"}:  # noqa: S108 # in the pod
            raise field_error("claims", f'nothing can be mounted at "{path}"; name another absolute path')


def is_label(text: str) -> bool:
    """Return whether a label can have the value."""
    return _VALUE.fullmatch(text) is not None


def cpu_quantity(cpus: float) -> str:
    """Return a number of CPUs as Kubernetes writes it: ``8``, ``7500m``."""
    return f"{cpus:.0f}" if cpus == int(cpus) else f"{cpus * _MILLI:.0f}m"


def _is_too_fine(cpus: float) -> bool:
    return abs(cpus * _MILLI - round(cpus * _MILLI)) > 1e-6  # what a float leaves of 0.1


def require_complete(options: KubernetesOptions) -> None:
    """Raise SpecError unless the options that have no default are there."""
    if options.image is None:
        raise field_error("image", "missing; name an image that has torch and cloudspot")
    if not options.types:
        raise field_error("types", "missing; name at least one kind of pod, with its price")
