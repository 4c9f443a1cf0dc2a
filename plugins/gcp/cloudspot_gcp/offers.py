"""Finds offers: machine types by region and market, with their current prices.

All zones of a region have the same prices, and a launch lets the region choose a zone that has the machines.
So an offer is for a region, and its ``zone`` is the region's name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.model import Market, Offer, Resources
from cloudspot.plugin.cloudprovider import FAILURE_SECONDS, OfferFinder
from cloudspot.plugin.launchrequests import disk_gib
from cloudspot.plugin.machinetypes import fitting_types
from cloudspot.plugin.priceparts import Extras, with_extras
from cloudspot.plugin.setupimages import counted_gib
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.lookups import (
    GcpMachineType,
    Image,
    all_types,
    check_names,
    find_image,
    find_zones,
    named_types,
    offered_type,
    wanted_regions,
)
from cloudspot_gcp.options import GcpOptions, field_error, subnetwork_region
from cloudspot_gcp.pricing import BILLING, PriceList, read_price_list, transfer_price
from cloudspot_gcp.series import can_be_compact, markets_of
from cloudspot_gcp.setup_images import GcpImageHost, path_of

MAX_CANDIDATES: Final = 60
"""How many of the smallest types that fit are compared by price."""
MAX_TYPES: Final = 4
"""How many of the cheapest types are offered. More would cost API calls and improve the chances little."""
FROM_LIST: Final = "Google's price list"
FROM_OPTIONS: Final = "the job's options"

_log = logging.getLogger("cloudspot.gcp.offers")


class _Price(msgspec.Struct, frozen=True):
    usd: float
    source: str


class GcpOfferFinder(OfferFinder[GcpOptions, GcpClients]):
    """Asks Google for offers, and caches the answers that rarely change. Thread-safe."""

    def offers(self, resources: Resources) -> tuple[Offer, ...]:
        """Return an offer for each type, each region that has it, and each market where it is sold."""
        options, clients = self.options, self.clients
        regions = wanted_regions(options)
        image = self.cache.get("image", lambda: find_image(clients, options))
        all_zones = {region: self._zones(region) for region in regions}
        zones = _allowed(options, all_zones)
        self.cache.get("names", lambda: check_names(clients, options, regions))
        types = self._types(resources, image, zones)
        start = self._start(image, resources)
        account = _service_account(options, clients)
        offers: list[Offer] = []
        unpriced: list[tuple[str, str]] = []
        for region in regions:
            here = [one for one in types if set(one.zones) & set(zones[region])]
            priced: list[tuple[float, GcpMachineType, dict[Market, _Price]]] = []
            for type_ in here:
                prices = {market: self._price(type_, region, market) for market in Market}
                known = {market: price for market, price in prices.items() if price is not None}
                if Market.ON_DEMAND in known:
                    priced.append((min(price.usd for price in known.values()), type_, known))
                else:
                    unpriced.append((type_.name, region))
            if not options.machine_types:
                priced = sorted(priced, key=lambda each: each[0])[:MAX_TYPES]
            for _, type_, known in priced:
                able = [zone for zone in zones[region] if zone in type_.zones]
                others = [zone for zone in all_zones[region] if zone not in able]
                details = self._details(type_, account) | {"zones": ",".join(able)}
                if others:
                    details["other_zones"] = ",".join(others)
                extras = {
                    market: self._extras(resources, start, region, market, price)
                    for market, price in known.items()
                }
                offers += [
                    with_extras(
                        Offer(
                            instance_type=type_.name,
                            zone=region,
                            market=market,
                            price_per_hour=price.usd,
                            on_demand_price_per_hour=known[Market.ON_DEMAND].usd,
                            billing=BILLING,
                            transfer_price_per_gib=transfer_price(region, regions[0]),
                            region=region,
                            image=start.path,
                            image_gib=start.size_gib,
                            has_setup=start.setup_key is not None,
                            details={**details, "price_source": price.source},
                        ),
                        extras[market],
                        on_demand=extras[Market.ON_DEMAND],
                    )
                    for market, price in known.items()
                    if market in markets_of(type_.name)
                ]
        if not offers and unpriced:
            self._refuse_unpriced(*unpriced[0])
        return tuple(offers)

    def spot_price(self, offer: Offer) -> float | None:
        """Return the price that ``offers`` finds now, at most an hour old, or None if it finds none.

        While the list cannot be read, a price from the list is not replaced by one from the options.

        Raises:
            AuthError: the permission to read the list is missing.
            TransientError: the list cannot be read now.
        """
        prices = self._price_list()
        if isinstance(prices, CloudspotError) and offer.details.get("price_source") != FROM_OPTIONS:
            raise type(prices)(str(prices)) from prices
        one = self.cache.get(("offered", offer.key), lambda: offered_type(self.clients, offer))
        price = None if one is None else self._price(one, offer.zone, Market.SPOT)
        return None if price is None else price.usd

    def _start(self, image: Image, resources: Resources) -> Image:
        setup_image = self.setup_image(GcpImageHost(self.options, self.clients), self.options.setup_key)
        if setup_image is None:
            return image
        size = counted_gib(image.size_gib, setup_image, resources, wanted_bytes=self.options.disk)
        path = path_of(self.clients.project, setup_image.id)
        return msgspec.structs.replace(image, path=path, size_gib=size, setup_key=setup_image.key)

    def _zones(self, region: str) -> tuple[str, ...]:
        return self.cache.get(("zones", region), lambda: find_zones(self.clients, region))

    def _types(
        self, resources: Resources, image: Image, zones: Mapping[str, tuple[str, ...]]
    ) -> list[GcpMachineType]:
        options, clients = self.options, self.clients
        everywhere = tuple(zone for own in zones.values() for zone in own)
        asked = (resources.accelerator, resources.accelerator_count)
        if options.machine_types:
            types = self.cache.get(
                ("types", asked), lambda: named_types(clients, options, everywhere, resources)
            )
            wrong = [one for one in types if one.architecture != image.architecture]
            if wrong:
                raise field_error(
                    "machine_types",
                    f'"{wrong[0].name}" is {wrong[0].architecture}, but image {image.path} is '
                    f"{image.architecture}",
                )
            return self._placeable([one for one in types if one.fits(resources)])
        known = self.cache.get(
            ("all types", asked), lambda: all_types(clients, options, everywhere, resources)
        )
        # Types with shared processors are bought only if the options name them.
        usable = [one for one in known if one.architecture == image.architecture and not one.is_shared]
        return self._placeable(fitting_types(usable, resources))[:MAX_CANDIDATES]

    def _placeable(self, types: list[GcpMachineType]) -> list[GcpMachineType]:
        """Return the types that support compact placement if the options ask for it, otherwise all types."""
        if self.options.placement_policy is None:
            return types
        able = [one for one in types if can_be_compact(one.name)]
        if types and not able and self.options.machine_types:
            raise field_error(
                "placement_policy", f'"{types[0].name}" cannot be placed close together; leave it out'
            )
        return able

    def _details(self, one: GcpMachineType, account: str) -> dict[str, str]:
        details = {"project": self.clients.project, "service_account": account}
        if one.accelerator_count:
            details["has_accelerator"] = str(one.accelerator)
        if one.is_attached:
            details["accelerator"] = str(one.accelerator)
            details["accelerator_count"] = str(one.accelerator_count)
        return details

    # --- prices -----------------------------------------------------------------------------------

    def _price(self, one: GcpMachineType, region: str, market: Market) -> _Price | None:
        prices = self._price_list()
        if isinstance(prices, PriceList):
            usd = prices.of(one, region, market)
            if usd is not None:
                return _Price(usd, FROM_LIST)
        options = self.options
        table = options.spot_prices if market is Market.SPOT else options.on_demand_prices
        name = one.name
        if one.is_attached:
            name += f"+{one.accelerator_count}x{one.accelerator}"
        usd = table.get(f"{region}/{name}", table.get(name))
        return None if usd is None else _Price(usd, FROM_OPTIONS)

    def _extras(
        self, resources: Resources, image: Image, region: str, market: Market, machine: _Price
    ) -> Extras:
        """Return the prices of the boot disk and the external address of a machine.

        If the machine's price is from the options, nothing is added to it, because it may include both. A
        hyperdisk's operations and throughput beyond the included amounts cost extra, which is not counted
        here ("Hyperdisk pricing"; from memory).
        """
        options, prices = self.options, self._price_list()
        kind = options.disk_type
        disk: float | None = None
        address: float | None = None
        if isinstance(prices, PriceList) and machine.source == FROM_LIST:
            size_gib = disk_gib(image.size_gib, resources, wanted_bytes=options.disk)
            disk = prices.disk(kind, region, size_gib=size_gib)
            address = prices.address(market)
        return {
            "disk": disk,
            **({"disk performance": None} if kind.startswith("hyperdisk") else {}),
            **({"address": address} if options.public_ip else {}),
        }

    def _price_list(self) -> PriceList | CloudspotError:
        """Return the price list, or the error that occurred in reading it: the options' prices may suffice.

        Google changes spot prices at most once a day ("Spot VMs", Pricing; checked 2026-11), so the list is
        cached for an hour, like other data.
        """

        def read() -> PriceList | CloudspotError:
            try:
                return read_price_list(self.clients, wanted_regions(self.options))
            except (AuthError, TransientError) as error:
                _log.warning("using the prices in the job's options: %s", error)
                return error

        kept: PriceList | CloudspotError = self.cache.get("prices", read)
        if isinstance(kept, CloudspotError):
            self.cache.shorten("prices", seconds=FAILURE_SECONDS)
        return kept

    def _refuse_unpriced(self, name: str, region: str) -> None:
        prices = self._price_list()
        if isinstance(prices, CloudspotError):
            advice = "; or set the prices in providers.gcp.on_demand_prices and spot_prices"
            raise type(prices)(f"{prices}{advice}") from prices
        raise field_error(
            "on_demand_prices",
            f'Google\'s price list has no "{name}" in {region}; give its price here, in USD an hour',
        )


def _allowed(options: GcpOptions, all_zones: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    known = {zone for zones in all_zones.values() for zone in zones}
    unknown = [zone for zone in options.zones if zone not in known]
    if unknown:
        raise field_error("zones", f'there is no "{unknown[0]}"; there are {", ".join(sorted(known))}')
    if options.subnetworks:
        lacking = set(all_zones) - set(map(subnetwork_region, options.subnetworks))
        if lacking:
            raise field_error("subnetworks", f"no subnetwork is in {min(lacking)}; name one for each region")
    return {
        region: tuple(zone for zone in zones if not options.zones or zone in options.zones)
        for region, zones in all_zones.items()
    }


def _service_account(options: GcpOptions, clients: GcpClients) -> str:
    name = options.service_account
    return name if "@" in name else f"{name}@{clients.project}.iam.gserviceaccount.com"
