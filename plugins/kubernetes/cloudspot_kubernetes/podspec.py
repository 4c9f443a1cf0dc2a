"""Renders the pods of a launch, without I/O."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cloudspot.model import InstanceGroup, LaunchRequest, Market
from cloudspot.plugin import machinetags
from cloudspot_kubernetes.notice import GRACE, NODE, POD, TERMINATING
from cloudspot_kubernetes.options import ANY_ZONE, KubernetesOptions, PodType, cpu_quantity, is_label

RANK: Final = "cloudspot-rank"
TOKEN: Final = "cloudspot-token"  # noqa: S105 # a digest of it
"""The label by which the pods of a launch are found when its request is repeated."""
REQUEST: Final = "cloudspot-request"
"""The annotation with the hash of the request, because a token cannot be used for another request."""
MARKET: Final = "cloudspot-market"
TYPE: Final = "cloudspot-type"
ZONE: Final = "cloudspot-zone"
ENDED_BY_US: Final = "cloudspot-terminated"
"""The annotation of pods that cloudspot has deleted; other deleted pods were evicted."""
KEPT_MARK: Final = "cloudspot-kept"
"""The annotation that a launch's pods get when its outcome is known; a repeated launch then adds no pod and
refuses none.
"""
CONTAINER: Final = "node"
_LABELLED: Final = (machinetags.JOB, machinetags.LAUNCH)
_DIGEST_LENGTH: Final = 10
_MAX_JOB: Final = 30
"""How many characters of a job's id its pods' names contain; the names are also host names of at most 63
characters.
"""

# Process 1 of the container; its argument is the boot script. The process does not pass SIGTERM on to the
# agent, which would leave within a minute whatever the grace period is; the notice source reads the file
# instead. SIGUSR1 ends the container.
_INIT: Final = f"""\
directory=${{CLOUDSPOT_NODE_DIR:-/var/lib/cloudspot}}
export CLOUDSPOT_POD_INIT=$$
end() {{
    mkdir -p "$directory"
    read -r uptime _ </proc/uptime
    file="$directory/{TERMINATING}"
    echo "$uptime" >"$file.tmp" && mv "$file.tmp" "$file"
    # Before the agent runs there is nothing to save.
    [ -e "$directory/on-shutdown" ] || exit 143
}}
trap end TERM
trap 'exit 0' USR1
bash -c "$1" &
boot=$!
while wait "$boot"; status=$?; [ "$status" -gt 128 ] && kill -0 "$boot" 2>/dev/null; do :; done
exit "$status"
"""
SHUTDOWN: Final = 'kill -s USR1 "$CLOUDSPOT_POD_INIT"'
"""The command that ends the container from inside, because all processes end with process 1."""


class PodsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a launch request."""

    namespace: str
    num_nodes: int
    min_nodes: int
    capacity_wait: float
    """How long the scheduler may find no room, in seconds."""
    name: str
    """The prefix of the pods' names."""
    pod: dict[str, Any]
    """The pod that is the same for every node, without its name and its rank."""


def render(group: InstanceGroup, options: KubernetesOptions, *, namespace: str) -> LaunchRequest:
    """Return the request for the launch's pods."""
    kind = options.types[group.offer.instance_type]
    labels: dict[str, str] = {}
    notes: dict[str, str] = {}
    for name, value in group.labels.items():
        # The names of labels and annotations must end with a letter or a digit; only an annotation may have
        # any value.
        (labels if is_label(value) else notes)[name.rstrip("._-")] = value
    labels |= options.labels
    notes |= options.annotations
    for name, value in machinetags.tags_of(group).items():
        (labels if name in _LABELLED else notes)[name] = value
    facts = {MARKET: group.offer.market.value, TYPE: group.offer.instance_type, ZONE: group.offer.zone}
    body = PodsRequest(
        namespace=namespace,
        num_nodes=group.num_nodes,
        min_nodes=group.min_nodes,
        capacity_wait=options.capacity_wait,
        name=f"{group.job_id[:_MAX_JOB].rstrip('-')}-{group.launch}",
        pod={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": namespace,
                "labels": labels,
                "annotations": {**notes, **facts},
            },
            "spec": _spec(group, options, kind),
        },
    )
    # After a round trip through JSON, the request equals the one that will be read from the store.
    return LaunchRequest(provider="kubernetes", body=json.loads(msgspec.json.encode(body)))


def pods_of(body: PodsRequest, token: str) -> list[dict[str, Any]]:
    """Return the pods of the request, by rank; the same token gives the same names."""
    digest = token_digest(token)
    shown = hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()
    pods = []
    for rank in range(body.num_nodes):
        pod = json.loads(json.dumps(body.pod))
        metadata = pod["metadata"]
        metadata["name"] = f"{body.name}-{rank}-{digest}"
        metadata["labels"] |= {RANK: str(rank), TOKEN: digest}
        metadata["annotations"][REQUEST] = shown
        pods.append(pod)
    return pods


def token_digest(token: str) -> str:
    """Return the digest of an idempotency token, for use in names and labels."""
    return hashlib.sha256(token.encode()).hexdigest()[:_DIGEST_LENGTH]


def _spec(group: InstanceGroup, options: KubernetesOptions, kind: PodType) -> dict[str, Any]:
    is_spot = group.offer.market is Market.SPOT
    selector = {**kind.selector, **(options.spot_selector if is_spot else {})}
    if group.offer.zone != ANY_ZONE:
        selector["topology.kubernetes.io/zone"] = group.offer.zone
    tolerations = [*options.tolerations, *(options.spot_tolerations if is_spot else ())]
    volumes: dict[str, dict[str, Any]] = {
        "/dev/shm": {"emptyDir": _memory(kind)},  # noqa: S108 # the pod's own
        "/var/lib/cloudspot": {"emptyDir": {}},
        **{path: {"persistentVolumeClaim": {"claimName": name}} for path, name in options.claims.items()},
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(group.max_seconds),
        "terminationGracePeriodSeconds": math.ceil(options.grace),
        "serviceAccountName": options.service_account,
        # Any program in the pod can use the token.
        "automountServiceAccountToken": options.read_deadline or options.watch_taints or group.drives,
        "enableServiceLinks": False,
        "nodeSelector": selector,
        "tolerations": [_toleration(one) for one in tolerations],
        "imagePullSecrets": [{"name": name} for name in options.image_pull_secrets],
        "volumes": [{"name": f"v{i}", **source} for i, source in enumerate(volumes.values())],
        "containers": [
            {
                "name": CONTAINER,
                "image": options.image,
                # Kubernetes expands $(NAME) in a command, and $$ stands for $.
                "command": ["/bin/bash", "-c", _INIT.replace("$", "$$"), "init"],
                "args": [group.user_data.replace("$", "$$")],
                "env": _environment(options),
                "envFrom": [{"secretRef": {"name": name}} for name in options.secrets],
                "resources": _resources(options, kind),
                "volumeMounts": [{"name": f"v{i}", "mountPath": path} for i, path in enumerate(volumes)],
            }
        ],
    }
    if options.priority_class is not None:
        spec["priorityClassName"] = options.priority_class
    _secure(spec, options)
    return spec


def _secure(spec: dict[str, Any], options: KubernetesOptions) -> None:
    """Add the security contexts of the pod and its container, if the options ask for any.

    Source: Kubernetes, "Pod Security Standards", restricted (from memory, 2026-11).
    """
    numbers = {
        "runAsUser": options.run_as_user,
        "runAsGroup": options.run_as_user,
        "fsGroup": options.fs_group,
    }
    context: dict[str, Any] = {name: number for name, number in numbers.items() if number is not None}
    if options.restricted:
        context |= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        dropped = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        spec["containers"][0]["securityContext"] = dropped
    if context:
        spec["securityContext"] = context


def _toleration(taint: str) -> dict[str, str]:
    rest, _, effect = taint.partition(":")
    key, equals, value = rest.partition("=")
    found = (
        {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    )
    return {**found, "effect": effect} if effect else found


def _environment(options: KubernetesOptions) -> list[dict[str, Any]]:
    fields = {
        POD.name: "metadata.name",
        POD.uid: "metadata.uid",
        POD.namespace: "metadata.namespace",
        POD.rank: f"metadata.labels['{RANK}']",
        POD.market: f"metadata.annotations['{MARKET}']",
        POD.type: f"metadata.annotations['{TYPE}']",
        POD.zone: f"metadata.annotations['{ZONE}']",
        POD.address: "status.podIP",
        NODE: "spec.nodeName",
    }
    found: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    return [*found, {"name": GRACE, "value": str(math.ceil(options.grace))}]


def _resources(options: KubernetesOptions, kind: PodType) -> Mapping[str, Mapping[str, str]]:
    requests, limits = {}, {}
    if kind.cpus:
        requests["cpu"] = cpu_quantity(kind.cpus)
    if kind.cpu_limit is not None:
        limits["cpu"] = cpu_quantity(kind.cpu_limit)
    if kind.memory:
        requests["memory"] = limits["memory"] = str(kind.memory)
    if kind.accelerator_count:
        requests[options.accelerator_resource] = limits[options.accelerator_resource] = str(
            kind.accelerator_count
        )
    return {"requests": requests, "limits": limits}


def _memory(kind: PodType) -> dict[str, str]:
    """Return the volume for /dev/shm, by default of half the node's memory."""
    return {"medium": "Memory", **({"sizeLimit": str(kind.memory // 2)} if kind.memory else {})}
