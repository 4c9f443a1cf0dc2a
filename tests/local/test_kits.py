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
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Account
from cloudspot.testing.machine import Machine
from cloudspot.testing.nodekit import NodeIdentityTests, PreemptionSourceTests
from cloudspot.testing.providerkit import ProviderTests
from cloudspot.testing.provisionerkit import ProvisionerTests

NO_SERVICE = "the machines are this computer's processes: no service stands between that could fail"


class LocalAccount(Account):
    unknown_ids = ("m-unknown-0", "../..")

    def __init__(self):
        self.capacity = {}

    def provider(self):
        return LocalProvider(LocalOptions(capacity=self.capacity))

    def reserve(self, group):
        note(group.job_id, store_url=group.store_url)

    def limit(self, num_machines):
        self.capacity = {} if num_machines is None else {"local-a": num_machines}


@pytest.mark.costly
@pytest.mark.usefixtures("local_home")
class TestLocalProvisioner(ProvisionerTests):
    deviations = MappingProxyType(
        {
            "test_what_nobody_sells_is_not_offered": "a job for accelerators is rehearsed with what there is",
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
    notice_seconds = 30.0

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
