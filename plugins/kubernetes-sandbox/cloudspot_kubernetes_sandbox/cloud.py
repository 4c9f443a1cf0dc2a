"""The whole emulated cluster, which `cloudspot sandbox kubernetes` and the tests of whole jobs start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import yaml

import cloudspot_kubernetes
from cloudspot.emulation.cloud import Contrary, EmulatedCloud, EmulatedMachine, MachineHost
from cloudspot.errors import CloudspotError
from cloudspot_kubernetes_sandbox.build import binaries
from cloudspot_kubernetes_sandbox.controlplane import ADMIN, SUBMITTER, ControlPlane
from cloudspot_kubernetes_sandbox.kubelet import Kubelet, NodeSpec

NAMESPACE: Final = "default"
NODES: Final = (
    NodeSpec("spot-1"),
    NodeSpec("spot-2"),
    NodeSpec("spot-3", zone="zone-b"),
    NodeSpec("steady-1", is_spot=False),
)
_ROLES: Final = Path(cloudspot_kubernetes.__file__).parent
_PATHS: Final = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
}


class EmulatedKubernetes(EmulatedCloud):
    """A cluster with three spot nodes and one other, a namespace with the plugin's roles, and a store."""

    name: ClassVar[str] = "kubernetes"
    foreign_variables: ClassVar[tuple[str, ...]] = ("KUBECONFIG", "KUBERNETES_")
    network: ClassVar[str] = "10.88.0.0/16"
    metadata_service: ClassVar[str] = "cloudspot_kubernetes_sandbox.kubelet:PodMetadata"
    can_be_bare: ClassVar[bool] = True
    contraries: ClassVar[Mapping[str, Contrary]] = {
        "exit-code-lost": Contrary(
            "the kubelet does not know how a pod's container has ended", "kubernetes-kubelet"
        ),
        "grace-cut": Contrary("a pod that is evicted or deleted is killed at once", "kubernetes-grace"),
    }
    fetch_user_data: ClassVar[str] = 'exec curl -sf "$METADATA_URL/run"\n'

    def __init__(self, nodes: tuple[NodeSpec, ...] = NODES) -> None:
        self.plane: ControlPlane | None = None
        self.kubelet: Kubelet | None = None
        self._nodes = nodes
        self._store = Path()
        self._variables: dict[str, str] = {}

    def start(self, host: MachineHost, *, address: str, directory: Path) -> None:
        """Start the control plane and the nodes; see EmulatedCloud.

        Raises:
            PluginError: the control plane is not built.
            CloudspotError: the host cannot isolate machines, which is needed because pods write to fixed
                paths.
        """
        if host.network != self.network:
            raise CloudspotError(
                "its pods need namespaces, which this host does not have; use Linux outside a container"
            )
        self.plane = plane = ControlPlane(binaries(), directory / "control-plane", address=address)
        plane.start()
        self._store = directory / "store"
        self._store.mkdir()
        if not self.is_bare:
            apply_roles(plane)
            let_list_nodes(plane, SUBMITTER)
        self.kubelet = Kubelet(plane, host, self._nodes, contrary=self.contrary)
        admin = plane.write_kubeconfig(directory / "admin.kubeconfig", ADMIN)
        submitter = plane.write_kubeconfig(directory / "kubeconfig", SUBMITTER)
        self._variables = {
            "KUBECONFIG": str(admin if self.is_bare else submitter),
            "CLOUDSPOT_STORE": f"file://{self._store}",
        }

    def environment(self) -> Mapping[str, str]:
        """Return the variables with which a submitter reaches the cluster; see EmulatedCloud."""
        return self._variables

    def machine_environment(self) -> Mapping[str, str]:
        """Return nothing, because a pod's variables are in its own description."""
        return {}

    def furnish(self, machine: EmulatedMachine) -> EmulatedMachine:
        """Give each pod access, at its own path, to the store, in place of a bucket; see EmulatedCloud."""
        return msgspec.structs.replace(machine, shared={**machine.shared, str(self._store): str(self._store)})

    def stop(self) -> None:
        """End the nodes and the control plane; see EmulatedCloud."""
        if self.kubelet is not None:
            self.kubelet.close()
        if self.plane is not None:
            self.plane.stop()


def apply_roles(plane: ControlPlane, namespace: str = NAMESPACE) -> None:
    """Make the plugin's roles, and bind the submitter to its role, as docs/kubernetes.md describes."""
    for name in ("role-submitter.yaml", "role-node.yaml"):
        for made in yaml.safe_load_all((_ROLES / name).read_text(encoding="utf-8")):
            for subject in made.get("subjects", ()):
                subject["namespace"] = namespace
            plane.request("POST", _PATHS[made["kind"]].format(namespace), made)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "cloudspot-submitter"}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": SUBMITTER}
    binding = {"metadata": {"name": "cloudspot-submitter"}, "roleRef": role, "subjects": [user]}
    plane.request("POST", _PATHS["RoleBinding"].format(namespace), binding)


def let_list_nodes(plane: ControlPlane, user: str) -> None:
    """Give the user the role for ``cloudspot providers check``, once per cluster."""
    made = yaml.safe_load((_ROLES / "role-submitter-nodes.yaml").read_text(encoding="utf-8"))
    plane.request("POST", _PATHS[made["kind"]], made)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": made["kind"], "name": made["metadata"]["name"]}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    binding = {"metadata": {"name": f"{role['name']}-{user}"}, "roleRef": role, "subjects": [subject]}
    plane.request("POST", _PATHS["ClusterRoleBinding"], binding)
