"""Tests of the promises about a provisioner's offers, which a plugin's author subclasses.

::

    from cloudspot.testing.offerkit import OfferTests

    class TestMyOffers(OfferTests):
        @pytest.fixture
        def account(self):
            return MyAccount()

``account`` is an Account of :mod:`cloudspot.testing.account`. The offers decide which machine is bought and
when a job has reached its cost limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cloudspot.model import Market, Offer, Resources
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Account, Sold
from cloudspot.testing.kit import cases
from cloudspot.testing.launchingkit import LaunchingKit, stored

TOLERANCE = 0.001
"""The relative difference below which prices count as equal, because of rounding."""


def _most(sold: Sequence[Sold], size: Callable[[Sold], int]) -> int:
    """Return whether the item has the requested resources, and an accelerator only if one is requested."""
    sizes = sorted({size(one) for one in sold if one.accelerator is None})
    assert len(sizes) >= 2, f"the account sells only one size ({sizes}), so that all types always fit"
    return sizes[-1]


def _accelerated(sold: Sequence[Sold]) -> Resources:
    found = min((one for one in sold if one.accelerator), key=lambda one: one.key, default=None)
    assert found is not None, "the account sells no accelerators"
    return Resources(accelerator=found.accelerator, accelerator_count=found.accelerator_count)


def _has(sold: Sold, wish: Resources) -> bool:
    """Return whether the item has the wished resources, and an accelerator only if one is wished."""
    return (
        sold.cpus >= wish.cpus
        and sold.memory_bytes >= wish.memory_bytes
        and sold.accelerator == wish.accelerator
        and sold.accelerator_count >= wish.accelerator_count
    )


class OfferTests(LaunchingKit):
    """A test for each promise of ``Provisioner.offers``; the fixture ``account`` is an Account."""

    def test_each_offer_has_a_name_of_its_own_and_a_price(self, account: Account) -> None:
        offers = plaincalls.offers(account.provider().provisioner(), self.resources)
        assert offers, f"nothing is offered for {self.resources}"
        assert len({offer.key for offer in offers}) == len(offers)
        for offer in offers:
            for price in (offer.price_per_hour, offer.on_demand_price_per_hour):
                assert 0 < price < math.inf, offer.key
            assert offer.zone, offer.key
            assert offer.instance_type, offer.key
            assert stored(offer, Offer) == offer

    def test_what_nobody_sells_is_not_offered(self, account: Account) -> None:
        wish = Resources(accelerator="kit-does-not-exist", accelerator_count=8)
        assert list(plaincalls.offers(account.provider().provisioner(), wish)) == []

    @cases(
        "wish",
        {
            "anything": lambda _: Resources(),
            "processors": lambda sold: Resources(cpus=_most(sold, lambda one: one.cpus)),
            "memory": lambda sold: Resources(memory_bytes=_most(sold, lambda one: one.memory_bytes)),
            "accelerators": _accelerated,
        },
    )
    def test_all_that_the_cloud_sells_is_offered_that_has_the_resources_and_nothing_else(
        self, account: Account, wish: Callable[[Sequence[Sold]], Resources]
    ) -> None:
        sold = account.sold()
        resources = wish(sold)
        offered = {one.key for one in plaincalls.offers(account.provider().provisioner(), resources)}
        fit = {one.key for one in sold if _has(one, resources)}
        assert offered - fit == set(), f"these offers lack the wanted resources: {resources}"
        assert fit - offered == set(), "the cloud sells these as well"

    def test_a_machine_is_offered_at_the_price_that_the_cloud_takes_for_an_hour(
        self, account: Account
    ) -> None:
        sold = {one.key: one.price_per_hour for one in account.sold()}
        offers = self._offers(account)
        told = {one.key: one.price_per_hour - one.extras_per_hour for one in offers}
        wrong = {key: (told[key], sold[key]) for key in told if not _is_near(told[key], sold[key])}
        assert wrong == {}, "offered at the first price, sold at the second"

    def test_spot_is_no_dearer_than_on_demand(self, account: Account) -> None:
        offers = self._offers(account)
        on_demand = {
            (one.zone, one.instance_type): one.price_per_hour
            for one in offers
            if one.market is Market.ON_DEMAND
        }
        for offer in offers:
            assert offer.price_per_hour <= offer.on_demand_price_per_hour * (1 + TOLERANCE), offer.key
            price = on_demand.get((offer.zone, offer.instance_type), offer.on_demand_price_per_hour)
            assert _is_near(offer.on_demand_price_per_hour, price), offer.key

    def test_what_an_offer_costs_now_is_a_price_or_unknown(self, account: Account) -> None:
        offer = self._offer(account)
        price = account.provider().provisioner().current_price(offer)
        assert price is None or 0 < price < math.inf

    def test_what_an_offer_costs_now_is_counted_as_its_price_is(self, account: Account) -> None:
        provisioner = account.provider().provisioner()
        for offer in self._offers(account):
            price = provisioner.current_price(offer)
            assert price is None or _is_near(price, offer.price_per_hour), offer.key


def _is_near(price: float, other: float) -> bool:
    return math.isclose(price, other, rel_tol=TOLERANCE, abs_tol=1e-6)
