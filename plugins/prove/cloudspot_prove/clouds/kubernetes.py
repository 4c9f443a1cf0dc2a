"""Kubernetes: recordings show names in the client's models; calls are repeated by method and path."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, cached_property
from typing import Any, ClassVar, Final

from cloudspot.errors import CloudspotError
from cloudspot_prove.clouds import Cloud, public_texts_of
from cloudspot_prove.masking import Allowed
from cloudspot_prove.recording import Exchange

VALUES: Final = frozenset(
    {
        "allowed",
        "allocatable.cpu",
        "allocatable.memory",
        "apiVersion",
        "code",
        "effect",
        "exitCode",
        "gitVersion",
        "kind",
        "phase",
        "reason",
        "requests.cpu",
        "requests.memory",
        "restartPolicy",
        "status.status",
        "terminationGracePeriodSeconds",
        "type",
        "verb",
    }
)
SEGMENTS: Final = frozenset(
    {
        "api", "apis", "authorization.k8s.io", "configmaps", "eviction", "events", "log", "namespaces",
        "networking.k8s.io", "networkpolicies", "nodes", "pods", "policy", "rbac.authorization.k8s.io",
        "resourcequotas", "rolebindings", "roles", "secrets", "selfsubjectaccessreviews", "serviceaccounts",
        "v1", "v1beta1", "version",
    }
)  # fmt: skip


class Kubernetes(Cloud):
    """See Cloud."""

    bill: ClassVar[str] = "the bill of whoever runs the cluster's nodes"
    has_functions: ClassVar[bool] = False

    free: ClassVar[frozenset[str]] = frozenset({"name", "value", "command", "args", "labels", "annotations"})

    def own(self, kind: str) -> str | None:
        """Return the namespace; see Cloud."""
        return str(self._cluster.namespace) if kind == "namespaces" else None

    def allowed(self) -> Allowed:
        """Return the names in the client's models; see Cloud."""
        return Allowed(names=_names, values=VALUES, texts=_public_texts, segments=SEGMENTS)

    def repeat(self, exchange: Exchange) -> None:
        """Send the method and the path again; see Cloud."""
        method, _, path = exchange.action.partition(" ")
        with suppress(CloudspotError):
            self._cluster.request(method, path, exchange.request["body"], query=exchange.request["query"])

    @cached_property
    def _cluster(self) -> Any:
        from cloudspot_kubernetes.cluster import Cluster
        from cloudspot_kubernetes.options import KubernetesOptions

        return Cluster(KubernetesOptions())


@cache
def _names(_service: str) -> frozenset[str]:
    """Return the fields of all models of the client."""
    from kubernetes.client import models

    kinds = [getattr(models, name) for name in dir(models)]
    fields = {one for kind in kinds for one in getattr(kind, "attribute_map", {}).values()}
    return frozenset(fields) | {"query", "body", "cpu", "memory", "labelSelector", "limit", "dryRun"}


@cache
def _public_texts(_service: str) -> frozenset[str]:
    return public_texts_of("cloudspot_kubernetes") | public_texts_of("cloudspot.plugin")
