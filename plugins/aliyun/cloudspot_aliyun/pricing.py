"""The prices of machines and their disks on both markets, and the rates of reclaims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

import msgspec

from cloudspot.decoding import whole_number
from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.model import Billing
from cloudspot.plugin.answers import price, readable
from cloudspot_aliyun.api import items, read
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.listing import parse_time
from cloudspot_aliyun.options import field_error

BILLING: Final = Billing()
"""Billed by the second, from creation to release, even after a reclaim. The protected hour (``SpotDuration``)
delays the reclaim and refunds nothing (ECS user guide, "Preemptible instances" and "Pay-as-you-go"; checked
2026-11). A notice of 2017-09-28 (ECS-0928) states a minimum fee of 0.01 for each machine, which is not
counted.
"""
_TRANSFER_USD: Final = 0.16
_DEAREST_TRANSFER_USD: Final = 0.45
_A_DOLLAR: Final = {"USD": 1.0, "CNY": 7.5, "EUR": 1.0, "JPY": 160.0}
"""Exchange rates for comparisons only, rounded up."""
_NEVER: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
MAX_PAGES: Final = 20


class SpotPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The newest price of a type in a zone."""

    price: float
    on_demand: float
    """The pay-as-you-go price of the same type."""
    currency: str


def transfer_price(region: str, home: str, currency: str) -> float:
    """Return the price of sending a GiB between two regions over the internet, at the higher rate.

    ECS bills the traffic from a machine's public address: 0.123 to 0.125 USD a GB in mainland China, 0.07 to
    0.156 elsewhere and 0.447 in the Middle East (Alibaba Cloud, "Data Transfer Plan Instructions" of 2017 and
    "Pay-by-data-transfer", read 2026-11). The highest price of each group is used, rounded up. Traffic from
    OSS costs less (from memory). The price of a NAT gateway or CEN is not counted.
    """
    if region == home:
        return 0.0
    is_dearest = any(one.startswith("me-") for one in (region, home))
    return (_DEAREST_TRANSFER_USD if is_dearest else _TRANSFER_USD) * _A_DOLLAR.get(currency, 1.0)


def spot_prices(clients: AliyunClients, instance_type: str, *, spot_hours: int) -> dict[str, SpotPrice]:
    """Return the newest spot price by zone, by default from ECS's last three hours.

    Raises:
        AuthError: the permission ``ecs:DescribeSpotPriceHistory`` is missing.
    Source: API reference, DescribeSpotPriceHistory (checked 2026-11).
    """
    newest: dict[str, tuple[datetime, SpotPrice]] = {}
    wanted: dict[str, Any] = {
        "InstanceType": instance_type,
        "NetworkType": "vpc",
        "OSType": "linux",
        "SpotDuration": spot_hours,
    }
    offset = 0
    for _ in range(MAX_PAGES):
        answer = read(
            clients, "reading spot prices", "DescribeSpotPriceHistory", {**wanted, "Offset": offset}
        )
        rows = items(answer, "SpotPrices", "SpotPriceType")
        for row in rows:
            zone, at = str(row.get("ZoneId")), parse_time(str(row.get("Timestamp"))) or _NEVER
            now, usual = price(row.get("SpotPrice")), price(row.get("OriginPrice"))
            if now is None or usual is None:
                continue
            if zone not in newest or at >= newest[zone][0]:
                spot_price = SpotPrice(
                    price=now, on_demand=usual, currency=str(answer.get("Currency") or "CNY")
                )
                newest[zone] = (at, spot_price)
        following = whole_number(answer.get("NextOffset")) or 0
        if not rows or following <= offset:
            break
        offset = following
    return {zone: spot_price for zone, (_, spot_price) in newest.items()}


def on_demand_price(clients: AliyunClients, instance_type: str, *, disk_type: str) -> tuple[float, str]:
    """Return the type's pay-as-you-go price per hour, without its disk, and the currency.

    Raises:
        SpecError: ECS states no price; the message names the option that states a price.
        AuthError: the permission ``ecs:DescribePrice`` is missing.
    """
    try:
        asked, currency = _asked_price(clients, instance_type, {"Category": disk_type}, {})
    except AuthError as error:
        raise AuthError(
            f"{error}; alternatively, set the price in providers.aliyun.on_demand_prices"
        ) from error
    except TransientError:
        raise
    except CloudspotError as error:
        raise field_error("on_demand_prices", f"{error}; give it here") from error
    usual = price(asked.get("TradePrice"))
    if not usual:
        raise field_error(
            "on_demand_prices", f'ECS has no price of "{instance_type}" in {clients.region}; give it here'
        )
    return usual, currency


def asked_spot_price(
    clients: AliyunClients, instance_type: str, zone: str, *, spot_hours: int, disk_type: str
) -> SpotPrice | None:
    """Return the spot price in a zone that the history lacks, or None if ECS states none."""
    wanted = {"ZoneId": zone, "SpotStrategy": "SpotAsPriceGo", "SpotDuration": spot_hours}
    try:
        asked, currency = _asked_price(clients, instance_type, {"Category": disk_type}, wanted)
    except TransientError:
        raise
    except CloudspotError:
        return None
    now = price(asked.get("TradePrice"))
    if not now:
        return None
    return SpotPrice(price=now, on_demand=price(asked.get("OriginalPrice")) or now, currency=currency)


def disk_price(clients: AliyunClients, instance_type: str, disk: Mapping[str, Any]) -> float | None:
    """Return the price of a system disk per hour, or None if ECS states none.

    ECS states it only together with a machine, but it depends on neither the type nor the market.
    """
    found, _ = _answered_price(clients, instance_type, disk, {})
    return price(_parts(found).get("systemDisk", {}).get("TradePrice")) or None


def _asked_price(
    clients: AliyunClients, instance_type: str, disk: Mapping[str, Any], more: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str]:
    """Return DescribePrice's response for the instance itself, and the currency."""
    found, currency = _answered_price(clients, instance_type, disk, more)
    return _parts(found).get("instanceType") or found, currency


def _answered_price(
    clients: AliyunClients, instance_type: str, disk: Mapping[str, Any], more: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str]:
    wanted = {
        "ResourceType": "instance",
        "InstanceType": instance_type,
        "PriceUnit": "Hour",
        # The newest types refuse the default, cloud_efficiency (from memory of the docs).
        "SystemDisk": disk,
        **more,
    }
    what = f"asking what {instance_type} costs"
    answer = read(clients, what, "DescribePrice", wanted)
    with readable(what):
        found: Mapping[str, Any] = (answer.get("PriceInfo") or {}).get("Price") or {}
        return found, str(found.get("Currency") or "CNY")


def _parts(found: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(one.get("Resource")): one for one in items(found, "DetailInfos", "DetailInfo")}


def release_rates(clients: AliyunClients, names: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return the share of spot machines reclaimed in the last 30 days by (type, zone), such as ``0-3%``.

    The share is shown beside a price and affects no decision; the result is empty if ECS does not supply it.
    """
    try:
        answer = read(
            clients, "reading spot advice", "DescribeSpotAdvice", {"InstanceTypes": list(names[:10])}
        )
    except CloudspotError:
        return {}
    return {
        (str(one["InstanceType"]), str(zone["ZoneId"])): str(one.get("InterruptRateDesc") or "")
        for zone in items(answer, "AvailableSpotZones", "AvailableSpotZone")
        for one in items(zone, "AvailableSpotResources", "AvailableSpotResource")
    }
