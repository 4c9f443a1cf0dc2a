"""The table ``[providers.kubernetes]`` of a job file: where pods run, on which nodes, and at what price."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from cloudspot.jobfile.quantities import Duration, PositiveDuration, Size
from cloudspot.plugin.optionchecks import NameRule, OptionChecks

Price = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
ANY_ZONE: Final = "any"
"""The zone of offers without ``zones``, for which the scheduler chooses the zone."""

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
    """A kind of pod: its requests, its nodes and its prices.

    The type must have a price for each market on which it is offered.
    """

    cpus: Annotated[float, msgspec.Meta(ge=0, le=1e4)] = 0
    """The request for CPUs, such as ``7.5`` of 8, because a node reserves some for itself."""
    cpu_limit: Annotated[float, msgspec.Meta(gt=0, le=1e4)] | None = None
    """The maximum number of CPUs that the pod may use. By default, it may use all free CPUs. A namespace may
    require such a limit.
    """
    memory: Size = 0
    """The request for memory, and its limit."""
    accelerator: str | None = None
    """The accelerator's name in job files, such as ``A100``; ``selector`` must select nodes that have it."""
    accelerator_count: Annotated[int, msgspec.Meta(ge=0)] = 0
    selector: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of the nodes, such as ``{"node.kubernetes.io/instance-type" = "ecs.gn7i-c8g1.2xlarge"}``."""
    spot_price: Price | None = None
    """The price per hour on the spot market; without it, the type is not offered there."""
    on_demand_price: Price | None = None
    """The price per hour on demand; without it, the type is not offered on demand."""


MAX_CAPACITY_WAIT = 600.0
"""The maximum is less than the 15 minutes after which a driver abandons a call that makes machines."""


class KubernetesOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[providers.kubernetes]``: pods of a cluster. ``image`` and ``types`` must be set."""

    namespace: str | None = None
    """The pods' namespace. The default is the namespace of the kubeconfig's context, else ``default``."""
    kubeconfig: str | None = None
    """The path of the kubeconfig. The default is ``KUBECONFIG``, else ``~/.kube/config``, else a pod's
    service account."""
    context: str | None = None
    """The context in the kubeconfig. The default is its current context."""
    cluster: str | None = None
    """A digest of the cluster's certificate authority, which identifies the cluster. The default is the
    submitter's cluster. A driver whose kubeconfig leads elsewhere cannot see the job's pods, and is refused.
    """
    image: str | None = None
    """The pods' image. The image must contain bash, the job's Python with torch, and this exact version of
    cloudspot with this plugin and the store's plugin.
    """
    image_pull_secrets: tuple[str, ...] = ()
    agent_python: str = "python3"
    """The Python in the image that has cloudspot installed."""
    train_python: str = "python3"
    """The image's Python for setup and training if the job does not name one."""
    data_cache: str | None = None
    """The absolute path of the directory in which pods keep the files of ``[data]``, such as a volume that is
    shared by the pods of a node. The default is a directory in the agent's own directory.
    """
    types: dict[str, PodType] = msgspec.field(default_factory=dict)
    """The kinds of pods by name, such as ``types.a10 = {cpus = 8, memory = "30GiB", spot_price = 0.4}``."""
    currency: Literal["USD", "CNY", "EUR", "JPY"] = "USD"
    """The currency of the prices."""
    zones: tuple[str, ...] = ()
    """Values of the nodes' label ``topology.kubernetes.io/zone``; all nodes of a launch are in one of these
    zones. By default, the scheduler chooses a zone for each node.
    """
    spot_selector: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of spot nodes, such as ``{"karpenter.sh/capacity-type" = "spot"}``."""
    spot_tolerations: tuple[str, ...] = ()
    """Taints of spot nodes that the pods tolerate, in the form of ``kubectl taint``:
    ``"spot=true:NoSchedule"``; ``"spot"`` stands for all taints with that key."""
    tolerations: tuple[str, ...] = ()
    """Taints of all nodes that the pods tolerate, in the same form."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of the pods, in addition to the job's and cloudspot's own, such as Kueue's label for a queue."""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """Annotations of the pods, such as ``{"karpenter.sh/do-not-disrupt" = "true"}``."""
    restricted: bool = False
    """Whether the pods get the security context of the Pod Security Standard *restricted*: no root, no
    capabilities, no privilege escalation, the runtime's seccomp profile."""
    run_as_user: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None
    """The numeric id of the pods' user and group. The default is the image's."""
    fs_group: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None
    """The numeric id of the group that owns the files of the pods' volumes. By default, the group of these
    files is not changed.
    """
    priority_class: str | None = None
    accelerator_resource: str = "nvidia.com/gpu"
    """The extended resource that provides the accelerators of ``accelerator_count``."""
    service_account: str = "cloudspot-node"
    """The pods' service account. The account's token is in the pods only with ``read_deadline``,
    ``watch_taints`` or the job's ``nodes.drive``, which need its permissions.
    """
    read_deadline: bool = False
    """Whether a pod that is ending reads its grace period from the API, which ``role-node.yaml`` permits. By
    default, it assumes ``shutdown_grace``.
    """
    secrets: tuple[str, ...] = ()
    """Secrets of the namespace whose entries become environment variables, such as a bucket's keys."""
    claims: dict[str, str] = msgspec.field(default_factory=dict)
    """Persistent volume claims, by the path at which they are mounted, such as ``{"/data" = "datasets"}``."""
    grace: PositiveDuration = 120.0
    """The pods' termination grace period: the time in which a node can save when its pod is evicted. On spot
    nodes, it should be shorter than the cloud's notice.
    """
    shutdown_grace: PositiveDuration = 15.0
    """The time that a pod has left when its node shuts down without deleting it, 15 s on GKE's spot nodes. A
    pod that cannot read its grace period assumes this time. If nodes are drained before they shut down, as
    with Karpenter, it may be the same as ``grace``.
    """
    watch_taints: bool = False
    """Whether known taints of the node count as a notice, which ``role-node-taints.yaml`` permits reading."""
    capacity_wait: Duration = 10.0
    """How long a driver waits until the scheduler finds room, before the launch is refused. With an
    autoscaler, set it to the time that a new node takes. The maximum is 10 minutes.
    """


def check_options(options: KubernetesOptions) -> None:
    """Raise SpecError, naming the field, for errors that can be found without asking the cluster."""
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
        raise field_error(
            "capacity_wait", f"a launch waits for 10 minutes at most, got {options.capacity_wait:g} seconds"
        )
    if options.restricted and options.run_as_user == 0:
        raise field_error("run_as_user", "0 is root, which restricted forbids; name another user")
    for name, kind in options.types.items():
        if kind.spot_price is None and kind.on_demand_price is None:
            raise field_error("types", f'"{name}" has no price; give it spot_price, on_demand_price or both')
        if any(one is not None and _is_too_fine(one) for one in (kind.cpus, kind.cpu_limit)):
            raise field_error("types", f'"{name}" asks for a fraction of 0.001 CPUs; give it fewer digits')
        if kind.cpu_limit is not None and kind.cpu_limit < kind.cpus:
            raise field_error(
                "types", f'"{name}" may use {kind.cpu_limit:g} CPUs, fewer than its cpus: raise it'
            )
    for path in options.claims:
        if not path.startswith("/") or path in {"/", "/dev/shm", "/var/lib/cloudspot"}:  # noqa: S108 # in the pod
            raise field_error("claims", f'nothing can be mounted at "{path}"; name another absolute path')


def is_label(text: str) -> bool:
    """Return whether the text is valid as a label's value."""
    return _VALUE.fullmatch(text) is not None


def cpu_quantity(cpus: float) -> str:
    """Return a number of CPUs in the form that Kubernetes uses: ``8``, ``7500m``."""
    return f"{cpus:.0f}" if cpus == int(cpus) else f"{cpus * _MILLI:.0f}m"


def _is_too_fine(cpus: float) -> bool:
    return abs(cpus * _MILLI - round(cpus * _MILLI)) > 1e-6  # corrects a float's rounding error


def require_complete(options: KubernetesOptions) -> None:
    """Raise SpecError unless the options that have no default are set."""
    if options.image is None:
        raise field_error("image", "missing; name an image that has torch and cloudspot")
    if not options.types:
        raise field_error("types", "missing; name at least one kind of pod, with its price")
