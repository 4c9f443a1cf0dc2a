"""Tasks that records ask drivers to do: when they are done, by whom, and what becomes of one that fails."""

from datetime import datetime, timedelta, timezone

import pytest
from support.stores.memorystore import InMemoryStore

from cloudspot.calls import TaskResult
from cloudspot.controller import driver_tasks
from cloudspot.controller.clock import Clock
from cloudspot.controller.driver_tasks import DriverTasks
from cloudspot.errors import CloudspotError, PluginError
from cloudspot.interfaces import DriverTask
from cloudspot.jobstore.layout import keys

JOB, TASK = "digits-1", "toy-page"
START = datetime(2026, 11, 1, tzinfo=timezone.utc)


class Page(DriverTask):
    """Notes each time."""

    name = TASK
    every_seconds = 60.0
    answer = staticmethod(lambda request: TaskResult())

    def __init__(self):
        self.num_runs = 0

    def run(self, store, request):
        self.num_runs += 1
        Page.runs.append((self.num_runs, request.asked, request.is_over))
        return Page.answer(request)


class AtOnce:
    """An outbox that does other work at once, or when it is told to."""

    waiting = None

    def run_beside(self, work):
        if self.waiting is None:
            work()
        else:
            self.waiting.append(work)


class Desk:
    """A job's store and its drivers; the looks of a driver list what the nodes say, as its reader does."""

    def __init__(self):
        self.seconds = 0.0
        self.outbox = AtOnce()
        self.store = InMemoryStore(now=self.now)
        self.store.put(keys.task(JOB, TASK), b"as asked")

    def now(self):
        return START + timedelta(seconds=self.seconds)

    def driver(self):
        clock = Clock(now=self.now, monotonic=lambda: self.seconds)
        return DriverTasks(self.store, JOB, self.outbox, clock=clock)

    def look(self, driver, *, is_over=False):
        times = {
            (match[1], is_done): meta.modified_at
            for meta in self.store.list_objects(keys.nodes_prefix(JOB))
            for form, is_done in ((keys.task, False), (keys.task_done, True))
            if (match := form.match(meta.key)) is not None
        }
        driver.look(times, is_over=is_over)


@pytest.fixture
def desk(monkeypatch):
    Page.runs = []
    monkeypatch.setattr(Page, "answer", staticmethod(lambda request: TaskResult()))
    monkeypatch.setattr(driver_tasks, "open_driver_task", lambda name: Page())
    return Desk()


def test_a_task_is_done_as_often_as_it_says_by_an_object_that_is_kept(desk):
    driver = desk.driver()
    for desk.seconds in range(0, 190, 3):
        desk.look(driver)
    assert Page.runs == [(number, b"as asked", False) for number in (1, 2, 3, 4)]


def test_what_another_driver_has_done_is_not_done_again_too_soon(desk):
    one, other = desk.driver(), desk.driver()
    for desk.seconds in range(0, 125, 5):
        desk.look(one)
        desk.look(other)
        desk.look(desk.driver())  # and one that passes by
    assert len(Page.runs) == 3


def test_no_look_waits_for_a_task_and_none_begins_it_twice(desk):
    desk.outbox.waiting = []
    driver = desk.driver()
    for desk.seconds in (0, 100, 200):
        desk.look(driver)
    (work,) = desk.outbox.waiting
    work()
    desk.seconds = 260
    desk.look(driver)
    assert len(desk.outbox.waiting) == 2


def test_a_task_is_done_once_more_when_the_job_has_ended(desk):
    driver = desk.driver()
    desk.look(driver)
    desk.seconds = 5
    for _ in range(3):
        desk.look(driver, is_over=True)
    assert [is_over for _, _, is_over in Page.runs] == [False, True]


def test_a_last_time_waits_for_one_that_is_under_way(desk):
    driver = desk.driver()
    desk.outbox.waiting = []
    desk.look(driver)
    desk.look(driver, is_over=True)
    desk.outbox.waiting.pop()()
    desk.outbox.waiting = None
    desk.look(driver, is_over=True)
    assert [is_over for _, _, is_over in Page.runs] == [False, True]


def test_nothing_is_done_once_nobody_asks_any_more(desk):
    driver = desk.driver()
    desk.store.delete(keys.task(JOB, TASK))
    desk.look(driver)
    assert Page.runs == []
    desk.store.put(keys.task(JOB, TASK), b"")
    desk.outbox.waiting = []
    desk.look(driver)
    desk.store.delete(keys.task(JOB, TASK))
    desk.outbox.waiting.pop()()  # it was withdrawn meanwhile
    assert Page.runs == []
    assert not list(desk.store.list_objects(keys.nodes_prefix(JOB)))


def test_a_task_that_is_finished_leaves_no_record(desk, monkeypatch):
    monkeypatch.setattr(Page, "answer", staticmethod(lambda request: TaskResult(is_finished=True)))
    desk.look(desk.driver())
    assert list(desk.store.list_objects(keys.job_prefix(JOB))) == []


def test_a_driver_that_lacks_the_task_or_fails_says_so_until_it_is_done_or_nobody_asks(desk, monkeypatch):
    def fail(request):
        raise CloudspotError("no room")

    driver = desk.driver()
    monkeypatch.setattr(Page, "answer", staticmethod(fail))
    desk.look(driver)
    assert driver.problem() == "toy-page: no room"
    monkeypatch.setattr(Page, "answer", staticmethod(lambda request: TaskResult()))
    desk.seconds = 60
    desk.look(driver)
    assert driver.problem() == ""

    def lack(name):
        raise PluginError(f'no driver task "{name}" is installed')

    monkeypatch.setattr(driver_tasks, "open_driver_task", lack)
    bare = desk.driver()
    desk.look(bare)
    assert bare.problem() == 'toy-page: no driver task "toy-page" is installed'
    desk.store.delete(keys.task(JOB, TASK))
    desk.look(bare)
    assert bare.problem() == ""


def test_a_bug_of_a_task_is_told_and_stops_nothing(desk, monkeypatch):
    monkeypatch.setattr(Page, "answer", staticmethod(lambda request: 1 / 0))
    driver = desk.driver()
    desk.look(driver)
    assert "ZeroDivisionError" in driver.problem()
