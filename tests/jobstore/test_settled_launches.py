"""The copy of what can no longer change: as good as the records, and never trusted where it does not fit."""

import dataclasses
from datetime import datetime, timedelta, timezone

import made_journal
import msgspec
import pytest
from faultstore import FaultPlan, FaultyStore
from made_records import Records
from many_jobs import ManyJobs
from memorystore import InMemoryStore

from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.journal import COPY_EVERY, Journal
from cloudspot.jobstore.reader import HistoryReader
from cloudspot.jobstore.records import SettledLaunches
from cloudspot.jobstore.settled_launches import LATE_SECONDS, find_settled, settled_launches, write_settled


@pytest.fixture
def store():
    return InMemoryStore()


@pytest.fixture
def job_id(store, tmp_path):
    """A job of five launches, the last of which trains; nobody has copied them."""
    return ManyJobs(store, tmp_path / "work").add_live(num_launches=5)


def read(store, job_id):
    return HistoryReader(store, job_id).read()


def without_requests(history):
    """The history, as a copy tells it: of what is settled the rendered requests are left out."""
    launches = []
    for launch in history.launches:
        request = launch.intent.request
        if launch.closed is not None:
            request = msgspec.structs.replace(request, body={})
        intent = msgspec.structs.replace(launch.intent, request=request)
        launches.append(dataclasses.replace(launch, intent=intent, beats_listed={}))
    return dataclasses.replace(history, launches=tuple(launches))


def find(store, job_id, history):
    return find_settled(store, history.submission, Journal(store, job_id).read())


def copy(store, history, num_launches=None):
    settled = settled_launches(history, datetime.now(timezone.utc))
    write_settled(store, history, settled[:num_launches])


@pytest.mark.parametrize("num_launches", [0, 1, 3, 4])
def test_any_copy_however_old_gives_the_same_history(store, job_id, num_launches):
    history = read(store, job_id)
    copy(store, history, num_launches)
    assert len(find(store, job_id, history).launches) == num_launches
    assert without_requests(read(store, job_id)) == without_requests(history)
    # The request of the open launch is there: it may have to be sent again.
    assert read(store, job_id).launches[-1].intent == history.launches[-1].intent


def test_a_history_with_a_copy_costs_the_same_however_long_it_is(store, tmp_path):
    costs, tails = [], []
    for num_launches in (3, 40):
        job_id = ManyJobs(store, tmp_path / "work").add_long(num_launches, num_launches)
        copy(store, read(store, job_id))
        counted = FaultyStore(store, FaultPlan(), tmp_path / f"{num_launches}")
        assert len(read(counted, job_id).attempts) == num_launches
        costs.append(dict(counted.calls))
        tails.append(len(Journal(store, job_id).read()) % COPY_EVERY)
        store = InMemoryStore()
    # The submission, the journal's first record and its end, both copies, a slot and a heartbeat; the stop,
    # which is not there. Slots and nodes are listed.
    assert [cost["list_page"] for cost in costs] == [2, 2]
    assert [cost["get"] - tail for cost, tail in zip(costs, tails, strict=True)] == [8, 8]


def damaged(store, job_id, change):
    key = keys.settled_launches(job_id)
    record = codec.decode(store.get(key), SettledLaunches)
    store.put(key, codec.encode(change(record)))


@pytest.mark.parametrize(
    "change",
    [
        lambda record: msgspec.structs.replace(record, submission="another job of this id"),
        lambda record: msgspec.structs.replace(record, launches=record.launches[1:]),
        lambda record: msgspec.structs.replace(record, launches=record.launches[::-1]),
        lambda record: msgspec.structs.replace(
            record,
            launches=(msgspec.structs.replace(record.launches[0], slots={7: record.launches[0].slots[0]}),),
        ),
        lambda record: msgspec.structs.replace(
            record, launches=(msgspec.structs.replace(record.launches[0], exits=record.launches[1].exits),)
        ),
    ],
)
def test_a_copy_that_does_not_fit_is_not_believed(store, job_id, change):
    history = read(store, job_id)
    copy(store, history)
    damaged(store, job_id, change)
    assert find(store, job_id, history) is None
    assert read(store, job_id) == history


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'{"submission": 1}'])
def test_a_copy_that_is_malformed_is_not_believed(store, job_id, data):
    history = read(store, job_id)
    store.put(keys.settled_launches(job_id), data)
    assert read(store, job_id) == history


def test_a_launch_settles_when_all_its_machines_have_said_their_last_word_or_long_after_its_end():
    records = Records()
    intent = records.intent(num_nodes=2)
    exits = {rank: records.exit("drained", instance_id=f"i-1-{rank}", rank=rank) for rank in range(2)}
    foreign = {**exits, 1: records.exit("drained", instance_id="another", rank=1)}

    def settled(seconds=0.0, **fields):
        launch = records.launch(outcome="reclaimed", closed_at=100.0, intent=intent, **fields)
        return len(settled_launches(records.history(launch), records.at(100.0 + seconds)))

    assert settled(exits=exits) == 1
    for late in ({0: exits[0]}, {}, foreign):
        assert settled(exits=late) == settled(LATE_SECONDS, exits=late) == 0
        assert settled(LATE_SECONDS + 1, exits=late) == 1


def test_launches_settle_in_order_and_none_that_is_open():
    records = Records()
    word = {0: records.exit("drained")}
    first = records.launch(1, outcome="lost", closed_at=100.0)
    second = records.launch(2, outcome="reclaimed", exits={0: records.exit("drained", instance_id="i-2-0")})
    refused = records.capacity(3, at=200.0)
    still_open = records.launch(4, exits=word)
    history = records.history(first, second, refused, still_open)
    assert settled_launches(history, records.at(300.0)) == ()
    assert settled_launches(history, records.at(101.0 + LATE_SECONDS)) == (first, second, refused)


def test_the_last_word_of_a_machine_that_was_cut_off_is_not_hidden(store, job_id):
    """A copy that was made before it would have told the story without it."""
    (last,) = read(store, job_id).launches[-1:]
    records = Records()
    closed = records.closed("lost", last.number)
    closed = msgspec.structs.replace(closed, at=datetime.now(timezone.utc))
    made_journal.append(store, job_id, closed)
    history = read(store, job_id)
    assert len(settled_launches(history, datetime.now(timezone.utc))) == last.number - 1
    later = datetime.now(timezone.utc) + timedelta(seconds=LATE_SECONDS + 10)
    assert len(settled_launches(history, later)) == last.number
    copy(store, history)
    word = records.exit("failed", instance_id=last.slots[0].instance_id, launch=last.number)
    store.put(keys.exit_record(job_id, last.number, 0), codec.encode(word))
    assert read(store, job_id).launches[-1].own_exits == {0: word}
