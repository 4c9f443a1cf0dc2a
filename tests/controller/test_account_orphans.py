"""Which things of an account are orphans, and that nothing else is ended, whatever happens meanwhile."""

import threading
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clouds.reaptests import LIVE, OVER, REMOVED, add_jobs, end_job
from support.stores.memorystore import InMemoryStore

from cloudspot.controller.account_orphans import (
    WAITS_SECONDS,
    AccountReaper,
    Fate,
    JobStatus,
    KnownStore,
    fate_of,
)
from cloudspot.controller.ownership import store_label
from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.interfaces import Inventory
from cloudspot.jobstore.jobs.job_lists import mark_live
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Removal
from cloudspot.model import Asset

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
MINE, GONE, OTHER = "mem://mine", "mem://gone", "mem://other"
STORES = {
    MINE: KnownStore({"live": JobStatus.LIVE, "over": JobStatus.ENDED, "absent": JobStatus.ABSENT}),
    GONE: KnownStore(is_gone=True),
    "mem://unread": KnownStore(),
}
ONE = {MINE: STORES[MINE], GONE: STORES[GONE]}


def asset(job_id="over", store_url=MINE, *, age=2 * HOUR, **facts):
    return Asset(
        kind="machine", id="i-1", job_id=job_id, store_url=store_url,
        created_at=None if age is None else NOW - age, **facts,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("thing", "fate", "why"),
    [
        (asset("over"), Fate.ORPHAN, "job over has ended"),
        (asset("absent"), Fate.ORPHAN, "job absent is not in its store"),
        (asset("live"), Fate.KEPT, "job live is marked live"),
        (asset("unread"), Fate.KEPT, "job unread cannot be read, or is being submitted"),
        (asset("over", age=HOUR / 2), Fate.KEPT, "it is young"),
        (asset("over", age=None), Fate.ORPHAN, "job over has ended"),
        (asset("over", GONE), Fate.ORPHAN, "its store is gone"),
        (asset("over", GONE, age=HOUR / 2), Fate.KEPT, "it is young"),
        # The gone store may be a second name of ours.
        (asset("live", GONE), Fate.KEPT, "job live is marked live"),
        (asset("over", OTHER), Fate.FOREIGN, "it belongs to mem://other"),
        (asset("over", ""), Fate.FOREIGN, "it belongs to a store that it does not name"),
        (asset("live", OTHER), Fate.KEPT, "job live is marked live"),
        (asset("", is_in_use=True), Fate.KEPT, "something uses it"),
        (asset(""), Fate.ORPHAN, "nothing uses it"),
        (asset("", GONE, is_in_use=True), Fate.ORPHAN, "its store is gone"),
        (asset("", OTHER), Fate.FOREIGN, "it belongs to mem://other"),
    ],
)
def test_a_thing_is_an_orphan_if_its_job_has_ended_or_is_not_in_its_store(thing, fate, why):
    found = fate_of(thing, ONE, now=NOW, older_than=HOUR)
    assert (found.fate, found.why) == (fate, why)


@pytest.mark.full
@given(
    st.sampled_from(["live", "over", "absent", "unread", "", "Not an id"]),
    st.sampled_from([MINE, GONE, OTHER, "mem://unread", ""]),
    st.none() | st.timedeltas(min_value=-HOUR, max_value=3 * HOUR),
    st.booleans(),
    st.sets(st.sampled_from(sorted(STORES))),
    st.timedeltas(min_value=timedelta(0), max_value=2 * HOUR),
)
def test_nothing_live_unread_young_or_foreign_is_ever_an_orphan(
    job_id, store_url, age, is_in_use, given_stores, older_than
):
    thing = asset(job_id, store_url, age=age, is_in_use=is_in_use)
    stores = {label: STORES[label] for label in given_stores}
    found = fate_of(thing, stores, now=NOW, older_than=older_than)
    if found.fate is Fate.ORPHAN:
        assert store_url in stores
        assert age is None or age >= older_than
        assert not (job_id == "live" and MINE in stores)
        assert not (job_id and "mem://unread" in stores)
        assert job_id not in {"unread", "Not an id"} or MINE not in stores
        assert job_id or not is_in_use or store_url == GONE
    elif found.fate is Fate.FOREIGN:
        assert store_url not in stores


class Listed(Inventory):
    """A list of assets; what is ended leaves it."""

    title = "machines"

    def __init__(self, *assets):
        self.left = list(assets)
        self.on_end = lambda _: None
        self.ended = []

    def assets(self, store_urls):
        self.asked_for = tuple(store_urls)
        return list(self.left)

    def end(self, asset):
        self.on_end(asset)
        self.left.remove(asset)
        self.ended.append(asset.job_id)


@pytest.fixture
def store(tmp_path):
    store = InMemoryStore()
    add_jobs(store, tmp_path, "local")
    return store


def reaper(store, *inventories, **options):
    slept = []
    made = AccountReaper([inventories], [store], now=lambda: NOW, sleep=slept.append, **options)
    made.slept = slept
    return made


def of(store, *job_ids):
    return [asset(job_id, store_label(store)) for job_id in job_ids]


def test_of_a_store_only_what_has_ended_or_was_removed_is_found_and_ended(store):
    store.put(keys.index("half-1"), b"nonce")
    store.put(keys.index("going-1"), codec.encode(Removal(shared=())))
    store.put(keys.index("bad-1"), b"nonce")
    store.put(keys.spec("bad-1"), b"{")
    listed = Listed(*of(store, OVER, LIVE, REMOVED, "half-1", "going-1", "bad-1"))
    found = reaper(store, listed)
    judged, problems = found.find()
    assert problems == ()
    assert {one.asset.job_id: one.fate for one in judged} == {
        OVER: Fate.ORPHAN, REMOVED: Fate.ORPHAN, "going-1": Fate.ORPHAN,
        LIVE: Fate.KEPT, "half-1": Fate.KEPT, "bad-1": Fate.KEPT,
    }  # fmt: skip
    assert [one.error for one in found.end(judged)] == [None] * 3
    assert listed.ended == [OVER, REMOVED, "going-1"]
    assert listed.asked_for == (store_label(store),)


def test_a_job_that_has_ended_but_is_not_settled_is_left_to_reconcile(store):
    mark_live(store, OVER, "writer")
    judged, _ = reaper(store, Listed(*of(store, OVER))).find()
    assert judged[0].fate is Fate.KEPT


def test_a_job_that_is_submitted_while_things_are_listed_keeps_them(store):
    """The marks are read after the things were listed: a thing that shows has its job's mark."""

    class Late(Listed):
        def assets(self, store_urls):
            # Its machine shows, and by then its mark does.
            mark_live(store, REMOVED, "writer")
            return super().assets(store_urls)

    judged, _ = reaper(store, Late(*of(store, REMOVED))).find()
    assert judged[0].fate is Fate.KEPT


def test_a_job_that_comes_to_life_before_its_thing_is_ended_keeps_it(store):
    listed = Listed(*of(store, OVER, REMOVED))
    found = reaper(store, listed)
    judged, _ = found.find()
    listed.on_end = lambda _: mark_live(store, REMOVED, "writer")
    done = found.end(judged)
    assert listed.ended == [OVER]
    assert [str(one.error or "") for one in done] == [
        "", f"job {REMOVED} has become live meanwhile, so its assets are kept",
    ]  # fmt: skip


def test_a_job_that_comes_to_life_in_any_of_the_stores_keeps_its_thing(store, tmp_path):
    """Whatever store the thing names: a store may have a second name."""
    second = InMemoryStore("memory://second")
    listed = Listed(*of(store, OVER))
    found = AccountReaper([[listed]], [store, second], now=lambda: NOW, sleep=lambda _: None)
    judged, _ = found.find()
    assert judged[0].fate is Fate.ORPHAN
    mark_live(second, OVER, "writer")
    (done,) = found.end(judged)
    assert "has become live meanwhile" in str(done.error)
    assert listed.ended == []
    assert found.find()[0][0].fate is Fate.KEPT


@pytest.mark.parametrize("tag", ["Not an id", "../index/x", "x" * 500, "a/b"])
def test_a_thing_whose_tag_is_no_job_id_is_kept_and_no_store_is_asked_for_it(store, tag):
    """Somebody else's tag: that the store has no such job proves nothing."""
    listed = Listed(*of(store, tag, OVER))
    found = reaper(store, listed)
    judged, problems = found.find()
    assert problems == ()
    assert [one.fate for one in judged] == [Fate.KEPT, Fate.ORPHAN]
    found.end(judged)
    assert listed.ended == [OVER]


def test_a_store_that_cannot_be_read_protects_all_that_is_its(store, monkeypatch):
    listed = Listed(*of(store, OVER, REMOVED))
    monkeypatch.setattr(store, "list_page", raising(TransientError("no answer")))
    judged, problems = reaper(store, listed).find()
    assert {one.fate for one in judged} == {Fate.KEPT}
    assert [str(one.error) for one in problems] == ["no answer"]


def test_a_store_that_is_given_is_not_gone_whatever_the_user_says(store):
    judged, _ = reaper(store, Listed(*of(store, LIVE)), gone=[store_label(store)]).find()
    assert judged[0].fate is Fate.KEPT


def test_an_inventory_that_cannot_be_read_does_not_hide_the_others(store):
    broken, listed = Listed(), Listed(*of(store, OVER))
    broken.assets = raising(AuthError("no right"))
    judged, problems = reaper(store, broken, listed).find()
    assert [one.fate for one in judged] == [Fate.ORPHAN]
    assert [(one.title, str(one.error)) for one in problems] == [("machines", "no right")]


def test_what_cannot_be_ended_yet_is_tried_again_and_what_is_refused_is_not(store):
    listed = Listed(*of(store, OVER, REMOVED))
    tries = []

    def refuse(asset):
        tries.append(asset.job_id)
        if asset.job_id == REMOVED:
            raise CloudspotError("protected")
        if len(tries) < 4:
            raise TransientError("in use")

    listed.on_end = refuse
    found = reaper(store, listed)
    done = found.end(found.find()[0])
    assert tries == [OVER, REMOVED, OVER, OVER]
    assert found.slept == list(WAITS_SECONDS[:2])
    assert [str(one.error or "") for one in done] == ["", "protected"]


def test_what_stays_in_use_is_said_with_its_reason_in_the_end(store):
    listed = Listed(*of(store, OVER))
    listed.on_end = raising(TransientError("in use"))
    found = reaper(store, listed)
    done = found.end(found.find()[0])
    assert [str(one.error) for one in done] == ["in use"]
    assert found.slept == list(WAITS_SECONDS)


def test_a_run_that_is_cut_off_is_finished_by_the_next(store):
    listed = Listed(*of(store, OVER, REMOVED))
    found = reaper(store, listed)
    judged, _ = found.find()
    listed.on_end = lambda asset: raising(KeyboardInterrupt)() if asset.job_id == REMOVED else None
    with pytest.raises(KeyboardInterrupt):
        found.end(judged)
    listed.on_end = lambda _: None
    again = reaper(store, listed)
    again.end(again.find()[0])
    assert listed.ended == [OVER, REMOVED]


def test_a_job_that_ends_leaves_its_things_to_the_next_run(store):
    listed = Listed(*of(store, LIVE))
    assert reaper(store, listed).find()[0][0].fate is Fate.KEPT
    end_job(store, HistoryReader(store, LIVE).read_job()[0])
    assert reaper(store, listed).find()[0][0].fate is Fate.ORPHAN


def raising(error):
    def call(*_args, **_options):
        raise error

    return call


def test_an_account_that_hangs_holds_up_no_other(store):
    """Providers were looked at in turn, and what was theirs was ended in turn."""
    released, ready = threading.Event(), threading.Event()

    class Slow(Listed):
        title = "slow"

        def assets(self, store_urls):
            assert released.wait(60), "nothing else goes on beside"
            return super().assets(store_urls)

        def end(self, asset):
            released.clear()
            ready.set()
            assert released.wait(60), "nothing else goes on beside"
            super().end(asset)

    class Quick(Listed):
        def assets(self, store_urls):
            released.set()
            return super().assets(store_urls)

        def end(self, asset):
            assert ready.wait(60)
            super().end(asset)
            if len(self.ended) == 2:
                released.set()

    slow, quick = Slow(*of(store, OVER)), Quick(*of(store, REMOVED, OVER))
    found = AccountReaper([[slow], [quick]], [store], now=lambda: NOW, sleep=lambda _: None)
    judged, problems = found.find()
    assert problems == ()
    assert [one.asset.job_id for one in judged] == [OVER, REMOVED, OVER], "in the order of the accounts"
    assert [(one.asset.job_id, one.error) for one in found.end(judged)] == [
        (OVER, None), (REMOVED, None), (OVER, None),
    ]  # fmt: skip
    assert (slow.ended, quick.ended) == ([OVER], [REMOVED, OVER])
