"""The provider ``gcp``: what the core asks for by name."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cloudspot.interfaces import LogSink, ObjectStore, PreemptionSource, Provider, Provisioner
from cloudspot.model import BootProfile, CheckResult, NodeIdentity, Resources
from cloudspot_gcp.options import GcpOptions, check_options

if TYPE_CHECKING:
    from cloudspot_gcp.clients import GcpClients


class GcpProvider(Provider):
    """Machines of Compute Engine, on the spot market or on demand."""

    name: ClassVar[str] = "gcp"
    options_type = GcpOptions
    # What is announced comes with the machine: it stands in its attributes before it boots.
    announce_seconds: ClassVar[float] = 0.0

    def __init__(self, options: GcpOptions | None = None) -> None:
        """Keep the job's options.

        Raises:
            SpecError: one of them can be seen to be wrong.
        """
        options = GcpOptions() if options is None else options
        super().__init__(options)
        check_options(options)
        self._options = options
        self._lock = threading.Lock()
        self._clients: GcpClients | None = None
        self._provisioner: Provisioner | None = None

    def provisioner(self) -> Provisioner:
        """Return the provisioner; the same one each time, since it keeps what it has looked up."""
        from cloudspot_gcp.compute import ComputeProvisioner

        clients = self._gcp()
        with self._lock:
            if self._provisioner is None:
                self._provisioner = ComputeProvisioner(self._options, clients, provider=self.name)
            return self._provisioner

    def preemption_source(self) -> PreemptionSource:
        """Return the source that reads the machine's metadata server."""
        from cloudspot_gcp.metadata import GcePreemptionSource

        return GcePreemptionSource()

    def node_identity(self) -> NodeIdentity:
        """Say who this machine is, by its metadata server."""
        from cloudspot_gcp.metadata import node_identity

        return node_identity()

    def announced(self) -> Mapping[str, str]:
        """Return the machine's attributes that were announced."""
        from cloudspot_gcp.metadata import announced

        return announced()

    def boot_profile(self) -> BootProfile:
        """Return how the image starts the agent; the project, which the SDK may not find by itself."""
        project = self._options.project or self._gcp().project
        return BootProfile(
            agent_python=self._options.agent_python,
            train_python=self._options.train_python,
            environment={"GOOGLE_CLOUD_PROJECT": project},
            end_code=Path(__file__).with_name("selfend.py").read_text(encoding="utf-8"),
            has_cloudspot=self._options.image_has_cloudspot,
            fetch_code=Path(__file__).with_name("fetch.py").read_text(encoding="utf-8"),
        )

    def log_sink(self, store: ObjectStore, job_id: str) -> LogSink | None:
        """Return Cloud Logging, unless the options keep the logs in the bucket."""
        if self._options.logs == "bucket":
            return None
        from cloudspot_gcp.cloudlogging import CloudLoggingSink

        return CloudLoggingSink(
            job_id,
            store_url=store.canonical_url,
            clients=self._gcp(),
            log_name=self._options.log_name,
        )

    def pinned_options(self) -> Mapping[str, Any]:
        """Return the project and the regions, which the submitter's environment decides.

        Raises:
            SpecError: there is no project.
            AuthError: there are no credentials.
        """
        from cloudspot_gcp.lookups import wanted_regions

        return {"project": self._gcp().project, "regions": list(wanted_regions(self._options))}

    def check(self, *, resources: Resources | None = None) -> Sequence[CheckResult]:
        """Try what a job needs, and say for each thing what is missing and how to mend it."""
        from cloudspot_gcp.check import check

        return check(self._options, self._gcp(), resources or Resources())

    def preempt(self, instance_id: str, *, notice_seconds: float | None = None) -> None:
        """Take a spot machine for a drill, as Compute Engine simulates a reclaim; see Provider."""
        from cloudspot_gcp.drill import preempt

        preempt(self._gcp(), instance_id, notice_seconds=notice_seconds)

    def _gcp(self) -> GcpClients:
        from cloudspot_gcp.clients import GcpClients

        with self._lock:
            if self._clients is None:
                self._clients = GcpClients(project=self._options.project)
            return self._clients
