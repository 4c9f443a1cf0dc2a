"""The store's clock, as a process knows it: whatever becomes of the computer's own."""

from __future__ import annotations

import re
import threading
from datetime import datetime, timedelta, timezone

import pytest
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import TransientError
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.store_clock import StoreClock, clock_of

START = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


class Host:
    """A computer whose clock may be set, and a store that has the right time, in whole seconds."""

    def __init__(self, shift: float = 0.0) -> None:
        self.uptime = 5000.0
        self.shift = shift
        self.num_asked = 0
        self.store = InMemoryStore(now=self.stamp)
        self.clock = StoreClock(
            wall=lambda: self.right + timedelta(seconds=self.shift), uptime=lambda: self.uptime
        )

    @property
    def right(self) -> datetime:
        return START + timedelta(seconds=self.uptime)

    def stamp(self) -> datetime:
        self.num_asked += 1
        self.uptime += 0.05  # on its way there and back
        return self.right.replace(microsecond=0)

    def error(self) -> float:
        return (self.clock.now() - self.right).total_seconds()


@pytest.mark.parametrize("shift", [-86400.0, -3600.0, -5.0, 5.0, 1200.0, 86400.0])
def test_a_wrong_clock_is_put_right_by_the_stores(shift):
    host = Host(shift)
    assert host.error() == shift
    host.clock.compare(host.store)
    assert abs(host.error()) <= 1.1


def test_a_clock_that_the_store_does_not_contradict_keeps_its_precision():
    host = Host(0.004)
    host.clock.compare(host.store)
    host.uptime += 0.75
    assert host.error() == pytest.approx(0.004)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_later_moves_the_time_by_a_second_at_most(step):
    host = Host()
    host.clock.compare(host.store)
    before = host.clock.now()
    host.uptime, host.shift = host.uptime + 10.0, step
    assert abs((host.clock.now() - before).total_seconds() - 10.0) <= 1.1
    assert abs(host.error()) <= 1.1


def test_the_store_is_asked_once_an_hour_and_when_the_clock_was_set():
    host = Host()
    for _ in range(5):
        host.clock.compare(host.store)
    assert host.num_asked == 1
    host.shift = 60.0
    host.clock.compare(host.store)
    assert host.num_asked == 2
    host.uptime += 3601.0
    host.clock.compare(host.store)
    host.clock.compare(host.store)
    assert host.num_asked == 3
    assert list(host.store.list_objects("")) == []


@pytest.mark.full
def test_what_is_known_outlives_an_outage_of_the_store(monkeypatch):
    host = Host(3600.0)
    host.clock.compare(host.store)
    host.shift = -3600.0

    def fail(*_args, **_options):
        raise TransientError("no answer")

    monkeypatch.setattr(host.store, "put", fail)
    with pytest.raises(TransientError):
        host.clock.compare(host.store)
    assert abs(host.error()) <= 1.1


def test_an_answer_during_which_the_process_was_suspended_is_asked_for_again(monkeypatch):
    host, stamp = Host(3600.0), Host.stamp

    def slow() -> datetime:
        host.uptime += 600.0
        return stamp(host)

    monkeypatch.setattr(host.store, "_now", slow)
    host.clock.compare(host.store)
    monkeypatch.setattr(host.store, "_now", host.stamp)
    host.clock.compare(host.store)
    assert abs(host.error()) <= 1.1


def test_whoever_opens_a_store_again_knows_its_clock():
    """A function opens it at each pass, and would pay for three requests more."""
    store = InMemoryStore()
    assert clock_of(with_retries(InMemoryStore())) is clock_of(store)
    assert clock_of(InMemoryStore("memory://other")) is not clock_of(store)


@pytest.mark.parametrize(("shift", "side"), [(1200.0, "ahead of"), (-3600.0, "behind")])
def test_people_are_told_by_how_much_their_clock_is_wrong(shift, side):
    host = Host(shift)
    host.clock.compare(host.store)
    found = re.fullmatch(r"this computer's clock is (\d+) s (.+) the store's, so .*", host.clock.warning)
    assert (abs(int(found[1]) - abs(shift)) <= 2, found[2]) == (True, side)


@pytest.mark.parametrize("shift", [0.0, -30.0, 30.0])
def test_a_clock_that_is_nearly_right_is_not_worth_a_word(shift):
    host = Host(shift)
    host.clock.compare(host.store)
    assert host.clock.warning == ""


def test_an_answer_that_took_long_takes_nothing_from_what_was_known():
    """A laptop that slept between the put and its answer decided once by its own wrong clock."""
    host = Host(-2400.0)
    host.clock.compare(host.store)
    host.uptime += 3601.0

    class Slow(InMemoryStore):
        def head(self, key):
            host.uptime += 3000.0
            return super().head(key)

    host.clock.compare(Slow(now=host.stamp))
    assert abs(host.error()) <= 1.1


def compare_at_once(host: Host, num_threads: int) -> list[str]:
    """Compare in many threads, of which one asks when all have come; return what each raised."""
    asked, raised, lock = threading.Event(), [], host.clock._asking

    class Door:
        """Counts those who come."""

        num_come = 0

        def acquire(self, *, blocking: bool) -> bool:
            self.num_come += 1
            if self.num_come == num_threads:
                asked.set()
            return lock.acquire(blocking=blocking)

        release = staticmethod(lock.release)

    host.clock._asking = Door()  # type: ignore[assignment]
    stamp = host.store._now
    host.store._now = lambda: (asked.wait(10), stamp())[1]

    def run() -> None:
        try:
            host.clock.compare(host.store)
            raised.append("")
        except TransientError as error:
            raised.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return raised


def test_one_thread_asks_the_store_for_all():
    host = Host()
    assert compare_at_once(host, 8) == [""] * 8
    assert host.num_asked == 1
    host.uptime += 3601.0
    host.clock._asking = threading.Lock()
    assert compare_at_once(host, 8) == [""] * 8
    assert host.num_asked == 2


def test_threads_that_waited_for_an_answer_do_not_ask_a_store_that_is_away_one_after_another(monkeypatch):
    host, num_puts = Host(), []

    def fail(*_args, **_options):
        num_puts.append(host.store._now())
        raise TransientError("no answer")

    monkeypatch.setattr(host.store, "put", fail)
    monkeypatch.setattr("cloudspot.jobstore.access.store_clock.with_retries", lambda store: store)
    assert compare_at_once(host, 8) == ["no answer"] * 8
    assert len(num_puts) == 1
    with pytest.raises(TransientError):
        host.clock.compare(host.store)
    assert len(num_puts) == 2, "whoever comes later asks again"


def test_a_thread_that_waited_while_one_failed_and_another_was_answered_goes_on():
    host = Host()
    host.clock.compare(host.store)
    compared, host.clock._compared = host.clock._compared, None

    class Door:
        """Lets a thread in after another failed, and one more was answered."""

        @staticmethod
        def acquire(*, blocking: bool) -> bool:
            host.clock._failures, host.clock._compared = (1, TransientError("no answer")), compared
            return True

        release = staticmethod(lambda: None)

    host.clock._asking = Door()  # type: ignore[assignment]
    host.clock.compare(host.store)
    assert host.num_asked == 1
