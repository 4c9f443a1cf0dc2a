"""The provider ``kubernetes``, which the core opens by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from cloudspot.calls import PreemptRequest, PreemptResult
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import AccountSetup, PreemptionSource, Provisioner
from cloudspot.model import BootProfile, Capability, CheckResult, NodeIdentity, Resources
from cloudspot.plugin.cloudprovider import CloudProvider
from cloudspot.plugin.optionchecks import data_cache_variable
from cloudspot_kubernetes.notice import PodNoticeSource, node_identity
from cloudspot_kubernetes.options import KubernetesOptions, check_options, require_complete

if TYPE_CHECKING:
    from cloudspot_kubernetes.cluster import Cluster


class KubernetesProvider(CloudProvider[KubernetesOptions, "Cluster"]):
    """Machines as pods of a Kubernetes cluster, on its spot nodes or other nodes."""

    name: ClassVar[str] = "kubernetes"
    options_type = KubernetesOptions
    capabilities = frozenset({Capability.CONSOLE, Capability.PREEMPT, Capability.SETUP})
    cut_network_advice: ClassVar[str] = (
        "a NetworkPolicy of the namespace may deny it: allow all TCP ports from and to pods with the label "
        "cloudspot-job"
    )
    driver_options: ClassVar[frozenset[str]] = frozenset({"kubeconfig", "context"})

    def preemption_source(self) -> PreemptionSource:
        options = self.options
        return PodNoticeSource(
            grace=options.grace, shutdown_grace=options.shutdown_grace, watch_taints=options.watch_taints
        )

    def node_identity(self) -> NodeIdentity:
        return node_identity()

    def boot_profile(self) -> BootProfile:
        """Return how the agent is started by the image, which contains everything that is needed."""
        from cloudspot_kubernetes.podspec import SHUTDOWN

        return BootProfile(
            agent_python=self.options.agent_python,
            train_python=self.options.train_python,
            environment=data_cache_variable(self.name, self.options.data_cache),
            shutdown_command=SHUTDOWN,
            has_cloudspot=True,
        )

    def pinned_options(self) -> Mapping[str, Any]:
        """Return the cluster and the namespace, as the submitter's kubeconfig decides them."""
        require_complete(self.options)
        return {"cluster": self.clients.digest, "namespace": self.clients.namespace}

    def account_setup(self) -> AccountSetup:
        from cloudspot_kubernetes.accountsetup import KubernetesAccountSetup

        return KubernetesAccountSetup(self.options, self.clients)

    def preempt(self, request: PreemptRequest) -> PreemptResult:
        """Delete the pod as an eviction does, by default with its own grace period."""
        from cloudspot_kubernetes.pods import PodProvisioner

        pods = PodProvisioner(self.options, self.clients)
        if not pods.evict(request.instance_id, seconds=request.notice_seconds):
            raise CloudspotError(f"namespace {self.clients.namespace!r} has no pod {request.instance_id!r}")
        return PreemptResult()

    def check_options(self, options: KubernetesOptions) -> None:
        check_options(options)

    def make_clients(self) -> Cluster:
        from cloudspot_kubernetes.cluster import Cluster

        return Cluster(self.options)

    def make_provisioner(self, clients: Cluster) -> Provisioner:
        from cloudspot_kubernetes.pods import PodProvisioner

        return PodProvisioner(self.options, clients)

    def run_checks(self, clients: Cluster, resources: Resources) -> Sequence[CheckResult]:
        from cloudspot_kubernetes.check import check

        return check(self.options, clients, resources)
