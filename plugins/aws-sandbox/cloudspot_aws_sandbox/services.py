"""Small services that moto lacks: the price list, image parameters, quotas, decoding of denials."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from moto.ec2.models.instance_types import INSTANCE_TYPES

from cloudspot.emulation.api_faults import Faults
from cloudspot_aws.options import DEFAULT_IMAGE
from cloudspot_aws_sandbox import prices
from cloudspot_aws_sandbox.images import IMAGE_ID, image_in
from cloudspot_aws_sandbox.query import ApiError

PRICE_LIST_REGIONS: Final = ("us-east-1", "eu-central-1", "ap-south-1")
_FIELDS: Final = frozenset(
    {
        *("capacitystatus", "instanceType", "marketoption", "operatingSystem", "preInstalledSw"),
        *("productFamily", "regionCode", "tenancy", "volumeApiName"),
    }
)
"""Some of the fields by which products can be filtered."""
PARAMETERS: Final[Mapping[str, str]] = {DEFAULT_IMAGE: IMAGE_ID}
"""AWS's public parameters that name images, with the images' ids in ``HOME``."""
DEFAULT_QUOTA: Final = 256
SPOT_QUOTAS: Final = {"L-34B43A08", "L-3819A6DF", "L-7212CCBC", "L-C4BD4855"}
"""The codes of quotas of spot vCPUs; the other codes are for on-demand instances."""


def get_products(request: Mapping[str, Any], region: str) -> dict[str, Any]:
    """Answer the price list's GetProducts for one EC2 instance type, or one kind of EBS volume.

    Raises:
        ApiError: this region has no price list service, or products have no such field.
    """
    if region not in PRICE_LIST_REGIONS:
        raise ApiError("ServiceUnavailableException", f"no price list service in {region}", status=503)
    wanted = {one["Field"]: one["Value"] for one in request.get("Filters", ())}
    unknown = sorted({*wanted} - _FIELDS)
    if unknown:
        raise ApiError("InvalidParameterException", f"Invalid Filter Field: {unknown[0]}")
    if request.get("ServiceCode") != "AmazonEC2":
        return {"FormatVersion": "aws_v1", "PriceList": []}
    if "volumeApiName" in wanted:
        found = _volume_products(wanted)
    else:
        described = INSTANCE_TYPES.get(wanted.get("instanceType", ""))
        found = [] if described is None else [_product(wanted, "Hrs", prices.on_demand_price(described))]
    return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(one) for one in found]}


def is_of_volumes(request: Mapping[str, Any]) -> bool:
    """Return whether GetProducts asks for EBS volumes."""
    return any(one["Field"] == "volumeApiName" for one in request.get("Filters", ()))


def _volume_products(wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the products of a kind of volume: one for its size and one for its performance."""
    price = prices.VOLUMES.get(wanted["volumeApiName"])
    if price is None:
        return []
    products = (("Storage", "GB-Mo", price), ("System Operation", "IOPS-Mo", 0.005))
    return [
        _product({**wanted, "productFamily": family}, unit, each)
        for family, unit, each in products
        if wanted.get("productFamily", family) == family
    ]


def _product(attributes: Mapping[str, str], unit: str, price: float) -> dict[str, Any]:
    family = attributes.get("productFamily", "Compute Instance")
    return {
        "product": {"productFamily": family, "attributes": dict(attributes), "sku": "SANDBOX00000000A"},
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {
                "SANDBOX00000000A.JRTCKXETXF": {
                    "priceDimensions": {
                        "SANDBOX00000000A.JRTCKXETXF.6YS6EN2CT7": {
                            "unit": unit,
                            "pricePerUnit": {"USD": f"{price:.10f}"},
                        }
                    }
                }
            }
        },
    }


def get_parameter(request: Mapping[str, Any], region: str) -> dict[str, Any] | None:
    """Answer GetParameter for AWS's own parameters; return None for the account's own.

    Raises:
        ApiError: the parameter does not exist.
    """
    name = str(request.get("Name", ""))
    if not name.startswith("/aws/"):
        return None
    if name not in PARAMETERS:
        raise ApiError("ParameterNotFound", "")
    return {
        "Parameter": {
            "Name": name,
            "Type": "String",
            "Value": image_in(region, PARAMETERS[name]),
            "Version": 1,
            "DataType": "text",
        }
    }


def get_service_quota(request: Mapping[str, Any], faults: Faults) -> dict[str, Any]:
    """Answer GetServiceQuota for those EC2 quotas that count vCPUs."""
    market = "spot" if request.get("QuotaCode") in SPOT_QUOTAS else "on-demand"
    return {
        "Quota": {
            "ServiceCode": request.get("ServiceCode"),
            "QuotaCode": request.get("QuotaCode"),
            "QuotaName": f"vCPUs, {market}",
            "Value": float(faults.vcpu_quota.get(market, DEFAULT_QUOTA)),
        }
    }


def encode_denial(action: str) -> str:
    """Return EC2's encoded message about a missing permission."""
    return base64.urlsafe_b64encode(json.dumps({"context": {"action": action}}).encode()).decode()


def decode_denial(message: str) -> str:
    """Return the text that ``encode_denial`` encoded.

    Raises:
        ApiError: ``encode_denial`` did not encode the message.
    """
    try:
        text = base64.urlsafe_b64decode(message).decode()
        json.loads(text)
        return text
    except ValueError:
        raise ApiError("InvalidAuthorizationMessageException", "Message is not valid") from None
