"""The journal."""

import threading
from datetime import datetime, timezone

import pytest
from support.records import made_journal
from support.stores.directorystore import directory_store
from support.stores.faultstore import FaultPlan, FaultyStore, Outage
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import CorruptData, TransientError
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.journal.journal import COPY_EVERY, Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Commit, Intent, JournalCopy, new_nonce

AT = datetime(2026, 11, 20, tzinfo=timezone.utc)


@pytest.fixture
def store(tmp_path):
    return directory_store(tmp_path / "store")


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
    assert counted.calls == {
        "list_page": 2,
        "get": 4,
    }  # with the end; copies, which are not there, are listed
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
    journal = Journal(with_retries(flaky, sleep=lambda seconds: None), "x")
    Journal(store, "x").append(record(1), 1)
    assert len(journal.read()) == 1
    now[0] = 5.0
    with pytest.raises(TransientError):
        journal.read()
    now[0] = 6.0
    assert len(journal.read()) == 1


@pytest.mark.full
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


@pytest.mark.full
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
        journal.copy()
    return journal.known


def copies(store):
    """Return the numbers of the first and the last record of each copy."""
    prefix = keys.journal_copies_prefix("x")
    runs = (meta.key.removeprefix(prefix).split("-") for meta in store.list_objects(prefix))
    return sorted((int(first), int(last)) for last, first in runs)


def test_a_copy_holds_a_run_whose_length_grows_with_the_journal(store):
    write(store, 27)
    assert copies(store) == [(1, 4), (1, 16), (5, 8), (9, 12), (17, 20), (21, 24)]


@pytest.mark.parametrize(
    ("num_records", "num_copies"), [(8, 2), (15, 3), (16, 1), (63, 3 + 3), (64, 1), (101, 1 + 2 + 1)]
)
def test_a_new_reader_reads_a_few_copies_and_what_has_come_since(store, tmp_path, num_records, num_copies):
    known = write(store, num_records)
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    assert Journal(counted, "x").read() == known
    # The first record, the copies, the tail, the end.
    assert counted.calls == {"list_page": 1, "get": 2 + num_copies + num_records % COPY_EVERY}


@pytest.mark.full
def test_what_the_copies_of_a_long_journal_take_to_write_and_to_read(tmp_path):
    """One copy, rewritten whole every four commits, took 615 MB for 5,000 of them, and four times that for
    10,000."""
    written, reads = [], []
    for num_records in (1250, 5000):
        store = FaultyStore(CopiesMeter(), FaultPlan(), tmp_path / str(num_records))
        known = write(store, num_records)
        size = sum(len(codec.encode(one)) for one in known)
        written.append(store.inner.num_bytes / size)
        store.calls.clear()
        assert Journal(store, "x").read() == known
        reads.append(sum(store.calls.values()))
    assert max(written) < 6, "as often as there are lengths of runs, and each time less than all"
    assert max(reads) < 25


class CopiesMeter(InMemoryStore):
    """Counts the bytes that are put as copies of the journal."""

    num_bytes = 0

    def put(self, key, data, *, if_absent=False):
        super().put(key, data, if_absent=if_absent)
        if key.startswith(keys.journal_copies_prefix("x")):
            self.num_bytes += len(data)


@pytest.mark.full
def test_what_another_process_has_copied_is_not_copied_again(store, tmp_path):
    journals = [Journal(store, "x") for _ in range(3)]
    counted = [FaultyStore(store, FaultPlan(), tmp_path / str(number)) for number in range(3)]
    journals = [Journal(one, "x") for one in counted]
    for step in range(80):
        assert journals[step % 3].append(record(step), step + 1)
        for journal in journals:
            journal.read()
        journals[step // 7 % 3].copy()
    num_puts = sum(one.calls["put"] for one in counted)
    assert num_puts - 80 <= len(copies(store)) <= 20 + 5


def test_who_has_read_a_long_journal_without_copies_writes_few(store):
    journal = Journal(store, "x")
    for step in range(91):
        assert journal.append(record(step), step + 1)
    journal.copy()
    assert copies(store) == [(1, 64), (65, 80), (81, 84), (85, 88)]
    journal.copy()
    assert len(copies(store)) == 4


@pytest.mark.full
def test_any_copies_however_old_give_the_same_journal(store):
    known = write(store, 91)
    standing = {run: store.get(keys.journal_copy("x", *reversed(run))) for run in copies(store)}
    for number, left_out in enumerate(standing):
        for run, data in standing.items():
            store.delete(keys.journal_copy("x", *reversed(run)))
            if run != left_out and run[1] <= 5 * number:
                store.put(keys.journal_copy("x", *reversed(run)), data)
        assert Journal(store, "x").read() == known


def copy_of(known, **fields):
    return codec.encode(JournalCopy(**{"first_writer": known[0].writer, "records": known[16:20], **fields}))


@pytest.mark.parametrize(
    "change",
    [
        lambda known: copy_of(known, records=()),
        lambda known: copy_of(known, records=known[16:19]),
        lambda known: copy_of(known, records=known[16:21]),
        lambda known: copy_of(known, records=known[4:8]),
        lambda known: copy_of(known, records=(*known[16:18], known[19], known[18])),
        lambda known: copy_of(known, first_writer=new_nonce()),  # another job's of this id
        lambda known: b"{",
        lambda known: b"",
    ],
)
@pytest.mark.parametrize("run", [(17, 20), (1, 16)])
def test_a_copy_that_does_not_fit_is_not_believed_and_is_written_anew(store, tmp_path, run, change):
    known = write(store, 25)
    key = keys.journal_copy("x", *reversed(run))
    fitting = store.get(key)
    store.put(key, change(known))
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    journal = Journal(counted, "x")
    assert journal.read() == known
    # Two listings, as the rest is not asked for one by one.
    assert counted.calls == {"list_page": 2, "get": 1 + 3 + (25 - run[0] + 1 if run[0] > 1 else 24) + 1}
    journal.copy()
    assert store.get(key) == fitting
    counted.calls.clear()
    assert Journal(counted, "x").read() == known
    assert counted.calls == {"list_page": 1, "get": 1 + 3 + 1 + 1}


@pytest.mark.parametrize(
    "name",
    ["00000003-00000001", "00000008-00000003", "00000000-00000001", "00000004-00000000", "x", "00000005-00000002",
     "999999999999999999999999999999-00000001", "00000004-00000001.old", "00008192-00000001"],
)  # fmt: skip
def test_what_is_called_otherwise_among_the_copies_is_passed_over(store, name):
    known = write(store, 11)
    store.put(keys.journal_copies_prefix("x") + name, b"{")
    journal = Journal(store, "x")
    assert journal.read() == known
    assert journal.num_copied == 8


def test_the_one_copy_of_an_earlier_version_is_passed_over(store):
    known = write(store, 11)
    store.put("jobs/x/journal-copy", b"{")
    assert Journal(store, "x").read() == known


def test_a_copy_leaves_out_the_requests_and_whoever_needs_one_reads_it_again(store, tmp_path):
    made_journal.open_launch(store, "x", 4)
    journal = Journal(store, "x")
    whole = journal.read()
    journal.copy()
    copy = codec.decode(store.get(keys.journal_copy("x", 4, 1)), JournalCopy)
    assert [one.request.body for one in copy.records if isinstance(one, Intent)] == [{}] * 4
    made_journal.open_launch(store, "x", 5)
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    journal = Journal(counted, "x")
    known = journal.read()
    # What stands first is read to compare it with the copy, which is taken.
    assert [one.request.body for one in known] == [{}, {}, {}, {}, {"launch": 5}]
    assert [(one.token, one.offer) for one in known[:4]] == [(one.token, one.offer) for one in whole]
    counted.calls.clear()
    assert [journal.request(launch) for launch in (1, 2, 3, 4)] == [one.request for one in whole]
    assert counted.calls == {"get": 4}
    assert journal.request(5).body == {"launch": 5}
    assert counted.calls == {"get": 4}
    with pytest.raises(ValueError, match="launch 6 was not read"):
        journal.request(6)


@pytest.mark.parametrize("has_read", [True, False])
def test_a_record_that_does_not_follow_is_not_written_even_by_a_journal_that_was_not_read(store, has_read):
    write(store, 3)
    journal = Journal(store, "x")
    if has_read:
        journal.read()
    with pytest.raises(
        ValueError, match="journal record 4 would contradict those before it: it commits checkpoint 0-1"
    ):
        journal.append(record(1), 4)
    assert len(Journal(store, "x").read()) == 3


def test_a_record_that_does_not_follow_is_corrupt(store):
    write(store, 3)
    store.put(keys.journal("x", 4), codec.encode(record(1)))
    journal = Journal(store, "x")
    for _ in range(2):
        with pytest.raises(
            CorruptData,
            match=r"journal/00000004 contradicts the records before it: it commits checkpoint 0-1",
        ):
            journal.read()
    assert len(journal.known) == 3
