"""The prices of instance types on demand, and of disks and addresses, from AWS's price list.

Source: AWS Price List Query API, GetProducts; only three regions have endpoints (checked 2026-11).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cloudspot.errors import AuthError, CloudspotError
from cloudspot.model import Billing
from cloudspot.plugin.answers import UNREADABLE, price
from cloudspot.plugin.priceparts import HOURS_A_MONTH
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.options import field_error

BILLING: Final = Billing(minimum_seconds=60.0, free_if_reclaimed_seconds=3600.0)
"""Linux on EC2: billed by the second, with a minimum of one minute. A spot instance that EC2 interrupts
within its first hour is free, except for its volume and address; one that ends itself at the notice is not
free. SUSE's own images are billed by the hour, which is not modelled (EC2 user guide, "Billing for
interrupted Spot Instances"; AWS news of 2017-10-02, "Per-Second Billing for EC2 Instances and EBS Volumes";
checked 2026-11).
"""
_ENDPOINTS: Final = (
    (("eu-", "me-", "af-", "il-"), "eu-central-1"),
    (("ap-",), "ap-south-1"),
)
_DEFAULT_ENDPOINT: Final = "us-east-1"
ADDRESS_PRICE: Final = 0.005
"""The price of a public IPv4 address in use, in USD an hour, in every region (aws.amazon.com/vpc/pricing,
"Public IPv4 Address"; checked 2026-11).
"""
INCLUDED_IOPS: Final = 3000
INCLUDED_THROUGHPUT: Final = 125
"""The operations and MiB per second that are included in the price of a gp3 volume
(aws.amazon.com/ebs/pricing; checked 2026-11).
"""


_TRANSFER_PRICES: Final = (
    (("us-gov-",), 0.15),
    (("us-", "ca-", "eu-"), 0.02),
    (("ap-",), 0.10),
)
_DEAREST_TRANSFER: Final = 0.15


def transfer_price(region: str, home: str) -> float:
    """Return the price of sending a GiB between two regions, in USD, in the more expensive direction.

    The sender's region decides the price; a NAT gateway's charge for each GiB is not counted. Source for 0.02
    between us-east-1 and us-west-2, from EC2 as well as from S3: AWS re:Post, "Cost effective methods for
    accessing S3 buckets cross-region" (read 2026-11). The other prices are from memory of
    aws.amazon.com/ec2/pricing/on-demand, "Data Transfer", rounded up to the highest price of their group.
    """
    if region == home:
        return 0.0
    return max(
        next((usd for starts, usd in _TRANSFER_PRICES if one.startswith(starts)), _DEAREST_TRANSFER)
        for one in (region, home)
    )


def endpoint_region(region: str) -> str:
    """Return the region whose price list service to ask; each one knows all prices."""
    return next((at for starts, at in _ENDPOINTS if region.startswith(starts)), _DEFAULT_ENDPOINT)


def on_demand_price(clients: AwsClients, region: str, instance_type: str) -> float:
    """Return the on-demand price of a Linux machine of the type, in USD an hour.

    Raises:
        SpecError: the price list has no such machine; the message names the option that states a price.
        AuthError: the permission ``pricing:GetProducts`` is missing.
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
    try:
        prices = _ask(clients, region, instance_type, wanted, unit="Hrs")
    except AuthError as error:
        raise AuthError(f"{error}; alternatively, set the price in providers.aws.on_demand_prices") from error
    if not prices:
        raise field_error(
            "on_demand_prices",
            f'AWS\'s price list has no "{instance_type}" in {region}; give its price here, in USD an hour',
        )
    return min(prices)


def disk_price(clients: AwsClients, region: str, disk_type: str) -> float | None:
    """Return the price of a GiB of an EBS volume, in USD an hour, or None if it is not listed.

    The names of the filters are from public code that uses them (checked 2026-11).

    Raises:
        AuthError: the permission ``pricing:GetProducts`` is missing.
    """
    wanted = {"productFamily": "Storage", "volumeApiName": disk_type, "regionCode": region}
    prices = _ask(clients, region, f"{disk_type} volumes", wanted, unit="GB-Mo")
    return min(prices) / HOURS_A_MONTH if prices else None


def _ask(clients: AwsClients, region: str, what: str, wanted: Mapping[str, str], *, unit: str) -> list[float]:
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    with ERRORS.translated(f"asking AWS's price list for {what}"):
        client = clients.client("pricing", region=endpoint_region(region))
        answer = client.get_products(ServiceCode="AmazonEC2", Filters=filters)
    return [price for text in answer.get("PriceList", ()) if (price := _usd(text, unit)) is not None]


def _usd(text: str, unit: str) -> float | None:
    """Return the price in one product's JSON text, or None if it is not a price per unit."""
    try:
        product: Mapping[str, Any] = json.loads(text)
        dimensions = [
            dimension
            for term in product["terms"]["OnDemand"].values()
            for dimension in term["priceDimensions"].values()
        ]
        prices = [price(one["pricePerUnit"]["USD"]) for one in dimensions if one["unit"] == unit]
    except UNREADABLE as error:
        raise CloudspotError(
            f"the answer of AWS's price list cannot be read: {type(error).__name__}"
        ) from error
    return next((found for found in prices if found), None)
