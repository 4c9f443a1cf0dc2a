"""``cloudspot setup kubernetes``: the parts that a namespace needs before its first job."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from cloudspot.calls import SetupRequest
from cloudspot.errors import SpecError
from cloudspot.interfaces import AccountSetup, SetupPart
from cloudspot.model import SetupSettings
from cloudspot_kubernetes.cluster import Cluster
from cloudspot_kubernetes.options import KubernetesOptions
from cloudspot_kubernetes.setupparts import Binding, Made, Namespace, Policy, Role, subject_of

NAMESPACE: Final = "cloudspot"
"""The namespace to use if neither the options nor the kubeconfig name one."""
NETWORK_POLICY: Final = "cloudspot-nodes"
_EVERYBODY: Final = ("system:authenticated", "system:unauthenticated", "system:serviceaccounts")
_ROOT: Final = "system:masters"


class KubernetesAccountSetup(AccountSetup):
    """The setup of one namespace."""

    def __init__(self, options: KubernetesOptions, cluster: Cluster) -> None:
        """Do no I/O."""
        self._options = options
        self._cluster = cluster

    def account(self) -> str:
        """Return the cluster's digest and the namespace."""
        return f"{self._cluster.digest}/{self._namespace}"

    def parts(self, request: SetupRequest) -> Sequence[SetupPart]:
        """Return the namespace, network policy, roles, the pods' account and the bindings."""
        if request.monthly_limit is not None:
            raise SpecError(
                "--budget: a cluster sends no bill; set a budget in the cloud that bills its nodes"
            )
        cluster, namespace, options = self._cluster, self._namespace, self._options
        about: dict[str, Any] = {} if options.context is None else {"context": ("--context", options.context)}
        submitter = Role(cluster, "submitter", pods_in=namespace, **about)
        lister = Role(cluster, "submitter-nodes", pods_in=namespace, **about)
        account = {"name": options.service_account, "namespace": namespace}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        pods = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}
        parts: list[SetupPart] = [
            Namespace(cluster, body, "holds the pods of jobs, apart from others", pods_in=namespace, **about),
            Policy(cluster, NETWORK_POLICY, pods_in=namespace, **about),
            Made(cluster, pods, "is the account of the pods", pods_in=namespace, **about),
            submitter,
            lister,
        ]
        for name in self._pods_roles:
            role = Role(cluster, name, pods_in=namespace, **about)
            # The name of a ClusterRoleBinding must be unique in the cluster.
            bound = f"cloudspot-{name}" if role.namespace else f"cloudspot-{name}-{namespace}"
            why = "lets pods read the objects that the options ask for"
            parts += [role, Binding(role, bound, {"kind": "ServiceAccount", **account}, why, **about)]
        for grantee in request.grant_to:
            parts += self._grants(grantee, (submitter, lister), about)
        return parts

    def settings(self, request: SetupRequest) -> SetupSettings:
        """Return the namespace, the store if one was named, and notes on the settings that are missing."""
        notes = []
        if request.store_url is None:
            notes.append(
                "a cluster has no bucket: make one with `cloudspot setup aws|gcp|aliyun`, or name one with "
                "--store"
            )
        if not self._options.secrets and not self._options.claims:
            notes.append(
                "pods need the store's credentials: through their service account "
                f"{self._options.service_account}, or in a Secret that providers.kubernetes.secrets names"
            )
        if self._options.image is None or not self._options.types:
            notes.append("[providers.kubernetes] needs an `image`, and `types` with their prices")
        return SetupSettings(
            store_url=request.store_url, options={"namespace": self._namespace}, notes=tuple(notes)
        )

    @property
    def _namespace(self) -> str:
        if self._options.namespace is not None:
            return self._options.namespace
        found = self._cluster.namespace
        return NAMESPACE if found == "default" else found

    @property
    def _pods_roles(self) -> Sequence[str]:
        options = self._options
        asks = ["node"] if options.read_deadline or options.watch_taints else []
        return [*asks, "node-taints"] if options.watch_taints else asks

    def _grants(self, grantee: str, roles: Sequence[Role], about: Any) -> Sequence[SetupPart]:
        subject = subject_of(grantee)
        if subject is None:
            raise SpecError(
                f"--grant-to {grantee}: write user:NAME, group:NAME or serviceaccount:NAMESPACE:NAME, with "
                "the cluster's names"
            )
        if subject["kind"] == "Group" and subject["name"].startswith(_EVERYBODY):
            raise SpecError(f"--grant-to {grantee}: this would be everybody; name those who may submit jobs")
        if subject["name"] == _ROOT:
            raise SpecError(f"--grant-to {grantee}: its members already have all rights")
        digest = hashlib.sha256(grantee.encode()).hexdigest()[:8]
        made = []
        for role in roles:
            base = role.body["metadata"]["name"]
            name = f"{base}-{digest}" if role.namespace else f"{base}-{self._namespace}-{digest}"
            why = f"gives {base} to {grantee}, as you asked with --grant-to"
            made.append(Binding(role, name, subject, why, **about))
        return made
