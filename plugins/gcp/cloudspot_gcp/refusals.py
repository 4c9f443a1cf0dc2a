"""Translates Compute Engine's refusals of a launch: no capacity, quota or permission, or a wrong request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    ProvisionError,
    QuotaError,
)
from cloudspot.plugin.sdkerrors import launch_refusal
from cloudspot.plugin.setupimages import IMAGE_IS_GONE
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.request import ComputeRequest

MIN_COUNT: Final = "VM_MIN_COUNT_NOT_REACHED"
"""The code of a bulk insert that made too few machines; the operations of its machines state the cause."""
LAUNCH_CODES: Final[Mapping[str, type[CloudspotError]]] = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": CapacityError,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": CapacityError,
    "REGION_RESOURCE_POOL_EXHAUSTED": CapacityError,
    "RESOURCE_POOL_EXHAUSTED": CapacityError,
    "STOCKOUT": CapacityError,
    "stockout": CapacityError,
    "IP_SPACE_EXHAUSTED": CapacityError,
    MIN_COUNT: CapacityError,
    # A transient failure, reported by an operation. Repeating this launch would only find the same operation
    # again, but the next launch may succeed.
    "INTERNAL_ERROR": CapacityError,
    "SERVICE_UNAVAILABLE": CapacityError,
    "RESOURCE_NOT_READY": CapacityError,
    "RESOURCE_OPERATION_RATE_EXCEEDED": CapacityError,
    "RATE_LIMIT_EXCEEDED": CapacityError,
    "QUOTA_EXCEEDED": QuotaError,
    "quotaExceeded": QuotaError,
    "limitExceeded": QuotaError,
    "GPUS_ALL_REGIONS_QUOTA_EXCEEDED": QuotaError,
    "PERMISSIONS_ERROR": AuthError,
    "SERVICE_ACCOUNT_ACCESS_DENIED": AuthError,
    "UNSUPPORTED_OPERATION": ProvisionError,
    "RESOURCE_ALREADY_EXISTS": ProvisionError,
    "alreadyExists": ProvisionError,
    "CONDITION_NOT_MET": ProvisionError,
}
"""The error classes by the codes of operations, in capitals, and by the reasons of refused requests (Compute
Engine documentation, "Troubleshooting resource availability errors", "Troubleshooting quota errors"; public
code that reads them; the rest from memory; checked 2026-11).
"""
_FIELDS: Final = (
    ("/images/", "image"),
    ("serviceAccount", "service_account"),
    ("service account", "service_account"),
    ("/subnetworks/", "subnetworks"),
    ("subnetwork", "subnetworks"),
    ("/networks/", "network"),
    ("resourcePolic", "placement_policy"),
    ("machineType", "machine_types"),
    ("diskSizeGb", "disk"),
    ("diskType", "disk_type"),
    ("preemptionNoticeDuration", "preemption_notice"),
    (".labels", "labels"),
    (".tags", "network_tags"),
)
"""The option that is wrong, by a word in the refusal."""
_QUOTA_ADVICE: Final = "ask for more under IAM & Admin > Quotas, or use another type, market or region"
_POLICY_ADVICE: Final = "; docs/gcp.md has the role"
_IMAGE_IS_GONE: Final = re.compile(r"/images/.* (?:was not found|cannot be found|is not ready)")
"""Messages about an image that was removed or is being removed; the last is from memory."""
_NEEDED: Final = re.compile(r"Required '([a-zA-Z.]+)' permission")


class NoticeRefusedError(ProvisionError):
    """Compute Engine refuses the launch because of the reclaim notice that it asks for."""


class Cause(NamedTuple):
    """One error of an operation."""

    code: str
    message: str


def causes_of(operation: Any) -> list[Cause]:
    """Return the errors of an operation; if there are none, it succeeded. A failed operation is DONE, too."""
    causes = [Cause(str(one.code), ERRORS.one_line(str(one.message))) for one in operation.error.errors]
    if not causes and operation.http_error_status_code:
        message = ERRORS.one_line(str(operation.http_error_message))
        causes = [Cause(str(operation.http_error_status_code), message)]
    return causes


def refusal(error: Exception, body: ComputeRequest) -> CloudspotError:
    """Return the error for a refused request for machines, which names the option at fault, if any."""
    what = launching(body)
    if _has_lost_its_image(body, str(error)):
        return CapacityError(f"{what}: {IMAGE_IS_GONE}")
    refused = ERRORS.translation(error, what, LAUNCH_CODES)
    if isinstance(refused, AuthError):
        needed = _NEEDED.search(str(error))
        if needed is not None:
            return AuthError(f"{what}: the credentials lack {needed[1]}{_POLICY_ADVICE}")
        return AuthError(f"{refused}{_POLICY_ADVICE}") if ERRORS.code_of(error) in LAUNCH_CODES else refused
    return _with_advice(refused, str(error))


def failure(causes: Sequence[Cause], body: ComputeRequest) -> CloudspotError:
    """Return the error for failed operations: the most serious one, because it will occur again."""
    if any(_has_lost_its_image(body, cause.message) for cause in causes):
        return CapacityError(f"{launching(body)}: {IMAGE_IS_GONE}")
    kinds = (AuthError, ProvisionError, QuotaError, CapacityError)
    by_kind: dict[type[CloudspotError], Cause] = {}
    # MIN_COUNT only means that there is another error.
    for cause in [one for one in causes if one.code != MIN_COUNT] or causes:
        by_kind.setdefault(LAUNCH_CODES.get(cause.code, ProvisionError), cause)
    kind = next(kind for kind in kinds if kind in by_kind)
    cause = by_kind[kind]
    error = kind(f"{launching(body)}: {cause.message} ({cause.code})")
    if kind is AuthError:
        return AuthError(f"{error}{_POLICY_ADVICE}")
    return _with_advice(error, cause.message)


def launching(body: ComputeRequest) -> str:
    """Return a description of the launch for messages."""
    properties = body.bulk_insert["instanceProperties"]
    spot = "spot" if properties["scheduling"]["provisioningModel"] == "SPOT" else "on-demand"
    return f"launching {body.bulk_insert['count']} {spot} {body.machine_type} in {body.region}"


def _has_lost_its_image(body: ComputeRequest, message: str) -> bool:
    return body.has_setup_image and _IMAGE_IS_GONE.search(message) is not None


def _with_advice(found: CloudspotError, message: str) -> CloudspotError:
    field = next((name for text, name in _FIELDS if text in message), None)
    option = None if field is None else f"providers.gcp.{field}"
    refused = launch_refusal(
        found, option=option, role_option="providers.gcp.service_account", quota_advice=_QUOTA_ADVICE
    )
    is_notice = field == "preemption_notice" and isinstance(refused, ProvisionError)
    return NoticeRefusedError(str(refused)) if is_notice else refused
