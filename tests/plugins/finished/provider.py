"""The provider of the paper cloud."""

from __future__ import annotations

import os

import msgspec
from cloudspot_paper import metadata
from cloudspot_paper.provisioner import PaperProvisioner, open_cloud

from cloudspot.calls import CheckRequest, CheckResults, PreemptRequest, PreemptResult
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import LogSink, ObjectStore, PreemptionSource, Provider, Provisioner
from cloudspot.model import BootProfile, Capability, CheckResult, EndReason, NodeIdentity


class PaperOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """``[providers.paper]``."""


class PaperProvider(Provider[PaperOptions]):
    name = "paper"
    capabilities = frozenset({Capability.LOGS, Capability.PREEMPT})
    options_type = PaperOptions

    def provisioner(self) -> Provisioner:
        return PaperProvisioner(self.options)

    def preemption_source(self) -> PreemptionSource:
        return metadata.PaperSource()

    def node_identity(self) -> NodeIdentity:
        return metadata.read_identity()

    def boot_profile(self) -> BootProfile:
        return BootProfile()

    def log_sink(self, store: ObjectStore, job_id: str) -> LogSink:
        from cloudspot_paper.logs import PaperLogSink

        return PaperLogSink(self.options, job_id, store_url=store.canonical_url)

    def check(self, request: CheckRequest) -> CheckResults:
        is_set = "PAPER_CLOUD" in os.environ
        return CheckResults(
            results=(CheckResult(name="paper", ok=is_set, remedy="set PAPER_CLOUD to a file"),)
        )

    def preempt(self, request: PreemptRequest) -> PreemptResult:
        if not open_cloud().end(request.instance_id, EndReason.RECLAIMED.value):
            raise CloudspotError(f"no machine {request.instance_id} runs")
        return PreemptResult()
