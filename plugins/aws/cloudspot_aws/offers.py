"""Finds offers: instance types by zone and market, with their current prices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Final

from cloudspot.model import Market, Offer, Resources
from cloudspot.plugin.answers import moment, price, readable
from cloudspot.plugin.cloudprovider import OfferFinder
from cloudspot.plugin.launchrequests import disk_gib
from cloudspot.plugin.machinetypes import fitting_types
from cloudspot.plugin.priceparts import Extras, with_extras
from cloudspot.plugin.setupimages import counted_gib
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.lookups import (
    Image,
    InstanceType,
    Subnet,
    all_types,
    check_names,
    check_region,
    find_image,
    find_subnets,
    named_types,
    zones_of_types,
)
from cloudspot_aws.options import AwsOptions, field_error
from cloudspot_aws.pricing import (
    ADDRESS_PRICE,
    BILLING,
    INCLUDED_IOPS,
    INCLUDED_THROUGHPUT,
    disk_price,
    on_demand_price,
)
from cloudspot_aws.setup_images import AwsImageHost

SPOT_PRICE_SECONDS: Final = 60.0
"""How long spot prices are cached, in seconds, because a controller that waits for capacity asks every few
seconds.
"""
MAX_CANDIDATES: Final = 60
"""How many of the smallest types that fit are compared by price."""
MAX_TYPES: Final = 4
"""How many of the cheapest types are offered. More would cost API calls and improve the chances little."""
PRODUCT: Final = "Linux/UNIX"


class AwsOfferFinder(OfferFinder[AwsOptions, AwsClients]):
    """Asks AWS for offers, and caches the answers that rarely change. Thread-safe."""

    def offers(self, resources: Resources) -> tuple[Offer, ...]:
        """Return an offer for each type, zone and market; a zone must have the type and a subnet."""
        options, clients = self.options, self.clients
        region = self.cache.get("region", lambda: check_region(clients))
        image = self.cache.get("image", lambda: find_image(clients, options))
        subnets = self.cache.get("subnets", lambda: find_subnets(clients, options))
        self.cache.get("names", lambda: check_names(clients, options))
        types = self._types(resources, image)
        if not types:
            return ()
        names = tuple(one.name for one in types)
        zones = self.cache.get(("zones", names), lambda: zones_of_types(clients, names))
        spot = self._spot_prices(names)
        start = self._start(image, resources)
        offers = []
        for type_ in types:
            disk = self._disk(resources, start["image_gib"], region, type_.name)
            on_demand = self._on_demand_price(region, type_.name)
            for zone in sorted(zones[type_.name] & set(subnets)):
                extras = {**disk, **self._address(subnets[zone], type_.name)}
                details = {
                    "root_device": image.root_device,
                    "subnet": subnets[zone].id,
                    **({"is_burstable": "yes"} if type_.is_burstable else {}),
                }
                prices = {Market.SPOT: spot.get((type_.name, zone)), Market.ON_DEMAND: on_demand}
                offers += [
                    with_extras(
                        Offer(
                            instance_type=type_.name,
                            zone=zone,
                            market=market,
                            price_per_hour=price,
                            on_demand_price_per_hour=on_demand,
                            billing=BILLING,
                            network=region,
                            region=region,
                            **start,
                            details=details,
                        ),
                        extras,
                    )
                    for market, price in prices.items()
                    if price is not None and market.value in type_.markets
                ]
        return tuple(offers)

    def spot_price(self, offer: Offer) -> float | None:
        """Return the newest price of the type in the zone, in USD an hour, or None if there is no price."""
        return self._spot_prices((offer.instance_type,)).get((offer.instance_type, offer.zone))

    def _start(self, image: Image, resources: Resources) -> dict[str, Any]:
        """Return the fields of offers that depend on the image from which machines start and on its size."""
        setup_image = self.setup_image(AwsImageHost(self.options, self.clients), self.options.setup_key)
        if setup_image is None:
            return {"image": image.id, "image_gib": image.size_gib}
        size = counted_gib(image.size_gib, setup_image, resources, wanted_bytes=self.options.disk)
        return {"image": setup_image.id, "image_gib": size, "has_setup": True}

    def _types(self, resources: Resources, image: Image) -> list[InstanceType]:
        options, clients = self.options, self.clients
        if options.instance_types:
            types = self.cache.get("types", lambda: named_types(clients, options))
            for type_ in types:
                if not type_.boots(image):
                    has = f"{'/'.join(type_.architectures)} ({'/'.join(type_.boot_modes)})"
                    needs = f"{image.architecture} ({'/'.join(image.boot_modes)})"
                    why = f'"{type_.name}" is {has}, but image {image.id} is {needs}'
                    raise field_error("instance_types", why)
            return self._clustering([one for one in types if one.fits(resources)])
        known = self.cache.get("all types", lambda: all_types(clients, image.architecture))
        # Burstable, older and special types are bought only if the options name them.
        plain = [one for one in known if one.has_ena and not one.is_burstable and not one.is_special]
        able = [one for one in plain if one.boots(image)]
        candidates = self._clustering(fitting_types(able, resources))[:MAX_CANDIDATES]
        prices = self._spot_prices(tuple(one.name for one in candidates))
        cheapest = {
            name: min(price for (other, _), price in prices.items() if other == name)
            for name in {name for name, _ in prices}
        }
        bought = [one for one in candidates if one.name in cheapest] or candidates
        return sorted(bought, key=lambda one: cheapest.get(one.name, 0.0))[:MAX_TYPES]

    def _clustering(self, types: Sequence[InstanceType]) -> list[InstanceType]:
        """Return the types that support a placement group if the options ask for one, otherwise all types."""
        if self.options.placement_group is None:
            return list(types)
        able = [one for one in types if one.can_cluster]
        if types and not able and self.options.instance_types:
            raise field_error(
                "placement_group", f'"{types[0].name}" cannot be in a cluster placement group; leave it out'
            )
        return able

    def _on_demand_price(self, region: str, name: str) -> float:
        given = self.options.on_demand_prices.get(name)
        if given is not None:
            return given
        return self.cache.get(("price", name), lambda: on_demand_price(self.clients, region, name))

    def _disk(self, resources: Resources, image_gib: int, region: str, name: str) -> Extras:
        """Return the price of a machine's root disk, in USD an hour.

        A user who states the type's price may lack permission to read the price list, so it is not read.
        """
        options = self.options
        has_more = (
            options.disk_type in {"io1", "io2"}
            or (options.disk_iops or 0) > INCLUDED_IOPS
            or (options.disk_throughput or 0) > INCLUDED_THROUGHPUT
        )
        performance: Extras = {"disk performance": None} if has_more else {}
        if name in options.on_demand_prices:
            return {"disk": None, **performance}
        kind = options.disk_type
        each = self.if_known(("disk", kind), lambda: disk_price(self.clients, region, kind))
        size = disk_gib(image_gib, resources, wanted_bytes=options.disk)
        return {"disk": None if each is None else size * each, **performance}

    def _address(self, subnet: Subnet, name: str) -> Extras:
        """Return the hourly price of a machine's public address, by its name, or nothing if it has none."""
        given = self.options.public_ip
        if not (subnet.is_public if given is None else given):
            return {}
        return {"address": None if name in self.options.on_demand_prices else ADDRESS_PRICE}

    def _spot_prices(self, names: tuple[str, ...]) -> dict[tuple[str, str], float]:
        """Return the newest spot price in USD an hour by (type, zone)."""
        if not names:
            return {}
        return self.cache.get(
            ("spot", names), lambda: read_spot_prices(self.clients, names), seconds=SPOT_PRICE_SECONDS
        )


def read_spot_prices(clients: AwsClients, names: Sequence[str]) -> dict[tuple[str, str], float]:
    """Return the newest spot price in USD an hour by (type, zone).

    A history that begins now holds only the price in force (EC2 API reference,
    DescribeSpotPriceHistory, checked 2026-11).

    Raises:
        AuthError: the permission ``ec2:DescribeSpotPriceHistory`` is missing.
    """
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    with ERRORS.translated("reading spot prices"), readable("reading spot prices"):
        pages = clients.client("ec2").get_paginator("describe_spot_price_history")
        for page in pages.paginate(
            InstanceTypes=list(names),
            ProductDescriptions=[PRODUCT],
            StartTime=datetime.now(timezone.utc),
        ):
            for row in page["SpotPriceHistory"]:
                key = (str(row["InstanceType"]), str(row["AvailabilityZone"]))
                at, found = moment(row["Timestamp"]), price(row["SpotPrice"])
                if at is not None and found is not None and (key not in newest or at > newest[key][0]):
                    newest[key] = (at, found)
    return {key: found for key, (_, found) in newest.items()}
