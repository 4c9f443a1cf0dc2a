"""Tests of a provisioner's purchases against the cloud's own records, for plugin authors to subclass.

::

    from cloudspot.testing.purchasekit import PurchaseTests

    class TestMyPurchases(PurchaseTests):
        @pytest.fixture
        def account(self):
            return MyAccount()

``account`` is an Account of :mod:`cloudspot.testing.account`, whose ``bought`` returns these records. A
plugin might list the requested machines but have bought others.
"""

from __future__ import annotations

from typing import ClassVar

from cloudspot.model import Market, Offer, Resources
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Account, Bought
from cloudspot.testing.kit import cases
from cloudspot.testing.launchingkit import LaunchingKit, ids

MOST_IMAGE_BYTES = 100 << 30
"""The maximum by which a disk may exceed the requested size, to hold its image."""
MOST_GRACE_SECONDS = 3600.0
"""The maximum by which the cloud's time limit may be later, so that the machine can end itself first."""
LABELS = {"kit-team": "vision", "kit-cost-center": "c-42"}


class PurchaseTests(LaunchingKit):
    """A test for each property of a purchase; the fixture ``account`` is an Account."""

    disk_bytes: ClassVar[int] = 200 << 30
    """The size of a disk that is larger than any image."""
    max_seconds: ClassVar[float] = 7200.0

    def test_each_machine_runs_the_boot_script(self, account: Account) -> None:
        made = self._create(account, self._request(account, num_nodes=2))
        assert [account.bought(one).user_data for one in ids(made)] == [self.user_data] * 2

    def test_a_machine_is_of_the_type_that_was_asked_for(self, account: Account) -> None:
        prices = {one.instance_type: one.price_per_hour for one in self._offers(account)}
        assert len(prices) >= 2, f"the account sells only {[*prices]}, so no other type can be bought"
        for name in (min(prices, key=prices.__getitem__), max(prices, key=prices.__getitem__)):
            offer = next(one for one in self._offers(account) if one.instance_type == name)
            assert self._buy(account, offer).instance_type == name

    def test_a_machine_is_in_the_zone_that_was_asked_for(self, account: Account) -> None:
        zones = sorted({one.zone for one in self._offers(account)})
        assert len(zones) >= 2, f"the account sells only in {zones}, so no machine can be in another zone"
        for zone in (zones[0], zones[-1]):
            offer = next(one for one in self._offers(account) if one.zone == zone)
            assert self._buy(account, offer).zone == zone

    @cases("market", {one.value: one for one in Market})
    def test_a_machine_is_on_the_market_that_was_asked_for(self, account: Account, market: Market) -> None:
        assert self._buy(account, self._offer(account, market)).market is market

    def test_a_machine_has_the_disk_that_was_asked_for(self, account: Account) -> None:
        resources = Resources(disk_bytes=self.disk_bytes)
        offers = plaincalls.offers(account.provider().provisioner(), resources)
        offer = min(offers, key=lambda one: one.key)
        (made,) = self._create(account, self._request(account, resources=resources, offer=offer))
        found = account.bought(made.id).disk_bytes
        assert found is not None, "the machine has no disk of its own"
        assert self.disk_bytes <= found <= self.disk_bytes + MOST_IMAGE_BYTES

    def test_a_machine_bears_the_labels_of_its_job(self, account: Account) -> None:
        (made,) = self._create(account, self._request(account, labels=LABELS))
        found = account.bought(made.id).labels
        assert {name: found.get(name) for name in LABELS} == LABELS

    def test_a_machine_ends_when_its_time_is_over_whoever_has_forgotten_it(self, account: Account) -> None:
        (made,) = self._create(account, self._request(account, max_seconds=self.max_seconds))
        found = account.bought(made.id).max_seconds
        assert found is not None, "the machine has no time limit"
        longest = self.max_seconds + account.provider().provisioner().token_seconds + MOST_GRACE_SECONDS
        assert self.max_seconds <= found <= longest

    def test_as_many_machines_as_wished_are_bought_where_there_is_room(self, account: Account) -> None:
        made = self._create(account, self._request(account, num_nodes=3, min_nodes=1))
        assert (len(set(ids(made))), len(account.running())) == (3, 3)

    def _buy(self, account: Account, offer: Offer) -> Bought:
        launch = len(account.running()) + 1
        request = self._request(account, offer=offer, launch=launch)
        (made,) = self._create(account, request, token=str(launch))
        return account.bought(made.id)
