"""``cloudspot providers check aliyun``: tries each step that a job needs; reports how to fix a failure."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final

from cloudspot.calls import InstancesRequest
from cloudspot.errors import CloudspotError
from cloudspot.model import CheckResult, InstanceState, Offer, Resources
from cloudspot.plugin.checklist import Checklist, NotKnown, cheapest_by_market, trial_launch
from cloudspot.plugin.launchrequests import decode_request
from cloudspot_aliyun.api import ask, caller
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.ecs import EcsProvisioner
from cloudspot_aliyun.errors import ERRORS
from cloudspot_aliyun.lookups import check_region, check_role
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.refusals import refusal
from cloudspot_aliyun.request import EcsRequest, parameters_of

_SETUP: Final = "an administrator runs: cloudspot setup aliyun"


def check(options: AliyunOptions, clients: AliyunClients, resources: Resources) -> Sequence[CheckResult]:
    """Try in order each step that a submission needs; skip those that depend on a failed one."""
    lines = Checklist(remedy=_SETUP)
    attempt = lines.attempt

    if not attempt("credentials", lambda: caller(clients).arn):
        return lines.results()
    lines.remedy = f"{_SETUP} --grant-to {principal_of(caller(clients).arn)}"
    if not attempt("region", lambda: check_region(clients)):
        return lines.results()
    provisioner = EcsProvisioner(options, clients)
    lines.attempt_listing(provisioner)
    attempt("role", lambda: _role(clients, options), _SETUP)
    for market, offer in cheapest_by_market(lines.attempt_offers(provisioner, resources, remark=_taken)):
        attempt(f"launch, {market.value}", partial(_launch, provisioner, clients, offer))
    attempt("console", lambda: _console(provisioner))
    return lines.results()


def principal_of(arn: str) -> str:
    """Return the caller in the form of ``cloudspot setup --grant-to``: the role itself, not its session."""
    identity = arn.rpartition(":")[2]
    return f"role/{identity.split('/')[1]}" if identity.startswith("assumed-role/") else identity


def _taken(offer: Offer) -> str:
    rate = offer.details.get("release_rate")
    return f"; {rate} of such machines were reclaimed in the last 30 days" if rate else ""


def _role(clients: AliyunClients, options: AliyunOptions) -> str:
    is_seen = check_role(clients, options)
    return options.role + ("" if is_seen else " (not checked: the right ram:GetRole is missing)")


def _console(provisioner: EcsProvisioner) -> str:
    """Try a permission on one of cloudspot's machines, because the policy covers only those."""
    right = "ecs:GetInstanceConsoleOutput"
    listed = provisioner.instances(InstancesRequest()).instances
    machines = [one for one in listed if one.state is not InstanceState.ENDED]
    if not machines:
        raise NotKnown(f"not checked: cloudspot has no machine now on which to try {right}")
    provisioner.console(machines[0])
    return f"{right} is granted"


def _launch(provisioner: EcsProvisioner, clients: AliyunClients, offer: Offer) -> str:
    """Send a job's request as a dry run, which ECS should refuse only because it is a dry run."""
    body = decode_request(provisioner.render(trial_launch(offer)), EcsRequest)
    try:
        asked = {**parameters_of(body, uuid.uuid4().hex), "DryRun": True}
        ask(clients, "RunInstances", asked, region=body.region)
    except ERRORS.raised as error:
        if ERRORS.code_of(error) == "DryRunOperation":
            return f"{offer.instance_type} in {offer.zone} may be launched, and is in stock"
        raise refusal(error, body) from error
    raise CloudspotError("RunInstances: ECS accepted a dry run without the code DryRunOperation")
