from datetime import datetime, timedelta, timezone

import pytest
from support.stores.memorystore import InMemoryStore

from cloudspot.jobstore.jobs.suspicions import delete_suspicions, read_suspicions, write_suspicions
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import ObservedDuration, Seat, Suspect, Suspicions

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOB = "digits-1"


def suspicions(writer, *, seconds=0.0, until=None):
    lasting = ObservedDuration(seconds=seconds, until=until)
    node = Suspect(seat=Seat(1, 0), instance_id="i-1-0", counter=7, silent=None, absent=lasting)
    return Suspicions(suspects=(node,), at=START, writer=writer)


class Store(InMemoryStore):
    """Its clock moves on by a minute with each put; what happens between two calls can be chosen."""

    def __init__(self):
        self.time = START
        self.between = None
        super().__init__(now=lambda: self.time)

    def put(self, key, data, *, if_absent=False):
        self.time += timedelta(minutes=1)
        super().put(key, data, if_absent=if_absent)

    def get(self, key):
        data = super().get(key)
        if self.between is not None:
            self.between()
        return data


@pytest.fixture
def store():
    return Store()


def test_what_was_left_is_read_with_the_stores_time_of_its_write(store):
    left = suspicions("a", seconds=61.5, until=START)
    write_suspicions(store, JOB, left)
    store.time += timedelta(hours=3)
    assert read_suspicions(store, JOB) == (left, START + timedelta(minutes=1))


def test_nothing_is_there_before_the_first_and_after_a_deletion(store):
    assert read_suspicions(store, JOB) is None
    write_suspicions(store, JOB, suspicions("a"))
    delete_suspicions(store, JOB)
    assert read_suspicions(store, JOB) is None
    delete_suspicions(store, JOB)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"suspects":"one"}', b"\xff"])
def test_what_is_malformed_is_nothing(store, data):
    store.put(keys.suspicions(JOB), data)
    assert read_suspicions(store, JOB) is None


def test_a_write_between_the_two_reads_gives_its_later_time_and_never_an_earlier(store):
    first = suspicions("a")
    write_suspicions(store, JOB, first)
    store.between = lambda: write_suspicions(store, JOB, suspicions("b"))
    assert read_suspicions(store, JOB) == (first, START + timedelta(minutes=2))


def test_a_deletion_between_the_two_reads_leaves_nothing(store):
    write_suspicions(store, JOB, suspicions("a"))
    store.between = lambda: delete_suspicions(store, JOB)
    assert read_suspicions(store, JOB) is None
