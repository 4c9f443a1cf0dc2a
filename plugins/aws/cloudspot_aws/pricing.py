"""What an instance type costs on demand, by AWS's price list.

Source: AWS Price List Query API, GetProducts; only three regions have endpoints (checked 2026-11).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cloudspot.errors import AuthError, CloudspotError
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.options import field_error

_ENDPOINTS: Final = (
    (("eu-", "me-", "af-", "il-"), "eu-central-1"),
    (("ap-",), "ap-south-1"),
)
_DEFAULT_ENDPOINT: Final = "us-east-1"


def endpoint_region(region: str) -> str:
    """Return the region whose price list service to ask; each knows all prices."""
    return next((at for starts, at in _ENDPOINTS if region.startswith(starts)), _DEFAULT_ENDPOINT)


def on_demand_price(clients: AwsClients, region: str, instance_type: str) -> float:
    """Return what a Linux machine of the type costs on demand, in USD an hour.

    Raises:
        SpecError: the price list has no such machine; the message names the option for a price.
        AuthError: the right ``pricing:GetProducts`` is missing.
    """
    wanted = {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    try:
        with ERRORS.translated(f"asking AWS's price list for {instance_type}"):
            client = clients.client("pricing", region=endpoint_region(region))
            answer = client.get_products(ServiceCode="AmazonEC2", Filters=filters)
    except AuthError as error:
        raise AuthError(f"{error}; or give the price in providers.aws.on_demand_prices") from error
    prices = [price for text in answer["PriceList"] if (price := _usd_an_hour(text)) is not None]
    if not prices:
        raise field_error(
            "on_demand_prices",
            f'AWS\'s price list has no "{instance_type}" in {region}; give its price here, in USD an hour',
        )
    return min(prices)


def _usd_an_hour(text: str) -> float | None:
    """Return the price in one product's JSON text; None: it is not a price per hour."""
    try:
        product: Mapping[str, Any] = json.loads(text)
        dimensions = [
            dimension
            for term in product["terms"]["OnDemand"].values()
            for dimension in term["priceDimensions"].values()
        ]
        prices = [float(one["pricePerUnit"]["USD"]) for one in dimensions if one["unit"] == "Hrs"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CloudspotError(f"the answer of AWS's price list cannot be read: {error!r}") from error
    return next((price for price in prices if price > 0), None)
