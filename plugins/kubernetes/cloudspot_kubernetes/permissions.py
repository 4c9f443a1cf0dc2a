"""The permissions that cloudspot needs in a cluster, in files for ``kubectl apply``: their only list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

DIRECTORY: Final = Path(__file__).parent
REASONS: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("submitter", "pods"): "launch, list, mark and end the pods of jobs",
        ("submitter", "pods/log"): "read what a pod wrote before its agent came up",
        ("submitter-nodes", "nodes"): "let `providers check` compare types with what nodes can allocate",
        ("node", "pods"): "let a pod that is ending read its grace period",
        ("node-taints", "nodes"): "let a pod see the taints that announce its node's end",
    }
)
"""The reason for the permissions on a resource, by the role's name and the resource."""

Right = tuple[str, str, str]
"""The API group ("" for the core group), the resource with its subresource, and the verb."""


def documents(name: str) -> Sequence[Mapping[str, Any]]:
    """Return the objects in the file of a role, such as ``submitter``."""
    return [*yaml.safe_load_all((DIRECTORY / f"role-{name}.yaml").read_text(encoding="utf-8"))]


def role(name: str) -> Mapping[str, Any]:
    """Return the Role or ClusterRole in the named file."""
    return next(one for one in documents(name) if one["kind"] in {"Role", "ClusterRole"})


def rights(rules: Iterable[Mapping[str, Any]]) -> frozenset[Right]:
    """Return the single permissions that RBAC rules grant; for named objects, they include the names."""
    found = set()
    for rule in rules:
        names = f" {', '.join(rule['resourceNames'])}" if rule.get("resourceNames") else ""
        for verb in rule["verbs"]:
            found |= {
                (group, f"{resource}{names}", verb)
                for group in rule.get("apiGroups", ())
                for resource in rule.get("resources", ())
            }
            found |= {("", url, verb) for url in rule.get("nonResourceURLs", ())}
    return frozenset(found)


def shown(right: Right) -> str:
    """Return a permission in readable form: ``list pods``."""
    group, resource, verb = right
    return f"{verb} {resource}.{group}" if group else f"{verb} {resource}"


def reasons(name: str) -> tuple[str, ...]:
    """Return a line for each resource of a role, with the reason for its permissions."""
    return tuple(
        f"{REASONS[name, resource]}: {', '.join(f'{verb} {resource}' for verb in rule['verbs'])}"
        for rule in role(name)["rules"]
        for resource in rule["resources"]
    )
