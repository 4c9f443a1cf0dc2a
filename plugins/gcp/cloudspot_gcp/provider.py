"""The provider ``gcp``, which the core opens by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cloudspot.calls import PreemptRequest, PreemptResult
from cloudspot.interfaces import (
    AccountSetup,
    FunctionHost,
    ImageHost,
    Inventory,
    LogSink,
    ObjectStore,
    PreemptionSource,
    Provisioner,
)
from cloudspot.model import BootProfile, Capability, CheckResult, NodeIdentity, RegistryLogin, Resources
from cloudspot.plugin.cloudprovider import CloudProvider
from cloudspot.plugin.optionchecks import data_cache_variable
from cloudspot_gcp.metadata import GcePreemptionSource, node_identity
from cloudspot_gcp.options import GcpOptions, check_options

if TYPE_CHECKING:
    from cloudspot_gcp.clients import GcpClients


class GcpProvider(CloudProvider[GcpOptions, "GcpClients"]):
    """Compute Engine's machines, on the spot market or on demand."""

    name: ClassVar[str] = "gcp"
    options_type = GcpOptions
    capabilities = frozenset(
        {
            Capability.CONTAINERS,
            Capability.CONSOLE,
            Capability.LOGS,
            Capability.REGISTRY,
            Capability.IMAGES,
            Capability.FUNCTIONS,
            Capability.PREEMPT,
            Capability.SETUP,
        }
    )

    def preemption_source(self) -> PreemptionSource:
        return GcePreemptionSource()

    def node_identity(self) -> NodeIdentity:
        return node_identity()

    def boot_profile(self) -> BootProfile:
        """Return how the image starts the agent, with the project, which the SDK may not find by itself."""
        project = self.options.project or self.clients.project
        return BootProfile(
            agent_python=self.options.agent_python,
            train_python=self.options.train_python,
            environment={
                "GOOGLE_CLOUD_PROJECT": project,
                **data_cache_variable(self.name, self.options.data_cache),
            },
            end_code=Path(__file__).with_name("selfend.py").read_text(encoding="utf-8"),
            # The names that Google's images give to local SSDs (Compute Engine, "Add Local SSD disks";
            # checked 2026-11).
            own_disks=("/dev/disk/by-id/google-local-nvme-ssd-*", "/dev/disk/by-id/google-local-ssd-*"),
            has_cloudspot=self.options.image_has_cloudspot,
            fetch_code=Path(__file__).with_name("fetch.py").read_text(encoding="utf-8"),
        )

    def log_sink(self, store: ObjectStore, job_id: str) -> LogSink | None:
        if self.options.logs == "bucket":
            return None
        from cloudspot_gcp.cloudlogging import CloudLoggingSink

        return CloudLoggingSink(
            job_id,
            store_url=store.canonical_url,
            clients=self.clients,
            log_name=self.options.log_name,
        )

    def pinned_options(self) -> Mapping[str, Any]:
        """Return the project and the regions, as the submitter's environment decides them."""
        from cloudspot_gcp.lookups import wanted_regions

        return {"project": self.clients.project, "regions": list(wanted_regions(self.options))}

    def account_setup(self) -> AccountSetup:
        from cloudspot_gcp.accountsetup import GcpAccountSetup

        return GcpAccountSetup(self.options, self.clients)

    def registry_login(self, registry: str) -> RegistryLogin | None:
        from cloudspot_gcp.artifactregistry import registry_login

        return registry_login(self.clients, registry)

    def function_host(self) -> FunctionHost:
        from cloudspot_gcp.functionhost import CloudRunHost
        from cloudspot_gcp.lookups import wanted_regions

        return CloudRunHost(self.clients, region=wanted_regions(self.options)[0])

    def image_host(self) -> ImageHost:
        """Return the host of the project's images, which serve all its regions; see Provider."""
        from cloudspot_gcp.setup_images import GcpImageHost

        return GcpImageHost(self.options, self.clients)

    def inventories(self, *, all_regions: bool) -> Sequence[Inventory]:
        """Return the project's inventories, each of which covers all regions; see Provider."""
        from cloudspot_gcp.inventory import inventories

        return inventories(self.options, self.clients)

    def preempt(self, request: PreemptRequest) -> PreemptResult:
        from cloudspot_gcp.drill import preempt

        preempt(self.clients, request.instance_id, notice_seconds=request.notice_seconds)
        return PreemptResult()

    def check_options(self, options: GcpOptions) -> None:
        check_options(options)

    def make_clients(self) -> GcpClients:
        from cloudspot_gcp.clients import GcpClients

        return GcpClients(project=self.options.project)

    def make_provisioner(self, clients: GcpClients) -> Provisioner:
        from cloudspot_gcp.compute import ComputeProvisioner

        return ComputeProvisioner(self.options, clients)

    def run_checks(self, clients: GcpClients, resources: Resources) -> Sequence[CheckResult]:
        from cloudspot_gcp.check import check

        return check(self.options, clients, resources)
