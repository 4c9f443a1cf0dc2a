"""Staged agents, code and uploads that nobody needs are found, and none that somebody needs is deleted."""

from datetime import datetime, timedelta, timezone

import pytest
from support.clouds.reaptests import end_job
from support.stores.memorystore import InMemoryStore

from cloudspot.boot.agentarchive import AgentArchive
from cloudspot.errors import CloudspotError
from cloudspot.jobfile.spec import load_job
from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.jobs.job_lists import unmark_live
from cloudspot.jobstore.jobs.store_inventory import SharedObjectInventory, UploadInventory
from cloudspot.jobstore.jobs.submission import read_first_submission, submit
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import SaveId
from cloudspot.model import Asset, UnfinishedUpload

AGENT = AgentArchive(data=b"wheels", sha256="a" * 64, digest="d" * 16, requirements=("cloudspot",))
KEY = keys.agent(AGENT.sha256)


class Interrupted(WrappedStore):
    """Something happens before the nth request."""

    def __init__(self, inner, moment, action):
        super().__init__(inner)
        self._left, self._action = moment, action

    def _call(self, method, key, request):
        if self._left == 0:
            self._action()
        self._left -= 1
        return request()


@pytest.fixture
def project(tmp_path):
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "job.toml").write_text('name = "x"\n[run]\nentrypoint = "train.py"\n')
    return tmp_path


def add(store, project, job_id):
    """Submit a job with its code and a staged agent."""
    spec = load_job(project / "job.toml")
    return submit(store, spec=spec, provider="local", workdir=project, environ={}, job_id=job_id, agent=AGENT)


def in_use(store):
    return {one.id: one.is_in_use for one in SharedObjectInventory(store, "label").assets(())}


def test_an_agent_is_needed_while_its_job_is_live_and_code_until_it_is_removed(project):
    store = InMemoryStore()
    submission = add(store, project, "one-1")
    code = keys.code(submission.code_sha256)
    assert in_use(store) == {KEY: True, code: True}
    end_job(store, submission)
    assert in_use(store) == {KEY: False, code: True}
    add(store, project, "two-1")
    assert in_use(store) == {KEY: True, code: True}
    store.put(keys.agent("b" * 64), b"")
    store.put(keys.code("c" * 64), b"")
    assert in_use(store) == {KEY: True, code: True, keys.agent("b" * 64): False, keys.code("c" * 64): False}


def test_a_job_without_a_mark_that_has_not_finished_or_is_corrupt_keeps_its_agent(project):
    store = InMemoryStore()
    submission = add(store, project, "one-1")
    unmark_live(store, "one-1", submission.writer)
    assert in_use(store)[KEY]
    end_job(store, submission)
    assert not in_use(store)[KEY]
    store.put(keys.journal("one-1", 1), b"{")
    assert in_use(store)[KEY]


STRANGERS = (
    "code/x/README", "agents/prompt.txt", f"{KEY}/README", f"{KEY}0", keys.agent("A" * 64),
    "agents/prompt.txt.removals/reap.0badcafe", keys.removal(KEY, "reap.x"), keys.removal(KEY, "reap.0badcafe0"),
)  # fmt: skip
"""Keys below the prefixes of what jobs share, which cloudspot gives to nothing."""


def test_what_strangers_keep_in_the_bucket_is_neither_listed_nor_ended():
    store = InMemoryStore()
    store.put(KEY, b"wheels")
    for key in STRANGERS:
        store.put(key, b"a stranger's")
    assert in_use(store) == {KEY: False}
    inventory = SharedObjectInventory(store, "label")
    for key in (*STRANGERS, "datasets/small"):
        for kind in ("staged agent", "code bundle", "mark"):
            with pytest.raises(CloudspotError, match="is not one of cloudspot's keys"):
                inventory.end(Asset(kind=kind, id=key))
    assert sorted(meta.key for meta in store.list_objects("")) == sorted([KEY, *STRANGERS])


class Uploading(InMemoryStore):
    """A store in which each of these keys has an upload that nobody has completed."""

    def __init__(self, *uploading):
        super().__init__()
        self.uploading = uploading

    def unfinished_uploads(self):
        at = datetime(2026, 11, 1, tzinfo=timezone.utc)
        return [UnfinishedUpload(key=key, id="1", begun_at=at) for key in self.uploading]

    def abort_upload(self, upload):
        self.uploading = tuple(key for key in self.uploading if key != upload.key)


def test_uploads_of_strangers_and_of_a_store_within_the_store_are_neither_listed_nor_ended():
    ours = keys.chunk("over-1", SaveId(1, 10, 0), 0, 0)
    strangers = (
        "datasets/big.tar", f"team/{ours}", "jobs/No id/spec", "jobs/over-1", "jobs/over-1/checkpoints/x",
        "jobs/over-1/epoch-3.pt", *STRANGERS,
    )  # fmt: skip
    store = Uploading(ours, KEY, *strangers)
    inventory = UploadInventory(store, "label")
    listed = inventory.assets(())
    assert {one.id: one.job_id for one in listed} == {f"{ours}?1": "over-1", f"{KEY}?1": ""}
    for key in strangers:
        asset = Asset(kind="unfinished upload", id=f"{key}?1", created_at=listed[0].created_at)
        with pytest.raises(CloudspotError, match="is not one of cloudspot's keys"):
            inventory.end(asset)
    for one in listed:
        inventory.end(one)
    assert store.uploading == strangers


def test_an_upload_of_what_jobs_share_is_in_use_while_a_submission_under_way_may_have_begun_it(project):
    store = Uploading(KEY, keys.code("c" * 64))

    def used():
        return [one.is_in_use for one in UploadInventory(store, "label").assets(())]

    assert used() == [False, False]
    store.put(keys.index("half-1"), b"nonce")
    assert used() == [True, True]
    store.delete(keys.index("half-1"))
    submission = add(store, project, "one-1")
    assert used() == [True, False]
    end_job(store, submission)
    assert used() == [False, False]


def test_a_submission_under_way_or_malformed_may_need_all():
    store = InMemoryStore()
    store.put(KEY, b"wheels")
    assert in_use(store) == {KEY: False}
    store.put(keys.index("half-1"), b"nonce")
    assert in_use(store) == {KEY: True}
    store.put(keys.spec("half-1"), b"{")
    assert in_use(store) == {KEY: True}


def test_a_job_that_is_submitted_at_any_moment_of_the_deletion_has_its_agent(project):
    for moment in range(40):
        inner = InMemoryStore()
        inner.put(KEY, b"wheels")
        store = Interrupted(inner, moment, lambda inner=inner: add(inner, project, "new-1"))
        inventory = SharedObjectInventory(store, "label")
        asset = next(one for one in inventory.assets(()) if one.id == KEY)
        refused = False
        try:
            inventory.end(asset)
        except CloudspotError as error:
            refused = "needs it now" in str(error)
        if inner.list_page(keys.index("new-1")).objects:
            submission, _ = read_first_submission(inner, "new-1")
            own = keys.own_agent("new-1", AGENT.sha256)
            assert inner.get(own if submission.has_own_code else KEY) == b"wheels"
        else:
            assert not refused
            break
    else:
        raise AssertionError("the deletion never came to its end")
    assert moment > 5


def test_a_mark_that_a_run_was_cut_off_with_is_ended_after_an_hour_and_no_removals():
    now = [datetime.now(timezone.utc) - timedelta(hours=2)]
    store = InMemoryStore(now=lambda: now[0])
    old, young, removal = (keys.removal(KEY, by) for by in ("reap.0badcafe", "reap.11111111", "reap-1"))
    store.put(KEY, b"wheels")
    store.put(old, b"")
    store.put(removal, b"")  # of a job of that name
    now[0] += timedelta(hours=2)
    store.put(young, b"")  # of a run beside this one
    assert in_use(store) == {KEY: False, old: False, young: True}
    inventory = SharedObjectInventory(store, "label")
    for one in inventory.assets(()):
        if not one.is_in_use:
            inventory.end(one)
    assert [meta.key for meta in store.list_objects("agents/")] == [removal, young]
