"""Decides, without I/O, on which nodes a pod may run, and which of these nodes are large enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloudspot.errors import CloudspotError
from cloudspot_kubernetes.quotas import amount, amounts

Node = Mapping[str, Any]


def allows(node: Node, spec: Mapping[str, Any]) -> bool:
    """Return whether a pod with this spec may run on the node, judged by its labels and taints.

    Source: Kubernetes, "Assigning Pods to Nodes" and "Taints and Tolerations" (from memory, 2026-11).
    """
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    keeping_off = [
        one for one in node["spec"].get("taints") or () if one.get("effect") in {"NoSchedule", "NoExecute"}
    ]
    return all(any(_tolerates(one, taint) for one in spec.get("tolerations") or ()) for taint in keeping_off)


def room(nodes: Sequence[Node], requests: Mapping[str, str]) -> str:
    """Return how many of the nodes on which a pod may run can allocate its requests.

    Raises:
        CloudspotError: no node can, even if it runs nothing else.
    """
    wanted = amounts(requests)
    lacking = [_lacking(node, wanted) for node in nodes]
    fitting = lacking.count("")
    if fitting:
        return (
            f"{fitting} of {len(nodes)} nodes that the pod selects have room for it, unless others use them"
        )
    raise CloudspotError(
        f"none of the {len(nodes)} nodes that the pod selects is large enough for it: {lacking[0]}; ask for "
        "less in providers.kubernetes.types, because a kubelet reserves a part of its machine"
    )


def _lacking(node: Node, wanted: Mapping[str, Any]) -> str:
    """Return which resource of the node is too small, and how large it is, or "" if none is."""
    status = node["status"]
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    for name, asked in wanted.items():
        if amount(allocatable.get(name, "0")) < asked:
            whole = f"{asked / 2**20:.0f}Mi" if name == "memory" else f"{asked.normalize():f}"
            shown = f"{allocatable.get(name, '0')} of {capacity.get(name, '0')}"
            return f"the pod asks for {whole} {name}, and {node['metadata']['name']} can allocate {shown}"
    return ""


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in {None, "", taint.get("effect")}:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in {None, "", taint.get("key")}
    return (toleration.get("key"), toleration.get("value", "")) == (taint.get("key"), taint.get("value", ""))
