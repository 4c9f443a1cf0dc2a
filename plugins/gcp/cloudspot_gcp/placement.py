"""Compact placement policies, which are made for a job of several nodes and removed with it.

Source: Compute Engine documentation, "Create and apply compact placement policies": a policy belongs to a
    region, and cannot be deleted while a machine uses it (checked 2026-11).
"""

from __future__ import annotations

import re
from typing import Any

from google.api_core import exceptions as api

from cloudspot.errors import CloudspotError, ProvisionError, QuotaError, TransientError
from cloudspot.plugin import machinetags
from cloudspot_gcp import attributes
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.lookups import list_all, wanted_regions
from cloudspot_gcp.operations import wait_for_region
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.refusals import LAUNCH_CODES, causes_of
from cloudspot_gcp.request import ComputeRequest, policy_name


def make(clients: GcpClients, body: ComputeRequest) -> None:
    """Make the policy that a launch names, unless it exists; raise QuotaError if no more are allowed."""
    name = body.made_placement_policy
    what = f"making placement policy {name}"
    resource = {
        "name": name,
        "description": f"cloudspot: job {body.labels[machinetags.JOB]}",
        "group_placement_policy": {"collocation": "COLLOCATED"},
    }
    request = {"project": body.project, "region": body.region, "resource_policy_resource": resource}
    with ERRORS.translated(what, LAUNCH_CODES):
        try:
            operation = ERRORS.unless_throttled(
                lambda: clients.call("ResourcePoliciesClient", "insert_unary", request)
            )
        except api.Conflict:
            return  # it exists
    _check(wait_for_region(clients, body.region, operation, what), what)


def remove(clients: GcpClients, options: GcpOptions, job_id: str, *, store_url: str) -> None:
    """Remove the job's policies; safe to repeat. Raise TransientError while a machine uses one of them."""
    what = "removing the job's placement policies"
    pattern = re.compile(re.escape(attributes.machine_stem(job_id)) + "-[0-9a-f]{8}")
    for region in wanted_regions(options):
        for policy in list_all(clients, "ResourcePoliciesClient", what, region=region):
            is_ours = pattern.fullmatch(policy.name) is not None
            if is_ours and (not store_url or policy.name == policy_name(job_id, store_url)):
                remove_one(clients, region, policy.name)


def remove_one(clients: GcpClients, region: str, name: str) -> None:
    """Remove the named policy; safe to repeat. Raise TransientError while a machine uses the policy."""
    what = f"removing placement policy {name}"
    request = {"project": clients.project, "region": region, "resource_policy": name}
    with ERRORS.translated(what, {"resourceInUseByAnotherResource": TransientError}):
        try:
            operation = ERRORS.unless_throttled(
                lambda: clients.call("ResourcePoliciesClient", "delete_unary", request)
            )
        except api.NotFound:
            return  # it is gone
    _check(wait_for_region(clients, region, operation, what), what, kind=TransientError)


def _check(operation: Any, what: str, *, kind: type[CloudspotError] = ProvisionError) -> None:
    for cause in causes_of(operation):
        if cause.code in {"RESOURCE_NOT_FOUND", "RESOURCE_ALREADY_EXISTS"}:
            continue
        found = QuotaError if LAUNCH_CODES.get(cause.code) is QuotaError else kind
        raise found(f"{what}: {cause.message} ({cause.code})")
