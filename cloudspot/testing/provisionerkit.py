"""The promises of a provisioner as tests, which a plugin's author subclasses.

::

    from cloudspot.testing.account import Account, Call, Fault
    from cloudspot.testing.provisionerkit import ProvisionerTests

    class MyAccount(Account):
        ...  # how to make the emulated cloud refuse, lag and reclaim

    class TestMyProvisioner(ProvisionerTests):
        @pytest.fixture
        def account(self):
            return MyAccount()

Here money is lost: a machine too many, or one that nobody ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest

from cloudspot.decoding import convert, decode
from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    ProvisionError,
    QuotaError,
    TransientError,
)
from cloudspot.model import (
    EndReason,
    Instance,
    InstanceGroup,
    InstanceState,
    LaunchRequest,
    Market,
    Offer,
    Resources,
)
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Account, Call, Fault
from cloudspot.testing.kit import Kit, no_network, wait_until

T = TypeVar("T")

NUM_WRITERS = 8


class ProvisionerTests(Kit):
    """A test for each promise of Provisioner; the fixture ``account`` is an Account."""

    resources: ClassVar[Resources] = Resources()
    """What the machines must have."""
    user_data: ClassVar[str] = "#!/usr/bin/env bash\nsleep 600\n"
    """The boot script."""
    stores: ClassVar[tuple[str, str]] = ("file:///kit/a", "file:///kit/b")
    """Two stores, as their ``canonical_url`` has them."""

    # --- offers -----------------------------------------------------------------------------------

    def test_each_offer_has_a_name_of_its_own_and_a_price(self, account: Account) -> None:
        offers = plaincalls.offers(account.provider().provisioner(), self.resources)
        assert offers, f"nothing is offered for {self.resources}"
        assert len({offer.key for offer in offers}) == len(offers)
        for offer in offers:
            for price in (offer.price_per_hour, offer.on_demand_price_per_hour):
                assert 0 < price < math.inf, offer.key
            assert offer.zone, offer.key
            assert offer.instance_type, offer.key
            assert _stored(offer, Offer) == offer

    def test_what_nobody_sells_is_not_offered(self, account: Account) -> None:
        wish = Resources(accelerator="kit-does-not-exist", accelerator_count=8)
        assert list(plaincalls.offers(account.provider().provisioner(), wish)) == []

    def test_what_an_offer_costs_now_is_a_price_or_unknown(self, account: Account) -> None:
        offer = self._offer(account)
        price = account.provider().provisioner().current_price(offer)
        assert price is None or 0 < price < math.inf

    def test_what_the_environment_decides_is_stored_and_decides_again(self, account: Account) -> None:
        provider = account.provider()
        pinned = dict(provider.pinned_options())
        options = {**msgspec.to_builtins(provider.options), **pinned}
        again = type(provider)(
            convert(decode(msgspec.json.encode(options), dict[str, Any]), provider.options_type)
        )
        decided = decode(msgspec.json.encode(again.options), dict[str, Any])
        assert {name: decided[name] for name in pinned} == pinned

    # --- the request ------------------------------------------------------------------------------

    def test_rendering_asks_nobody_and_gives_the_same_request_each_time(self, account: Account) -> None:
        group = self._group(account, num_nodes=2)
        stored = _stored(group, InstanceGroup)
        provisioner = account.provider().provisioner()
        with no_network():
            first, second = provisioner.render(group), provisioner.render(stored)
        assert msgspec.json.encode(first) == msgspec.json.encode(second)

    def test_a_request_is_the_same_after_it_was_stored(self, account: Account) -> None:
        request = self._request(account, num_nodes=2)
        assert _stored(request, LaunchRequest) == request
        assert request.provider == account.provider().name

    def test_a_request_of_another_provider_is_refused(self, account: Account) -> None:
        request = LaunchRequest(provider="kit-another", body={"job_id": f"{account.prefix}1"})
        with pytest.raises(ProvisionError):
            self._create(account, request)
        assert account.running() == set()

    # --- create -----------------------------------------------------------------------------------

    def test_a_launch_makes_all_its_machines_and_the_listing_tells_whose_they_are(
        self, account: Account
    ) -> None:
        group = self._group(account, num_nodes=3, launch=7)
        made = self._create(account, account.provider().provisioner().render(group))
        assert len({one.id for one in made}) == 3
        assert {(one.job_id, one.launch) for one in made} == {(f"{account.prefix}1", 7)}
        assert {one.id for one in made} == account.running()
        _wait(
            account,
            lambda: sorted(one.rank for one in _alive(account) if one.rank is not None) == [0, 1, 2],
            "the listing has three machines of ranks 0, 1 and 2",
        )
        for one in _alive(account):
            assert (one.job_id, one.launch, one.store_url) == (f"{account.prefix}1", 7, self.stores[0])
            assert one.instance_type in {None, group.offer.instance_type}
            assert one.market in {None, group.offer.market}
            assert one.ended_at is None
        assert len({one.zone for one in _alive(account)}) == 1, "they cannot reach each other quickly"

    def test_the_same_token_and_request_give_the_same_machines(self, account: Account) -> None:
        request = self._request(account, num_nodes=2)
        first = self._create(account, request)
        again = self._create(account, request)
        assert _ids(again) == _ids(first)
        assert account.running() == set(_ids(first))

    def test_another_token_gives_other_machines(self, account: Account) -> None:
        first = self._create(account, self._request(account))
        other = self._create(account, self._request(account, launch=2), token="2")
        assert set(_ids(first)).isdisjoint(_ids(other))
        assert account.running() == {*_ids(first), *_ids(other)}

    def test_many_at_once_with_one_token_make_one_set_of_machines(self, account: Account) -> None:
        request = self._request(account, num_nodes=2)
        provisioner, token = account.provider().provisioner(), f"{account.prefix}1"
        with ThreadPoolExecutor(NUM_WRITERS) as pool:
            made = list(
                pool.map(lambda _: plaincalls.create(provisioner, request, token=token), range(NUM_WRITERS))
            )
        assert len({tuple(_ids(each)) for each in made}) == 1
        assert account.running() == set(_ids(made[0]))

    def test_many_launches_at_once_get_machines_of_their_own(self, account: Account) -> None:
        provisioner = account.provider().provisioner()
        requests = [self._request(account, job_id=f"{account.prefix}{number}") for number in range(4)]

        def launch(number: int) -> Instance:
            (made,) = plaincalls.create(provisioner, requests[number], token=f"{account.prefix}{number}")
            plaincalls.instances(provisioner, job_id=made.job_id)
            return made

        with ThreadPoolExecutor(len(requests)) as pool:
            made = list(pool.map(launch, range(len(requests))))
        assert [one.job_id for one in made] == [f"{account.prefix}{number}" for number in range(4)]
        assert account.running() == {one.id for one in made}
        assert len(account.running()) == 4

    def test_without_room_for_all_there_are_none(self, account: Account) -> None:
        request = self._request(account, num_nodes=2)
        account.limit(1)
        for _ in range(2):
            with pytest.raises(CapacityError):
                self._create(account, request)
            assert account.running() == set()

    def test_fewer_than_wished_but_enough_are_kept_and_a_replay_finds_them(self, account: Account) -> None:
        request = self._request(account, num_nodes=3, min_nodes=2)
        account.limit(2)
        made = self._create(account, request)
        assert len(made) == 2
        _wait(
            account,
            lambda: sorted(one.rank for one in _alive(account) if one.rank is not None) == [0, 1],
            "two machines have ranks 0 and 1",
        )
        account.limit(None)
        assert _ids(self._create(account, request)) == _ids(made)
        assert account.running() == set(_ids(made))

    def test_fewer_than_needed_are_none(self, account: Account) -> None:
        self._find_too_few(account, Market.SPOT)

    def test_fewer_on_demand_than_needed_are_none(self, account: Account) -> None:
        self._find_too_few(account, Market.ON_DEMAND)

    def _find_too_few(self, account: Account, market: Market) -> None:
        request = self._request(account, num_nodes=4, min_nodes=3, market=market)
        account.limit(2)
        with pytest.raises(CapacityError):
            self._create(account, request)
        assert account.running() == set()

    def test_a_lost_answer_makes_no_second_machine(self, account: Account) -> None:
        request = self._request(account, num_nodes=2)
        account.inject(Call.CREATE, Fault.LOST_ANSWER)
        try:
            made = self._create(account, request)
        except TransientError:
            made = self._create(account, request)
        assert account.running() == set(_ids(made))
        assert len(made) == 2

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            (Fault.UNWELL, TransientError),
            (Fault.THROTTLED, TransientError),
            (Fault.DENIED, AuthError),
            (Fault.QUOTA, QuotaError),
            (Fault.REFUSED, ProvisionError),
        ],
    )
    def test_each_refusal_of_a_launch_says_what_to_do_next_and_leaves_nothing(
        self, account: Account, fault: Fault, kind: type[CloudspotError]
    ) -> None:
        request = self._request(account, num_nodes=2)
        account.inject(Call.CREATE, fault)
        with pytest.raises(kind) as caught:
            self._create(account, request)
        assert type(caught.value) is kind
        account.heal()
        assert account.running() == set()
        if kind is TransientError:
            assert len(self._create(account, request)) == 2

    def test_a_token_whose_machines_have_ended_makes_no_others(self, account: Account) -> None:
        request = self._request(account)
        made = self._create(account, request)
        plaincalls.terminate(account.provider().provisioner(), _ids(made))
        _wait_for_end(account)
        try:
            again = self._create(account, request)
        except ProvisionError:
            again = made
        assert _ids(again) == _ids(made)
        assert account.running() == set()

    # --- instances --------------------------------------------------------------------------------

    def test_a_job_sees_its_own_machines_only(self, account: Account) -> None:
        (one,) = self._create(account, self._request(account))
        (other,) = self._create(account, self._request(account, job_id=f"{account.prefix}2"), token="2")
        listed = account.provider().provisioner()
        _wait(account, lambda: len(_alive(account)) == 2, "both machines are listed")
        assert _ids(plaincalls.instances(listed, job_id=f"{account.prefix}1")) == [one.id]
        assert _ids(plaincalls.instances(listed, job_id=f"{account.prefix}2")) == [other.id]
        assert list(plaincalls.instances(listed, job_id=f"{account.prefix}none")) == []

    def test_machines_of_two_stores_jobs_of_one_name_are_told_apart(self, account: Account) -> None:
        made = {
            store: self._create(account, self._request(account, store_url=store), token=str(number))[0].id
            for number, store in enumerate(self.stores)
        }
        assert len(set(made.values())) == 2
        _wait(
            account,
            lambda: {one.store_url: one.id for one in _alive(account)} == made,
            "the listing tells of which store each machine is",
        )
        for store, machine in made.items():
            found = plaincalls.instances(account.provider().provisioner(), store_url=store)
            assert [one.id for one in found if one.job_id.startswith(account.prefix)] == [machine]

    def test_a_new_machine_that_no_listing_shows_yet_is_found_by_its_token(self, account: Account) -> None:
        request = self._request(account)
        account.lag(10.0)
        made = self._create(account, request)
        assert _ids(self._create(account, request)) == _ids(made)
        account.pass_time(10.0)
        _wait(account, lambda: _ids(_alive(account)) == _ids(made), "one machine is listed")

    def test_a_terminated_machine_is_listed_with_its_reason_or_no_more(self, account: Account) -> None:
        made = self._create(account, self._request(account))
        _wait(account, lambda: _alive(account), "the machine is listed")
        plaincalls.terminate(account.provider().provisioner(), _ids(made))
        _wait_for_end(account)
        for one in account.listed():
            assert (one.id, one.end_reason) == (made[0].id, EndReason.TERMINATED)

    def test_a_reclaimed_machine_says_so(self, account: Account) -> None:
        (made,) = self._create(account, self._request(account))
        _wait(account, lambda: _alive(account), "the machine is listed")
        account.reclaim(made.id)
        _wait_for_end(account)
        found = plaincalls.instances(account.provider().provisioner(), job_id=f"{account.prefix}1")
        told = [(one.id, one.state, one.end_reason) for one in found]
        assert told == [(made.id, InstanceState.ENDED, EndReason.RECLAIMED)]

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [(Fault.UNWELL, TransientError), (Fault.THROTTLED, TransientError), (Fault.DENIED, AuthError)],
    )
    def test_a_listing_that_fails_tells_nothing(
        self, account: Account, fault: Fault, kind: type[CloudspotError]
    ) -> None:
        """An empty answer would prove that every machine is dead."""
        self._create(account, self._request(account))
        account.inject(Call.LIST, fault)
        with pytest.raises(kind) as caught:
            plaincalls.instances(account.provider().provisioner())
        assert type(caught.value) is kind
        account.heal()
        _wait(account, lambda: len(_alive(account)) == 1, "the machine is listed again")

    def test_a_token_and_an_absence_count_for_some_time(self, account: Account) -> None:
        provisioner = account.provider().provisioner()
        assert 0 < provisioner.token_seconds < math.inf
        assert 0 < provisioner.absence_proves_after_seconds < math.inf

    # --- terminate, announce, release -------------------------------------------------------------

    def test_terminating_ends_what_is_named_and_passes_over_unknown_ids(self, account: Account) -> None:
        first, second, third = self._create(account, self._request(account, num_nodes=3))
        provisioner = account.provider().provisioner()
        for _ in range(2):
            plaincalls.terminate(provisioner, [*account.unknown_ids, first.id, second.id])
            _wait(account, lambda: account.running() == {third.id}, "only the third machine runs")

    def test_terminating_nothing_is_no_error(self, account: Account) -> None:
        (made,) = self._create(account, self._request(account))
        plaincalls.terminate(account.provider().provisioner(), [])
        assert account.running() == {made.id}

    def test_announcing_is_safe_to_repeat_and_says_if_it_has_to_be(self, account: Account) -> None:
        made = self._create(account, self._request(account, num_nodes=2))
        _wait(account, lambda: len(_alive(account)) == 2, "both machines are listed")
        provisioner = account.provider().provisioner()
        facts = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
        for _ in range(2):
            provisioner.announce(made, facts)
        plaincalls.terminate(provisioner, _ids(made))
        _wait_for_end(account)
        with suppress(TransientError):
            provisioner.announce(made, facts)

    def test_what_a_later_version_adds_is_passed_on_and_not_bought(self, account: Account) -> None:
        (made,) = self._create(account, self._request(account))
        provisioner = account.provider().provisioner()
        odd = msgspec.structs.replace(made, state=InstanceState("kit-unknown"), market=Market("kit-unknown"))
        assert isinstance(provisioner.console(odd), str)
        with suppress(TransientError):
            provisioner.announce([odd], {"MASTER_ADDR": "10.0.0.1"})
        group = self._group(account, launch=2)
        offer = msgspec.structs.replace(group.offer, market=Market("kit-unknown"))
        with pytest.raises(ProvisionError):
            provisioner.render(msgspec.structs.replace(group, offer=offer))
        assert account.running() == {made.id}

    def test_a_release_is_safe_to_repeat_and_harms_no_other_stores_job(self, account: Account) -> None:
        made = [
            self._create(account, self._request(account, num_nodes=2, store_url=store), token=str(number))
            for number, store in enumerate(self.stores)
        ]
        provisioner = account.provider().provisioner()
        plaincalls.terminate(provisioner, _ids(made[0]))
        _wait(account, lambda: account.running() == set(_ids(made[1])), "the machines of the first job end")
        for _ in range(2):
            provisioner.release(f"{account.prefix}1", store_url=self.stores[0])
        assert account.running() == set(_ids(made[1]))
        provisioner.release(f"{account.prefix}none", store_url=self.stores[0])

    def test_the_console_of_a_machine_is_text(self, account: Account) -> None:
        (made,) = self._create(account, self._request(account))
        _wait(account, lambda: _alive(account), "the machine is listed")
        assert isinstance(account.provider().provisioner().console(made), str)

    def test_the_inventory_lists_the_machines_and_ends_them(self, account: Account) -> None:
        made = self._create(account, self._request(account, num_nodes=2))
        _wait(account, lambda: len(_alive(account)) == 2, "both machines are listed")
        for inventory in account.provider().inventories(all_regions=False):
            for asset in inventory.assets(()):
                if asset.kind == "machine" and asset.job_id.startswith(account.prefix):
                    assert asset.id in _ids(made)
                    assert asset.store_url == self.stores[0]
                    for _ in range(2):
                        inventory.end(asset)
        _wait_for_end(account)

    # --- what the tests share ---------------------------------------------------------------------

    def _group(
        self, account: Account, *, num_nodes: int = 1, market: Market = Market.SPOT, **fields: Any
    ) -> InstanceGroup:
        group = InstanceGroup(
            **{
                "job_id": f"{account.prefix}1",
                "launch": 1,
                "num_nodes": num_nodes,
                "min_nodes": num_nodes,
                "job_nodes": num_nodes,
                "offer": self._offer(account, market),
                "resources": self.resources,
                "user_data": self.user_data,
                "max_seconds": 3600.0,
                "decided_at": datetime.now(timezone.utc),
                "store_url": self.stores[0],
                **fields,
            }
        )
        account.reserve(group)
        return group

    def _offer(self, account: Account, market: Market = Market.SPOT) -> Offer:
        """Return an offer, which is looked up once in each test."""
        offers = self.__dict__.setdefault("_offers", {})
        if market not in offers:
            found = plaincalls.offers(account.provider().provisioner(), self.resources)
            ours = sorted((one for one in found if one.market is market), key=lambda one: one.key)
            assert ours, f"nothing is offered on the {market.value} market for {self.resources}"
            offers[market] = ours[0]
        offer: Offer = offers[market]
        return offer

    def _request(self, account: Account, **fields: Any) -> LaunchRequest:
        return account.provider().provisioner().render(self._group(account, **fields))

    @staticmethod
    def _create(account: Account, request: LaunchRequest, *, token: str = "1") -> Sequence[Instance]:
        """Create by a provisioner that has seen nothing, as another process would."""
        return plaincalls.create(account.provider().provisioner(), request, token=account.prefix + token)


def _stored(value: msgspec.Struct, kind: type[T]) -> T:
    """Return the value as it comes back from a record."""
    stored: T = decode(msgspec.json.encode(value), kind)
    return stored


def _ids(instances: Sequence[Instance]) -> list[str]:
    return [one.id for one in instances]


def _alive(account: Account) -> list[Instance]:
    return [one for one in account.listed() if one.state is not InstanceState.ENDED]


def _wait(account: Account, condition: Callable[[], object], what: str) -> None:
    wait_until(condition, what, seconds=account.patience_seconds)


def _wait_for_end(account: Account) -> None:
    _wait(account, lambda: account.running() == set() and _alive(account) == [], "all machines end")
