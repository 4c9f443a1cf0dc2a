"""The provider ``aws``, which the core opens by name."""

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
from cloudspot.model import (
    BootProfile,
    Capability,
    CheckResult,
    NodeIdentity,
    Offer,
    RegistryLogin,
    Resources,
)
from cloudspot.plugin.optionchecks import data_cache_variable
from cloudspot.plugin.regional import RegionalProvider, RegionalProvisioner
from cloudspot_aws.imds import SpotNoticeSource, node_identity
from cloudspot_aws.options import AwsOptions, check_options, options_in

if TYPE_CHECKING:
    from cloudspot_aws.clients import AwsClients


class AwsProvider(RegionalProvider[AwsOptions, "AwsClients"]):
    """EC2's machines, on the spot market or on demand."""

    name: ClassVar[str] = "aws"
    options_type = AwsOptions
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
        return SpotNoticeSource()

    def node_identity(self) -> NodeIdentity:
        return node_identity()

    def boot_profile(self) -> BootProfile:
        """Return how the image starts the agent, with the region of the job's bucket and logs.

        The SDK on a machine cannot find that region by itself. No code on a machine needs the region in which
        the machine itself is.
        """
        region = self.options.region or self.clients.region
        return BootProfile(
            agent_python=self.options.agent_python,
            train_python=self.options.train_python_or_default,
            environment={
                "AWS_REGION": region,
                "AWS_DEFAULT_REGION": region,
                **data_cache_variable(self.name, self.options.data_cache),
            },
            shutdown_command="shutdown -h now",
            has_cloudspot=self.options.image_has_cloudspot,
            # The names that udev gives to disks of the model "Amazon EC2 NVMe Instance Storage".
            own_disks=("/dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_*",),
            own_directories=("/opt/dlami/nvme",),  # the Deep Learning AMI's directory
            fetch_code=Path(__file__).with_name("fetch.py").read_text(encoding="utf-8"),
        )

    def log_sink(self, store: ObjectStore, job_id: str) -> LogSink | None:
        if self.options.logs == "bucket":
            return None
        from cloudspot_aws.cloudwatch import CloudWatchLogSink

        return CloudWatchLogSink(
            job_id,
            store_url=store.canonical_url,
            clients=self.clients,
            group=self.options.log_group,
            retention_days=self.options.log_retention_days,
        )

    def pinned_options(self) -> Mapping[str, Any]:
        """Return the region and the account that the submitter's environment determines."""
        from cloudspot_aws.clients import caller
        from cloudspot_aws.lookups import check_region

        clients = self.clients
        region = check_region(clients)
        return {"region": region, "account": self.options.account or caller(clients).account}

    def image_host_of(self, options: AwsOptions, clients: AwsClients) -> ImageHost:
        from cloudspot_aws.setup_images import AwsImageHost

        return AwsImageHost(options, clients)

    def registry_login(self, registry: str) -> RegistryLogin | None:
        from cloudspot_aws.ecr import registry_login

        return registry_login(self.clients, registry)

    def function_host(self) -> FunctionHost:
        from cloudspot_aws.functionhost import LambdaHost

        return LambdaHost(self.clients)

    def account_setup(self) -> AccountSetup:
        from cloudspot_aws.accountsetup import AwsAccountSetup

        return AwsAccountSetup(self.options, self.clients)

    def preempt(self, request: PreemptRequest) -> PreemptResult:
        from cloudspot_aws.drill import interrupt

        clients, provisioner = self.clients, self.provisioner()
        if isinstance(provisioner, RegionalProvisioner):
            _, clients = self.in_region(provisioner.region_of(request.instance_id) or clients.region)
        interrupt(clients, request.instance_id, notice_seconds=request.notice_seconds)
        return PreemptResult()

    def check_options(self, options: AwsOptions) -> None:
        check_options(options)

    def make_clients(self) -> AwsClients:
        from cloudspot_aws.clients import AwsClients

        return AwsClients(region=self.options.region)

    @property
    def regions(self) -> Sequence[str]:
        return self.options.regions

    def in_region(self, region: str) -> tuple[AwsOptions, AwsClients]:
        from cloudspot_aws.clients import AwsClients

        return options_in(region, self.options), AwsClients(region=region)

    def transfer_price(self, offer: Offer) -> float:
        from cloudspot_aws.pricing import transfer_price

        return transfer_price(offer.region, self.clients.region)

    def make_provisioner_of(self, options: AwsOptions, clients: AwsClients) -> Provisioner:
        from cloudspot_aws.ec2 import Ec2Provisioner

        return Ec2Provisioner(options, clients)

    def account_regions(self) -> Sequence[str]:
        from cloudspot_aws.inventory import account_regions

        return account_regions(self.clients)

    def inventories_of(self, options: AwsOptions, clients: AwsClients) -> Sequence[Inventory]:
        from cloudspot_aws.inventory import inventories

        return inventories(options, clients)

    def check_region(
        self, options: AwsOptions, clients: AwsClients, resources: Resources
    ) -> Sequence[CheckResult]:
        from cloudspot_aws.check import check

        return check(options, clients, resources)
