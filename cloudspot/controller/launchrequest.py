"""Render the request of a launch, exactly as it is sent and as ``--dry-run`` prints it."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from datetime import datetime

import msgspec

from cloudspot import __version__
from cloudspot.boot.script import BootPlan, Install, render_boot_script
from cloudspot.calls import OffersRequest
from cloudspot.controller.actions import OpenLaunch
from cloudspot.controller.assess.limits import check_affordable, new_budget
from cloudspot.controller.decide import BOOT_LIMIT_SECONDS
from cloudspot.controller.supply.policy import in_order
from cloudspot.errors import SpecError
from cloudspot.interfaces import Provider
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.jobs.submission import agent_key, hash_of
from cloudspot.jobstore.layout import codec
from cloudspot.jobstore.layout.records import Submission
from cloudspot.jobstore.nodes.delivering import DELIVERY_GRACE_SECONDS
from cloudspot.model import InstanceGroup, LaunchRequest, Offer, Resources

MAX_LIFE_SECONDS = 7 * 86400.0
"""The longest life of a machine; a longer job continues with another machine."""


@dataclass(frozen=True)
class PlannedLaunch:
    """An offer, and the request that would be sent to the provider to buy it."""

    offer: Offer
    request: LaunchRequest


def plan(
    spec: JobSpec, provider: Provider, submission: Submission, store_url: str, *, label: str
) -> tuple[PlannedLaunch, ...]:
    """Return the first launch of the job for every offer that its policy allows, in order.

    The provider is asked only for its offers. For ``label`` see ``render_launch``.

    Raises:
        SpecError: no offer fits.
    """
    return tuple(
        PlannedLaunch(
            offer,
            render_launch(
                OpenLaunch(
                    number=1,
                    launch=1,
                    offer=offer,
                    num_nodes=spec.nodes.max,
                    min_nodes=spec.nodes.min,
                    why="first",
                ),
                spec,
                provider,
                submission,
                store_url,
                submission_sha256=hash_of(codec.encode(submission)),
                label=label,
                decided_at=submission.at,
            ),
        )
        for offer in find_offers(spec, provider)
    )


def find_offers(spec: JobSpec, provider: Provider) -> tuple[Offer, ...]:
    """Return the offers for a new job that its policy allows, in the order in which they are tried.

    Raises:
        SpecError: as in ``allowed_offers``, or because ``limits.max_cost`` has no room for ``nodes.min``
            machines.
    """
    offers = allowed_offers(spec, provider)
    check_affordable(new_budget(spec, offers[0].currency), offers, spec.nodes.min)
    return offers


def allowed_offers(spec: JobSpec, provider: Provider) -> tuple[Offer, ...]:
    """Return the offers that the job's policy allows, in the order in which a new job tries them.

    Raises:
        SpecError: no offer fits, an option of the provider names a resource that does not exist, or an offer
            is in another currency than ``limits.max_cost``.
    """
    provisioner, resources = provider.provisioner(), spec.resources.to_model()
    offers = in_order(spec, provisioner.offers(OffersRequest(resources=resources)).offers)
    name = resources.accelerator
    one = OffersRequest(resources=Resources(accelerator=name, accelerator_count=1))
    if not offers and name and not provisioner.offers(one).offers:
        raise SpecError(
            f"resources.accelerator: provider {provider.name!r} has no machine with {name!r} that cloudspot "
            "can buy; name another accelerator"
        )
    if not offers:
        raise SpecError(
            f"resources: provider {provider.name!r} has no offer that fits under "
            f"spot.policy {spec.spot.policy!r}; ask for less, or for another market"
        )
    for offer in offers:
        _check_currency(spec, provider.name, offer)
    return offers


def render_launch(
    launch: OpenLaunch,
    spec: JobSpec,
    provider: Provider,
    submission: Submission,
    store_url: str,
    *,
    submission_sha256: str,
    label: str,
    decided_at: datetime,
    run_seconds: float = 0.0,
) -> LaunchRequest:
    """Return the request that the launch's intent stores and that every controller replays.

    ``submission_sha256`` is ``submission.hash_of``; the nodes run no other submission. ``label`` is the
    store's label on the machines (``ownership.store_label``). ``decided_at`` is the time of the intent.
    ``run_seconds`` is the part of ``limits.max_runtime`` that has been used up.

    Raises:
        SpecError: the offer is in another currency than ``limits.max_cost``.
    """
    _check_currency(spec, submission.provider, launch.offer)
    max_seconds = life_seconds(spec, run_seconds)
    boot = BootPlan(
        job_id=submission.job_id,
        submission_sha256=submission_sha256,
        launch=launch.launch,
        store_url=store_url,
        provider=submission.provider,
        profile=provider.boot_profile(),
        max_seconds=max_seconds,
        version=__version__ if submission.agent is None else submission.version,
        stages_inputs=any(one.is_staged for one in spec.data.values()),
        install=_install(submission),
        store_id=submission.store_id,
    )
    group = InstanceGroup(
        job_id=submission.job_id,
        launch=launch.launch,
        num_nodes=launch.num_nodes,
        min_nodes=launch.min_nodes,
        job_nodes=spec.nodes.max,
        offer=launch.offer,
        resources=spec.resources.to_model(),
        user_data=render_boot_script(boot),
        max_seconds=max_seconds,
        decided_at=decided_at,
        store_url=label,
        labels=spec.labels,
        drives=spec.nodes.drive,
    )
    return msgspec.structs.replace(provider.provisioner().render(group), made_by=provider.made_by)


def _install(submission: Submission) -> Install | None:
    agent = submission.agent
    if agent is None:
        return None
    return Install(
        key=agent_key(submission, agent),
        sha256=agent.sha256,
        digest=agent.digest,
        requirements=agent.requirements,
    )


def _check_currency(spec: JobSpec, provider_name: str, offer: Offer) -> None:
    currency = spec.limits.currency
    if spec.limits.max_cost is not None and currency is not None and currency != offer.currency:
        raise SpecError(
            f"limits.max_cost is in {currency}, but provider {provider_name!r} charges "
            f"{offer.currency}: give it in {offer.currency}"
        )


def life_seconds(spec: JobSpec, run_seconds: float) -> float:
    """Return the time after which a machine ends itself, even if no controller runs.

    The controllers enforce ``limits.max_runtime`` by asking the nodes to checkpoint. The machine's own limit,
    which leaves time for that, is the last resort.
    """
    if spec.limits.max_runtime is None:
        return MAX_LIFE_SECONDS
    left = max(0.0, spec.limits.max_runtime - run_seconds)
    return min(MAX_LIFE_SECONDS, left + BOOT_LIMIT_SECONDS + DELIVERY_GRACE_SECONDS)


def launch_token(submission: Submission, launch: int) -> str:
    """Return the idempotency token of a launch as a UUID, which is the same for every controller.

    The token depends on the submission's nonce, because two stores may hold jobs with the same id, and one
    job's launch must never be answered with the machines of the other job.
    """
    seed = f"cloudspot/{submission.job_id}/{submission.writer}/{launch}".encode()
    return str(uuid.UUID(bytes=hashlib.sha256(seed).digest()[:16], version=4))
