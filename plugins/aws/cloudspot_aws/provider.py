"""The provider ``aws``: what the core asks for by name."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cloudspot.interfaces import LogSink, ObjectStore, PreemptionSource, Provider, Provisioner
from cloudspot.model import BootProfile, CheckResult, NodeIdentity, Resources
from cloudspot_aws.imds import SpotNoticeSource, announced, node_identity
from cloudspot_aws.options import AwsOptions, check_options

if TYPE_CHECKING:
    from cloudspot_aws.clients import AwsClients


class AwsProvider(Provider):
    """Machines of EC2, on the spot market or on demand."""

    name: ClassVar[str] = "aws"
    options_type = AwsOptions
    # Tags show in the metadata within seconds; a machine that boots takes longer.
    announce_seconds: ClassVar[float] = 5.0

    def __init__(self, options: AwsOptions | None = None) -> None:
        """Keep the job's options.

        Raises:
            SpecError: one of them can be seen to be wrong.
        """
        options = AwsOptions() if options is None else options
        super().__init__(options)
        check_options(options)
        self._options = options
        self._lock = threading.Lock()
        self._clients: AwsClients | None = None
        self._provisioner: Provisioner | None = None

    def provisioner(self) -> Provisioner:
        """Return the provisioner; the same one each time, since it keeps what it has looked up."""
        from cloudspot_aws.ec2 import Ec2Provisioner

        clients = self._aws()
        with self._lock:
            if self._provisioner is None:
                self._provisioner = Ec2Provisioner(self._options, clients, provider=self.name)
            return self._provisioner

    def preemption_source(self) -> PreemptionSource:
        """Return the source that reads the machine's metadata service."""
        return SpotNoticeSource()

    def node_identity(self) -> NodeIdentity:
        """Say who this machine is, by its metadata service."""
        return node_identity()

    def announced(self) -> Mapping[str, str]:
        """Return the machine's tags that were announced; none where its metadata does not show tags."""
        return announced()

    def boot_profile(self) -> BootProfile:
        """Return how the image starts the agent; the region, which the SDK does not find by itself."""
        region = self._options.region or self._aws().region
        return BootProfile(
            agent_python=self._options.agent_python,
            train_python=self._options.train_python_or_default,
            environment={"AWS_REGION": region, "AWS_DEFAULT_REGION": region},
            shutdown_command="shutdown -h now",
            has_cloudspot=self._options.image_has_cloudspot,
            fetch_code=Path(__file__).with_name("fetch.py").read_text(encoding="utf-8"),
        )

    def log_sink(self, store: ObjectStore, job_id: str) -> LogSink | None:
        """Return CloudWatch Logs, unless the options keep the logs in the bucket."""
        if self._options.logs == "bucket":
            return None
        from cloudspot_aws.cloudwatch import CloudWatchLogSink

        return CloudWatchLogSink(
            job_id,
            store_url=store.canonical_url,
            clients=self._aws(),
            group=self._options.log_group,
            retention_days=self._options.log_retention_days,
        )

    def pinned_options(self) -> Mapping[str, Any]:
        """Return the region and the account, which the submitter's environment decides.

        Raises:
            SpecError: there is no region.
            AuthError: there are no credentials, or AWS does not accept them.
            TransientError: AWS did not answer.
        """
        from cloudspot_aws.caller import caller
        from cloudspot_aws.lookups import check_region

        clients = self._aws()
        region = check_region(clients)
        return {"region": region, "account": self._options.account or caller(clients).account}

    def check(self, *, resources: Resources | None = None) -> Sequence[CheckResult]:
        """Try what a job needs, and say for each thing what is missing and how to mend it."""
        from cloudspot_aws.check import check

        return check(self._options, self._aws(), resources or Resources())

    def preempt(self, instance_id: str, *, notice_seconds: float | None = None) -> None:
        """Take a spot machine for a drill, by AWS's Fault Injection Service; see Provider."""
        from cloudspot_aws.drill import interrupt

        interrupt(self._aws(), instance_id, notice_seconds=notice_seconds)

    def _aws(self) -> AwsClients:
        from cloudspot_aws.clients import AwsClients

        with self._lock:
            if self._clients is None:
                self._clients = AwsClients(region=self._options.region)
            return self._clients
