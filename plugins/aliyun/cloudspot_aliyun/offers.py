"""Finds offers: instance types by zone and market, with their current prices and stock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cloudspot.errors import SpecError
from cloudspot.model import Market, Offer, Resources
from cloudspot.plugin.cloudprovider import OfferFinder
from cloudspot.plugin.machinetypes import fitting_types
from cloudspot.plugin.priceparts import with_extras
from cloudspot.plugin.setupimages import counted_gib
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.lookups import Image, check_names, check_region, find_groups, find_image, find_network
from cloudspot_aliyun.machinetypes import InstanceType, all_types, named_types, stock
from cloudspot_aliyun.options import AliyunOptions, field_error
from cloudspot_aliyun.pricing import (
    BILLING,
    SpotPrice,
    asked_spot_price,
    disk_price,
    on_demand_price,
    release_rates,
    spot_prices,
)
from cloudspot_aliyun.request import system_disk
from cloudspot_aliyun.setup_images import AliyunImageHost

STOCK_SECONDS: Final = 60.0
"""How long stock and spot prices are cached, in seconds; a controller that waits for capacity asks every few
seconds.
"""
MAX_CANDIDATES: Final = 8
"""How many of the smallest types that fit and are sold are compared by price, which takes a call for each."""
MAX_TYPES: Final = 4
"""How many of the cheapest types are offered. More would cost API calls and improve the chances little."""

Stock = dict[tuple[str, str], bool]


class AliyunOfferFinder(OfferFinder[AliyunOptions, AliyunClients]):
    """Asks Alibaba Cloud for offers, and caches the answers that rarely change. Thread-safe."""

    def offers(self, resources: Resources) -> tuple[Offer, ...]:
        """Return an offer for each type, zone and market; a zone must have the type and a vSwitch.

        A sold-out offer is left out while its market has another one in stock, because its launch would be
        refused. If everything is sold out, everything is offered, so that a controller that waits for
        capacity tries again.
        """
        options, clients = self.options, self.clients
        region = self.cache.get("region", lambda: check_region(clients))
        image = self.cache.get("image", lambda: find_image(clients, options))
        network = self.cache.get("network", lambda: find_network(clients, options))
        groups = self.cache.get("groups", lambda: find_groups(clients, options, network.vpc))
        self.cache.get("names", lambda: check_names(clients, options))
        in_stock = {market: self._stock(market) for market in Market}
        zones = set(network.vswitches)
        types = self._types(resources, image.architecture, zones, in_stock)
        if not types:
            return ()
        rates = self.cache.get(
            ("rates", *(one.name for one in types)),
            lambda: release_rates(clients, [one.name for one in types]),
        )
        start = self._start(image, resources)
        disk = self._disk(resources, start["image_gib"], [one.name for one in types])
        candidates: list[tuple[Offer, bool]] = []
        for type_ in types:
            by_zone = self._spot_prices(type_.name)
            for zone in sorted(zones):
                details = {
                    "vswitch": network.vswitches[zone],
                    "security_groups": ",".join(groups),
                }
                spot = by_zone.get(zone)
                if spot is None and in_stock[Market.SPOT].get((type_.name, zone)):
                    spot = self._asked_spot_price(type_.name, zone)
                for market in Market:
                    has_some = in_stock[market].get((type_.name, zone))
                    if has_some is None or (market is Market.SPOT and spot is None):
                        continue
                    try:
                        on_demand, currency = self._on_demand(type_.name, spot)
                    except SpecError:
                        if options.instance_types:
                            raise
                        continue  # A type that has no price, and that the options do not name, is left out.
                    rate = rates.get((type_.name, zone), "") if market is Market.SPOT else ""
                    offer = Offer(
                        instance_type=type_.name,
                        zone=zone,
                        market=market,
                        price_per_hour=spot.price if spot and market is Market.SPOT else on_demand,
                        on_demand_price_per_hour=on_demand,
                        currency=currency,
                        billing=BILLING,
                        network=region,
                        region=region,
                        **start,
                        details={**details, "release_rate": rate} if rate else details,
                    )
                    is_given = type_.name in options.on_demand_prices
                    candidates.append((with_extras(offer, {"disk": None if is_given else disk}), has_some))
        live = {offer.market for offer, has_some in candidates if has_some}
        return tuple(offer for offer, has_some in candidates if has_some or offer.market not in live)

    def spot_price(self, offer: Offer) -> float | None:
        """Return the newest price of the type in the zone, at most ``max_price``, or None without one.

        ECS releases a machine when the market's price exceeds the machine's limit, so no machine is billed
        above its limit (ECS user guide, "Preemptible instances"; checked 2026-11).
        """
        name, zone = offer.instance_type, offer.zone
        found = self._spot_prices(name).get(zone) or self._asked_spot_price(name, zone)
        if found is None:
            return None
        return min(found.price, self.options.max_price or found.price)

    def _start(self, image: Image, resources: Resources) -> dict[str, Any]:
        """Return the fields of offers that depend on the image from which machines start and on its size."""
        found = self.setup_image(AliyunImageHost(self.options, self.clients), self.options.setup_key)
        if found is None:
            return {"image": image.id, "image_gib": image.size_gib}
        size = counted_gib(image.size_gib, found, resources, wanted_bytes=self.options.disk)
        return {"image": found.id, "image_gib": size, "has_setup": True}

    def _types(
        self, resources: Resources, architecture: str, zones: set[str], in_stock: dict[Market, Stock]
    ) -> list[InstanceType]:
        options, clients = self.options, self.clients
        if options.instance_types:
            types = self.cache.get("types", lambda: named_types(clients, options.instance_types))
            wrong = [one for one in types if one.architecture != architecture]
            if wrong:
                raise field_error(
                    "instance_types",
                    f'"{wrong[0].name}" is {wrong[0].architecture}, but the image is {architecture}',
                )
            return [one for one in types if one.fits(resources)]
        known = self.cache.get("all types", lambda: all_types(clients))
        plain = [one for one in known if one.is_plain and one.architecture == architecture]
        fitting = fitting_types(plain, resources)
        on_sale = {name for table in in_stock.values() for name, zone in table if zone in zones}
        live = {
            name
            for table in in_stock.values()
            for (name, zone), has in table.items()
            if has and zone in zones
        }
        # Types in stock come first; sold-out types are better than none.
        candidates = sorted(
            (one for one in fitting if one.name in on_sale), key=lambda one: one.name not in live
        )
        chosen = candidates[:MAX_CANDIDATES]
        prices = {one.name: self._cheapest(one.name, zones) for one in chosen}
        return sorted(chosen, key=lambda one: prices[one.name])[:MAX_TYPES]

    def _cheapest(self, name: str, zones: set[str]) -> float:
        prices = self.cache.get(("compared", name), lambda: self._spot_prices(name))
        return min((found.price for zone, found in prices.items() if zone in zones), default=float("inf"))

    def _stock(self, market: Market) -> Stock:
        return self.cache.get(
            ("stock", market),
            lambda: stock(self.clients, market, spot_hours=self._spot_hours),
            seconds=STOCK_SECONDS,
        )

    def _spot_prices(self, name: str) -> dict[str, SpotPrice]:
        return self.cache.get(
            ("spot", name),
            lambda: spot_prices(self.clients, name, spot_hours=self._spot_hours),
            seconds=STOCK_SECONDS,
        )

    def _asked_spot_price(self, name: str, zone: str) -> SpotPrice | None:
        return self.cache.get(
            ("asked", name, zone),
            lambda: asked_spot_price(
                self.clients, name, zone, spot_hours=self._spot_hours, disk_type=self.options.disk_type
            ),
            seconds=STOCK_SECONDS,
        )

    def _disk(self, resources: Resources, image_gib: int, names: Sequence[str]) -> float | None:
        """Return the system disk's price per hour, or None if ECS states none.

        A public address itself is free; its traffic is billed (API reference, RunInstances,
        InternetChargeType; checked 2026-11).
        """
        options, clients = self.options, self.clients
        name = next((one for one in names if one not in options.on_demand_prices), None)
        if name is None:
            return None  # A user who states prices may lack permission to ask for any.

        def ask() -> float | None:
            disk = system_disk(options, image_gib=image_gib, resources=resources)
            return disk_price(clients, name, disk)

        return self.if_known(("disk", image_gib, resources.disk_bytes), ask)

    def _on_demand(self, name: str, spot: SpotPrice | None) -> tuple[float, str]:
        chosen = self.options.currency
        given = self.options.on_demand_prices.get(name)
        if given is not None:
            return given, chosen or (spot.currency if spot else "CNY")
        if spot is not None:
            return spot.on_demand, chosen or spot.currency
        disk_type = self.options.disk_type
        asked, currency = self.cache.get(
            ("price", name), lambda: on_demand_price(self.clients, name, disk_type=disk_type)
        )
        return asked, chosen or currency

    @property
    def _spot_hours(self) -> int:
        return 1 if self.options.protected_hour else 0
