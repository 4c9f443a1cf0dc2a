"""The kit for real accounts, on the cloud in memory: its limit of cost, and its search at the end."""

from __future__ import annotations

from contextlib import suppress

import pytest
from support.worlds.groups import group_of
from support.worlds.memorycloud import MemoryCloud, MemoryProvider

from cloudspot.errors import TransientError
from cloudspot.interfaces import MachineInventory
from cloudspot.model import Market, Resources
from cloudspot.testing import livekit, plaincalls
from cloudspot.testing.livekit import LiveAccount, LiveProvisionerTests

PRICE = 0.32
"""Of the cheapest machine with its disk, an hour."""


class Account(LiveAccount):
    cloud = None

    def provider(self):
        return MemoryProvider(cloud=self.cloud)


@pytest.fixture
def account():
    made = Account("memory", {}, most_cost=0.11)
    made.cloud = MemoryCloud()
    made.begin()
    return made


def launch(account, *, job_id=None):
    provisioner = account.provider().provisioner()
    offers = plaincalls.offers(provisioner, Resources())
    offer = min((one for one in offers if one.market is Market.SPOT), key=lambda one: one.price_per_hour)
    group = group_of(offer, job_id=job_id or f"{account.prefix}1")
    account.reserve(group)
    (made,) = plaincalls.create(provisioner, provisioner.render(group), token=group.job_id)
    return made


def test_a_launch_that_may_pass_the_limit_ends_the_run_before_it(account):
    launch(account)
    launch(account, job_id=f"{account.prefix}2")
    assert account.cost == pytest.approx(2 * PRICE * 600 / 3600)
    with pytest.raises(pytest.exit.Exception, match=r"the next launch may pass the limit of 0\.11"):
        launch(account, job_id=f"{account.prefix}3")
    assert len(account.cloud.alive()) == 2


def test_a_test_that_takes_longer_than_counted_is_counted_in_full(account, monkeypatch):
    launch(account)
    before = account.cost
    now = livekit.time.monotonic() + 1200.0
    monkeypatch.setattr(livekit.time, "monotonic", lambda: now)
    account.finish()
    assert account.cost - before == pytest.approx(PRICE * 600 / 3600, rel=0.01)


def test_what_is_found_at_the_end_is_ended_and_named_and_nothing_else_is_touched(account):
    foreign = launch(account, job_id="digits-1")
    mine = launch(account)
    assert account.sweep() == [f"machine {mine.id}"]
    assert [one.id for one in account.cloud.alive()] == [foreign.id]
    assert account.sweep() == []


def test_an_inventory_that_cannot_be_asked_is_named_and_the_others_are_searched(account, monkeypatch):
    mine = launch(account)

    class Deaf(MachineInventory):
        title = "drivers"

        def assets(self, store_urls):
            raise TransientError("no answer")

    def inventories(self, *, all_regions):
        return [Deaf(self.provisioner()), MachineInventory(self.provisioner())]

    monkeypatch.setattr(MemoryProvider, "inventories", inventories)
    assert account.sweep() == ["perhaps drivers: no answer", f"machine {mine.id}"]
    assert account.cloud.alive() == []


def test_a_session_that_leaves_something_fails(monkeypatch):
    monkeypatch.setattr(Account, "cloud", MemoryCloud())
    session = Account.session("memory", {}, most_cost=1.0)
    account = next(session)
    mine = launch(account)
    with pytest.raises(AssertionError, match=rf"found in the account at the end: \['machine {mine.id}'\]"):
        next(session)


def test_each_test_begins_with_a_prefix_of_its_own_and_ends_its_machines(account):
    class Tests(LiveProvisionerTests):
        pass

    first = account.prefix
    lent = Tests.account.__wrapped__(Tests(), account)
    assert next(lent).prefix != first
    launch(account)
    with suppress(StopIteration):
        next(lent)
    assert account.cloud.alive() == []
