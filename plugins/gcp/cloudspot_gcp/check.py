"""``cloudspot providers check gcp``: tries each step that a job needs, and reports how to fix a failure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

from cloudspot.errors import AuthError, CloudspotError
from cloudspot.model import CheckResult, Market, Offer, Resources
from cloudspot.plugin.checklist import Checklist, NotKnown, cheapest_by_market, compare_clock
from cloudspot_gcp.clients import READ_SECONDS, GcpClients, endpoint
from cloudspot_gcp.compute import ComputeProvisioner
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.lookups import ask, list_all
from cloudspot_gcp.options import GcpOptions

_SETUP: Final = "an administrator runs: cloudspot setup gcp"
PERMISSIONS: Final = (
    "compute.acceleratorTypes.list",
    "compute.disks.create",
    "compute.disks.setLabels",
    "compute.globalOperations.list",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getSerialPortOutput",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.machineTypes.list",
    "compute.regionOperations.get",
    "compute.regions.get",
    "compute.subnetworks.use",
    "compute.zoneOperations.list",
    "iam.serviceAccounts.actAs",
)
"""The permissions that every launch needs; others depend on the options."""
_QUOTAS: Final = {Market.SPOT: "PREEMPTIBLE_CPUS", Market.ON_DEMAND: "CPUS"}


def check(options: GcpOptions, clients: GcpClients, resources: Resources) -> Sequence[CheckResult]:
    """Try in order each step that a submission needs; skip those that depend on a failed one."""
    lines = Checklist(remedy=_SETUP)
    attempt = lines.attempt

    if not attempt("credentials", lambda: _credentials(clients)):
        return lines.results()
    lines.remedy = remedy = f"{_SETUP} --grant-to {_member(clients)}"
    if not attempt("project", lambda: _project(clients)):
        return lines.results()
    attempt("clock", lambda: _clock(clients), "set this machine's clock, by NTP")
    provisioner = ComputeProvisioner(options, clients)
    lines.attempt_listing(provisioner)
    attempt("permissions", lambda: _permissions(options, clients), remedy)
    offers = lines.attempt_offers(
        provisioner, resources, remark=lambda offer: f"; by {offer.details['price_source']}"
    )
    for market, offer in cheapest_by_market(offers):
        attempt(f"quota, {market.value}", partial(_quota, clients, offer))
    return lines.results()


def wanted_permissions(options: GcpOptions, project: str) -> list[str]:
    """Return the permissions that a launch with these options needs in the project.

    For the project's images, one more is needed ("REST Resource: instances", insert, IAM permissions; checked
    2026-11); whether another project grants it cannot be checked here.
    """
    permissions = set(PERMISSIONS)
    if options.image_or_default.startswith(f"projects/{project}/"):
        permissions.add("compute.images.useReadOnly")
    if options.public_ip:
        permissions.add("compute.subnetworks.useExternalIp")
    if options.network_tags:
        permissions.add("compute.instances.setTags")
    if options.placement_policy is not None:
        permissions.add("compute.resourcePolicies.use")
    if options.placement_policy == "auto":
        permissions |= {f"compute.resourcePolicies.{verb}" for verb in ("create", "delete", "list")}
    return sorted(permissions)


def _credentials(clients: GcpClients) -> str:
    credentials = clients.credentials()
    account = getattr(credentials, "service_account_email", None) or getattr(credentials, "account", None)
    return str(account or type(credentials).__name__)


def _member(clients: GcpClients) -> str:
    """Return the owner of the credentials in the form of ``cloudspot setup --grant-to``."""
    credentials = clients.credentials()
    email = getattr(credentials, "service_account_email", None)
    if email:
        return f"serviceAccount:{email}"
    return f"user:{getattr(credentials, 'account', None) or 'ADDRESS'}"


def _project(clients: GcpClients) -> str:
    project = clients.project
    ask("looking up the project", lambda: clients.call("ProjectsClient", "get", {"project": project}))
    return project


def _clock(clients: GcpClients) -> str:
    with ERRORS.translated("asking Google for the time"):
        answer = clients.session().get(
            f"{endpoint('compute')}/compute/v1/projects/{clients.project}", timeout=READ_SECONDS
        )
    date = answer.headers.get("Date")
    return compare_clock(date, server="Google")


def _permissions(options: GcpOptions, clients: GcpClients) -> str:
    """Ask Resource Manager, which answers anybody about their own permissions."""
    wanted = wanted_permissions(options, clients.project)
    url = f"{endpoint('cloudresourcemanager')}/v1/projects/{clients.project}:testIamPermissions"
    try:
        with ERRORS.translated("asking for the permissions"):
            answer = clients.ask_json("POST", url, json={"permissions": wanted})
    except AuthError as error:
        raise NotKnown(str(error)) from error
    lacking = [one for one in wanted if one not in answer.get("permissions", ())]
    if lacking == ["iam.serviceAccounts.actAs"]:
        # Most administrators grant this permission only on the one account, and the project's answer does not
        # show that.
        return (
            f"all {len(wanted) - 1} of the project; iam.serviceAccounts.actAs is not granted on all accounts"
        )
    if lacking:
        raise CloudspotError(f"the credentials lack {', '.join(lacking)}")
    return f"all {len(wanted)}"


def _quota(clients: GcpClients, offer: Offer) -> str:
    """Compare the region's own quota of vCPUs, if it has one, with the vCPUs of one machine."""
    region, metric = offer.region, _QUOTAS[offer.market]
    where = {"project": clients.project, "region": region}
    found = ask(f"reading the quotas of {region}", lambda: clients.call("RegionsClient", "get", where))
    quota = next((one for one in found.quotas if one.metric == metric), None)
    zone = offer.details["zones"].partition(",")[0]
    what = f"looking up {offer.instance_type}"
    name = f'name = "{offer.instance_type}"'
    (type_,) = list_all(clients, "MachineTypesClient", what, zone=zone, filter=name)
    if quota is None or (offer.market is Market.SPOT and quota.limit == 0):
        # Without a quota of their own, spot machines count towards the on-demand quota.
        raise NotKnown(f"{region} has no quota {metric}")
    left = quota.limit - quota.usage
    if left < type_.guest_cpus:
        raise CloudspotError(
            f"{left:g} of {quota.limit:g} vCPUs are left in {region}, but one {offer.instance_type} needs "
            f"{type_.guest_cpus}; ask for more of {metric} under IAM & Admin > Quotas"
        )
    number = math.floor(left / type_.guest_cpus)
    return f"{left:g} vCPUs left in {region}, enough for {number} {offer.instance_type}"
