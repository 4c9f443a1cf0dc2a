"""What tells people that something drives their jobs while nobody watches."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from support.stores.memorystore import InMemoryStore

from cloudspot.jobstore.jobs.standing_drivers import list_drivers, note_driver
from cloudspot.jobstore.layout import keys

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
TEN_MINUTES = timedelta(minutes=10)


class Shelf(InMemoryStore):
    """Dates what it holds by ``time``."""

    def __init__(self) -> None:
        self.time = START
        super().__init__(now=lambda: self.time)


def names(store: InMemoryStore, now: datetime) -> list[str]:
    return [one.who for one in list_drivers(store, now, "aws")]


def test_one_pass_is_no_driver_and_two_tell_when_the_third_is_due(store: Shelf) -> None:
    note_driver(store, "reconcile on host", START, providers=["aws"])
    assert names(store, START) == []
    store.time += TEN_MINUTES
    note_driver(store, "reconcile on host", START + TEN_MINUTES, providers=["aws"])
    assert [(one.who, one.every) for one in list_drivers(store, START + TEN_MINUTES, "aws")] == [
        ("reconcile on host", 600.0)
    ]
    assert names(store, START + 3 * TEN_MINUTES) == ["reconcile on host"]
    assert names(store, START + 4 * TEN_MINUTES) == []


def test_one_that_knows_its_interval_counts_from_the_first_pass(store: Shelf) -> None:
    note_driver(store, "a function", START, every=timedelta(minutes=1), providers=["aws"])
    assert names(store, START + timedelta(minutes=3)) == ["a function"]
    assert names(store, START + timedelta(minutes=5)) == []


@pytest.mark.parametrize("shift", [-timedelta(days=1), timedelta(days=1)])
def test_one_whose_clock_is_wrong_drives_as_well(store: Shelf, shift: timedelta) -> None:
    """By its own words, it was here a day ago or will be here tomorrow."""
    for _ in range(2):
        note_driver(store, "reconcile on host", store.time + shift, providers=["aws"])
        store.time += TEN_MINUTES
    assert names(store, store.time) == ["reconcile on host"]
    assert names(store, store.time + 2 * TEN_MINUTES) == []


def test_one_without_the_jobs_provider_does_not_drive_it(store: Shelf) -> None:
    note_driver(store, "a function", START, every=timedelta(minutes=1), providers=["aws", "local"])
    assert list_drivers(store, START, "gcp") == ()
    assert len(list_drivers(store, START, "aws")) == 1


def test_what_comes_less_than_hourly_drives_nothing_in_time(store: Shelf) -> None:
    for number in range(2):
        store.time = START + number * timedelta(days=1)
        note_driver(store, "nightly", START + number * timedelta(days=1), providers=["aws"])
    assert names(store, START + timedelta(days=1)) == []


@pytest.mark.parametrize("data", [b"", b"[]", b'{"who": 3}'])
def test_a_malformed_note_is_passed_over_and_replaced(store: Shelf, data: bytes) -> None:
    store.put(keys.driver("a-function"), data)
    note_driver(store, "another", START, every=timedelta(minutes=1), providers=["aws"])
    assert names(store, START) == ["another"]
    note_driver(store, "a function", START, every=timedelta(minutes=1), providers=["aws"])
    assert names(store, START) == ["a function", "another"]


def test_hosts_that_live_for_one_pass_leave_no_heap_of_notes() -> None:
    store = Shelf()
    for day in range(5):
        store.time = START + timedelta(days=day)
        note_driver(store, f"reconcile on pod-{day}", store.time, providers=["aws"])
    assert len(list(store.list_objects(keys.drivers_prefix()))) == 2


def test_what_others_keep_there_is_left_alone(store: Shelf) -> None:
    """In the root of a bucket, ``drivers/`` may have objects of others; each was deleted when it was a day old."""
    store.put(keys.drivers_prefix() + "nvidia-570.run", b"theirs")
    store.time += timedelta(days=30)
    note_driver(store, "reconcile on host", store.time, providers=["aws"])
    assert store.get(keys.drivers_prefix() + "nvidia-570.run") == b"theirs"


def test_any_name_has_a_key(store: Shelf) -> None:
    note_driver(store, "réconcile/../" + "x" * 300, START, every=timedelta(minutes=1), providers=["aws"])
    assert len(names(store, START)) == 1


@pytest.fixture
def store() -> Shelf:
    return Shelf()
