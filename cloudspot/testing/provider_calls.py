"""The calls that the kits make to a provider, each in one line of a test."""

from __future__ import annotations

from collections.abc import Sequence

from cloudspot.interfaces import Provider, Provisioner
from cloudspot.model import CheckResult, Instance, LaunchRequest, Offer, Resources


def create(provisioner: Provisioner, request: LaunchRequest, *, token: str) -> Sequence[Instance]:
    """Return the machines that were made."""
    return provisioner.create(request, token=token)


def instances(provisioner: Provisioner, *, job_id: str | None = None) -> Sequence[Instance]:
    """Return the machines that are listed."""
    return provisioner.instances(job_id=job_id)


def terminate(provisioner: Provisioner, instance_ids: Sequence[str]) -> None:
    """Ask for the end of the machines."""
    provisioner.terminate(instance_ids)


def offers(provisioner: Provisioner, resources: Resources) -> Sequence[Offer]:
    """Return what is offered."""
    return provisioner.offers(resources)


def preempt(provider: Provider, instance_id: str, *, notice_seconds: float | None = None) -> None:
    """Let the machine be reclaimed."""
    provider.preempt(instance_id, notice_seconds=notice_seconds)


def check(provider: Provider) -> Sequence[CheckResult]:
    """Return the findings."""
    return provider.check()
