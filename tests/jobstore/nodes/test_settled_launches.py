"""The copy of what can no longer change: as good as the records, and never trusted where it does not fit."""

import dataclasses

import msgspec
import pytest
from support.records.made_records import Records
from support.records.many_jobs import ManyJobs
from support.stores.faultstore import FaultPlan, FaultyStore
from support.stores.memorystore import InMemoryStore

from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.journal.journal import COPY_EVERY, Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import SettledLaunches
from cloudspot.jobstore.nodes.settled_launches import find_settled, settled_launches, write_settled
from cloudspot.model import EndReason


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
    """The history, as copies tell it."""
    launches = []
    for launch in history.launches:
        request = msgspec.structs.replace(launch.intent.request, body={})
        intent = msgspec.structs.replace(launch.intent, request=request)
        launches.append(dataclasses.replace(launch, intent=intent, beats_listed={}))
    return dataclasses.replace(history, launches=tuple(launches))


def find(store, job_id, history):
    return find_settled(store, history.submission, Journal(store, job_id).read())


def copy(store, history, num_launches=None):
    write_settled(store, history, settled_launches(history)[:num_launches])


@pytest.mark.parametrize("num_launches", [0, 1, 3, 4])
def test_any_copy_however_old_gives_the_same_history(store, job_id, num_launches):
    history = read(store, job_id)
    copy(store, history, num_launches)
    assert len(find(store, job_id, history).launches) == num_launches
    assert without_requests(read(store, job_id)) == without_requests(history)


def test_a_history_with_a_copy_costs_the_same_however_long_it_is(store, tmp_path):
    costs, tails = [], []
    for num_launches in (3, 40):
        job_id = ManyJobs(store, tmp_path / "work").add_long(num_launches, num_launches)
        copy(store, read(store, job_id))
        counted = FaultyStore(store, FaultPlan(), tmp_path / f"{num_launches}")
        assert [set(one.claimed) for one in read(counted, job_id).launches] == [{0}] * num_launches
        costs.append(dict(counted.calls))
        journal = Journal(store, job_id)
        tails.append(len(journal.read()) - journal.num_copied)
        store = InMemoryStore()
    assert max(tails) <= COPY_EVERY, "the copies are written before the last record stands"
    # The submission, the journal's first record and its end, the copy of launches, a slot and a heartbeat; and
    # the journal's copies, up to three of each length. Slots, nodes, with the stop among them, and copies are
    # listed.
    assert [cost["list_page"] for cost in costs] == [3, 3]
    assert all(6 < cost["get"] - tail <= 6 + 2 * 3 for cost, tail in zip(costs, tails, strict=True))


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
        lambda record: msgspec.structs.replace(
            record,
            launches=(
                msgspec.structs.replace(record.launches[0], certificates=record.launches[1].certificates),
            ),
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


def settled(*launches):
    return [launch.number for launch in settled_launches(Records().history(*launches))]


def test_a_launch_settles_when_each_seat_is_void_or_its_machine_has_provably_ended():
    records = Records()
    intent = records.intent(num_nodes=2)
    words = {rank: records.exit("drained", instance_id=f"i-1-{rank}", rank=rank) for rank in range(2)}
    proofs = {f"i-1-{rank}": records.certificate(f"i-1-{rank}", rank=rank) for rank in range(2)}
    another = {"i-1-0": proofs["i-1-0"], "i-9": records.certificate("i-9", rank=1)}
    slots = {0: records.slot("i-1-0"), 1: records.slot()}  # the second is void

    assert settled(records.launch(intent=intent, certificates=proofs)) == [1]
    assert settled(records.launch(intent=intent, slots=slots, certificates={"i-1-0": proofs["i-1-0"]})) == [1]
    for open_still in (
        {"certificates": {"i-1-0": proofs["i-1-0"]}},
        {"certificates": another},  # which proves nothing of the owner of the second seat
        {"certificates": proofs, "slots": {0: slots[0]}},  # somebody may claim the second seat yet
        {"slots": slots},
        {"exits": words},  # its last log lines and its bill are on their way
    ):
        assert settled(records.launch(intent=intent, **open_still)) == []


def test_launches_settle_in_order_and_none_that_is_live():
    records = Records()
    first = records.launch(1, outcome="lost")
    second = records.launch(2, outcome="reclaimed")
    refused = records.capacity(3, at=200.0)
    live = records.launch(4)
    assert settled(first, second, refused, live) == [1, 2, 3]
    assert settled(first, records.launch(2), refused) == [1]


def test_the_proof_and_the_seats_of_a_copy_are_those_of_the_records(store, job_id):
    """A copy that left certificates out would let a job look alive, and cost nothing."""
    copy(store, read(store, job_id))
    for launch in range(1, 5):
        for meta in list(store.list_objects(f"{keys.launches_prefix(job_id)}{launch:06d}/")):
            store.delete(meta.key)
    launches = read(store, job_id).launches
    for launch in launches[:4]:
        (slot,) = launch.slots.values()
        assert launch.certificates[slot.instance_id].end_reason is EndReason.RECLAIMED
        assert (launch.live_ranks, launch.is_settled) == ((), True)
    assert (launches[4].live_ranks, launches[4].certificates) == ((0,), {})
