"""Translates ECS's refusals of a launch: no stock, quota, money or permission, or a wrong request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    ProvisionError,
    QuotaError,
    TransientError,
)
from cloudspot.model import Market
from cloudspot.plugin.sdkerrors import launch_refusal
from cloudspot.plugin.setupimages import IMAGE_IS_GONE
from cloudspot_aliyun.errors import ERRORS
from cloudspot_aliyun.listing import market_of
from cloudspot_aliyun.request import EcsRequest

LAUNCH_CODES: Final[Mapping[str, type[CloudspotError]]] = {
    "IncorrectVSwitchStatus": CapacityError,
    "InstanceType.Offline": CapacityError,
    "Invalid.PrivatePoolOptions.NoStock": CapacityError,
    "InvalidInstanceType.ZoneNotSupported": CapacityError,
    "InvalidResourceType.NotSupported": CapacityError,
    "LackResource": CapacityError,
    "NodeControllerUnavailable": CapacityError,
    "OperationDenied.NoStock": CapacityError,
    "OperationDenied.ResourceControl": CapacityError,
    "OperationDenied.ZoneNotAllowed": CapacityError,
    # The job's deployment set is full in this zone, and may have room in another.
    "QuotaExceed.DeploymentSetInstanceQuotaFull": CapacityError,
    "QuotaExceeded.PrivateIpAddress": CapacityError,
    "ResourceNotAvailable": CapacityError,
    "Zone.NotOnSale": CapacityError,
    "Zone.NotOpen": CapacityError,
    # The bid is below the market's price, which may fall.
    "InvalidSpotPriceLimit.LowerThanPublicPrice": CapacityError,
    "OperationDenied.SpotPriceLowerThanPublicPrice": CapacityError,
    "InvalidInstanceType.ValueUnauthorized": QuotaError,
    "InvalidSystemDiskCategory.ValueUnauthorized": QuotaError,
    "SecurityGroupInstanceLimitExceed": QuotaError,
    "IdempotentParameterMismatch": ProvisionError,
    # Another request with the same token is in progress.
    "IdempotentProcessing": TransientError,
    "OperationConflict": TransientError,
    "OperationDenied.CreatingConflict": TransientError,
}
"""The error classes for RunInstances' errors (API reference, RunInstances, error codes; checked 2026-11).
LackResource, IdempotentProcessing and OperationConflict are from memory of the docs.
"""
ARREARS: Final = frozenset(
    {
        "Account.Arrearage",
        "Forbidden.RiskControl",
        "InsufficientBalance",
        "InvalidAccountStatus.NotEnoughBalance",
        "InvalidInstance.UnPaidOrder",
        "InvalidPayMethod",
        "PaymentMethodNotFound",
        "RealNameAuthenticationError",
    }
)
"""The error codes that mean that the account cannot buy anything, in any zone and on either market."""
_FIELDS: Final = (
    ("InvalidImageId", "image"),
    ("InvalidMarketImage", "image"),
    ("InvalidImage", "image"),
    ("ImageNot", "image"),
    ("ImageRemovedInMarket", "image"),
    ("OperationDenied.ImageNotValid", "image"),
    ("InvalidVSwitch", "vswitches"),
    ("VpcNotFound", "vswitches"),
    ("InvalidSecurityGroup", "security_groups"),
    ("InvalidParameter.Mismatch", "security_groups"),
    ("OperationDenied.InconsistentNetwork", "security_groups"),
    ("InvalidKeyPair", "key_pair"),
    ("DeploymentSet", "deployment_set"),
    ("InvalidDeploymentSet", "deployment_set"),
    ("InvalidInstanceType", "instance_types"),
    ("InvalidSystemDiskCategory", "disk_type"),
    ("InvalidDiskCategory", "disk_type"),
    ("CategoryNotSupported", "disk_type"),
    ("InvalidPerformanceLevel", "disk_performance"),
    ("InvalidSystemDiskSize", "disk"),
    ("InvalidDiskSize", "disk"),
    ("InvalidRamRole", "role"),
    ("InvalidResourceGroup", "resource_group"),
    ("InvalidSpotPriceLimit", "max_price"),
    ("InvalidSpotDuration", "protected_hour"),
    ("InvalidTag", "tags"),
    ("InvalidZoneId", "zones"),
)
"""The option that is wrong, by the beginning of the error code; the first match counts."""
_NO_IMAGE: Final = ("InvalidImageId", "OperationDenied.ImageNotValid")
"""The prefixes of the codes for an image that no longer exists or from which no machine can start."""
_QUOTA_ADVICE: Final = "ask for more in the Quota Center, or use another type, market or region"


def refusal(error: Exception, body: EcsRequest) -> CloudspotError:
    """Return the error for a refused RunInstances, which names the option at fault, if any."""
    parameters = body.run_instances
    market = "spot" if market_of(parameters) is Market.SPOT else "pay-as-you-go"
    what = f"launching {parameters['Amount']} {market} {parameters['InstanceType']} in {parameters['ZoneId']}"
    code = ERRORS.code_of(error)
    if code in ARREARS:
        return AuthError(
            f"{what}: the account cannot buy: {ERRORS.shown(error)}; settle it in the console's Expenses"
        )
    if code == "InvalidUser.PassRoleForbidden":
        return AuthError(f"{what}: the credentials lack ram:PassRole; docs/aliyun.md has the policy")
    if code in ERRORS.denied or code.startswith("Forbidden"):
        advice = "they may lack ecs:RunInstances: docs/aliyun.md has the policy"
        return AuthError(f"{what}: {ERRORS.shown(error)}; {advice}")
    if body.has_setup_image and code.startswith(_NO_IMAGE):
        return CapacityError(f"{what}: {IMAGE_IS_GONE}")
    refused = ERRORS.translation(error, what, LAUNCH_CODES)
    if code.startswith("QuotaExceed") and type(refused) is CloudspotError:
        refused = QuotaError(f"{what}: {ERRORS.shown(error)}")
    field = next((name for start, name in _FIELDS if code.startswith(start)), None)
    option = None if field is None else f"providers.aliyun.{field}"
    return launch_refusal(
        refused, option=option, role_option="providers.aliyun.role", quota_advice=_QUOTA_ADVICE
    )
