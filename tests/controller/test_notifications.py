"""Each event is told at most once, whoever drives and wherever a driver is killed."""

import random
from datetime import timedelta

import pytest
from support.records.own_notes import note
from support.stores.memorystore import InMemoryStore
from support.worlds.stopped_calls import Stops

from cloudspot.controller import notifications
from cloudspot.controller.clock import Clock
from cloudspot.controller.notifications import LEAVE_SECONDS, MAX_LINES, Notifications, message_of
from cloudspot.controller.ownership import store_label
from cloudspot.errors import TransientError
from cloudspot.jobfile.notify import NewsKind, NotifySpec
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.jobs.state_home import HOME
from cloudspot.jobstore.jobs.submission import _Secrets
from cloudspot.jobstore.layout import codec, keys
from cloudspot.model import Severity
from cloudspot.story.events import EventKind
from cloudspot.story.news import News

JOB = "digits-1"
ALL = NotifySpec(urls=("json://host/x",))


class Box:
    """An outbox that keeps what is put in."""

    def __init__(self):
        self.put_in = []

    def put(self, through, message, urls, *, own):
        self.put_in.append((message, dict(urls)))
        self.own = own

    def take_failures(self, job_id):
        return ()

    @property
    def titles(self):
        return [message.title for message, _ in self.put_in]

    @property
    def lines(self):
        """What was told, without the last line of each message."""
        return [line for message, _ in self.put_in for line in message.body.splitlines()[:-1]]


class Desk:
    """A job's records, and as many drivers as one likes."""

    def __init__(self, records, store=None):
        self.records = records
        self.seconds = 300.0
        self.store = store or InMemoryStore(now=lambda: records.at(self.seconds))
        self.store.put(keys.spec(JOB), b"{}")
        self.box = Box()

    def sender(self, store=None):
        clock = Clock(now=lambda: self.records.at(self.seconds), monotonic=lambda: self.seconds)
        store = with_retries(store or self.store, sleep=lambda seconds: None)
        return Notifications(store, JOB, self.box, clock=clock)

    def look(self, history):
        """Return the requests of one look of a new driver, before each is made."""
        stops = Stops(self.store)
        sender = self.sender(stops.store)
        return stops.steps(lambda: sender.notify(self.assess(history), []))

    def assess(self, history, notify=ALL):
        spec = self.records.change(self.records.spec(), notify=notify)
        return self.records.assess(history, at=self.seconds, spec=spec)

    def notify(self, sender, history, notify=ALL):
        """Let one driver look once; return its warnings."""
        events = []
        sender.notify(self.assess(history, notify), events)
        assert all(one.kind is EventKind.WARNED for one in events)
        return [one.text for one in events]


@pytest.fixture
def desk(records):
    return Desk(records)


def busy(records, *, finished=None):
    """A job in which four machines were taken and others came up."""
    launches = [records.launch(n, outcome="reclaimed", ended=50.0 * n) for n in range(1, 5)]
    return records.history(*launches, finished=finished)


def test_what_is_new_is_told_in_one_message_and_later_only_what_has_come_since(desk, records):
    sender = desk.sender()
    first = records.launch(notices={0: records.notice()}, heartbeats={0: records.heartbeat(at=200.0)})
    for _ in range(2):
        assert desk.notify(sender, records.history(first, generations=(records.generation(1),))) == []
    assert desk.box.titles == ["digits-1: reclaimed"]
    (message, urls), *_ = desk.box.put_in
    assert urls == {"urls[0] (json://)": "json://host/x"}
    assert message.severity is Severity.WARNING
    assert message.body == (
        "2026-01-01 00:00 UTC: node 1.0 will be taken in 30 s (sim)\n"
        "Now: draining, step 0, 0.0806 USD (on demand 0.2417 USD: 67% saved) so far"
    )
    (event,) = message.events
    assert (event.kind, event.text) == ("reclaimed", "node 1.0 will be taken in 30 s (sim)")
    assert event.at == records.notice().at
    ended = records.history(
        first, records.launch(2, outcome="succeeded"), finished=records.finished(detail="all \x1b[31mdone")
    )
    desk.notify(sender, ended)
    desk.notify(desk.sender(), ended)
    assert desk.box.titles[1:] == ["digits-1: finished, relaunched"]
    assert desk.box.lines[-1] == "2026-01-01 00:03 UTC: job succeeded: all  [31mdone"
    assert desk.box.put_in[1][0].severity is Severity.SUCCESS


@pytest.mark.parametrize("seed", range(30))
def test_of_three_drivers_each_event_is_told_once_and_together_however_they_interleave(desk, records, seed):
    rng, history = random.Random(seed), busy(records)
    drivers = [Stops(desk.store) for _ in range(3)]
    senders = {one: desk.sender(one.store) for one in drivers}
    looks = {}
    for _ in range(400):
        driver = rng.choice(drivers)
        sender = senders[driver]
        if driver not in looks:
            looks[driver] = driver.steps(lambda sender=sender: sender.notify(desk.assess(history), []))
        if next(looks[driver], None) is None:
            del looks[driver]
    lines = desk.box.lines
    assert len(lines) == 7
    assert len(set(lines)) == 7
    assert len(desk.box.put_in) == 1


@pytest.mark.parametrize("seed", range(30))
def test_a_driver_that_is_killed_loses_what_it_has_marked_and_nothing_is_told_twice(desk, records, seed):
    rng, history = random.Random(seed), busy(records)
    killed = desk.look(history)
    for _ in range(rng.randrange(12)):
        next(killed, None)
    killed.close()
    for _ in range(3):
        desk.seconds += LEAVE_SECONDS
        desk.notify(desk.sender(), history)
    marks = [meta.key for meta in desk.store.list_objects(keys.notified_prefix(JOB))]
    assert len(marks) == 7
    assert len(set(desk.box.lines)) == len(desk.box.lines) <= 7


class LostAnswers(InMemoryStore):
    """Puts marks, and does not say so while it is down."""

    is_down = True

    def put(self, key, data, *, if_absent=False):
        super().put(key, data, if_absent=if_absent)
        self._fail(key)

    def get(self, key):
        self._fail(key)
        return super().get(key)

    def _fail(self, key):
        if "/told/" in key and self.is_down:
            raise TransientError("no answer")


def test_a_mark_whose_answer_was_lost_is_recognised_as_ones_own(records):
    desk = Desk(records, LostAnswers())
    sender, history = desk.sender(), busy(records)
    (warned,), none = [desk.notify(sender, history) for _ in range(2)]
    assert warned.startswith(
        "notify: memory://test: it is unknown whether jobs/digits-1/told/reclaimed-1-0 was created"
    )
    assert none == []
    desk.store.is_down = False
    assert desk.notify(sender, history) == []
    assert len(set(desk.box.lines)) == len(desk.box.lines) == 7


def test_jobs_without_notify_or_news_cost_no_request(desk, records, monkeypatch):
    for name in ("put", "get", "head", "list_page"):
        monkeypatch.setattr(desk.store, name, None)
    assert desk.notify(desk.sender(), busy(records), NotifySpec()) == []
    assert desk.notify(desk.sender(), busy(records), NotifySpec(urls=ALL.urls, events=())) == []
    assert desk.notify(desk.sender(), records.history(), ALL) == []
    only_costs = NotifySpec(urls=ALL.urls, events=(NewsKind.COST,))
    assert desk.notify(desk.sender(), busy(records), only_costs) == []


def test_nothing_is_told_of_a_job_that_was_removed(desk, records):
    desk.store.delete(keys.spec(JOB))
    assert desk.notify(desk.sender(), busy(records)) == []
    assert desk.box.put_in == []
    assert list(desk.store.list_objects("")) == []


def test_secrets_are_read_before_the_job_ends_and_without_them_the_event_is_left_to_others(desk, records):
    notify = NotifySpec(urls=("json://${TOKEN}@host",))
    key = keys.secrets(JOB, 0)
    desk.store.put(key, codec.encode(_Secrets(values={"TOKEN": "word", "OTHER": "x"})))
    early = desk.sender()
    desk.notify(early, records.history(), notify)
    desk.store.delete(key)
    ended = records.history(finished=records.finished("failed"))
    late = desk.sender()
    told = ["notify: notify.urls: TOKEN is not among the job's secrets"]
    assert [desk.notify(late, ended, notify) for _ in range(2)] == [told, []]
    assert desk.box.put_in == []
    assert desk.notify(early, ended, notify) == []
    ((message, urls),) = desk.box.put_in
    assert urls == {"urls[0] (json://)": "json://word@host"}
    assert message.severity is Severity.FAILURE


def test_no_variable_of_the_drivers_own_is_put_into_a_url(desk, records, monkeypatch):
    monkeypatch.setenv("TOKEN", "mine")
    notify = NotifySpec(urls=("json://host/${TOKEN}",))
    assert len(desk.notify(desk.sender(), busy(records), notify)) == 1
    desk.store.put(keys.secrets(JOB, 0), codec.encode(_Secrets(values={"TOKEN": "of the job"})))
    desk.notify(desk.sender(), busy(records), notify)
    assert [urls for _, urls in desk.box.put_in] == [{"urls[0] (json://)": "json://host/of the job"}]


def test_only_the_submitters_computer_lets_a_url_lead_anywhere_and_no_secret_decides_where(
    desk, records, tmp_path, monkeypatch
):
    """The record and the secrets are the store's word: a training may have changed them."""
    monkeypatch.setenv(HOME, str(tmp_path))
    urls = (
        "ntfy://nas.lan/${TOPIC}",
        "json://me:${TOKEN}@10.0.0.7:8080/",
        "json://${TOPIC}",
        "${TOKEN}",
        "json://10.0.0.8/",
        "json://x/${HOST}",
    )
    notify = NotifySpec(urls=urls)

    def own(**changed):
        values = {"TOPIC": "job", "TOKEN": "a%2Fb-c", "HOST": "@10.0.0.9/", **changed}
        desk.store.put(keys.secrets(JOB, 0), codec.encode(_Secrets(values=values)))
        desk.store.delete(keys.notified(JOB, "reclaimed-1-0"))
        desk.notify(desk.sender(), records.history(records.launch(outcome="reclaimed")), notify)
        desk.seconds += LEAVE_SECONDS
        return desk.box.own

    assert own() == frozenset()
    for number, noted in enumerate([urls[:4], urls[5:]]):  # as it was submitted, and resumed
        spec = {"name": "digits", "run": {"command": ["true"]}, "notify": {"urls": list(noted)}}
        note(JOB, store_url=store_label(desk.store), sha256=str(number) * 64, spec=spec)
    assert own() == {"urls[0] (ntfy://)", "urls[1] (json://)"}
    assert own(TOKEN="x@169.254.169.254/") == {"urls[0] (ntfy://)"}


def test_a_driver_without_the_notifier_warns_once_and_leaves_the_event_to_others(desk, records):
    notify, sender = NotifySpec(urls=ALL.urls, through="pager"), desk.sender()
    warned = [desk.notify(sender, busy(records), notify) for _ in range(2)]
    assert warned[0][0].startswith('notify: no notifier "pager" is installed')
    assert warned[1] == []
    assert list(desk.store.list_objects(keys.notified_prefix(JOB))) == []


def test_a_fresh_mark_leaves_what_is_new_to_its_maker_for_a_while_and_an_odd_clock_does_not(desk, records):
    first = records.history(records.launch(outcome="reclaimed"))
    desk.notify(desk.sender(), first)
    other = desk.sender()
    desk.notify(other, busy(records))
    assert len(desk.box.put_in) == 1
    desk.seconds += LEAVE_SECONDS
    desk.notify(other, busy(records))
    assert len(desk.box.put_in) == 2
    stamped = records.at(desk.seconds + 3600)
    desk.store._now = lambda: stamped
    desk.store.delete(keys.notified(JOB, "reclaimed-4-0"))
    desk.store.put(keys.notified(JOB, "reclaimed-3-0"), b"another's")
    desk.notify(desk.sender(), busy(records))
    assert len(desk.box.put_in) == 3


def test_a_bug_in_what_is_told_is_a_warning_and_the_job_is_driven_on(desk, records, monkeypatch):
    monkeypatch.setattr(notifications, "news", None)
    sender = desk.sender()
    assert desk.notify(sender, busy(records)) == ["notify: a bug: TypeError"]
    assert desk.notify(sender, busy(records)) == []


def test_quiet_hours_hold_back_all_but_a_limit_and_the_end_and_then_tell_it_together(desk, records):
    notify = NotifySpec(urls=ALL.urls, quiet="22:00-07:00")
    drivers = [desk.sender() for _ in range(2)]
    at_night = busy(records)
    for driver in drivers:
        desk.notify(driver, at_night, notify)
    assert desk.box.put_in == []
    capped = records.change(at_night, stop=records.stop("max_cost"))
    desk.notify(drivers[0], capped, notify)
    assert desk.box.titles == ["digits-1: capped"]
    desk.seconds = timedelta(hours=7).total_seconds()
    for driver in drivers:
        desk.notify(driver, capped, notify)
    assert desk.box.titles[1:] == ["digits-1: reclaimed, relaunched"]
    assert len(desk.box.lines) == 8


def test_the_end_of_a_job_is_told_at_night_too_with_all_that_was_held_back(desk, records):
    notify = NotifySpec(urls=ALL.urls, quiet="00:00-23:59")
    desk.notify(desk.sender(), busy(records), notify)
    desk.notify(desk.sender(), busy(records, finished=records.finished("failed")), notify)
    assert desk.box.titles == ["digits-1: failed, reclaimed, relaunched"]
    assert len(desk.box.lines) == 8


def test_a_message_stays_short_and_times_are_those_of_the_zone(records):
    zone = NotifySpec(timezone="Asia/Shanghai").zone
    many = [News(NewsKind.RECLAIMED, str(n), "x" * 1000, records.at(n)) for n in range(MAX_LINES + 5)]
    message = message_of(many, records.history(), records.assess(records.history()).ledger, zone)
    lines = message.body.splitlines()
    assert len(lines) == MAX_LINES + 2
    assert lines[0].startswith("2026-01-01 08:00 CST: xxx")
    assert len(lines[0]) < 350
    assert lines[-2] == "... and 5 more"
