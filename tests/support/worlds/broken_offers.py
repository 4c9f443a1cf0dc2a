"""Provisioners whose offers are wrong in one thing, which their docstrings name."""

from __future__ import annotations

import msgspec
from support.worlds.broken_machines import breaks
from support.worlds.memorycloud import EXTRAS_PER_HOUR, GIB, SOLD, MemoryProvisioner

from cloudspot.model import Market, Resources

replace = msgspec.structs.replace
FIT = "all_that_the_cloud_sells_is_offered_that_has_the_resources_and_nothing_else"
PRICE = "a_machine_is_offered_at_the_price_that_the_cloud_takes_for_an_hour"
NO_DEARER = "spot_is_no_dearer_than_on_demand"
NOW = "what_an_offer_costs_now_is_counted_as_its_price_is"
ALL_FIT = tuple(f"{FIT}[{case}]" for case in ("anything", "processors", "memory", "accelerators"))
ONE_TYPE = "a_machine_is_of_the_type_that_was_asked_for"
ONE_ZONE = "a_machine_is_in_the_zone_that_was_asked_for"


class _Prices(MemoryProvisioner):
    """Tells other prices for a machine."""

    def offer(self, one):
        offer = super().offer(one)
        price, on_demand = self.priced(one, offer.price_per_hour, offer.on_demand_price_per_hour)
        return replace(offer, price_per_hour=price, on_demand_price_per_hour=on_demand)

    def priced(self, one, price, on_demand):
        raise NotImplementedError


@breaks(PRICE, NO_DEARER)
class SellsSpotDearer(_Prices):
    """spot is dearer than on demand"""

    def priced(self, one, price, on_demand):
        return (on_demand * 1.2 if one.market is Market.SPOT else price), on_demand


@breaks(PRICE, NO_DEARER)
class SwapsThePrices(_Prices):
    """the prices of the two markets are swapped"""

    def priced(self, one, price, on_demand):
        other = next(
            each
            for each in SOLD
            if (each.instance_type, each.zone) == (one.instance_type, one.zone)
            and each.market is not one.market
        )
        return other.price_per_hour + EXTRAS_PER_HOUR, price


@breaks(PRICE)
class CountsBySeconds(_Prices):
    """prices are for a second"""

    def priced(self, one, price, on_demand):
        return price / 3600, on_demand / 3600


@breaks(PRICE)
class CountsInCents(_Prices):
    """prices are in cents"""

    def priced(self, one, price, on_demand):
        return price * 100, on_demand * 100


@breaks(PRICE)
class CountsByMonths(_Prices):
    """prices are for a month"""

    def priced(self, one, price, on_demand):
        return price * 730, on_demand * 730


@breaks(PRICE)
class LeavesTheDiskOut(_Prices):
    """the price has no part of what it is said to add up"""

    def priced(self, one, price, on_demand):
        return one.price_per_hour, on_demand - EXTRAS_PER_HOUR


@breaks(NO_DEARER)
class ComparesWithAnotherPrice(_Prices):
    """the price on demand, which spot is compared with, is not that of the offer on demand"""

    def priced(self, one, price, on_demand):
        return price, on_demand * (1.5 if one.market is Market.SPOT else 1.0)


@breaks(PRICE)
class SellsSpotAtThePriceOfOnDemand(_Prices):
    """spot has the price of on demand, so that nothing is ever saved"""

    def priced(self, one, price, on_demand):
        return on_demand, on_demand


@breaks(*ALL_FIT, ONE_TYPE)
class ReadsOnePageOfPrices(MemoryProvisioner):
    """only the first page of the price list is read"""

    def price_list(self):
        return self.cloud.prices(0)


@breaks(f"{FIT}[accelerators]")
class LeavesOutTheLastPage(MemoryProvisioner):
    """the last page of the price list, which is not full, is left out"""

    def price_list(self):
        return super().price_list()[:-1]


@breaks(f"{FIT}[processors]")
class IgnoresProcessors(MemoryProvisioner):
    """types with too few processors are offered"""

    def fits(self, one, resources):
        return super().fits(one, replace(resources, cpus=0))


@breaks(f"{FIT}[memory]")
class IgnoresMemory(MemoryProvisioner):
    """types with too little memory are offered"""

    def fits(self, one, resources):
        return super().fits(one, replace(resources, memory_bytes=0))


@breaks(f"{FIT}[memory]")
class ComparesGibWithBytes(MemoryProvisioner):
    """the memory of the types in GiB is compared with bytes"""

    def fits(self, one, resources):
        return super().fits(replace(one, memory_bytes=one.memory_bytes // GIB), resources)


@breaks(f"{FIT}[processors]")
class CountsCores(MemoryProvisioner):
    """a type with two threads a core has half the processors"""

    def fits(self, one, resources):
        return super().fits(replace(one, cpus=one.cpus // 2), resources)


@breaks(f"{FIT}[anything]", f"{FIT}[memory]", f"{FIT}[processors]")
class SellsAcceleratorsToAll(MemoryProvisioner):
    """types with accelerators are offered to jobs that want none"""

    def fits(self, one, resources):
        bare = replace(one, accelerator=None, accelerator_count=0)
        return super().fits(one, resources) or super().fits(bare, resources)


@breaks(f"{FIT}[accelerators]")
class LeavesOutMoreAccelerators(MemoryProvisioner):
    """a type with more accelerators than wanted is left out"""

    def fits(self, one, resources):
        return super().fits(one, resources) and one.accelerator_count == resources.accelerator_count


@breaks(*ALL_FIT, ONE_ZONE)
class OffersOneZone(MemoryProvisioner):
    """only the first zone is offered"""

    def price_list(self):
        return [one for one in super().price_list() if one.zone == "a"]


@breaks(f"{FIT}[anything]", f"{FIT}[accelerators]", ONE_TYPE)
class OffersTheCheapestAlone(MemoryProvisioner):
    """only the cheapest type that fits is offered"""

    def offered(self, resources):
        found = super().offered(resources)
        least = min((one.on_demand_price_per_hour for one in found), default=0.0)
        return [one for one in found if one.on_demand_price_per_hour == least]


@breaks(
    *ALL_FIT,
    "a_machine_is_on_the_market_that_was_asked_for[on-demand]",
    "fewer_on_demand_than_needed_are_none",
)
class OffersSpotAlone(MemoryProvisioner):
    """nothing is offered on demand"""

    def price_list(self):
        return [one for one in super().price_list() if one.market is Market.SPOT]


@breaks(NOW)
class TellsCentsNow(MemoryProvisioner):
    """what an offer costs now is told in cents"""

    def current_price(self, offer):
        return 100 * offer.price_per_hour


@breaks(NOW)
class LeavesTheDiskOutNow(MemoryProvisioner):
    """what an offer costs now is without its disk"""

    def current_price(self, offer):
        return offer.price_per_hour - offer.extras_per_hour


@breaks(NOW)
class TellsThePriceOfTheFirstNow(MemoryProvisioner):
    """what an offer costs now is the price of the first one"""

    def current_price(self, offer):
        return self.offered(Resources())[0].price_per_hour


OFFERS = [
    each
    for each in list(vars().values())
    if isinstance(each, type) and issubclass(each, MemoryProvisioner) and "broken" in vars(each)
]
