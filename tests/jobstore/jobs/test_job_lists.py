"""The lists of jobs, and the mark of those that may be live: never one too few."""

from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest
from support.records.many_jobs import ManyJobs
from support.stores.faultstore import FaultPlan, FaultyStore
from support.stores.memorystore import InMemoryStore
from support.worlds.stopped_calls import Stops, until

from cloudspot.controller.loop import Controller
from cloudspot.errors import JobNotFound
from cloudspot.jobstore.jobs.job_lists import (
    drop_marks_of_missing_job,
    list_jobs,
    list_live,
    list_recent,
    mark_live,
)
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.removal import remove_job
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Submission

AT = datetime(2026, 11, 20, 6, 30, tzinfo=timezone.utc)


class Killed(BaseException):
    """The process is gone: nothing that it does from now on reaches the store."""


class Dying(FaultyStore):
    """A store whose client is killed before its nth request, if ever."""

    def __init__(self, inner, directory, dies_at):
        super().__init__(inner, FaultPlan(), directory)
        self.dies_at = dies_at

    def _enter(self, method, key):
        if self.num_calls >= self.dies_at:
            raise Killed
        super()._enter(method, key)

    @property
    def is_dead(self):
        return self.num_calls >= self.dies_at


@pytest.fixture
def store():
    return InMemoryStore()


@pytest.fixture
def town(store, tmp_path):
    return ManyJobs(store, tmp_path / "work")


def is_there(store, job_id):
    try:
        HistoryReader(store, job_id).read()
    except JobNotFound:
        return False
    return True


def test_the_newest_jobs_come_first_and_nothing_else_is_listed(store):
    for number, job_id in enumerate(("b", "a-1", "c")):
        milliseconds = int((AT + timedelta(milliseconds=number)).timestamp() * 1000)
        store.put(keys.recent(milliseconds, job_id), b"")
    store.put("recent/.DS_Store", b"")
    store.put("recent/0000000000001-Not A Job", b"")
    assert list_recent(store) == (("c", "a-1", "b"), True)
    assert list_recent(InMemoryStore()) == ((), True)


def test_a_mark_keeps_its_first_time_and_is_told_from_what_is_not_ours():
    now = [AT]
    store = InMemoryStore(now=lambda: now[0])
    submission = Submission(
        job_id="x", provider="p", spec={}, code_sha256="0", code_bytes=1, secret_names=(), version="0", at=AT,
        writer="w",
    )  # fmt: skip
    mark_live(store, submission.job_id, submission.writer)
    now[0] += timedelta(hours=1)
    mark_live(store, submission.job_id, submission.writer)
    for name in (".DS_Store", "Not A Job.w", "plain"):
        store.put(f"live/{name}", b"")
    assert list_live(store) == {"x": AT}


def test_a_submission_that_is_killed_at_any_moment_leaves_no_job_without_its_mark(tmp_path):
    was_submitted = set()
    for dies_at in range(60):
        store = InMemoryStore()
        dying = Dying(store, tmp_path / f"{dies_at}", dies_at)
        town = ManyJobs(dying, tmp_path / "work")
        with suppress(Killed):
            town._submit("job")
        job_id = "job-00001"
        was_submitted.add(is_there(store, job_id))
        if is_there(store, job_id):
            assert set(list_live(store)) == {job_id}
            assert list_recent(store)[0] == (job_id,)
            assert list_jobs(store) == (job_id,)
        if not dying.is_dead:
            break
    assert was_submitted == {True, False}
    assert not dying.is_dead


@pytest.mark.full
def test_a_driver_that_is_killed_at_any_moment_leaves_its_job_marked_or_settled(tmp_path):
    """The mark is deleted after the end is in the journal, in the summary, and in the copy."""
    for dies_at in range(100):
        store = InMemoryStore()
        town = ManyJobs(store, tmp_path / "work")
        job_id = town.add_ended()
        dying = Dying(store, tmp_path / f"{dies_at}", dies_at)
        with suppress(Killed):
            town.run_pass(dying)
        if not list_live(store):
            found = {meta.key for meta in store.list_objects(keys.job_prefix(job_id))}
            assert {keys.summary(job_id), keys.settled_launches(job_id)} <= found
            assert HistoryReader(store, job_id).read().finished is not None
        # The next pass comes to the same end.
        town.run_pass()
        assert list_live(store) == {}
        if not dying.is_dead:
            return
    raise AssertionError("no pass came to its end")


@pytest.mark.full
def test_a_removal_that_is_killed_at_any_moment_is_finished_and_leaves_nothing(tmp_path):
    for dies_at in range(100):
        store = InMemoryStore()
        town = ManyJobs(store, tmp_path / "work")
        job_id = town.add_ended()
        other = town.add_live()
        dying = Dying(store, tmp_path / f"{dies_at}", dies_at)
        with suppress(Killed):
            remove_job(dying, job_id, num_threads=1)
        if not is_there(store, job_id):
            # Whoever drives the live jobs passes over what is left.
            errors = {one.job_id: one.error for one in town.run_pass()}
            assert errors.pop(other) is None
            assert all(isinstance(error, JobNotFound) for error in errors.values())
        if job_id in list_jobs(store):
            remove_job(store, job_id)
        assert list_jobs(store) == list_recent(store)[0] == tuple(list_live(store)) == (other,)
        assert not [one for one in store.list_objects("") if job_id in one.key]
        if not dying.is_dead:
            return
    raise AssertionError("no removal came to its end")


def test_a_driver_that_slept_while_its_job_was_removed_does_not_unmark_the_next_job_of_that_id(store, town):
    job_id = town.add_ended()
    stops = Stops(store, town.provider)
    steps = stops.steps(Controller(stops.store, job_id, stops.provider).tick)
    until(steps, "delete live/")
    remove_job(store, job_id)
    town._numbers = iter([1])
    assert town.add_ended() == job_id
    list(steps)
    assert set(list_live(store)) == {job_id}


def test_the_marks_of_a_job_that_was_removed_go_but_not_those_of_a_submission_under_way(store):
    for job_id in ("gone", "under-way"):
        store.put(keys.live(job_id, "w"), b"")
    store.put(keys.index("under-way"), b"a nonce")
    for job_id in ("gone", "under-way"):
        drop_marks_of_missing_job(store, job_id)
    assert set(list_live(store)) == {"under-way"}
