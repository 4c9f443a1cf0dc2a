"""``cloudspot providers check aliyun``: tries what a job needs, and says for each thing how to mend it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Final

from cloudspot.errors import CloudspotError
from cloudspot.model import CheckResult, InstanceGroup, Market, Offer, Resources
from cloudspot.plugin.checklist import Checklist
from cloudspot_aliyun.api import ask
from cloudspot_aliyun.caller import caller
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.ecs import EcsProvisioner
from cloudspot_aliyun.errors import SDK_ERRORS, error_code
from cloudspot_aliyun.lookups import check_region, check_role
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.refusals import refusal
from cloudspot_aliyun.request import decode_request, parameters_of

_POLICY: Final = "grant it: docs/aliyun/policy-submitter.json has all rights that a submitter needs"


def check(options: AliyunOptions, clients: AliyunClients, resources: Resources) -> Sequence[CheckResult]:
    """Try in order what a submission would need; what stands on something that failed is left out."""
    lines = Checklist(remedy=_POLICY, words=("access denied", "lack"))
    attempt = lines.attempt

    if not attempt("credentials", lambda: caller(clients).arn):
        return lines.results()
    if not attempt("region", lambda: check_region(clients)):
        return lines.results()
    provisioner = EcsProvisioner(options, clients)
    attempt("listing", lambda: f"{len(provisioner.instances())} machines of cloudspot's")
    attempt("role", lambda: _role(clients, options))
    offers: list[Offer] = []

    def look() -> str:
        offers.extend(provisioner.offers(resources))
        if not offers:
            raise CloudspotError("no instance type fits; ask for less in resources, or in another region")
        cheapest = min(offers, key=lambda one: one.price_per_hour)
        rate = cheapest.details.get("release_rate")
        taken = f"; {rate} of those were taken in the last 30 days" if rate else ""
        return (
            f"{len(offers)}, from {cheapest.price_per_hour:g} {cheapest.currency} an hour "
            f"({cheapest.market.value} {cheapest.instance_type} in {cheapest.zone}{taken})"
        )

    if not attempt("offers", look):
        return lines.results()
    for market in Market:
        ours = sorted((one for one in offers if one.market is market), key=lambda one: one.price_per_hour)
        if ours:
            attempt(f"launch, {market.value}", partial(_launch, provisioner, clients, ours[0]))
    return lines.results()


def _role(clients: AliyunClients, options: AliyunOptions) -> str:
    is_seen = check_role(clients, options)
    return options.role + ("" if is_seen else " (not looked at: the right ram:GetRole is missing)")


def _launch(provisioner: EcsProvisioner, clients: AliyunClients, offer: Offer) -> str:
    """Send the request that a job would send, for ECS to refuse only because it is a dry run."""
    group = InstanceGroup(
        job_id="check",
        launch=1,
        num_nodes=1,
        min_nodes=1,
        offer=offer,
        resources=Resources(),
        user_data="#!/bin/sh\nshutdown -h now\n",
        max_seconds=60.0,
        decided_at=datetime.now(timezone.utc),
        store_url="check",
    )
    body = decode_request(provisioner.render(group))
    try:
        asked = {**parameters_of(body, uuid.uuid4().hex), "DryRun": True}
        ask(clients, "RunInstances", asked, region=body.region)
    except SDK_ERRORS as error:
        if error_code(error) == "DryRunOperation":
            return f"{offer.instance_type} in {offer.zone} may be launched, and is in stock"
        raise refusal(error, body) from error
    raise CloudspotError("RunInstances: a dry run was carried out")
