"""The provider ``aliyun``, which the core opens by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

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
from cloudspot.plugin.regional import RegionalProvider
from cloudspot_aliyun.metadata import AliyunNoticeSource, node_identity
from cloudspot_aliyun.options import AliyunOptions, check_options, options_in

BARE_IMAGE: Final = (
    "Alibaba Cloud's Ubuntu 24.04, the default image, has neither PyTorch nor a GPU driver. Name an image "
    "that has what the job needs in providers.aliyun.image, or install it on each machine, with run.python = "
    "'.venv/bin/python' and run.setup = 'apt-get update && apt-get install -y python3-venv && "
    "python3 -m venv .venv && .venv/bin/pip install torch'; with a GPU, put before the last two: "
    "'apt-get install -y ubuntu-drivers-common && ubuntu-drivers install --gpgpu && modprobe nvidia'"
)
"""The setup of the GPU driver is from memory of Ubuntu Server's documentation, "NVIDIA drivers installation",
and has not been tried on a machine. A virtual environment is needed because pip must not change Ubuntu's own
Python.
"""

if TYPE_CHECKING:
    from cloudspot_aliyun.clients import AliyunClients

NO_ROUTE: Final = (
    "machines in %s have no public address (providers.aliyun.public_bandwidth = 0): they reach a bucket "
    "in %s only through a NAT gateway or CEN"
)
_log = logging.getLogger("cloudspot.aliyun.provider")


class AliyunProvider(RegionalProvider[AliyunOptions, "AliyunClients"]):
    """The machines of Alibaba Cloud's ECS, on the spot market or by pay-as-you-go."""

    name: ClassVar[str] = "aliyun"
    options_type = AliyunOptions
    capabilities = frozenset(
        {
            Capability.CONTAINERS,
            Capability.CONSOLE,
            Capability.LOGS,
            Capability.REGISTRY,
            Capability.IMAGES,
            Capability.FUNCTIONS,
            Capability.SETUP,
        }
    )

    def preemption_source(self) -> PreemptionSource:
        return AliyunNoticeSource()

    def node_identity(self) -> NodeIdentity:
        return node_identity()

    def boot_profile(self) -> BootProfile:
        """Return how the image starts the agent, with the region of the job's bucket.

        The SDKs on a machine cannot find that region by themselves. The machine's own region may be another
        one and is in its metadata; the machine uses it to fetch the agent and to end itself.
        """
        region = self.options.region or self.clients.region
        return BootProfile(
            agent_python=self.options.agent_python,
            train_python=self.options.train_python,
            environment={
                "ALIBABA_CLOUD_REGION_ID": region,
                **data_cache_variable(self.name, self.options.data_cache),
            },
            end_code=Path(__file__).with_name("selfend.py").read_text(encoding="utf-8"),
            has_cloudspot=self.options.image_has_cloudspot,
            fetch_code=Path(__file__).with_name("fetch.py").read_text(encoding="utf-8"),
            lacks="" if self.options.image or self.options.image_family else BARE_IMAGE,
        )

    def log_sink(self, store: ObjectStore, job_id: str) -> LogSink | None:
        if self.options.logs == "bucket" or not store.url.lower().startswith("oss://"):
            return None
        from cloudspot_aliyun.osslogs import OssLogSink

        return OssLogSink(store, job_id)

    def account_setup(self) -> AccountSetup:
        from cloudspot_aliyun.accountsetup import AliyunAccountSetup

        return AliyunAccountSetup(self.options, self.clients)

    def registry_login(self, registry: str) -> RegistryLogin | None:
        from cloudspot_aliyun.acr import registry_login

        return registry_login(self.clients, registry)

    def pinned_options(self) -> Mapping[str, Any]:
        """Return the region and the account that the submitter's environment determines."""
        from cloudspot_aliyun.api import caller

        clients = self.clients
        region = clients.region
        away = [one for one in self.options.regions if one != region]
        if away and not self.options.public_bandwidth:
            _log.warning(NO_ROUTE, ", ".join(away), region)
        return {"region": region, "account": self.options.account or caller(clients).account}

    def image_host_of(self, options: AliyunOptions, clients: AliyunClients) -> ImageHost:
        from cloudspot_aliyun.setup_images import AliyunImageHost

        return AliyunImageHost(options, clients)

    def function_host(self) -> FunctionHost:
        from cloudspot_aliyun.functionhost import FunctionComputeHost

        return FunctionComputeHost(self.clients)

    def check_options(self, options: AliyunOptions) -> None:
        check_options(options)

    def make_clients(self) -> AliyunClients:
        from cloudspot_aliyun.clients import AliyunClients

        return AliyunClients(region=self.options.region)

    @property
    def regions(self) -> Sequence[str]:
        return self.options.regions

    def in_region(self, region: str) -> tuple[AliyunOptions, AliyunClients]:
        return options_in(region, self.options), self.clients.in_region(region)

    def transfer_price(self, offer: Offer) -> float:
        from cloudspot_aliyun.pricing import transfer_price

        return transfer_price(offer.region, self.clients.region, offer.currency)

    def make_provisioner_of(self, options: AliyunOptions, clients: AliyunClients) -> Provisioner:
        from cloudspot_aliyun.ecs import EcsProvisioner

        return EcsProvisioner(options, clients)

    def account_regions(self) -> Sequence[str]:
        from cloudspot_aliyun.inventory import account_regions

        return account_regions(self.clients)

    def inventories_of(self, options: AliyunOptions, clients: AliyunClients) -> Sequence[Inventory]:
        from cloudspot_aliyun.inventory import inventories

        return inventories(options, clients)

    def check_region(
        self, options: AliyunOptions, clients: AliyunClients, resources: Resources
    ) -> Sequence[CheckResult]:
        from cloudspot_aliyun.check import check

        return check(options, clients, resources)
