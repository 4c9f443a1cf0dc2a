"""The system disks of the emulated ECS, and their prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cloudspot_aliyun_sandbox.rpc import ApiError

Parameters = Mapping[str, str]
_DEFAULT: Final = "cloud_efficiency"
_LEAST_GIB: Final = {"PL0": 20, "PL1": 20, "PL2": 461, "PL3": 1261}
"""The smallest cloud_essd system disk of each performance level."""
# CNY an hour for a GiB, close to the real prices, so that a sandbox's bill looks realistic.
_PRICES: Final = {
    "cloud": 0.0004,
    "cloud_efficiency": 0.0005,
    "cloud_ssd": 0.0014,
    "cloud_essd": 0.002,
    "cloud_auto": 0.0015,
    "cloud_essd_entry": 0.0009,
}
_FACTORS: Final = {"PL0": 0.5, "PL1": 1.0, "PL2": 2.0, "PL3": 4.0}


def check_disk(parameters: Parameters, image_gib: int) -> int:
    """Return the size of the system disk in GiB.

    Raises:
        ApiError: the disk does not exist.
    """
    category = parameters.get("SystemDisk.Category", _DEFAULT)
    if category not in _PRICES:
        raise ApiError(
            "InvalidSystemDiskCategory.ValueNotSupported",
            'The specified parameter "SystemDisk.Category" is not valid.',
        )
    level = parameters.get("SystemDisk.PerformanceLevel", "PL1")
    if ("SystemDisk.PerformanceLevel" in parameters and category != "cloud_essd") or level not in _LEAST_GIB:
        raise ApiError("InvalidPerformanceLevel.Malformed", "The specified PerformanceLevel is not valid.")
    size = parameters.get("SystemDisk.Size", str(max(40, image_gib)))
    if not size.isdigit() or int(size) > 2048:
        message = "The specified parameter SystemDisk.Size is more than the max size"
        raise ApiError("InvalidSystemDiskSize.MoreThanMaxSize", message, status=404)
    if int(size) < max(20, image_gib):
        message = "The specified parameter SystemDisk.Size is less than the image size."
        raise ApiError("InvalidSystemDiskSize.LessThanImageSize", message, status=404)
    if int(size) < _LEAST_GIB[level]:
        message = "The specified parameter SystemDisk.Size is less than the min size."
        raise ApiError("InvalidSystemDiskSize.LessThanMinSize", message, status=404)
    return int(size)


def disk_price(parameters: Parameters) -> float:
    """Return the pay-as-you-go price of the system disk, in CNY an hour.

    Raises:
        ApiError: the disk does not exist.
    """
    size_gib = check_disk(parameters, image_gib=20)
    factor = _FACTORS[parameters.get("SystemDisk.PerformanceLevel", "PL1")]
    return round(size_gib * _PRICES[parameters.get("SystemDisk.Category", _DEFAULT)] * factor, 4)
