"""Translates EC2's refusals of a launch: no capacity, no quota, no permission, or an impossible request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from cloudspot.errors import AuthError, CapacityError, CloudspotError, ProvisionError, QuotaError
from cloudspot.plugin.sdkerrors import launch_refusal
from cloudspot.plugin.setupimages import IMAGE_IS_GONE
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.request import Ec2Request

LAUNCH_CODES: Final[Mapping[str, type[CloudspotError]]] = {
    # No capacity now. The first code comes with HTTP status 500, which botocore would retry by itself.
    "InsufficientInstanceCapacity": CapacityError,
    "InsufficientCapacity": CapacityError,
    "InsufficientHostCapacity": CapacityError,
    "InsufficientCapacityOnHost": CapacityError,
    "InsufficientReservedInstanceCapacity": CapacityError,
    "InsufficientVolumeCapacity": CapacityError,
    "InsufficientFreeAddressesInSubnet": CapacityError,
    "UnfulfillableCapacity": CapacityError,
    "SpotMaxPriceTooLow": CapacityError,
    # The machines of this token have ended, and this launch gets no others.
    "IdempotentInstanceTerminated": CapacityError,
    "InstanceLimitExceeded": QuotaError,
    "MaxSpotInstanceCountExceeded": QuotaError,
    "VcpuLimitExceeded": QuotaError,
    "VolumeLimitExceeded": QuotaError,
    "MaxIOPSLimitExceeded": QuotaError,
    "PendingVerification": QuotaError,
    "IdempotentParameterMismatch": ProvisionError,
    "Unsupported": ProvisionError,
    "UnsupportedOperation": ProvisionError,
}
"""The error classes for RunInstances' errors (EC2 API reference, error codes; checked 2026-11)."""
_FIELDS: Final = (
    ("InvalidAMIID", "image"),
    ("InvalidSubnet", "subnets"),
    ("InvalidGroup", "security_groups"),
    ("InvalidSecurityGroup", "security_groups"),
    ("InvalidKeyPair", "key_name"),
    ("InvalidPlacementGroup", "placement_group"),
    ("InvalidInstanceType", "instance_types"),
    ("InvalidBlockDeviceMapping", "disk"),
    ("InvalidIamInstanceProfile", "instance_profile"),
)
"""The option that is wrong, by the beginning of the error code."""
_FIELDS_BY_TEXT: Final = (("iaminstanceprofile", "instance_profile"), ("forinstancetype", "instance_types"))
"""The option that is wrong, by a part of an InvalidParameterValue's message, without spaces."""
_ENCODED: Final = re.compile(r"Encoded authorization failure message: (\S+)")
_NOT_AUTHORIZED: Final = re.compile(r"not authorized to perform: ([a-z0-9-]+:[A-Za-z]+)")
_SETUP: Final = "an administrator runs: cloudspot setup aws"
_QUOTA_ADVICE: Final = "ask for more in Service Quotas, or use another type, market or region"


def refusal(clients: AwsClients, error: Exception, body: Ec2Request) -> CloudspotError:
    """Return the error for a refused RunInstances, which names the option at fault, if any."""
    parameters = body.run_instances
    spot = "spot" if "InstanceMarketOptions" in parameters else "on-demand"
    what = (
        f"launching {parameters['MaxCount']} {spot} {parameters['InstanceType']} "
        f"in {parameters['Placement']['AvailabilityZone']}"
    )
    code = ERRORS.code_of(error)
    if code == "UnauthorizedOperation":
        missing = denied_action(clients, error) or "ec2:RunInstances"
        return AuthError(f"{what}: the credentials lack {missing}; {_SETUP}")
    if code == "AuthFailure.ServiceLinkedRoleCreationNotPermitted":
        why = "which EC2 needs at an account's first spot request"
        return AuthError(f"{what}: the credentials lack iam:CreateServiceLinkedRole, {why}; {_SETUP}")
    if body.has_setup_image and code.startswith("InvalidAMIID"):
        return CapacityError(f"{what}: {IMAGE_IS_GONE}")
    field = next((name for start, name in _FIELDS if code.startswith(start)), None)
    if code == "InvalidParameterValue":
        message = str(error).replace(" ", "").lower()
        field = next((name for part, name in _FIELDS_BY_TEXT if part in message), field)
    refused = ERRORS.translation(error, what, LAUNCH_CODES)
    option = None if field is None else f"providers.aws.{field}"
    return launch_refusal(
        refused, option=option, role_option="providers.aws.instance_profile", quota_advice=_QUOTA_ADVICE
    )


def denied_action(clients: AwsClients, error: BaseException) -> str | None:
    """Return the missing permission that the refusal names, such as ``iam:PassRole``, or None.

    EC2 names the permission in plain text or encoded; decoding needs ``sts:DecodeAuthorizationMessage``.
    """
    text = str(error)
    match = _NOT_AUTHORIZED.search(text)
    if match is not None:
        return match[1]
    encoded = _ENCODED.search(text)
    if encoded is None:
        return None
    try:
        answer = clients.client("sts").decode_authorization_message(EncodedMessage=encoded[1])
        decoded: Any = json.loads(answer["DecodedMessage"])
        return str(decoded["context"]["action"])
    except (*ERRORS.raised, KeyError, TypeError, ValueError):
        return None  # the refusal itself is reported anyway
