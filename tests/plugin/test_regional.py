"""One provisioner for several regions, each of which is a list in memory here."""

import threading

import pytest
from support.worlds.groups import group_of

from cloudspot.calls import (
    CreateResult,
    InstancesResult,
    OffersResult,
    Refused,
    TerminateRequest,
    TerminateResult,
)
from cloudspot.errors import AuthError, ProvisionError, SpecError, TransientError
from cloudspot.interfaces import Provisioner
from cloudspot.model import Instance, InstanceState, LaunchRequest, Market, Offer, Resources
from cloudspot.plugin.regional import RegionalProvisioner
from cloudspot.testing import plaincalls


class Region(Provisioner):
    """Knows its own machines only, and refuses the ids of others, as a test would notice."""

    token_seconds = 100.0
    absence_proves_after_seconds = 50.0

    def __init__(self, name):
        self.name = name
        self.machines = {}
        self.calls = []
        self.error = None
        self.protected = ()

    def _call(self, name, *what):
        self.calls.append((name, *what))
        if self.error is not None:
            raise self.error

    def render(self, group):
        return LaunchRequest(provider="sky", body={"region": self.name, "launch": group.launch})

    def create(self, request):
        self._call("create", request.token)
        one = Instance(id=f"i-{self.name}", state=InstanceState.PENDING, job_id="digits-1", launch=1)
        self.machines[one.id] = one
        return CreateResult(instances=(one,))

    def announce(self, instances, facts):
        self._call("announce", *(one.id for one in instances))

    def instances(self, request):
        self._call("instances", request.job_id)
        return InstancesResult(instances=tuple(self.machines.values()))

    def terminate(self, request):
        self._call("terminate", *request.instance_ids)
        return TerminateResult(
            refused=tuple(
                Refused(instance_id=one, reason="it is protected")
                for one in request.instance_ids
                if one in self.protected
            )
        )

    def console(self, instance):
        return f"{instance.id} in {self.name}"

    def release(self, job_id, *, store_url=""):
        self._call("release", job_id)

    def offers(self, request):
        self._call("offers")
        offer = Offer(
            instance_type="big",
            zone=f"{self.name}a",
            market=Market.SPOT,
            price_per_hour=1.0,
            on_demand_price_per_hour=3.0,
            region=self.name,
        )
        return OffersResult(offers=(offer,))

    def current_price(self, offer):
        return float(self.name[-1])


@pytest.fixture
def sky():
    return {name: Region(name) for name in ("sky-1", "sky-2", "sky-3")}


@pytest.fixture
def both(sky):
    return RegionalProvisioner(sky)


def launch(both, region):
    offer = next(one for one in plaincalls.offers(both, Resources()) if one.region == region)
    (made,) = plaincalls.create(both, both.render(group_of(offer)), token="t")
    return made


def names(sky, call):
    return {name: [made[1:] for made in one.calls if made[0] == call] for name, one in sky.items()}


def test_offers_are_those_of_all_and_each_is_launched_and_priced_where_it_is(sky, both):
    offers = plaincalls.offers(both, Resources())
    assert [one.zone for one in offers] == ["sky-1a", "sky-2a", "sky-3a"]
    assert [both.current_price(one) for one in offers] == [1.0, 2.0, 3.0]
    assert launch(both, "sky-2").id == "i-sky-2"
    assert names(sky, "create") == {"sky-1": [], "sky-2": [("t",)], "sky-3": []}


def test_a_request_or_an_offer_of_another_region_is_refused_and_not_sent_elsewhere(sky, both):
    with pytest.raises(
        ProvisionError, match=r"the launch is for sky-9, but the job's regions are sky-1, sky-2"
    ):
        plaincalls.create(both, LaunchRequest(provider="sky", body={"region": "sky-9"}), token="t")
    (offer,) = plaincalls.offers(Region("sky-9"), Resources())
    with pytest.raises(ProvisionError, match="spot/sky-9a/big is in none of the job's regions"):
        both.render(group_of(offer))


def test_the_listing_is_complete_or_there_is_none(sky, both):
    launch(both, "sky-1"), launch(both, "sky-3")
    assert [one.id for one in plaincalls.instances(both, job_id="digits-1")] == ["i-sky-1", "i-sky-3"]
    sky["sky-2"].error = TransientError("sky-2 does not answer")
    with pytest.raises(TransientError, match="sky-2 does not answer"):
        plaincalls.instances(both)


def test_a_machine_is_ended_where_it_was_seen_and_an_unknown_one_wherever_it_may_be(sky, both):
    one = launch(both, "sky-2")
    plaincalls.terminate(both, [one.id, "i-stranger"])
    assert names(sky, "terminate") == {
        "sky-1": [("i-stranger",)],
        "sky-2": [(one.id, "i-stranger")],
        "sky-3": [("i-stranger",)],
    }


def test_a_region_that_fails_does_not_keep_the_machines_of_another(sky, both):
    ones = [launch(both, name) for name in sky]
    sky["sky-1"].error = TransientError("later")
    sky["sky-2"].error = AuthError("the right is missing")
    request = TerminateRequest(instance_ids=tuple(one.id for one in ones))
    assert told(both.terminate(request)) == {"i-sky-1": "later", "i-sky-2": "the right is missing"}
    assert names(sky, "terminate")["sky-3"] == [("i-sky-3",)]
    sky["sky-3"].error = TransientError("later")
    with pytest.raises(AuthError):
        both.terminate(request)
    sky["sky-3"].error = None
    with pytest.raises(AuthError):
        both.release("digits-1")
    assert names(sky, "release")["sky-3"] == [("digits-1",)]


def test_a_region_that_does_not_answer_or_has_a_bug_holds_up_no_other(sky, both, monkeypatch):
    ones = [launch(both, name) for name in sky]
    sky["sky-2"].error = KeyError("state")
    answered, terminate = threading.Event(), sky["sky-3"].terminate
    monkeypatch.setattr(sky["sky-3"], "terminate", lambda request: (answered.set(), terminate(request))[1])
    monkeypatch.setattr(sky["sky-1"], "terminate", lambda _: answered.wait(60.0) and TerminateResult())
    found = both.terminate(TerminateRequest(instance_ids=tuple(one.id for one in ones)))
    assert told(found) == {"i-sky-2": "KeyError: 'state'"}
    assert names(sky, "terminate")["sky-3"] == [("i-sky-3",)]


def test_a_machine_that_a_region_refuses_to_end_is_told(sky, both):
    ones = [launch(both, name) for name in sky]
    sky["sky-2"].protected = ("i-sky-2",)
    found = both.terminate(TerminateRequest(instance_ids=tuple(one.id for one in ones)))
    assert told(found) == {"i-sky-2": "it is protected"}


def told(result):
    return {one.instance_id: one.reason for one in result.refused}


def test_machines_that_another_driver_has_made_are_found_by_a_listing(sky, both):
    made = launch(both, "sky-3")
    fresh = RegionalProvisioner(sky)
    assert fresh.console(made) == "i-sky-3 in sky-3"
    fresh.announce([made], {"NUM_NODES": "1"})
    assert names(sky, "announce") == {"sky-1": [], "sky-2": [], "sky-3": [("i-sky-3",)]}
    lost = Instance(id="i-lost", state=InstanceState.RUNNING, job_id="digits-1", launch=1)
    with pytest.raises(TransientError, match="i-lost is listed in none of sky-1, sky-2, sky-3"):
        fresh.console(lost)


def test_what_is_wrong_in_one_region_is_said(sky, both):
    sky["sky-2"].error = SpecError('providers.sky.types: sky-2 has no "big"')
    with pytest.raises(SpecError, match="sky-2 has no"):
        plaincalls.offers(both, Resources())


def test_the_promises_are_the_weakest_of_all(sky):
    sky["sky-2"].token_seconds = 10.0
    sky["sky-3"].absence_proves_after_seconds = 900.0
    both = RegionalProvisioner(sky)
    assert (both.token_seconds, both.absence_proves_after_seconds) == (10.0, 900.0)
