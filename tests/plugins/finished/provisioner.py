"""The machines of the paper cloud."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from cloudspot_paper.sdk import PRICES, ZONES, PaperCloud, PaperError

from cloudspot.calls import (
    CreateRequest,
    CreateResult,
    InstancesRequest,
    InstancesResult,
    OffersRequest,
    OffersResult,
    TerminateRequest,
    TerminateResult,
)
from cloudspot.errors import AuthError, CapacityError, ProvisionError, QuotaError, SpecError, TransientError
from cloudspot.interfaces import Provisioner
from cloudspot.model import (
    EndReason,
    Instance,
    InstanceGroup,
    InstanceState,
    LaunchRequest,
    Market,
    Offer,
)

T = TypeVar("T")

ERRORS = {
    "unwell": TransientError,
    "throttled": TransientError,
    "denied": AuthError,
    "quota": QuotaError,
    "refused": ProvisionError,
    "full": CapacityError,
}


def open_cloud() -> PaperCloud:
    path = os.environ.get("PAPER_CLOUD")
    if path is None:
        raise SpecError("no paper: set the variable PAPER_CLOUD to a file")
    return PaperCloud(path)


def translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except PaperError as error:
        raise ERRORS[str(error)](f"the paper cloud answers: {error}") from error


class PaperProvisioner(Provisioner):
    token_seconds = 3600.0
    absence_proves_after_seconds = 60.0

    def __init__(self, options: msgspec.Struct) -> None:
        self._options = options

    def render(self, group: InstanceGroup) -> LaunchRequest:
        body = {
            "job_id": group.job_id,
            "launch": group.launch,
            "num_nodes": group.num_nodes,
            "min_nodes": group.min_nodes,
            "store_url": group.store_url,
            "user_data": group.user_data,
            "labels": dict(group.labels),
            "max_seconds": group.max_seconds,
            "zone": group.offer.zone,
            "instance_type": group.offer.instance_type,
            "market": group.offer.market.value,
        }
        return LaunchRequest(provider="paper", body=body)

    def create(self, request: CreateRequest) -> CreateResult:
        if request.request.provider != "paper":
            raise ProvisionError("the request is another provider's")
        made = translated(lambda: open_cloud().launch(request.token, request.request.body))
        return CreateResult(instances=tuple(machine(*row) for row in made))

    def instances(self, request: InstancesRequest) -> InstancesResult:
        found = [machine(*row) for row in translated(open_cloud().machines)]
        return InstancesResult(instances=tuple(one for one in found if request.wants(one)))

    def terminate(self, request: TerminateRequest) -> TerminateResult:
        for one in request.instance_ids:
            open_cloud().end(one, EndReason.TERMINATED.value)
        return TerminateResult()

    def offers(self, request: OffersRequest) -> OffersResult:
        wish = request.resources
        sold = [one for one in PRICES if one.cpus >= wish.cpus and one.memory_bytes >= wish.memory_bytes]
        return OffersResult(
            offers=tuple(
                Offer(
                    instance_type=one.name,
                    zone=zone,
                    market=market,
                    price_per_hour=price,
                    on_demand_price_per_hour=one.price,
                )
                for one in (() if wish.accelerator else sold)
                for zone in ZONES
                for market, price in ((Market.SPOT, one.spot_price), (Market.ON_DEMAND, one.price))
            )
        )


def machine(machine_id: str, rank: int, text: str, reason: str | None) -> Instance:
    body: dict[str, Any] = json.loads(text)
    return Instance(
        id=machine_id,
        state=InstanceState.RUNNING if reason is None else InstanceState.ENDED,
        job_id=body["job_id"],
        launch=body["launch"],
        rank=rank,
        zone=body["zone"],
        instance_type=body["instance_type"],
        market=Market(body["market"]),
        store_url=body["store_url"],
        end_reason=None if reason is None else EndReason(reason),
    )
