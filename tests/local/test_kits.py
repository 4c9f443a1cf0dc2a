"""The provider ``local`` under the kits that every provider runs."""

from __future__ import annotations

from datetime import datetime, timezone
from types import MappingProxyType

import pytest
from support.clouds.troubled_service import troubled_services
from support.records.own_notes import note

from cloudspot.host.locks import try_lock
from cloudspot.local.metadata import METADATA
from cloudspot.local.options import LocalOptions
from cloudspot.local.provider import LocalProvider
from cloudspot.local.provisioner import INSTANCE_TYPE
from cloudspot.model import Market
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Account, Bought, Sold
from cloudspot.testing.machine import Machine
from cloudspot.testing.nodekit import NodeIdentityTests, PreemptionSourceTests
from cloudspot.testing.offerkit import OfferTests
from cloudspot.testing.providerkit import ProviderTests
from cloudspot.testing.provisionerkit import ProvisionerTests
from cloudspot.testing.purchasekit import PurchaseTests

NO_SERVICE = "the machines are this computer's processes: no service stands between that could fail"


FIT = "test_all_that_the_cloud_sells_is_offered_that_has_the_resources_and_nothing_else"


class LocalAccount(Account):
    unknown_ids = ("m-unknown-0", "../..")

    def __init__(self):
        self.capacity = {}

    def provider(self):
        return LocalProvider(LocalOptions(capacity=self.capacity))

    def reserve(self, group):
        note(group.job_id, store_url=group.store_url)

    def sold(self):
        options = self.provider().options
        prices = {Market.SPOT: options.spot_price, Market.ON_DEMAND: options.on_demand_price}
        return [
            Sold(instance_type=INSTANCE_TYPE, zone=zone, market=market, price_per_hour=price)
            for zone in options.zones
            for market, price in prices.items()
        ]

    def bought(self, instance_id):
        """Return what the machine's directory has."""
        machine = self.provider().provisioner()._find(instance_id)
        record = machine.record()
        return Bought(
            user_data=machine.user_data.read_text(),
            instance_type=record.instance_type,
            zone=record.zone,
            market=record.market,
            max_seconds=record.max_seconds,
        )

    def limit(self, num_machines):
        self.capacity = {} if num_machines is None else {"local-a": num_machines}


@pytest.mark.costly
@pytest.mark.usefixtures("local_home")
class TestLocalProvisioner(ProvisionerTests, PurchaseTests, OfferTests):
    deviations = MappingProxyType(
        {
            "test_what_nobody_sells_is_not_offered": "a job for accelerators is rehearsed with what there is",
            **{
                f"{FIT}[{case}]": "a machine is this computer"
                for case in ("processors", "memory", "accelerators")
            },
            "test_a_machine_is_of_the_type_that_was_asked_for": "a machine is this computer",
            "test_a_machine_has_the_disk_that_was_asked_for": "the disk is this computer's",
            "test_a_machine_bears_the_labels_of_its_job": "nobody looks for processes by labels",
            "test_fewer_on_demand_than_needed_are_none": "on demand there is always room",
            "test_a_lost_answer_makes_no_second_machine": NO_SERVICE,
            "test_each_refusal_of_a_launch_says_what_to_do_next_and_leaves_nothing": NO_SERVICE,
            "test_a_new_machine_that_no_listing_shows_yet_is_found_by_its_token": NO_SERVICE,
            "test_a_listing_that_fails_tells_nothing": NO_SERVICE,
        }
    )

    @pytest.fixture
    def account(self):
        return LocalAccount()


class LocalMachine(Machine):
    notice_seconds = 10.0

    def __init__(self, host, directory, monkeypatch, troubled):
        self.monkeypatch, self.troubled = monkeypatch, troubled
        self.host, self.directory, self.instance = host, directory, host.instance(directory)

    def provider(self):
        return LocalProvider()

    def give_notice(self, deadline):
        if deadline is None:
            raise NotImplementedError
        seconds = (deadline - datetime.now(timezone.utc)).total_seconds()
        plaincalls.preempt(LocalProvider(), self.instance.id, notice_seconds=seconds)

    def silence(self):
        plaincalls.terminate(LocalProvider().provisioner(), [self.instance.id])
        self.host.wait_until(self.has_no_supervisor)

    def trouble_with(self, trouble):
        self.monkeypatch.setenv(METADATA, self.troubled(trouble))

    def has_no_supervisor(self):
        with try_lock(self.directory.lock) as is_free:
            return is_free


@pytest.mark.full
class TestLocalMachine(PreemptionSourceTests, NodeIdentityTests):
    deviations = MappingProxyType(
        {
            "test_a_notice_without_a_time_is_heard_without_one": "a notice here always has a time",
            **dict.fromkeys(
                (
                    "test_a_notice_is_heard_behind_what_does_not_take_the_machine",
                    "test_what_does_not_take_the_machine_is_no_notice",
                ),
                "a process of this computer hears of nothing but its own end",
            ),
        }
    )

    @pytest.fixture
    def machine(self, host, monkeypatch):
        directory = host.launch("sleep 1000", num_nodes=2)[1]
        monkeypatch.setenv(METADATA, directory.supervisor().metadata_url)
        with troubled_services() as troubled:
            yield LocalMachine(host, directory, monkeypatch, troubled)


@pytest.mark.usefixtures("local_home")
class TestLocalProvider(ProviderTests):
    name = "local"
