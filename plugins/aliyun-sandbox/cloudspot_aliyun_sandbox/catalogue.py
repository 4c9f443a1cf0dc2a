"""The emulated ECS's catalogue: instance types in pages, stock by zone, prices and their history, advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from cloudspot.emulation.api_faults import Faults
from cloudspot_aliyun_sandbox.market import KINDS, REGIONS, Kind, describe, spot_price, zones_of
from cloudspot_aliyun_sandbox.rpc import ApiError, nested
from cloudspot_aliyun_sandbox.systemdisks import disk_price

Parameters = Mapping[str, str]
HISTORY_ROWS: Final = 7
"""The number of items on a page, which is so small that a caller that reads only the first page fails."""
_RATES: Final = ("0-3%", "3-5%", "5-10%", "10-100%")


class Catalogue:
    """Answers the calls about types, stock and prices."""

    def __init__(self, faults: Faults, clock: Callable[[], float]) -> None:
        self.prices: dict[tuple[str, str], float] = {}
        """Prices that replace the spot market's usual ones, by (type, zone); tests set them."""
        self.silent: set[tuple[str, str]] = set()
        """The (type, zone) pairs that the price history lacks."""
        self._faults = faults
        self._clock = clock

    def price(self, kind: Kind, zone: str, *, is_protected: bool) -> float:
        """Return the spot market's current price in CNY an hour."""
        usual = self.prices.get((kind.name, zone), spot_price(kind, zone, is_protected=is_protected))
        return usual * self._faults.spot_plan.price_factor(zone)

    def describe_instance_types(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeInstanceTypes, without the types that do not exist."""
        named = nested(parameters, "InstanceTypes")
        if len(named) > 10:
            raise ApiError("InvalidParameter", "The specified InstanceTypes are more than 10.")
        kinds = [kind for kind in KINDS.values() if not named or kind.name in named]
        start = int(parameters.get("NextToken") or 0)
        # The page may be smaller than requested, as with the real service.
        end = start + min(int(parameters.get("MaxResults", 100)), 8)
        answer: dict[str, Any] = {
            "InstanceTypes": {"InstanceType": [describe(kind) for kind in kinds[start:end]]}
        }
        return {**answer, "NextToken": str(end)} if end < len(kinds) else answer

    def describe_available_resource(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeAvailableResource for instance types."""
        if "DestinationResource" not in parameters:
            raise ApiError("MissingParameter", "DestinationResource is mandatory.")
        if parameters["DestinationResource"] != "InstanceType":
            raise ApiError(
                "SandboxNotImplemented", "the emulated ECS supports only DestinationResource=InstanceType"
            )
        is_spot = parameters.get("SpotStrategy", "NoSpot") != "NoSpot"
        market = "spot" if is_spot else "on-demand"
        zones = []
        for zone in REGIONS[region]:
            if parameters.get("ZoneId", zone) != zone:
                continue
            rows = []
            for kind in KINDS.values():
                is_sold = zone in zones_of(kind, region) and (kind.has_spot or not is_spot)
                if not is_sold or parameters.get("InstanceType", kind.name) != kind.name:
                    continue
                has_some = self._faults.capacity_of(zone, kind.name, market) != 0
                rows.append(
                    {
                        "Value": kind.name,
                        "Status": "Available" if has_some else "SoldOut",
                        "StatusCategory": "WithStock" if has_some else "WithoutStock",
                    }
                )
            resources = [{"Type": "InstanceType", "SupportedResources": {"SupportedResource": rows}}]
            zones.append(
                {
                    "RegionId": region,
                    "ZoneId": zone,
                    "Status": "Available",
                    "AvailableResources": {"AvailableResource": resources if rows else []},
                }
            )
        return {"AvailableZones": {"AvailableZone": zones}}

    def describe_spot_price_history(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeSpotPriceHistory: a row for each hour and zone, the newest being current."""
        kind = self._kind(parameters, "InstanceType")
        if parameters.get("NetworkType") not in {"vpc", "classic"}:
            raise ApiError("InvalidNetworkType.ValueNotSupported", "The specified NetworkType is not valid.")
        is_protected = parameters.get("SpotDuration", "1") != "0"
        now = datetime.fromtimestamp(self._clock(), timezone.utc).replace(minute=0, second=0, microsecond=0)
        rows = []
        for hours in (2, 1, 0):
            for zone in zones_of(kind, region) if kind.has_spot else ():
                if (kind.name, zone) in self.silent:
                    continue
                price = self.price(kind, zone, is_protected=is_protected) * (1 + 0.1 * hours)
                rows.append(
                    {
                        "ZoneId": zone,
                        "InstanceType": kind.name,
                        "NetworkType": "vpc",
                        "IoOptimized": "optimized",
                        "Timestamp": f"{now - timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}",
                        "SpotPrice": round(price, 3),
                        "OriginPrice": kind.price,
                    }
                )
        start = int(parameters.get("Offset") or 0)
        end = min(start + HISTORY_ROWS, len(rows))
        return {"Currency": "CNY", "NextOffset": end, "SpotPrices": {"SpotPriceType": rows[start:end]}}

    def describe_price(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribePrice for a pay-as-you-go instance, with its own price and that of its disk."""
        if parameters.get("ResourceType", "instance") != "instance":
            raise ApiError("SandboxNotImplemented", "the emulated ECS supports only ResourceType=instance")
        kind = self._kind(parameters, "InstanceType")
        now = kind.price
        if parameters.get("SpotStrategy", "NoSpot") != "NoSpot":
            if parameters.get("ZoneId") not in zones_of(kind, region) or not kind.has_spot:
                raise ApiError("PriceNotFound", "The price of your queried resource is not found.")
            is_protected = parameters.get("SpotDuration", "1") != "0"
            now = self.price(kind, parameters["ZoneId"], is_protected=is_protected)
        disk = disk_price(parameters)
        parts = [("instanceType", now, kind.price), ("systemDisk", disk, disk)]
        details = [
            {"Resource": name, "TradePrice": price, "OriginalPrice": full, "DiscountPrice": full - price}
            for name, price, full in parts
        ]
        price = {
            "Currency": "CNY",
            "TradePrice": round(sum(price for _, price, _ in parts), 3),
            "OriginalPrice": round(sum(full for _, _, full in parts), 3),
            "DiscountPrice": round(sum(full - price for _, price, full in parts), 3),
            "DetailInfos": {"DetailInfo": details},
        }
        return {"PriceInfo": {"Price": price, "Rules": {"Rule": []}}}

    def describe_spot_advice(self, parameters: Parameters, region: str) -> Mapping[str, Any]:
        """Answer DescribeSpotAdvice."""
        named = nested(parameters, "InstanceTypes")
        zones = []
        for i, zone in enumerate(REGIONS[region]):
            rows = [
                {
                    "InstanceType": kind.name,
                    "InterruptRateDesc": _RATES[(i + kind.num_gpus) % len(_RATES)],
                    "InterruptionRate": float(i),
                    "AverageSpotDiscount": round(100 * spot_price(kind, zone) / kind.price),
                }
                for kind in _sold(region, zone)
                if not named or kind.name in named
            ]
            zones.append({"ZoneId": zone, "AvailableSpotResources": {"AvailableSpotResource": rows}})
        return {"RegionId": region, "AvailableSpotZones": {"AvailableSpotZone": zones}}

    def _kind(self, parameters: Parameters, name: str) -> Kind:
        if name not in parameters:
            raise ApiError("MissingParameter", f"{name} is mandatory for this action.")
        kind = KINDS.get(parameters[name])
        if kind is None:
            raise ApiError(
                "InvalidInstanceType.ValueNotSupported",
                "The specified InstanceType does not exist or beyond the permitted range.",
            )
        return kind


def _sold(region: str, zone: str) -> Sequence[Kind]:
    return [kind for kind in KINDS.values() if kind.has_spot and zone in zones_of(kind, region)]
