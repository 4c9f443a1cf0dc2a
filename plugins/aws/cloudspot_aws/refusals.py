"""What EC2's refusals of a launch mean: for lack of capacity, of quota, of a right, or for good."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from cloudspot.errors import AuthError, CapacityError, CloudspotError, ProvisionError, QuotaError
from cloudspot.retrying import THROTTLE_WAITS, retry
from cloudspot_aws.caller import denied_action
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import THROTTLED, error_code, translation
from cloudspot_aws.request import Ec2Request

LAUNCH_CODES: Final[Mapping[str, type[CloudspotError]]] = {
    # No capacity now. The first comes with HTTP status 500, which botocore would try again by itself.
    "InsufficientInstanceCapacity": CapacityError,
    "InsufficientCapacity": CapacityError,
    "InsufficientHostCapacity": CapacityError,
    "InsufficientCapacityOnHost": CapacityError,
    "InsufficientReservedInstanceCapacity": CapacityError,
    "InsufficientVolumeCapacity": CapacityError,
    "InsufficientFreeAddressesInSubnet": CapacityError,
    "UnfulfillableCapacity": CapacityError,
    "SpotMaxPriceTooLow": CapacityError,
    # The machines of this token have been and are gone: this launch will have no others.
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
"""What RunInstances's errors mean (EC2 API reference, error codes; checked 2026-11)."""
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
"""By the beginning of a code: the option that is wrong."""
_WORDS: Final = (("iaminstanceprofile", "instance_profile"), ("forinstancetype", "instance_types"))
"""By what the message of an InvalidParameterValue says, without its spaces."""
_QUOTA_ADVICE: Final = "; ask for more in Service Quotas, or use another type, market or region"


def refusal(clients: AwsClients, error: Exception, body: Ec2Request) -> CloudspotError:
    """Return what a refused RunInstances means, and whose field it is."""
    parameters = body.run_instances
    spot = "spot" if "InstanceMarketOptions" in parameters else "on-demand"
    what = (
        f"launching {parameters['MaxCount']} {spot} {parameters['InstanceType']} "
        f"in {parameters['Placement']['AvailabilityZone']}"
    )
    code = error_code(error)
    if code == "UnauthorizedOperation":
        missing = denied_action(clients, error) or "ec2:RunInstances"
        return AuthError(f"{what}: the credentials lack {missing}; docs/aws.md has the policy")
    field = next((name for start, name in _FIELDS if code.startswith(start)), None)
    if code == "InvalidParameterValue":
        said = str(error).replace(" ", "").lower()
        field = next((name for word, name in _WORDS if word in said), field)
    found = translation(error, what, LAUNCH_CODES)
    if field is not None:
        return ProvisionError(f"providers.aws.{field}: {found}")
    if isinstance(found, QuotaError):
        return QuotaError(f"{found}{_QUOTA_ADVICE}")
    # A refusal that nobody has named: this very request will never do.
    return ProvisionError(str(found)) if type(found) is CloudspotError else found


def unless_throttled(call: Callable[[], Any]) -> Any:
    """Return what the call returns; where EC2 throttles it, nothing was done, and it is made again."""
    return retry(call, kind=Exception, when=_is_throttled, waits=THROTTLE_WAITS, sleep=time.sleep)


def _is_throttled(error: Exception) -> bool:
    return error_code(error) in THROTTLED
