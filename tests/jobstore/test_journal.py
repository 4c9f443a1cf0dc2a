"""The journal."""

import threading
from datetime import datetime, timezone

import pytest
from faultstore import FaultPlan, FaultyStore, Outage

from cloudspot.errors import CorruptData, TransientError
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.journal import Journal
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import Closed, new_nonce
from cloudspot.local.filestore import FileStore

AT = datetime(2026, 11, 20, tzinfo=timezone.utc)


@pytest.fixture
def store(tmp_path):
    return FileStore(f"file://{tmp_path}/store")


def record(launch):
    return Closed(launch=launch, outcome="voided", detail="", machines=(), at=AT, writer=new_nonce())


def test_records_come_back_in_order_and_a_second_reader_sees_them(store):
    records = [record(launch) for launch in range(1, 13)]
    writer = Journal(store, "x")
    assert writer.read() == ()
    for number, one in enumerate(records, 1):
        assert writer.append(one, number) is True
    assert writer.read() == tuple(records)
    assert Journal(store, "x").read() == tuple(records)
    assert Journal(store, "y").read() == ()


def test_a_number_belongs_to_its_first_writer(store):
    first, second = record(1), record(2)
    assert Journal(store, "x").append(first, 1) is True
    assert Journal(store, "x").append(second, 1) is False
    assert Journal(store, "x").append(first, 1) is True
    assert Journal(store, "x").read() == (first,)
    with pytest.raises(ValueError, match="number"):
        Journal(store, "x").append(first, 0)


def test_a_reader_asks_once_more_than_there_are_new_records(store, tmp_path):
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    journal, writer = Journal(counted, "x"), Journal(store, "x")
    for number in range(1, 6):
        writer.append(record(number), number)
    assert len(journal.read()) == 5
    assert counted.calls == {"list_page": 1, "get": 6}
    counted.calls.clear()
    journal.read()
    assert counted.calls == {"get": 1}
    writer.append(record(6), 6)
    counted.calls.clear()
    assert len(journal.read()) == 6
    assert counted.calls == {"get": 2}


def test_a_foreign_object_in_the_journals_prefix_hides_no_record(store):
    Journal(store, "x").append(record(1), 1)
    store.put(keys.journal_prefix("x") + ".DS_Store", b"\0")
    store.put(keys.journal_prefix("x") + "notes", b"\0")
    assert len(Journal(store, "x").read()) == 1


def test_the_first_missing_number_is_the_end(store):
    for number in (1, 2, 4):
        store.put(keys.journal("x", number), codec.encode(record(number)))
    reader = Journal(store, "x")
    assert [one.launch for one in reader.read()] == [1, 2]
    Journal(store, "x").append(record(3), 3)
    assert [one.launch for one in reader.read()] == [1, 2, 3, 4]
    assert reader.read() == Journal(store, "x").read()


def test_a_malformed_record_is_corrupt_and_not_skipped(store):
    Journal(store, "x").append(record(1), 1)
    store.put(keys.journal("x", 2), b"{}")
    with pytest.raises(CorruptData, match="journal/00000002"):
        Journal(store, "x").read()


def test_a_failed_read_leaves_the_journal_readable(store, tmp_path):
    now = [0.0]
    flaky = FaultyStore(store, FaultPlan(outages=(Outage(start=5, end=6),)), tmp_path, clock=lambda: now[0])
    journal = Journal(patient(flaky, sleep=lambda seconds: None), "x")
    Journal(store, "x").append(record(1), 1)
    assert len(journal.read()) == 1
    now[0] = 5.0
    with pytest.raises(TransientError):
        journal.read()
    now[0] = 6.0
    assert len(journal.read()) == 1


def test_writers_that_race_leave_no_gap_and_each_record_once(store):
    def write(name):
        journal = Journal(store, "x")
        for launch in range(1, 21):
            one = record(launch * 100 + name)
            while not journal.append(one, len(journal.read()) + 1):
                pass

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    launches = [one.launch for one in Journal(store, "x").read()]
    assert sorted(launches) == sorted(launch * 100 + name for name in range(4) for launch in range(1, 21))
    for name in range(4):
        own = [launch for launch in launches if launch % 100 == name]
        assert own == sorted(own)
