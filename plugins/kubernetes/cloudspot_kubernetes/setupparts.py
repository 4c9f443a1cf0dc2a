"""The parts of a cluster's setup; each is one object of its API, made and printed from the same body.

Source: Kubernetes API reference, Namespace v1, ServiceAccount v1, rbac.authorization.k8s.io/v1 and
    networking.k8s.io/v1; "Using RBAC authorization", by which roleRef cannot be changed (checked 2026-11).
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.model import PartState
from cloudspot.plugin import machinetags
from cloudspot.plugin.sdkerrors import NO_CODES, Codes, SdkErrors
from cloudspot.plugin.setupparts import CloudPart, state_of
from cloudspot_kubernetes import permissions
from cloudspot_kubernetes.cluster import Cluster, Refusal, translated

MARK: Final[Mapping[str, str]] = MappingProxyType({"app.kubernetes.io/managed-by": "cloudspot-setup"})
"""The labels of the objects that a setup makes."""
ENDING_SECONDS: Final = 120.0
"""How long the deletion of a namespace may take, in seconds."""
_COLLECTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Namespace": "/api/v1/namespaces",
        "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
        "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
        "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
        "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    }
)
_OF_EVERY_NAMESPACE: Final = frozenset(
    {"serviceaccounts default", "configmaps kube-root-ca.crt", "configmaps openshift-service-ca.crt"}
)


class _Refusals(SdkErrors):
    cloud = "the cluster"
    raised = (Refusal,)
    secrets = re.compile(r"(?!)")

    def translation(self, error: BaseException, what: str, codes: Codes = NO_CODES) -> CloudspotError:
        del codes
        assert isinstance(error, Refusal)
        return translated(error, what)

    def code_of(self, error: BaseException) -> str:
        return error.reason if isinstance(error, Refusal) else ""

    def status_of(self, error: BaseException) -> int:
        return error.status if isinstance(error, Refusal) else 0

    def message_of(self, error: BaseException) -> str:
        return str(error)


class Made(CloudPart):
    """An object of the cluster's API with a given body."""

    provider = "kubernetes"
    errors = _Refusals()

    def __init__(
        self,
        cluster: Cluster,
        body: Mapping[str, Any],
        purpose: str,
        *,
        pods_in: str,
        context: Sequence[str] = (),
        rights: Sequence[str] = (),
    ) -> None:
        """Do no I/O.

        ``pods_in`` is the namespace of the pods that use it, and ``context`` contains the arguments with
        which kubectl chooses the cluster.
        """
        metadata = body["metadata"]
        self.pods_in = pods_in
        self.cluster = cluster
        self.body = {**body, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **MARK}}}
        self.namespace = metadata.get("namespace", "")
        self._collection = _COLLECTIONS[body["kind"]].format(self.namespace)
        self.path = f"{self._collection}/{metadata['name']}"
        command = shlex.join(("kubectl", *context, "apply", "-f", "-"))
        name = f"{self.namespace}/{metadata['name']}" if self.namespace else metadata["name"]
        super().__init__(
            body["kind"],
            name,
            purpose,
            rights=rights,
            commands=[f"echo {shlex.quote(json.dumps(self.body))} | {command}"],
        )

    def found(self) -> Any:
        """Return the existing object, or None if it does not exist or is being deleted."""
        found = self._get(self.path)
        return None if found is None or found["metadata"].get("deletionTimestamp") else found

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the object exists, and how it differs from the body."""
        found = self.found()
        if found is None:
            return PartState(exists=False)
        wider, narrower = self.compared(found)
        return state_of(is_own=is_own, differences=wider, lacks=narrower)

    def compared(self, found: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
        """Return one line for each permission beyond those in the body, and one for each that is missing."""
        del found
        return (), ()

    def create(self) -> None:
        """Make the object, or replace an existing one that differs."""
        self._await_end()
        found = self.found()
        if found is not None:
            if not any(self.compared(found)):
                return
            self._drop()  # a binding's role cannot be changed
            self._await_end()
        try:
            self.cluster.request("POST", self._collection, self.body)
        except Refusal as refusal:
            if refusal.status != HTTPStatus.CONFLICT:
                raise

    def delete(self) -> str | None:
        """Remove the object, unless pods of jobs use it."""
        self._require_idle()
        self._drop()
        self._await_end()
        return None

    def _drop(self) -> None:
        try:
            self.cluster.request("DELETE", self.path)
        except Refusal as refusal:
            # To delete a namespace that is already being deleted is a conflict.
            if refusal.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                raise

    def _await_end(self) -> None:
        end = time.monotonic() + ENDING_SECONDS
        while (found := self._get(self.path)) is not None and found["metadata"].get("deletionTimestamp"):
            if time.monotonic() >= end:
                raise TransientError(
                    f"deleting {self.kind} {self.name} takes longer than {ENDING_SECONDS:.0f} s: repeat the "
                    "command, or look for a finalizer that no controller handles"
                )
            time.sleep(0.5)

    def _require_idle(self) -> None:
        path = f"/api/v1/namespaces/{self.pods_in}/pods"
        pods = self.cluster.request("GET", path, query={"labelSelector": machinetags.JOB, "limit": "1"})
        for pod in pods["items"]:
            raise CloudspotError(
                f"namespace {self.pods_in} has the pod {pod['metadata']['name']} of the job "
                f"{pod['metadata']['labels'][machinetags.JOB]}; stop the job first"
            )

    def _get(self, path: str) -> Any:
        try:
            return self.cluster.request("GET", path)
        except Refusal as refusal:
            if refusal.status == HTTPStatus.NOT_FOUND:
                return None
            raise


class Namespace(Made):
    """The namespace of the pods."""

    def delete(self) -> str | None:
        """Remove the namespace if it is empty."""
        if (left := self._left()) is not None:
            return f"stays, because it holds {left}"
        return super().delete()

    def _left(self) -> str | None:
        """Return an object in the namespace that not every namespace has, or None if there is none."""
        for collection, resource in self._collections():
            answer = self._get(f"{collection}/namespaces/{self.body['metadata']['name']}/{resource}")
            for one in () if answer is None else answer["items"]:
                named = f"{resource} {one['metadata']['name']}"
                is_token = one.get("type") == "kubernetes.io/service-account-token"
                if named not in _OF_EVERY_NAMESPACE and not is_token:
                    return named
        return None

    def _collections(self) -> Sequence[tuple[str, str]]:
        """Return the resources that a namespace can contain, each as (path of the API version, name)."""
        groups = self.cluster.request("GET", "/apis")["groups"]
        found = []
        for path in ("/api/v1", *(f"/apis/{one['preferredVersion']['groupVersion']}" for one in groups)):
            answer = self._get(path)
            for one in () if answer is None else answer["resources"]:
                is_kept = one["namespaced"] and {"list", "create", "delete"} <= {*one["verbs"]}
                if is_kept and one["name"] not in {"events", "leases"}:
                    found.append((path, one["name"]))
        return found


class Role(Made):
    """The Role or ClusterRole in one of the plugin's files."""

    def __init__(self, cluster: Cluster, name: str, *, pods_in: str, **options: Any) -> None:
        """Do no I/O; ``name`` is that of the file, such as ``submitter``."""
        body = permissions.role(name)
        if body["kind"] == "Role":
            body = {**body, "metadata": {**body["metadata"], "namespace": pods_in}}
        purpose = "holds the rights of " + ("pods" if name.startswith("node") else "submitters of jobs")
        rights = permissions.reasons(name)
        super().__init__(cluster, body, purpose, pods_in=pods_in, rights=rights, **options)

    def delete(self) -> str | None:
        """Remove the role, unless another namespace's binding uses the ClusterRole."""
        if not self.namespace:
            for one in self.cluster.list(_COLLECTIONS["ClusterRoleBinding"], selector=""):
                if one["roleRef"]["name"] == self.name:
                    return f"stays, because the ClusterRoleBinding {one['metadata']['name']} uses it"
        return super().delete()

    def compared(self, found: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
        """Return the permissions that the role grants beyond the file's, and those that it does not grant."""
        theirs = permissions.rights(found.get("rules") or ())
        ours = permissions.rights(self.body["rules"])
        collects = ["it collects the rights of other roles"] if found.get("aggregationRule") else []
        return (
            [*collects, *(f"it grants {permissions.shown(one)}" for one in sorted(theirs - ours))],
            [f"it does not grant {permissions.shown(one)}" for one in sorted(ours - theirs)],
        )


class Binding(Made):
    """A role's binding to a subject: a RoleBinding for a Role, a ClusterRoleBinding for a ClusterRole."""

    def __init__(
        self, role: Role, name: str, subject: Mapping[str, str], purpose: str, **options: Any
    ) -> None:
        """Do no I/O; ``subject`` is in the form that RBAC uses."""
        kind = role.body["kind"]
        place = {"namespace": role.namespace} if role.namespace else {}
        body = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": f"{kind}Binding",
            "metadata": {"name": name, **place},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": kind,
                "name": role.body["metadata"]["name"],
            },
            "subjects": [dict(subject)],
        }
        super().__init__(role.cluster, body, purpose, pods_in=role.pods_in, **options)

    def compared(self, found: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
        """Return the binding's subjects other than the wanted one, and the wanted one if it is missing."""
        other = found["roleRef"]
        if (other["kind"], other["name"]) != (self.body["roleRef"]["kind"], self.body["roleRef"]["name"]):
            return [f"it gives the {other['kind']} {other['name']}"], []
        wanted, theirs = (
            {(one["kind"], one.get("namespace", ""), one["name"]) for one in body.get("subjects") or ()}
            for body in (self.body, found)
        )
        return (
            [f"it is for {kind} {name}, too" for kind, _, name in sorted(theirs - wanted)],
            [f"it is not for {kind} {name}" for kind, _, name in sorted(wanted - theirs)],
        )


class Policy(Made):
    """The NetworkPolicy that lets only pods of jobs reach pods of jobs."""

    def __init__(self, cluster: Cluster, name: str, *, pods_in: str, **options: Any) -> None:
        """Do no I/O."""
        pods = {"matchExpressions": [{"key": machinetags.JOB, "operator": "Exists"}]}
        body = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": pods_in},
            "spec": {
                "podSelector": pods,
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": pods}]}],
            },
        }
        purpose = (
            "lets pods of jobs reach one another, and nobody else reach them, if the network enforces it"
        )
        super().__init__(cluster, body, purpose, pods_in=pods_in, **options)

    def compared(self, found: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
        """Return whether the policy's rules differ."""
        return ([] if found["spec"] == self.body["spec"] else ["its rules differ"]), []


def subject_of(grantee: str) -> Mapping[str, str] | None:
    """Return the subject that ``--grant-to`` names, or None if it names none."""
    kind, _, name = grantee.partition(":")
    group = {"apiGroup": "rbac.authorization.k8s.io", "name": name}
    makers: Mapping[str, Callable[[], Mapping[str, str] | None]] = {
        "user": lambda: {**group, "kind": "User"},
        "group": lambda: {**group, "kind": "Group"},
        "serviceaccount": lambda: _account(name),
    }
    return makers[kind]() if kind in makers and name else None


def _account(name: str) -> Mapping[str, str] | None:
    namespace, _, account = name.partition(":")
    if not account:
        return None
    return {"kind": "ServiceAccount", "namespace": namespace, "name": account}
