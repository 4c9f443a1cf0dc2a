"""What the interfaces themselves promise: whatever a store claims in a listing is checked at one place."""

import math
import time
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
from support.stores.memorystore import InMemoryStore
from support.worlds.groups import group_of

from cloudspot import interfaces
from cloudspot.calls import InstancesResult, OffersRequest, OffersResult
from cloudspot.controller.account_orphans import AccountReaper
from cloudspot.decoding import convert, decode
from cloudspot.errors import ProvisionError, StoreRefused, TransientError
from cloudspot.interfaces import Provider, Provisioner
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.jobs import removal
from cloudspot.jobstore.jobs.store_inventory import SharedObjectInventory
from cloudspot.jobstore.layout import keys
from cloudspot.model import (
    Billing,
    EndReason,
    Instance,
    InstanceState,
    LaunchRequest,
    Market,
    NodeIdentity,
    ObjectMeta,
    ObjectPage,
    Offer,
    Resources,
)
from cloudspot.testing import plaincalls

NOW = datetime(2026, 11, 1, tzinfo=timezone.utc)


class LyingStore(InMemoryStore):
    """A plugin's store whose answers a proxy changes."""

    def __init__(self):
        super().__init__("lying://bucket")
        self.change = lambda page, prefix, after: page
        self.change_head = lambda meta: meta

    def list_page(self, prefix, *, after=None, limit=1000):
        return self.change(super().list_page(prefix, after=after, limit=limit), prefix, after)

    def head(self, key):
        return self.change_head(super().head(key))


class PagingStore(LyingStore):
    """One with pages of its own, as the store in a directory has."""

    def list_pages(self, prefix, *, after=None):
        page = InMemoryStore.list_page(self, prefix, after=after)
        for number in range(3):
            yield self.change(page if number == 0 else ObjectPage(objects=(), next_after=None), prefix, after)


def fill(store):
    for job in "abc":
        store.put(keys.index(job), b"n")
        store.put(keys.spec(job), b"{}")
        store.put(f"jobs/{job}/journal/00000001", b"{}")
        store.put(f"jobs/{job}/checkpoints/x", b"weights")
    store.put("somebody-elses/data.bin", b"precious")


@pytest.fixture
def store():
    store = LyingStore()
    fill(store)
    return store


def ignores_prefix(store):
    def change(page, prefix, after):
        return InMemoryStore.list_page(store, "", after=after)

    return change


def test_a_listing_that_ignores_its_prefix_removes_nothing_of_others(store):
    store.change = ignores_prefix(store)
    before = set(store._objects)
    with pytest.raises(StoreRefused, match=r"the listing of jobs/a/ also holds 'index/a'") as caught:
        removal.remove_job(store, "a")
    assert "\n" not in str(caught.value)
    assert before - set(store._objects) == {keys.spec("a")}


def test_reap_deletes_nothing_where_listings_ignore_their_prefix(store):
    store.put("agents/" + "0" * 64, b"wheels")
    store.change = ignores_prefix(store)
    before = dict(store._objects)
    inventory = SharedObjectInventory(store, "lying://bucket")
    reaper = AccountReaper([[inventory]], [store], now=lambda: NOW, sleep=lambda seconds: None)
    judged, problems = reaper.find()
    assert judged == ()
    assert "ignores the prefix" in str(problems[0].error)
    assert store._objects == before


def meta(key, size=1, at=NOW):
    return ObjectMeta(key=key, size=size, modified_at=at)


def page(*objects, next_after=None):
    return ObjectPage(objects=objects, next_after=next_after)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (page(meta("p/a"), meta("q/a")), "also holds 'q/a'"),
        (
            page(
                meta("p"),
            ),
            "also holds 'p'",
        ),
        (page(meta("p/b"), meta("p/a")), "does not move forward"),
        (page(meta("p/b"), meta("p/b")), "does not move forward"),
        (page(meta("p/a", -1)), "it reports -1 bytes"),
        (page(meta("p/a", 10**30)), r"it reports 1e\+30 bytes"),
        (page(meta("p/a", 1 << 60)), "bytes"),
        (page(meta("p/../q")), "not a key"),
        (page(meta("p/" + "x" * 5000)), "not a key"),
        (page(meta("p/a", at=datetime(2026, 11, 1))), "as the time of"),  # noqa: DTZ001 - the fault
        (page(meta("p/a", at=datetime(1969, 12, 31, tzinfo=timezone.utc))), "as the time of"),
        (page(meta("p/a", at=datetime(9999, 12, 31, tzinfo=timezone.utc))), "as the time of"),
        (page(next_after=""), "does not move forward"),
        (page(meta("p/b"), next_after="p/a"), "does not move forward"),
    ],
)
@pytest.mark.parametrize("store_type", [LyingStore, PagingStore])
def test_what_a_listing_cannot_say_is_refused_in_one_line(store_type, answer, fault):
    store = store_type()
    store.change = lambda page, prefix, after: answer
    for read in (
        lambda: list(store.list_objects("p/")),
        lambda: list(with_retries(store).list_objects("p/")),
        lambda: store.list_page("p/"),
    ):
        with pytest.raises(StoreRefused, match=fault) as caught:
            read()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


class Mixin:
    """A class beside the interface that brings the listing."""

    def list_page(self, prefix, *, after=None, limit=1000):
        return page(meta("q"))


class MixedStore(Mixin, InMemoryStore):
    pass


class InheritedStore(MixedStore):
    pass


@pytest.mark.parametrize("store_type", [MixedStore, InheritedStore])
def test_a_listing_is_checked_wherever_its_method_comes_from(store_type):
    with pytest.raises(StoreRefused, match="ignores the prefix"):
        list(store_type().list_objects("p/"))


def test_a_page_may_end_with_a_marker_that_is_no_key(store):
    first = page(next_after="")
    store.change = lambda real, prefix, after: first if after is None else real
    assert len(list(store.list_objects(""))) == len(store._objects)


def test_a_page_that_leads_back_is_refused(store):
    store.change = lambda _page, prefix, after: page(next_after="p/a")
    with pytest.raises(StoreRefused, match="does not move forward"):
        list(store.list_objects("p/"))


def test_what_comes_before_the_page_is_refused(store):
    store.change = lambda _page, prefix, after: page(meta("p/a"))
    with pytest.raises(StoreRefused, match="after 'p/a' comes 'p/a'"):
        store.list_page("p/", after="p/a")


@pytest.mark.parametrize(
    "change",
    [
        {"key": "jobs/b/spec"},
        {"size": -1},
        {"size": 1 << 60},
        {"modified_at": NOW.replace(tzinfo=None)},
        {"modified_at": NOW + timedelta(days=200 * 366)},
    ],
)
def test_what_a_head_cannot_say_is_refused_in_one_line(store, change):
    store.change_head = lambda meta: msgspec.structs.replace(meta, **change)
    with pytest.raises(StoreRefused) as caught:
        store.head(keys.spec("a"))
    assert "\n" not in str(caught.value)


class TokenStore(InMemoryStore):
    """Goes on by a token, and notes those that it gets back."""

    def __init__(self):
        super().__init__("token://")
        self.given, self.tokens = [], ("one", "two")

    def list_page(self, prefix, *, after=None, limit=1000, cursor=""):
        self.given.append((after, cursor))
        page = super().list_page(prefix, after=after, limit=1)
        if page.next_after is None:
            return page
        return msgspec.structs.replace(page, cursor=self.tokens[len(self.given) - 1])


def test_a_listing_gives_each_cursor_back_beside_where_it_stands():
    store = TokenStore()
    for key in "abc":
        store.put(key, b"")
    assert [one.key for one in store.list_objects("")] == ["a", "b", "c"]
    assert store.given == [(None, ""), ("a", "one"), ("b", "two")]


def test_a_listing_that_repeats_its_cursor_is_given_up():
    store = TokenStore()
    store.tokens = ("one", "one")
    for key in "abc":
        store.put(key, b"")
    with pytest.raises(StoreRefused, match="it repeats its cursor"):
        list(store.list_objects(""))


class EndlessStore(InMemoryStore):
    """Invents further keys for ever, in order."""

    def list_page(self, prefix, *, after=None, limit=1000):
        first = 1 + int((after or "0").rpartition("-")[2])
        page = [
            ObjectMeta(key=f"{prefix}-{number:012d}", size=1, modified_at=NOW)
            for number in range(first, first + 50)
        ]
        return ObjectPage(objects=tuple(page), next_after=page[-1].key)


def test_a_listing_without_an_end_is_given_up(monkeypatch):
    monkeypatch.setattr(interfaces, "MAX_LISTED", 120)
    found = []
    with pytest.raises(StoreRefused, match="the listing of jobs/a/ has more than 120 objects"):
        found.extend(EndlessStore("endless://").list_objects("jobs/a/"))
    assert len(found) <= 150


# --- providers ----------------------------------------------------------------------------------


MACHINE = Instance(id="i-1", state=InstanceState.RUNNING, job_id="a", launch=1, rank=0, launched_at=NOW)
OFFER = Offer(
    instance_type="t", zone="z", market=Market.SPOT, price_per_hour=1.0, on_demand_price_per_hour=2.0
)
IDENTITY = NodeIdentity(instance_id="i-1", rank=0, address="10.0.0.1")
replace = msgspec.structs.replace


def answering(interface, **answers):
    """An instance of a plugin's class whose methods of these names give these answers."""
    methods = {name: lambda self, *_args, answer=answer, **_: answer for name, answer in answers.items()}
    others = dict.fromkeys(interface.__abstractmethods__ - methods.keys())
    return type("Theirs", (interface,), {**others, **methods, "__init__": lambda self: None})()


def answering_machines(*machines):
    return answering(Provisioner, instances=InstancesResult(instances=machines))


@pytest.mark.parametrize(
    "changes",
    [
        {"job_id": "b"},
        {"job_id": ""},
        {"id": ""},
        {"id": "i" * 256},
        {"id": "ü" * 50},
        {"launch": -1},
        {"launch": 10**30},
        {"launch": float("nan")},
        {"rank": 10_000},
        {"rank": -1},
        {"launched_at": NOW.replace(tzinfo=None)},
        {"launched_at": NOW.replace(year=9999)},
        {"ended_at": NOW.replace(year=1969)},
    ],
)
def test_a_list_of_machines_with_an_impossible_one_tells_nothing(changes):
    found = answering_machines(MACHINE, replace(MACHINE, **changes))
    with pytest.raises(TransientError, match=r"^the provider's list of machines is ignored: ") as caught:
        plaincalls.instances(found, job_id="a")
    assert len(str(caught.value)) < 500


def test_a_list_of_machines_holds_the_job_s_or_those_of_any_job():
    other = replace(MACHINE, id="z/ü", job_id="b", rank=None, ended_at=NOW)
    assert plaincalls.instances(answering_machines(MACHINE), job_id="a") == (MACHINE,)
    assert plaincalls.instances(answering_machines(MACHINE, other)) == (MACHINE, other)
    with pytest.raises(TransientError, match="has job ''"):
        plaincalls.instances(answering_machines(replace(MACHINE, job_id="")))


def test_a_list_of_a_store_s_machines_holds_no_other_store_s_and_those_that_name_none():
    ours, nobodys = replace(MACHINE, store_url="s3://ours"), replace(MACHINE, id="i-2")
    listed = answering_machines(ours, nobodys)
    assert plaincalls.instances(listed, store_url="s3://ours") == (ours, nobodys)
    with pytest.raises(TransientError, match="has store 's3://ours', not 's3://theirs'"):
        plaincalls.instances(listed, store_url="s3://theirs")


@pytest.mark.parametrize("kind", [Market, InstanceState, EndReason])
def test_a_value_that_a_later_version_or_a_provider_adds_is_kept_as_it_is(kind):
    value = kind("capacity-block")
    assert (value.is_known, kind("capacity-block") == value, {value: 1}[kind("capacity-block")]) == (
        False,
        True,
        1,
    )
    assert decode(msgspec.json.encode(value), kind) == value == convert("capacity-block", kind)
    assert value not in list(kind)
    assert all(one.is_known and kind(one.value) is one for one in kind)
    for odd in ("", "a\nb", "x" * 101):
        with pytest.raises(msgspec.ValidationError):
            convert(odd, kind)


def test_a_machine_in_an_unknown_state_may_run_and_an_offer_on_an_unknown_market_is_not_bought():
    assert InstanceState("hibernating").is_up
    assert not InstanceState.SHUTTING_DOWN.is_up
    request = LaunchRequest(provider="sky", body={})
    provisioner = answering(Provisioner, render=request)
    assert provisioner.render(group_of(OFFER)) is request
    with pytest.raises(ProvisionError, match="does not know the market 'capacity-block'"):
        provisioner.render(group_of(replace(OFFER, market=Market("capacity-block"))))


def test_a_call_tells_how_long_it_may_take():
    assert OffersRequest(resources=Resources()).seconds_left() == math.inf
    assert 50 < OffersRequest(resources=Resources(), deadline=time.monotonic() + 60).seconds_left() <= 60
    assert OffersRequest(resources=Resources(), deadline=time.monotonic() - 60).seconds_left() == 0


@pytest.mark.parametrize("price", [float("nan"), float("inf"), -0.01, 1e10])
def test_an_impossible_price_is_no_price(price):
    for changes in (
        {"price_per_hour": price},
        {"on_demand_price_per_hour": price},
        {"transfer_price_per_gib": price},
        {"billing": Billing(minimum_seconds=-1.0)},
        {"billing": Billing(increment_seconds=0.0)},
    ):
        found = answering(Provisioner, offers=OffersResult(offers=(OFFER, replace(OFFER, **changes))))
        with pytest.raises(TransientError, match=r"offers are ignored: spot/z/t is impossible "):
            plaincalls.offers(found, Resources())
    with pytest.raises(TransientError, match="an impossible price for spot/z/t"):
        answering(Provisioner, current_price=price).current_price(OFFER)


def test_possible_offers_and_prices_come_as_they_are():
    found = answering(Provisioner, offers=OffersResult(offers=(OFFER,)))
    assert plaincalls.offers(found, Resources()) == (OFFER,)
    for price in (None, 0.0, 0.5):
        assert answering(Provisioner, current_price=price).current_price(OFFER) == price


@pytest.mark.parametrize("changes", [{"rank": 10**9}, {"rank": -1}, {"instance_id": ""}])
def test_a_machine_that_is_told_an_impossible_identity_is_told_nothing(changes):
    with pytest.raises(TransientError, match="an impossible identity"):
        answering(Provider, node_identity=replace(IDENTITY, **changes)).node_identity()
    assert answering(Provider, node_identity=IDENTITY).node_identity() == IDENTITY
