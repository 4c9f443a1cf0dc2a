"""The table ``[providers.kubernetes]`` of a job file: where pods run, on which nodes, and at what price."""

from __future__ import annotations

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
        "types": NameRule("a type's name", r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62})", "a10-small"),
    },
)
field_error = _CHECKS.error


class PodType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of pod that can be had: what it asks for, on which nodes, and what it costs.

    It must be named with a price for each market on which it is offered.
    """

    cpus: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Its request for CPUs."""
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
    priority_class: str | None = None
    accelerator_resource: str = "nvidia.com/gpu"
    """The extended resource that ``accelerator_count`` asks for."""
    service_account: str = "cloudspot-node"
    """The pods': it may read pods (``role-node.yaml``), to know when theirs is to end."""
    secrets: tuple[str, ...] = ()
    """Secrets of the namespace whose entries become environment variables, such as a bucket's keys."""
    claims: dict[str, str] = msgspec.field(default_factory=dict)
    """Persistent volume claims by the path where they are mounted, such as ``{"/data" = "datasets"}``."""
    grace: PositiveDuration = 120.0
    """The pods' termination grace period: how long a node has to save when its pod is evicted. On spot
    nodes, less than the cloud's notice."""
    shutdown_grace: PositiveDuration = 15.0
    """How long it has when its node shuts down and nobody deletes the pod: 15 s on GKE's spot nodes."""
    watch_taints: bool = False
    """Take known taints of the node for a notice, too; this takes a right (``role-node-taints.yaml``)."""
    capacity_wait: Duration = 10.0
    """How long the scheduler may find no room before the launch is refused. A driver waits for this long;
    with an autoscaler, as long as a new node takes."""


def check_options(options: KubernetesOptions) -> None:
    """Raise SpecError, which names the field, for what is wrong without asking the cluster."""
    named = msgspec.structs.replace(
        options, namespace=options.namespace or "default", priority_class=options.priority_class or "none"
    )
    _CHECKS.require_valid_names(named)
    _CHECKS.require_unique(zones=options.zones, secrets=options.secrets)
    for name, kind in options.types.items():
        if kind.spot_price is None and kind.on_demand_price is None:
            raise field_error("types", f'"{name}" has no price; give it spot_price, on_demand_price or both')
    for path in options.claims:
        if not path.startswith("/") or path in {"/", "/dev/shm", "/var/lib/cloudspot"}:  # noqa: S108 # in the pod
            raise field_error("claims", f'nothing can be mounted at "{path}"; name another absolute path')


def require_complete(options: KubernetesOptions) -> None:
    """Raise SpecError unless the options that have no default are there."""
    if options.image is None:
        raise field_error("image", "missing; name an image that has torch and cloudspot")
    if not options.types:
        raise field_error("types", "missing; name at least one kind of pod, with its price")
