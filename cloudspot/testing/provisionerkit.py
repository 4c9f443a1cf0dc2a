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

A broken promise here costs money: a machine too many, or a machine that is never ended.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

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
)
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Account, Call, Fault
from cloudspot.testing.kit import cases, no_network
from cloudspot.testing.launchingkit import LaunchingKit, alive, are_untouched, ids, stored, wait, wait_for_end

NUM_WRITERS = 8


class ProvisionerTests(LaunchingKit):
    """A test for each promise of Provisioner; the fixture ``account`` is an Account."""

    # --- options -------------------------------------------------------------------------------------

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
        again = stored(group, InstanceGroup)
        provisioner = account.provider().provisioner()
        with no_network():
            first, second = provisioner.render(group), provisioner.render(again)
        assert msgspec.json.encode(first) == msgspec.json.encode(second)

    def test_a_request_is_the_same_after_it_was_stored(self, account: Account) -> None:
        request = self._request(account, num_nodes=2)
        assert stored(request, LaunchRequest) == request
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
        wait(
            account,
            lambda: sorted(one.rank for one in alive(account) if one.rank is not None) == [0, 1, 2],
            "the listing has three machines of ranks 0, 1 and 2",
        )
        for one in alive(account):
            assert (one.job_id, one.launch, one.store_url) == (f"{account.prefix}1", 7, self.stores[0])
            assert one.instance_type in {None, group.offer.instance_type}
            assert one.market in {None, group.offer.market}
            assert one.ended_at is None
        assert len({one.zone for one in alive(account)}) == 1, "the machines are in different zones"

    def test_the_same_token_and_request_give_the_same_machines(self, account: Account) -> None:
        request = self._request(account, num_nodes=2)
        first = self._create(account, request)
        again = self._create(account, request)
        assert ids(again) == ids(first)
        assert account.running() == set(ids(first))

    def test_another_token_gives_other_machines(self, account: Account) -> None:
        first = self._create(account, self._request(account))
        other = self._create(account, self._request(account, launch=2), token="2")
        assert set(ids(first)).isdisjoint(ids(other))
        assert account.running() == {*ids(first), *ids(other)}

    def test_many_at_once_with_one_token_make_one_set_of_machines(self, account: Account) -> None:
        request = self._request(account, num_nodes=2)
        provisioner, token = account.provider().provisioner(), f"{account.prefix}1"
        with ThreadPoolExecutor(NUM_WRITERS) as pool:
            made = list(
                pool.map(lambda _: plaincalls.create(provisioner, request, token=token), range(NUM_WRITERS))
            )
        assert len({tuple(ids(each)) for each in made}) == 1
        assert account.running() == set(ids(made[0]))

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
        wait(
            account,
            lambda: sorted(one.rank for one in alive(account) if one.rank is not None) == [0, 1],
            "two machines have ranks 0 and 1",
        )
        account.limit(None)
        assert ids(self._create(account, request)) == ids(made)
        assert account.running() == set(ids(made))

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
        assert account.running() == set(ids(made))
        assert len(made) == 2

    @cases(
        "fault, kind",
        {
            "unwell": (Fault.UNWELL, TransientError),
            "throttled": (Fault.THROTTLED, TransientError),
            "denied": (Fault.DENIED, AuthError),
            "quota": (Fault.QUOTA, QuotaError),
            "refused": (Fault.REFUSED, ProvisionError),
        },
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
        plaincalls.terminate(account.provider().provisioner(), ids(made))
        wait_for_end(account)
        try:
            again = self._create(account, request)
        except ProvisionError:
            again = made
        assert ids(again) == ids(made)
        assert account.running() == set()

    def test_a_replay_when_one_of_two_machines_has_ended_harms_neither_the_other_nor_the_bill(
        self, account: Account
    ) -> None:
        request = self._request(account, num_nodes=2)
        ended, other = ids(self._create(account, request))
        wait(account, lambda: len(alive(account)) == 2, "both machines are listed")
        plaincalls.terminate(account.provider().provisioner(), [ended])
        wait(account, lambda: are_untouched(account, {other}), "the first machine ends")
        again = self._create(account, request)
        assert are_untouched(account, {other})
        assert other in ids(again), "a running machine is missing in the result"
        assert set(ids(again)) <= {ended, other}

    # --- instances --------------------------------------------------------------------------------

    def test_a_job_sees_its_own_machines_only(self, account: Account) -> None:
        (one,) = self._create(account, self._request(account))
        (other,) = self._create(account, self._request(account, job_id=f"{account.prefix}2"), token="2")
        listed = account.provider().provisioner()
        wait(account, lambda: len(alive(account)) == 2, "both machines are listed")
        assert ids(plaincalls.instances(listed, job_id=f"{account.prefix}1")) == [one.id]
        assert ids(plaincalls.instances(listed, job_id=f"{account.prefix}2")) == [other.id]
        assert list(plaincalls.instances(listed, job_id=f"{account.prefix}none")) == []

    def test_machines_of_two_stores_jobs_of_one_name_are_told_apart(self, account: Account) -> None:
        made = {
            store: self._create(account, self._request(account, store_url=store), token=str(number))[0].id
            for number, store in enumerate(self.stores)
        }
        assert len(set(made.values())) == 2
        wait(
            account,
            lambda: {one.store_url: one.id for one in alive(account)} == made,
            "the listing tells of which store each machine is",
        )
        for store, machine in made.items():
            found = plaincalls.instances(account.provider().provisioner(), store_url=store)
            assert [one.id for one in found if one.job_id.startswith(account.prefix)] == [machine]

    def test_a_new_machine_that_no_listing_shows_yet_is_found_by_its_token(self, account: Account) -> None:
        request = self._request(account)
        account.lag(10.0)
        made = self._create(account, request)
        assert ids(self._create(account, request)) == ids(made)
        account.pass_time(10.0)
        wait(account, lambda: ids(alive(account)) == ids(made), "one machine is listed")

    def test_a_terminated_machine_is_listed_with_its_reason_or_no_more(self, account: Account) -> None:
        made = self._create(account, self._request(account))
        wait(account, lambda: alive(account), "the machine is listed")
        plaincalls.terminate(account.provider().provisioner(), ids(made))
        wait_for_end(account)
        for one in account.listed():
            assert (one.id, one.end_reason) == (made[0].id, EndReason.TERMINATED)

    def test_a_machine_that_is_said_to_have_ended_runs_no_more(self, account: Account) -> None:
        first, second = ids(self._create(account, self._request(account, num_nodes=2)))
        wait(account, lambda: len(alive(account)) == 2, "both machines are listed")
        plaincalls.terminate(account.provider().provisioner(), [first])

        def has_ended() -> bool:
            ended = {one.id for one in account.listed() if one.state is InstanceState.ENDED}
            running = account.running()
            assert ended & running == set(), "reported as ended, but still billed"
            return first not in running

        wait(account, has_ended, "the first machine ends")
        assert account.running() == {second}

    def test_the_times_of_a_machine_are_those_of_its_life_and_have_a_zone(self, account: Account) -> None:
        self._create(account, self._request(account))
        wait(account, lambda: alive(account), "the machine is listed")
        (first,) = account.listed()
        account.pass_time(2.0)
        (later,) = account.listed()
        assert later.launched_at == first.launched_at
        plaincalls.terminate(account.provider().provisioner(), [first.id])
        wait_for_end(account)
        ended = account.listed()
        account.pass_time(2.0)
        times = {one.id: one.ended_at for one in account.listed()}
        assert {one.id: one.ended_at for one in ended if one.id in times} == times
        for moment in (first.launched_at, *times.values()):
            assert moment is None or moment.utcoffset() is not None, f"{moment} has no zone"
            assert moment is None or first.launched_at is None or moment >= first.launched_at

    def test_a_reclaimed_machine_says_so(self, account: Account) -> None:
        (made,) = self._create(account, self._request(account))
        wait(account, lambda: alive(account), "the machine is listed")
        account.reclaim(made.id)
        wait_for_end(account)
        found = plaincalls.instances(account.provider().provisioner(), job_id=f"{account.prefix}1")
        told = [(one.id, one.state, one.end_reason) for one in found]
        assert told == [(made.id, InstanceState.ENDED, EndReason.RECLAIMED)]

    @cases(
        "fault, kind",
        {
            "unwell": (Fault.UNWELL, TransientError),
            "throttled": (Fault.THROTTLED, TransientError),
            "denied": (Fault.DENIED, AuthError),
        },
    )
    def test_a_listing_that_fails_tells_nothing(
        self, account: Account, fault: Fault, kind: type[CloudspotError]
    ) -> None:
        """An empty result would prove that every machine is dead."""
        self._create(account, self._request(account))
        account.inject(Call.LIST, fault)
        with pytest.raises(kind) as caught:
            plaincalls.instances(account.provider().provisioner())
        assert type(caught.value) is kind
        account.heal()
        wait(account, lambda: len(alive(account)) == 1, "the machine is listed again")

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
            wait(account, lambda: account.running() == {third.id}, "only the third machine runs")

    def test_terminating_nothing_is_no_error(self, account: Account) -> None:
        (made,) = self._create(account, self._request(account))
        wait(account, lambda: alive(account), "the machine is listed")
        plaincalls.terminate(account.provider().provisioner(), [])
        assert are_untouched(account, {made.id})

    def test_announcing_is_safe_to_repeat_and_says_if_it_has_to_be(self, account: Account) -> None:
        made = self._create(account, self._request(account, num_nodes=2))
        wait(account, lambda: len(alive(account)) == 2, "both machines are listed")
        provisioner = account.provider().provisioner()
        facts = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
        for _ in range(2):
            provisioner.announce(made, facts)
        plaincalls.terminate(provisioner, ids(made))
        wait_for_end(account)
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
        plaincalls.terminate(provisioner, ids(made[0]))
        others = set(ids(made[1]))
        wait(account, lambda: are_untouched(account, others), "the machines of the first job end")
        for _ in range(2):
            provisioner.release(f"{account.prefix}1", store_url=self.stores[0])
        assert are_untouched(account, others)
        provisioner.release(f"{account.prefix}none", store_url=self.stores[0])

    def test_the_console_of_a_machine_is_text(self, account: Account) -> None:
        (made,) = self._create(account, self._request(account))
        wait(account, lambda: alive(account), "the machine is listed")
        assert isinstance(account.provider().provisioner().console(made), str)

    def test_the_inventory_lists_the_machines_and_ends_them(self, account: Account) -> None:
        made = self._create(account, self._request(account, num_nodes=2))
        wait(account, lambda: len(alive(account)) == 2, "both machines are listed")
        for inventory in account.provider().inventories(all_regions=False):
            for asset in inventory.assets(()):
                if asset.kind == "machine" and asset.job_id.startswith(account.prefix):
                    assert asset.id in ids(made)
                    assert asset.store_url == self.stores[0]
                    for _ in range(2):
                        inventory.end(asset)
        wait_for_end(account)
