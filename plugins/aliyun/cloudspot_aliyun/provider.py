"""The provider ``aliyun``: what the core asks for by name."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cloudspot.interfaces import LogSink, ObjectStore, PreemptionSource, Provider, Provisioner
from cloudspot.model import BootProfile, CheckResult, NodeIdentity, Resources
from cloudspot_aliyun.metadata import AliyunNoticeSource, announced, node_identity
from cloudspot_aliyun.options import AliyunOptions, check_options

if TYPE_CHECKING:
    from cloudspot_aliyun.clients import AliyunClients


class AliyunProvider(Provider):
    """Machines of Alibaba Cloud's ECS, on the spot market or by pay-as-you-go."""

    name: ClassVar[str] = "aliyun"
    options_type = AliyunOptions
    # Tags show in the metadata within seconds; a machine that boots takes longer.
    announce_seconds: ClassVar[float] = 5.0

    def __init__(self, options: AliyunOptions | None = None) -> None:
        """Keep the job's options.

        Raises:
            SpecError: one of them can be seen to be wrong.
        """
        options = AliyunOptions() if options is None else options
        super().__init__(options)
        check_options(options)
        self._options = options
        self._lock = threading.Lock()
        self._clients: AliyunClients | None = None
        self._provisioner: Provisioner | None = None

    def provisioner(self) -> Provisioner:
        """Return the provisioner; the same one each time, since it keeps what it has looked up."""
        from cloudspot_aliyun.ecs import EcsProvisioner

        clients = self._aliyun()
        with self._lock:
            if self._provisioner is None:
                self._provisioner = EcsProvisioner(self._options, clients, provider=self.name)
            return self._provisioner

    def preemption_source(self) -> PreemptionSource:
        """Return the source that reads the machine's metadata service."""
        return AliyunNoticeSource()

    def node_identity(self) -> NodeIdentity:
        """Say who this machine is, by its metadata service."""
        return node_identity()

    def announced(self) -> Mapping[str, str]:
        """Return the machine's tags that were announced; none where its metadata does not show tags."""
        return announced()

    def boot_profile(self) -> BootProfile:
        """Return how the image starts the agent; the region, which the SDKs do not find by themselves."""
        region = self._options.region or self._aliyun().region
        return BootProfile(
            agent_python=self._options.agent_python,
            train_python=self._options.train_python,
            environment={"ALIBABA_CLOUD_REGION_ID": region},
            end_code=Path(__file__).with_name("selfend.py").read_text(encoding="utf-8"),
            has_cloudspot=self._options.image_has_cloudspot,
            fetch_code=""
            if self._options.image_has_cloudspot
            else Path(__file__).with_name("fetch.py").read_text(encoding="utf-8"),
        )

    def log_sink(self, store: ObjectStore, job_id: str) -> LogSink | None:
        """Return OSS append logs, unless the options keep the logs as on every provider."""
        if self._options.logs == "bucket" or not store.url.lower().startswith("oss://"):
            return None
        from cloudspot_aliyun.osslogs import OssLogSink

        return OssLogSink(store, job_id)

    def pinned_options(self) -> Mapping[str, Any]:
        """Return the region and the account, which the submitter's environment decides.

        Raises:
            SpecError: there is no region.
            AuthError: there are no credentials, or Alibaba Cloud does not accept them.
            TransientError: Alibaba Cloud did not answer.
        """
        from cloudspot_aliyun.caller import caller

        clients = self._aliyun()
        region = clients.region
        return {"region": region, "account": self._options.account or caller(clients).account}

    def check(self, *, resources: Resources | None = None) -> Sequence[CheckResult]:
        """Try what a job needs, and say for each thing what is missing and how to mend it."""
        from cloudspot_aliyun.check import check

        return check(self._options, self._aliyun(), resources or Resources())

    def _aliyun(self) -> AliyunClients:
        from cloudspot_aliyun.clients import AliyunClients

        with self._lock:
            if self._clients is None:
                self._clients = AliyunClients(region=self._options.region)
            return self._clients
