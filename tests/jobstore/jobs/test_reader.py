"""The history of a job, read again and again."""

from datetime import datetime, timedelta, timezone
from typing import get_args

import msgspec
import pytest
from support.records import made_journal
from support.records.made_records import Records
from support.stores.faultstore import FaultPlan, FaultyStore, Outage
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import CorruptData, JobNotFound, TransientError
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.jobs.job_lists import list_jobs
from cloudspot.jobstore.jobs.reader import MAX_REREADS, HistoryReader, read_summary, write_summary
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.journal.journal import COPY_EVERY, Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import (
    Certificate,
    CheckpointId,
    Exit,
    Finished,
    Heartbeat,
    Intent,
    NodeState,
    Notice,
    StopRequest,
    Submission,
    Summary,
    new_nonce,
)
from cloudspot.jobstore.nodes.heartbeat_size import fill_up
from cloudspot.jobstore.nodes.launches import claim_slot, void_slot
from cloudspot.model import LaunchRequest, NodeIdentity

AT = datetime(2026, 11, 20, 6, 30, tzinfo=timezone.utc)
MADE = Records()


@pytest.fixture
def store():
    return InMemoryStore()


@pytest.fixture
def counted(store, tmp_path):
    return FaultyStore(store, FaultPlan(), tmp_path)


class Job:
    """Writes a job's records, as nodes and controllers would."""

    def __init__(self, store, job_id="x"):
        self.store, self.id = store, job_id
        self.submission = Submission(
            job_id=job_id, provider="local", spec={}, code_sha256="0" * 64, code_bytes=1, secret_names=(),
            version="0", at=AT, writer=new_nonce(),
        )  # fmt: skip
        store.put(keys.index(job_id), b"")
        store.put(keys.spec(job_id), codec.encode(self.submission))

    def append(self, record):
        return made_journal.append(self.store, self.id, record)

    def intend(self, launch, num_nodes=1):
        return self.append(
            Intent(
                launch=launch, offer=MADE.offer(), token=f"t{launch}", request=LaunchRequest(provider="local", body={}),
                num_nodes=num_nodes, why="first", at=AT, writer=new_nonce(),
            )
        )  # fmt: skip

    def certify(self, launch, rank=0, *, name=None):
        record = Certificate(
            launch=launch, rank=rank, instance_id=name or f"i-{launch}-{rank}", started_at=AT, ended_at=AT,
            end_reason="self", at=AT, writer="w",
        )  # fmt: skip
        self.store.put(keys.certificate(self.id, launch, record.instance_id), codec.encode(record))
        return record

    def finish(self):
        return self.append(Finished(outcome="succeeded", detail="", exit_code=0, at=AT, writer=new_nonce()))

    def claim(self, launch, rank=0):
        identity = NodeIdentity(instance_id=f"i-{launch}-{rank}", rank=rank, address="a")
        return claim_slot(self.store, self.id, launch, rank, identity)

    def beat(self, launch, counter, rank=0):
        record = Heartbeat(
            counter=counter, instance_id=f"i-{launch}-{rank}", address="a", port=1, state="running", generation=1,
            restored_step=0, step=counter, steps_total=100, metrics={"loss": 0.5}, committed=None,
            stall_seconds=None, upload_seconds=None, at=AT + timedelta(seconds=counter),
        )  # fmt: skip
        self.store.put(keys.heartbeat(self.id, launch, rank), codec.encode(record))
        return record

    def notice(self, launch, rank=0):
        record = Notice(
            launch=launch, rank=rank, deadline=AT, action="terminate", source="s", step=5, at=AT, writer="w"
        )
        self.store.put(keys.notice(self.id, launch, rank), codec.encode(record), if_absent=True)
        return record

    def leave(self, launch, rank=0):
        record = Exit(
            launch=launch, rank=rank, instance_id=f"i-{launch}-{rank}", outcome="drained", detail="", exit_code=0,
            generation=1, restored_step=0, step=9, reached_step=9, committed=CheckpointId(1, 9), at=AT, writer="w",
        )  # fmt: skip
        self.store.put(keys.exit_record(self.id, launch, rank), codec.encode(record), if_absent=True)
        return record


def test_a_job_that_was_just_submitted_has_an_empty_history(store):
    job = Job(store)
    history = HistoryReader(store, "x").read()
    assert history.submission == job.submission
    assert (history.stop, history.launches, history.generations, history.commits) == (None, (), (), ())
    assert history.head is None
    assert (history.finished, history.num_records, history.live_launches) == (None, 0, ())


def test_an_unknown_job_or_one_cut_short_is_not_found(store):
    store.put(keys.index("half"), b"")
    for job_id in ("half", "none"):
        with pytest.raises(JobNotFound, match=job_id):
            HistoryReader(store, job_id).read()


def test_a_whole_job_is_folded(store, checkpoints):
    job = Job(store)
    first, second = job.intend(1, num_nodes=2), None
    slots = {rank: job.claim(1, rank) for rank in (0, 1)}
    generation = checkpoints.generation(store, 1, ranks=(0, 1))
    beats = {rank: job.beat(1, 7, rank) for rank in (0, 1)}
    notice = job.notice(1, 1)
    checkpoints.session(store, CheckpointId(1, 9), [b"a"])
    exits = {rank: job.leave(1, rank) for rank in (0, 1)}
    proofs = {f"i-1-{rank}": job.certify(1, rank) for rank in (0, 1)}
    proofs["i-9"] = job.certify(1, None, name="i-9")  # made by an expired token
    second = job.intend(2)
    live = job.intend(3, num_nodes=2)
    void = void_slot(store, "x", 2, 0, "no capacity")
    stop = StopRequest(reason="user", at=AT, writer="w")
    store.put(keys.stop("x", 0), codec.encode(stop))
    history = HistoryReader(store, "x").read()
    one, two, three = history.launches
    assert (one.intent, one.certificates, one.slots, one.exits) == (first, proofs, slots, exits)
    assert (one.notices, one.heartbeats, one.claimed) == ({1: notice}, beats, slots)
    assert (one.live_ranks, one.open_ranks, one.is_settled) == ((), (), True)
    assert (two.intent, two.certificates, two.slots, two.claimed) == (second, {}, {0: void}, {})
    assert (two.live_ranks, two.open_ranks, two.is_settled) == ((), (), True)
    assert (three.intent, three.live_ranks, three.open_ranks) == (live, (0, 1), (0, 1))
    assert history.live_launches == (three,)
    assert (history.generations, history.head) == ((generation,), CheckpointId(1, 9))
    assert [one.id for one in history.commits] == [CheckpointId(1, 9)]
    assert (history.stop, history.finished, history.num_records) == (stop, None, 5)
    finished = job.finish()
    assert HistoryReader(store, "x").read().finished == finished


def test_a_reader_that_goes_on_sees_what_a_new_one_sees(store, checkpoints):
    job = Job(store)
    reader = HistoryReader(store, "x")

    def check():
        history = reader.read()
        assert history == HistoryReader(store, "x").read()
        return history

    check()
    for launch in (1, 2, 3):
        job.intend(launch, num_nodes=2)
        check()
        job.claim(launch, 1)
        check()
        job.claim(launch, 0)
        checkpoints.generation(store, launch, launch=launch)
        for counter in (1, 2):
            job.beat(launch, counter)
            job.beat(launch, counter, rank=1)
            assert check().launches[-1].heartbeats[1].counter == counter
        job.notice(launch)
        checkpoints.session(store, CheckpointId(launch, 5), [b"a"])
        check()
        job.leave(launch)
        job.certify(launch)
        assert check().launches[-1].live_ranks == (1,)
        # The other node's last words come with the proof.
        job.beat(launch, 99, rank=1)
        job.leave(launch, 1)
        job.certify(launch, 1)
        assert check().launches[-1].exits[1].rank == 1
        assert check().launches[launch - 1].heartbeats[1].counter == 99
        assert check().live_launches == ()
    job.finish()
    assert check().num_records == 10


def test_a_launch_that_settles_before_an_older_one_is_read_on_with_it(store):
    job = Job(store)
    reader = HistoryReader(store, "x")
    for launch in (1, 2, 3):
        job.intend(launch)
        job.claim(launch)
    job.certify(2)
    assert [one.number for one in reader.read().live_launches] == [1, 3]
    job.certify(1)
    assert [one.number for one in reader.read().live_launches] == [3]
    job.certify(3)
    history = reader.read()
    assert history.live_launches == ()
    assert history == HistoryReader(store, "x").read()


def test_a_pass_where_nothing_is_new_asks_little(store, counted, checkpoints):
    job = Job(store)
    reader = HistoryReader(counted, "x")

    def cost():
        counted.calls.clear()
        reader.read()
        return dict(counted.calls)

    reader.read()
    assert cost() == {"get": 2}  # journal, stop
    job.intend(1, num_nodes=2)
    # The record and the journal's end; slots, nodes, copies, and what follows a first record.
    assert cost() == {"get": 2, "list_page": 2 + 2}
    for rank in (0, 1):
        job.claim(1, rank)
        job.beat(1, 1, rank)
    checkpoints.generation(store, 1)
    assert cost() == {"get": 1 + 2 + 2 + 1, "list_page": 2}
    assert cost() == {"get": 1, "list_page": 2}  # seats and certificates; nodes
    job.beat(1, 2)
    assert cost() == {"get": 1 + 1, "list_page": 2}  # The one heartbeat that is new.
    for rank in (0, 1):
        job.beat(1, 3, rank)
        job.leave(1, rank)
    # Their exit records name a commit that the journal does not have, so it is read again.
    assert cost() == {"get": 1 + 2 + 2 + 1, "list_page": 2}
    # It never has it; and a node's last word leaves the proof that its machine has ended to come.
    assert cost() == {"get": 1 + 1, "list_page": 2}
    for rank in (0, 1):
        job.certify(1, rank)
    assert cost() == {"get": 1 + 2 + 1, "list_page": 2}
    assert cost() == {"get": 2}


def test_a_glance_tells_of_progress_and_sends_to_the_records_for_anything_else(store, counted, checkpoints):
    job = Job(store)
    job.intend(1, num_nodes=2)
    reader = HistoryReader(counted, "x")

    def glance():
        counted.calls.clear()
        return reader.glance(), dict(counted.calls)

    assert glance() == (None, {})  # nothing was read yet
    reader.read()
    job.claim(1, 0)
    job.beat(1, 1, 0)
    assert glance() == (None, {})  # a seat is open
    job.claim(1, 1)
    job.beat(1, 1, 1)
    checkpoints.generation(store, 1)
    known = reader.read()
    assert glance() == (known, {"list_page": 1})
    for rank in (0, 1):
        job.beat(1, 2, rank)
    for reads in ({"get": 1}, {"get": 1}, {}):  # each second one of those that beat
        found, calls = glance()
        assert calls == {"list_page": 1, **reads}
        assert found.generations == known.generations
    assert {one.counter for one in found.launches[0].heartbeats.values()} == {2}
    store.put(
        keys.heartbeat("x", 1, 0), store.get(keys.heartbeat("x", 1, 0)) + b" " * 16
    )  # its state has changed
    assert glance()[0] is None
    reader.read()
    assert glance()[0] is not None
    request_stop(store, "x", "user", resumption=0)
    assert glance()[0] is None
    assert reader.read().stop.reason == "user"
    job.certify(1, 0)
    assert glance()[0].launches[0].certificates == {}
    assert len(reader.read().launches[0].certificates) == 1
    job.leave(1, 0)
    assert glance()[0] is None


STATES = get_args(NodeState)


def test_of_many_heartbeats_all_changes_of_state_and_a_few_others_are_read_in_turn(store, counted):
    """A driver read all 64 every three seconds, whatever they said."""
    job = Job(store)
    num_nodes = 3 * MAX_REREADS
    made_journal.start_generation(store, 1, ranks=tuple(range(num_nodes)))
    changes = dict.fromkeys(range(num_nodes), 0)

    def beat(counter):
        for rank in range(num_nodes):
            record = msgspec.structs.replace(job.beat(1, counter, rank), state=STATES[changes[rank]])
            data = fill_up(codec.encode(record), num_beats=counter, num_changes=changes[rank])
            store.put(keys.heartbeat("x", 1, rank), data)

    reader = HistoryReader(counted, "x")

    def read():
        before = counted.calls["get"]
        launch = reader.read().launches[0]
        return launch, counted.calls["get"] - before - 1  # The journal.

    for rank in range(num_nodes):
        job.claim(1, rank)
    beat(1)
    assert set(read()[0].heartbeats) == set(range(num_nodes))
    for counter in range(2, 8):
        beat(counter)
        launch, num_reads = read()
        assert num_reads == MAX_REREADS
        # Whether a heartbeat was read or not, the listing shows that its node lives.
        newest = {rank: store.head(keys.heartbeat("x", 1, rank)) for rank in range(num_nodes)}
        assert launch.beats_listed == {rank: (meta.modified_at, meta.size) for rank, meta in newest.items()}
        assert min(one.counter for one in launch.heartbeats.values()) >= counter - 3
    changes.update(dict.fromkeys(range(5, 20), 1))
    beat(8)
    launch, num_reads = read()
    assert num_reads == MAX_REREADS + 15
    assert {rank for rank, one in launch.heartbeats.items() if one.state == STATES[1]} == set(range(5, 20))
    assert all(launch.heartbeats[rank].counter == 8 for rank in range(5, 20))
    while read()[1]:
        pass
    assert {one.counter for one in reader.read().launches[0].heartbeats.values()} == {8}


def test_a_new_reader_of_a_long_history_lists_instead_of_asking_for_each_launch(store, counted):
    job = Job(store)
    for launch in range(1, 31):
        job.intend(launch)
        job.claim(launch)
        job.leave(launch)
        job.certify(launch)
    made_journal.forget_copies(store, "x")
    history = HistoryReader(counted, "x").read()
    assert all(set(one.claimed) == {0} and one.is_settled for one in history.launches)
    assert len(history.launches) == 30
    assert counted.calls["list_page"] == 4  # the journal's copies, journal, seats and certificates, nodes
    # Each record once; and what is not there: a copy, and the journal's next, twice.
    assert counted.calls["get"] == 1 + 30 + 30 + 30 + 30 + 3


@pytest.mark.full
def test_a_journal_of_10000_records_is_opened_with_few_requests(store, counted):
    """A week of commits must not mean a request a commit."""
    num_commits = 10_001  # the longest tail: three records since the copy
    job = Job(store)
    job.claim(1)
    checkpoints = [MADE.commit(1, step, at=step) for step in range(1, num_commits + 1)]
    records = [MADE.intent(1), MADE.generation(1), *checkpoints]
    num_copied = len(records) // COPY_EVERY * COPY_EVERY
    assert len(records) - num_copied == COPY_EVERY - 1
    for number, record in enumerate(records, start=1):
        store.put(keys.journal("x", number), codec.encode(record))
    journal = Journal(store, "x")
    journal.read()
    journal.copy()
    for number in range(2, num_copied + 1):
        store.delete(keys.journal("x", number))  # it is not read
    history = HistoryReader(counted, "x").read()
    assert len(history.commits) == num_commits
    assert sum(counted.calls.values()) <= 20


def test_what_one_record_names_is_in_the_same_history(store, checkpoints, tmp_path):
    """Records written while a pass runs: never an exit without its commit, or a heartbeat's generation."""
    for moment in range(1, 14):
        memory = InMemoryStore()
        job = Job(memory)
        job.intend(1)
        job.claim(1)

        class Moving(FaultyStore):
            def _enter(self, method, key, moment=moment, memory=memory, job=job):
                super()._enter(method, key)
                if self.num_calls == moment:
                    checkpoints.generation(memory, 1)
                    job.beat(1, 1)
                    checkpoints.session(memory, CheckpointId(1, 9), [b"a"])
                    job.leave(1)

        launch = (history := HistoryReader(Moving(memory, FaultPlan(), tmp_path), "x").read()).launches[0]
        assert not launch.heartbeats or len(history.generations) == 1
        assert not launch.exits or history.head == CheckpointId(1, 9)


def test_a_pass_that_the_store_cut_short_is_finished_by_the_next(store, tmp_path):
    job = Job(store)
    job.intend(1)
    job.claim(1)
    job.beat(1, 3)
    for good in range(12):
        now = [0.0]

        class Failing(FaultyStore):
            def _enter(self, method, key, good=good, now=now):
                now[0] += 1.0
                super()._enter(method, key)

        plan = FaultPlan(outages=(Outage(start=good, end=good + 20),))
        flaky = Failing(store, plan, tmp_path, clock=lambda now=now: now[0])
        reader = HistoryReader(with_retries(flaky, sleep=lambda seconds: None), "x")
        for _ in range(10):
            try:
                history = reader.read()
            except TransientError:
                continue
            break
        assert history == HistoryReader(store, "x").read()


def test_a_store_of_which_each_fifth_call_fails_is_read_whole(store, tmp_path):
    job = Job(store)
    for launch in (1, 2):
        job.intend(launch)
        job.claim(launch)
        job.leave(launch)
        job.certify(launch)
    flaky = FaultyStore(store, FaultPlan(fail_every=5), tmp_path)
    reader = HistoryReader(with_retries(flaky, sleep=lambda seconds: None), "x")
    assert reader.read() == HistoryReader(store, "x").read()


def test_a_malformed_record_is_corrupt_and_a_foreign_object_is_passed_over(store):
    job = Job(store)
    job.intend(1)
    job.claim(1)
    for key in ("nodes/.DS_Store", "nodes/000001/0000/other", "launches/000001/nodes/x", "launches/readme"):
        store.put(f"jobs/x/{key}", b"?")
    assert set(HistoryReader(store, "x").read().launches[0].claimed) == {0}
    store.put(keys.exit_record("x", 1, 0), b"{}")
    with pytest.raises(CorruptData, match=r"000001/0000/exit\.json"):
        HistoryReader(store, "x").read()


def test_jobs_are_listed_by_their_index_and_nothing_else(store):
    for job_id in ("b", "a-1", "a"):
        Job(store, job_id)
    store.put("index/.DS_Store", b"")
    store.put("index/Not A Job", b"")
    assert list_jobs(store) == ("a", "a-1", "b")
    assert list_jobs(InMemoryStore()) == ()


def test_a_summary_is_replaced_and_read_with_one_request(store, counted):
    summary = Summary(
        job_id="x", provider="local", state="running", step=1, steps_total=None, starts=1, spent=0.5,
        currency="USD", submitted_at=AT, metrics={"loss": float("nan")}, detail="", at=AT,
    )  # fmt: skip
    assert read_summary(store, "x") is None
    write_summary(counted, summary)
    later = msgspec.structs.replace(summary, step=2, metrics={})
    write_summary(counted, later)
    assert read_summary(counted, "x") == later
    assert counted.calls == {"put": 2, "get": 1}
