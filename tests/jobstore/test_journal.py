"""The journal."""

import threading
from datetime import datetime, timezone

import made_journal
import pytest
from faultstore import FaultPlan, FaultyStore, Outage

from cloudspot.errors import CorruptData, TransientError
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.journal import COPY_EVERY, Journal
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import Commit, Intent, JournalCopy, new_nonce
from cloudspot.local.filestore import FileStore

AT = datetime(2026, 11, 20, tzinfo=timezone.utc)


@pytest.fixture
def store(tmp_path):
    return FileStore(f"file://{tmp_path}/store")


def record(step):
    """A record that may follow those of lower steps, in a journal that begins with one."""
    return Commit(generation=0, step=step, kind="session", size=1, sealed_at=AT, at=AT, writer=new_nonce())


def test_records_come_back_in_order_and_a_second_reader_sees_them(store):
    records = [record(step) for step in range(1, 13)]
    writer = Journal(store, "x")
    assert writer.read() == ()
    for number, one in enumerate(records, 1):
        assert writer.append(one, number) is True
    assert writer.known == tuple(records)
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
    for number in range(1, 4):
        writer.append(record(number), number)
    assert len(journal.read()) == 3
    assert counted.calls == {"list_page": 1, "get": 5}  # with the end, and a copy that is not there
    counted.calls.clear()
    journal.read()
    assert counted.calls == {"get": 1}
    writer.append(record(4), 4)
    counted.calls.clear()
    assert len(journal.read()) == 4
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
    assert [one.step for one in reader.read()] == [1, 2]
    Journal(store, "x").append(record(3), 3)
    assert [one.step for one in reader.read()] == [1, 2, 3, 4]
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
    """Each appends what follows from all that stands, or reads again."""
    written = []

    def write():
        journal = Journal(store, "x")
        for _ in range(20):
            while True:
                known = journal.read()
                one = record(known[-1].step + 1 if known else 0)
                if journal.append(one, len(known) + 1):
                    written.append(one)
                    break

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Journal(store, "x").read()
    assert [one.step for one in found] == list(range(80))
    assert sorted(written, key=lambda one: one.step) == list(found)


def test_threads_share_what_any_of_them_has_read(store):
    journal, done = Journal(store, "x"), threading.Event()

    def read():
        while not done.is_set():
            found = journal.read()
            assert [one.step for one in found] == list(range(len(found)))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    other = Journal(store, "x")
    for step in range(40):
        assert (journal if step % 3 else other).append(record(step), step + 1)
        journal.read()
    done.set()
    for thread in threads:
        thread.join()
    assert [one.step for one in journal.known] == list(range(40))


def write(store, num_records):
    journal = Journal(store, "x")
    for step in range(num_records):
        assert journal.append(record(step), step + 1)
        journal.renew_copy()
    return journal.known


@pytest.mark.parametrize("num_records", [8, 15, 16, 100])
def test_a_new_reader_reads_a_copy_and_what_has_come_since(store, tmp_path, num_records):
    known = write(store, num_records)
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    assert Journal(counted, "x").read() == known
    # The first record, the copy, the tail, the end.
    assert counted.calls == {"get": 3 + num_records % COPY_EVERY}


def test_any_copy_however_old_gives_the_same_journal(store):
    known = write(store, 20)
    for number in range(21):
        copy = JournalCopy(records=known[:number])
        store.put(keys.journal_copy("x"), codec.encode(copy))
        assert Journal(store, "x").read() == known


@pytest.mark.parametrize(
    "change",
    [
        lambda known: codec.encode(JournalCopy(records=())),
        lambda known: codec.encode(JournalCopy(records=(record(0), *known[1:]))),  # another job's of this id
        lambda known: codec.encode(JournalCopy(records=(known[0], known[2], known[1]))),
        lambda known: b"{",
        lambda known: b"",
    ],
)
def test_a_copy_that_does_not_fit_is_not_believed(store, change):
    known = write(store, 10)
    store.put(keys.journal_copy("x"), change(known))
    assert Journal(store, "x").read() == known


def test_a_copy_leaves_out_the_requests_and_whoever_needs_one_reads_it_again(store, tmp_path):
    made_journal.open_launch(store, "x", 3)
    journal = Journal(store, "x")
    whole = journal.read()
    journal.write_copy()
    copy = codec.decode(store.get(keys.journal_copy("x")), JournalCopy)
    assert [one.request.body for one in copy.records if isinstance(one, Intent)] == [{}, {}, {}]
    made_journal.open_launch(store, "x", 4)
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    journal = Journal(counted, "x")
    known = journal.read()
    # What stands first is read to compare it with the copy, which is taken.
    assert [one.request.body for one in known] == [{}, {}, {}, {"launch": 4}]
    assert [(one.token, one.offer) for one in known[:3]] == [(one.token, one.offer) for one in whole]
    counted.calls.clear()
    assert [journal.request(launch) for launch in (1, 2, 3)] == [one.request for one in whole]
    assert counted.calls == {"get": 3}
    assert journal.request(4).body == {"launch": 4}
    assert counted.calls == {"get": 3}
    with pytest.raises(ValueError, match="launch 5 was not read"):
        journal.request(5)


def test_a_record_that_does_not_follow_is_not_written_by_who_has_read_all_before_it(store):
    write(store, 3)
    journal = Journal(store, "x")
    journal.read()
    with pytest.raises(ValueError, match="journal record 4 would not follow: it commits checkpoint 0-1"):
        journal.append(record(1), 4)
    assert len(Journal(store, "x").read()) == 3


def test_a_record_that_does_not_follow_is_corrupt(store):
    write(store, 3)
    store.put(keys.journal("x", 4), codec.encode(record(1)))
    journal = Journal(store, "x")
    for _ in range(2):
        with pytest.raises(
            CorruptData, match=r"journal/00000004 does not follow .*: it commits checkpoint 0-1"
        ):
            journal.read()
    assert len(journal.known) == 3
