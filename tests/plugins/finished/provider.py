"""The provider of the paper cloud."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
from cloudspot_paper import metadata
from cloudspot_paper.provisioner import PaperProvisioner, open_cloud

from cloudspot.errors import CloudspotError
from cloudspot.interfaces import PreemptionSource, Provider, Provisioner
from cloudspot.model import BootProfile, CheckResult, EndReason, NodeIdentity, Resources


class PaperOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """``[providers.paper]``."""


class PaperProvider(Provider):
    name = "paper"
    options_type = PaperOptions

    def provisioner(self) -> Provisioner:
        return PaperProvisioner(self.options)

    def preemption_source(self) -> PreemptionSource:
        return metadata.PaperSource()

    def node_identity(self) -> NodeIdentity:
        return metadata.read_identity()

    def boot_profile(self) -> BootProfile:
        return BootProfile()

    def check(self, *, resources: Resources | None = None) -> Sequence[CheckResult]:
        return [CheckResult(name="paper", ok="PAPER_CLOUD" in os.environ, remedy="set PAPER_CLOUD to a file")]

    def preempt(self, instance_id: str, *, notice_seconds: float | None = None) -> None:
        if not open_cloud().end(instance_id, EndReason.RECLAIMED.value):
            raise CloudspotError(f"no machine {instance_id} runs")
