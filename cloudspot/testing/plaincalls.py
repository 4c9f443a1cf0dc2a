"""A provider's calls with plain arguments, for the kits and for a plugin's own tests."""

from __future__ import annotations

from collections.abc import Iterable

from cloudspot.calls import (
    CheckRequest,
    CreateRequest,
    InstancesRequest,
    OffersRequest,
    PreemptRequest,
    TerminateRequest,
)
from cloudspot.interfaces import ObjectStore, Provider, Provisioner
from cloudspot.model import CheckResult, Instance, LaunchRequest, Offer, Resources


def create(provisioner: Provisioner, request: LaunchRequest, *, token: str) -> tuple[Instance, ...]:
    """Create machines and return them."""
    return provisioner.create(CreateRequest(request=request, token=token)).instances


def instances(
    provisioner: Provisioner, *, job_id: str | None = None, store_url: str = ""
) -> tuple[Instance, ...]:
    """Return the listed machines."""
    return provisioner.instances(InstancesRequest(job_id=job_id, store_url=store_url)).instances


def terminate(provisioner: Provisioner, instance_ids: Iterable[str]) -> None:
    """End the machines, none of which may be refused."""
    result = provisioner.terminate(TerminateRequest(instance_ids=tuple(instance_ids)))
    assert not result.problem, result.problem


def offers(provisioner: Provisioner, resources: Resources) -> tuple[Offer, ...]:
    """Return the offers."""
    return provisioner.offers(OffersRequest(resources=resources)).offers


def preempt(provider: Provider, instance_id: str, *, notice_seconds: float | None = None) -> None:
    """Reclaim a machine."""
    provider.preempt(PreemptRequest(instance_id=instance_id, notice_seconds=notice_seconds))


def check(checked: Provider | ObjectStore, *, resources: Resources | None = None) -> tuple[CheckResult, ...]:
    """Return the result lines of a check."""
    return checked.check(CheckRequest(resources=resources)).results
