"""The emulated EC2's instance types, in pages of a hundred, and spot prices by zone."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

from cloudspot_aws_sandbox import prices
from cloudspot_aws_sandbox.query import ApiError

_VALUES: Final[Mapping[str, Callable[[Mapping[str, Any]], Sequence[str]]]] = {
    "bare-metal": lambda one: [str(one["BareMetal"]).lower()],
    "current-generation": lambda one: [str(one["CurrentGeneration"]).lower()],
    "instance-type": lambda one: [one["InstanceType"]],
    "processor-info.supported-architecture": lambda one: one["ProcessorInfo"]["SupportedArchitectures"],
    "supported-usage-class": lambda one: one["SupportedUsageClasses"],
}
_PRODUCTS: Final = {"Linux/UNIX", "Linux/UNIX (Amazon VPC)"}


def describe_instance_types(parameters: Mapping[str, Any], region: str) -> Mapping[str, Any]:
    """Answer DescribeInstanceTypes.

    Raises:
        ApiError: the region does not have a type, or a filter is not emulated.
    """
    offered = {one["InstanceType"] for one in INSTANCE_TYPE_OFFERINGS["region"].get(region, ())}
    named = parameters.get("InstanceTypes", ())
    unknown = [name for name in named if name not in offered]
    if unknown:
        raise ApiError(
            "InvalidInstanceType",
            f"The following supplied instance types do not exist: [{', '.join(unknown)}]",
        )
    if named and "MaxResults" in parameters:
        raise ApiError("InvalidParameterCombination", "MaxResults cannot be used with instance types")
    matching = [INSTANCE_TYPES[name] for name in named or sorted(offered) if name in INSTANCE_TYPES]
    for filter_ in parameters.get("Filters", ()):
        values = _VALUES.get(filter_["Name"])
        if values is None:
            raise ApiError(
                "SandboxNotImplemented", f"the emulated AWS does not support the filter {filter_['Name']}"
            )
        matching = [
            type_
            for type_ in matching
            if any(fnmatch.fnmatchcase(value, wish) for value in values(type_) for wish in filter_["Values"])
        ]
    return _page("InstanceTypes", matching, parameters, most=100)


def describe_spot_price_history(
    parameters: Mapping[str, Any], region: str, price_factor: Callable[[str], float]
) -> Mapping[str, Any]:
    """Answer DescribeSpotPriceHistory with the current prices."""
    products = set(parameters.get("ProductDescriptions", _PRODUCTS)) & _PRODUCTS
    named = parameters.get("InstanceTypes")
    rows = [
        _row(INSTANCE_TYPES[offering["InstanceType"]], offering["Location"], min(products), price_factor)
        for offering in INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ())
        if products
        and (named is None or offering["InstanceType"] in named)
        and "spot" in INSTANCE_TYPES.get(offering["InstanceType"], {}).get("SupportedUsageClasses", ())
        and parameters.get("AvailabilityZone", offering["Location"]) == offering["Location"]
    ]
    return _page("SpotPriceHistory", rows, parameters, most=1000)


def _row(
    type_: Mapping[str, Any], zone: str, product: str, price_factor: Callable[[str], float]
) -> dict[str, Any]:
    return {
        "AvailabilityZone": zone,
        "InstanceType": type_["InstanceType"],
        "ProductDescription": product,
        "SpotPrice": f"{prices.spot_price(type_, zone, price_factor(zone)):.6f}",
        "Timestamp": datetime(2026, 11, 1, tzinfo=timezone.utc),
    }


def _page(name: str, rows: Sequence[Any], parameters: Mapping[str, Any], *, most: int) -> Mapping[str, Any]:
    start = int(parameters.get("NextToken") or 0)
    end = start + min(parameters.get("MaxResults", most), most)
    return {name: rows[start:end], "NextToken": str(end) if end < len(rows) else ""}
