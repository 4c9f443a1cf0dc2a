"""A job's copy in another store: whole or not there, whatever interrupts it, and nothing is overwritten."""

import hashlib
import re
from contextlib import suppress

import msgspec
import pytest
from support.records import made_journal
from support.records.made_records import Records
from support.stores.directorystore import directory_store
from support.stores.faultstore import FaultPlan, FaultyStore
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import (
    CloudspotError,
    CorruptData,
    JobExists,
    JobNotFound,
    ObjectMissing,
    StoreRefused,
    TransientError,
)
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.checkpoints import chunks, compression, fetching, manifests, shared_chunks
from cloudspot.jobstore.checkpoints.compression import Compression
from cloudspot.jobstore.checkpoints.parts import xxh3_128
from cloudspot.jobstore.checkpoints.retention import standing_checkpoints
from cloudspot.jobstore.checkpoints.shared_chunks import Sharing
from cloudspot.jobstore.jobs import copying
from cloudspot.jobstore.jobs.copying import DamagedCheckpoint, copy, describe_copy, plan_copy
from cloudspot.jobstore.jobs.job_lists import list_jobs, list_live, list_recent, mark_live
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.removal import remove_job
from cloudspot.jobstore.jobs.submission import hash_of
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import CheckpointId, Removal, SaveId, StagedAgent, Submission

JOB = "digits-1"
CODE, AGENT, OTHER_AGENT = b"code" * 700, b"wheels", b"other wheels"
OLD, NEW, TORN = CheckpointId(1, 10), CheckpointId(2, 20), CheckpointId(2, 30)
ARTIFACT = keys.artifacts_prefix(JOB) + "model.bin"
OUTPUT = keys.output(JOB, "out/model.bin")
JOURNAL = [keys.journal(JOB, number) for number in range(1, 10)]


class Killed(BaseException):
    """The process is gone: nothing that it does from now on reaches the store."""


class Watched(FaultyStore):
    """Notes the keys that are written, and kills its client before the nth request, if ever."""

    def __init__(self, inner, directory, *, dies_at=None, plan=None):
        super().__init__(inner, plan or FaultPlan(), directory)
        self.dies_at = dies_at
        self.written = []

    def _enter(self, method, key):
        if self.dies_at is not None and self.num_calls >= self.dies_at:
            raise Killed
        super()._enter(method, key)
        if method in {"put", "commit"}:
            self.written.append(key)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Objects of more than 1000 bytes are large here."""
    monkeypatch.setattr(copying, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(shared_chunks, "MIN_BYTES", 1000)


@pytest.fixture
def source(checkpoints):
    store = InMemoryStore("memory://source")
    write_job(store, checkpoints)
    return store


@pytest.fixture
def target():
    return InMemoryStore("memory://target")


def sha256_of(data):
    return hashlib.sha256(data).hexdigest()


def write_job(store, checkpoints, *, compression=None):
    """A job that was stopped, resumed and has finished, with all that a store may hold of one."""
    make = Records()
    submission = Submission(
        job_id=JOB,
        provider="sim",
        spec={"name": "digits", "run": {"entrypoint": "train.py"}},
        code_sha256=sha256_of(CODE),
        code_bytes=len(CODE),
        secret_names=("TOKEN",),
        version="1",
        at=make.at(0),
        writer="ab" * 8,
        agent=StagedAgent(sha256=sha256_of(AGENT), digest="d", requirements=("cloudspot",)),
    )
    store.put(keys.index(JOB), submission.writer.encode())
    store.put(keys.code(submission.code_sha256), CODE)
    store.put(keys.agent(submission.agent.sha256), AGENT)
    store.put(keys.spec(JOB), codec.encode(submission))
    agent = StagedAgent(sha256=sha256_of(OTHER_AGENT), digest="d", requirements=("cloudspot",))
    resumed = msgspec.structs.replace(submission, resumption=1, agent=agent, writer="ba" * 8)
    sha256 = hash_of(codec.encode(resumed))
    store.put(keys.submission(JOB, sha256), codec.encode(resumed))
    store.put(keys.own_agent(JOB, agent.sha256), OTHER_AGENT)
    made_journal.append(store, JOB, make.intent(1))
    made_journal.append(store, JOB, make.generation(1))
    how = {"job_id": JOB, "compression": compression, "in_background": True}
    checkpoints.session(store, OLD, [b"a" * 4000], **how)
    for record in (
        make.finished("stopped", at=91.0),
        make.resumed(1, at=92.0, sha256=sha256),
        make.intent(2, at=95.0, why="resumed"),
        make.generation(2, launch=2, restored=(OLD.generation, OLD.step)),
    ):
        made_journal.append(store, JOB, record)
    base = Sharing(
        store, Journal(store, JOB), JOB, SaveId(2, 20, 0), 0, likely={(1500, xxh3_128(b"a" * 1500))}
    )
    new = checkpoints.session(store, NEW, [b"a" * 1500 + b"b" * 2500, b"c" * 500], sharing=base, **how)
    assert new.shared == 1500, "a chunk of the older checkpoint goes with the newer one"
    checkpoints.session(store, TORN, [b"d" * 4000], commit=False, **how)
    made_journal.append(store, JOB, make.finished())
    for launch in (1, 2):
        name = f"i-{launch}-0"
        for key, record in (
            (keys.slot(JOB, launch, 0), make.slot(name)),
            (keys.notice(JOB, launch, 0), make.notice(launch=launch)),
            (keys.heartbeat(JOB, launch, 0), make.heartbeat(instance_id=name)),
            (keys.exit_record(JOB, launch, 0), make.exit("drained", instance_id=name, launch=launch)),
            (keys.certificate(JOB, launch, name), make.certificate(name, launch=launch)),
        ):
            store.put(key, codec.encode(record))
    for key, data in (
        (keys.secrets(JOB, 0), b'{"values":{"TOKEN":"hunter2"}}'),
        (keys.secrets(JOB, 1), b'{"values":{"TOKEN":"hunter2"}}'),
        (keys.summary(JOB), b"{}"),
        (keys.suspicions(JOB), b"{}"),
        (keys.settled_launches(JOB), b"{}"),
        (keys.stop(JOB, 0), codec.encode(make.stop())),
        (keys.notified(JOB, "reclaimed-1-0"), b"0123456789abcdef"),
        (keys.log_segment(JOB, "1-0", "2026-01-01", 0), b"lines" * 100),
        (ARTIFACT, b"w" * 2500),
        (OUTPUT, b"v" * 2500),
        (keys.artifacts_prefix(JOB) + "empty", b""),
    ):
        store.put(key, data)


def contents(store):
    return {meta.key: store.get(meta.key) for meta in store.list_objects("")}


def expected_contents(source):
    """What the target has of the job in the end."""
    whole = contents(source)
    commit = manifests.read_manifest(source, JOB, NEW)
    checkpoint = {one.key for one in chunks.stored_chunks(JOB, commit)} | {keys.manifest(JOB, 2, 20)}
    left_out = {
        keys.secrets(JOB, 0),
        keys.secrets(JOB, 1),
        keys.summary(JOB),
        keys.suspicions(JOB),
        keys.settled_launches(JOB),
        keys.agent(sha256_of(AGENT)),
        keys.own_agent(JOB, sha256_of(OTHER_AGENT)),
    }
    elsewhere = (keys.checkpoints_prefix(JOB), keys.manifests_prefix(JOB), keys.journal_copies_prefix(JOB))
    names = {key for key in set(whole) - left_out if not key.startswith(elsewhere)} | checkpoint
    found = {key: whole[key] for key in names}
    return found | {keys.recent(1767225600000, JOB): b""}


def standing(store):
    """The checkpoints that have not been deleted, best first."""
    return standing_checkpoints(store, JOB, Journal(store, JOB).read())


def is_there(store):
    try:
        HistoryReader(store, JOB).read()
    except JobNotFound:
        return False
    return True


def without_request(intent):
    """The intent as a copy of the journal has it: ``Journal.request`` reads the request again."""
    return msgspec.structs.replace(intent, request=msgspec.structs.replace(intent.request, body={}))


def described(history):
    """The history without what the store's own clock says of it."""
    return [
        *(
            (without_request(launch.intent), launch.certificates, launch.slots, launch.exits)
            for launch in history.launches
        ),
        *((launch.notices, launch.heartbeats) for launch in history.launches),
        *(history.generations, history.commits, history.finished, history.stop, history.submission_sha256),
        *(history.num_records, history.turns),
    ]


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_the_copy_tells_the_same_past_and_has_the_best_checkpoint_and_no_secret(
    source, target, tmp_path, kind
):
    if kind == "file":
        stored = contents(source)
        source = directory_store(tmp_path / "source")
        target = directory_store(tmp_path / "target")
        for key, data in stored.items():
            source.put(key, data)
    told = []
    plan = plan_copy(source, JOB)
    copy(plan, source, target, progress=told.append)
    assert contents(target) == expected_contents(source)
    assert not any(b"hunter2" in data for data in contents(target).values())
    assert sum(told) == plan.num_bytes == sum(one.size for one in plan.everything)
    there = HistoryReader(target, JOB).read()
    assert described(there) == described(HistoryReader(source, JOB).read())
    assert standing(target) == (NEW,)
    fetching.verify(target, JOB, manifests.read_manifest(target, JOB, NEW))
    assert list_jobs(target) == (JOB,)
    assert list_recent(target) == ((JOB,), True)
    assert list_live(target) == {}, "nothing of it runs"


def test_the_plan_says_in_one_line_what_it_takes(source):
    plan = plan_copy(source, JOB)
    assert (plan.checkpoint, plan.skipped) == (NEW, ())
    num = len(expected_contents(source)) - 2  # the entries in the lists of jobs
    assert len(plan.everything) == num
    assert describe_copy(plan) == (
        f"{num} objects, {plan.num_bytes / 2**20:.1f} MiB, with checkpoint 2-20: about "
        f"{plan.num_reads} requests read them and {num} write them"
    )
    assert plan.num_reads > num


@pytest.mark.full
def test_a_copy_that_is_killed_at_any_request_is_finished_by_the_next(source, tmp_path):
    expected = expected_contents(source)
    plan = plan_copy(source, JOB)
    dies_at = 0
    while True:
        target = InMemoryStore("memory://target")
        dying = Watched(target, tmp_path, dies_at=dies_at)
        with suppress(Killed):
            copy(plan, source, dying, num_threads=1)
            assert contents(target) == expected
            break
        standing = {key for key in contents(target) if key in expected}
        assert is_there(target) == (keys.spec(JOB) in standing)
        if keys.manifest(JOB, 2, 20) in standing:
            fetching.verify(target, JOB, manifests.read_manifest(target, JOB, NEW))
        told = []
        again = Watched(target, tmp_path)
        copy(plan, source, again, progress=told.append)
        found = {key: data for key, data in contents(target).items() if not key.startswith("probe/")}
        assert found == expected
        assert sum(told) == plan.num_bytes
        of_job = {key for key in standing if key.startswith(keys.job_prefix(JOB))}
        assert of_job.isdisjoint(again.written), "only what was missing is written"
        dies_at += 1
    assert dies_at > len(plan.everything)


def test_whatever_order_threads_take_the_manifest_follows_its_chunks(source, target, tmp_path, monkeypatch):
    """And the journal follows the manifest, its first record all others, and the submission everything."""

    def backwards(function, items, *, num_threads):
        assert num_threads == 8
        return [function(one) for one in reversed(items)]

    monkeypatch.setattr(copying, "map_parallel", backwards)
    watched, plan = Watched(target, tmp_path), plan_copy(source, JOB)
    copy(plan, source, watched, num_threads=8)
    placed = {key: number for number, key in enumerate(watched.written)}
    ranks = [max(placed[one.key] for one in batch) for batch in (plan.chunks, plan.manifests)]
    journal = [placed[one.key] for one in plan.journal]
    assert ranks == sorted(ranks)
    assert ranks[-1] < min(journal)
    assert journal[0] == max(journal) < placed[plan.spec.key]
    assert contents(target) == expected_contents(source)


def test_what_an_unfinished_copy_has_left_is_removed_like_a_job(source, target, tmp_path):
    plan = plan_copy(source, JOB)
    with suppress(Killed):
        copy(plan, source, Watched(target, tmp_path, dies_at=30), num_threads=1)
    assert list_jobs(target) == (JOB,)
    remove_job(target, JOB)
    assert set(contents(target)) <= {keys.code(sha256_of(CODE))}


@pytest.mark.parametrize(
    "plan",
    [
        FaultPlan(lose_every=1, lose_keys="jobs/*"),
        FaultPlan(lose_every=2),
        FaultPlan(fail_every=4),
        FaultPlan(fail_every=7, lose_every=3),
    ],
)
def test_lost_answers_and_failing_requests_change_nothing(source, target, tmp_path, plan):
    no_sleep = {"sleep": lambda _seconds: None}
    here = with_retries(Watched(source, tmp_path / "source", plan=plan), **no_sleep)
    there = with_retries(Watched(target, tmp_path / "target", plan=plan), **no_sleep)
    told = []
    copying_plan = plan_copy(here, JOB)
    copy(copying_plan, here, there, progress=told.append, num_threads=1)
    assert contents(target) == expected_contents(source)
    assert (sum(told), min(told)) == (copying_plan.num_bytes, 0)


@pytest.mark.parametrize("length", ["same", "other"])
@pytest.mark.parametrize(
    "key",
    [
        keys.chunk(JOB, SaveId(2, 20, 0), 0, 1),
        keys.chunk(JOB, SaveId(2, 20, 0), 1, 0),
        keys.manifest(JOB, 2, 20),
        keys.code(sha256_of(CODE)),
        keys.exit_record(JOB, 1, 0),
        JOURNAL[0],
    ],
)
@pytest.mark.parametrize("is_large", [False, True])
def test_what_stands_with_another_content_is_an_error_that_names_it(
    source, target, monkeypatch, key, length, is_large
):
    monkeypatch.setattr(copying, "BLOCK_BYTES", 10 if is_large else 10**6)
    other = b"x" * (len(source.get(key)) + (length == "other"))
    target.put(key, other)
    with pytest.raises(CloudspotError, match=re.escape(key)):
        copy(plan_copy(source, JOB), source, target)
    assert target.get(key) == other
    assert not is_there(target)


@pytest.mark.parametrize("key", [ARTIFACT, OUTPUT])
@pytest.mark.parametrize("data", [b"short", b"x" * 10**5])
def test_an_artifact_that_was_written_again_since_the_job_left_is_replaced(source, target, key, data):
    target.put(key, data)
    copy(plan_copy(source, JOB), source, target)
    assert contents(target) == expected_contents(source)


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_a_strangers_job_of_the_same_id_is_left_alone(source, target, is_cut_short):
    stranger = codec.decode(source.get(keys.spec(JOB)), Submission)
    stranger = msgspec.structs.replace(stranger, writer="cd" * 8)
    target.put(keys.index(JOB), stranger.writer.encode())
    if not is_cut_short:
        target.put(keys.spec(JOB), codec.encode(stranger))
    before = contents(target)
    with pytest.raises(JobExists, match="another job"):
        copy(plan_copy(source, JOB), source, target)
    assert contents(target) == before


def test_a_record_that_the_source_does_not_have_is_an_error(source, target, tmp_path):
    plan = plan_copy(source, JOB)
    with suppress(Killed):
        copy(plan, source, Watched(target, tmp_path, dies_at=20), num_threads=1)
    target.put(keys.exit_record(JOB, 3, 0), b"{}")
    with pytest.raises(CloudspotError, match=re.escape(keys.exit_record(JOB, 3, 0))):
        copy(plan, source, target)
    assert not is_there(target)


def test_a_job_that_may_still_be_live_is_refused(source):
    mark_live(source, JOB, "ab" * 8)
    with pytest.raises(CloudspotError, match="cloudspot reconcile"):
        plan_copy(source, JOB)
    source.delete(JOURNAL[-1])
    with pytest.raises(CloudspotError, match="has not ended; stop it first"):
        plan_copy(source, JOB)
    # A suspended job keeps its mark, and nothing of it runs.
    assert Journal(source, JOB).append(Records().suspended(), 9)
    assert plan_copy(source, JOB).checkpoint == NEW
    source.delete(JOURNAL[-2])
    source.delete(JOURNAL[-1])
    with pytest.raises(CloudspotError, match="has not ended; stop it first"):
        plan_copy(source, JOB)
    with pytest.raises(JobNotFound):
        plan_copy(source, "nobody")


def test_a_damaged_checkpoint_gives_way_to_the_next_best(source, target):
    chunk = keys.chunk(JOB, SaveId(2, 20, 0), 0, 1)
    source.put(chunk, b"x" * 1500)
    with pytest.raises(DamagedCheckpoint, match=re.escape(chunk)) as caught:
        copy(plan_copy(source, JOB), source, target)
    assert caught.value.checkpoint == NEW
    assert not is_there(target)
    plan = plan_copy(source, JOB, damaged={NEW})
    assert plan.checkpoint == OLD
    assert [one.checkpoint for one in plan.skipped] == [NEW]
    copy(plan, source, target)
    assert standing(target) == (OLD,)
    fetching.verify(target, JOB, manifests.read_manifest(target, JOB, OLD))


@pytest.mark.parametrize("block_bytes", [copying.BLOCK_BYTES, 512])
def test_a_bit_that_flips_on_its_way_costs_no_checkpoint(source, target, monkeypatch, block_bytes):
    chunk, get_range = keys.chunk(JOB, SaveId(2, 20, 0), 0, 1), source.get_range
    flips = [True]

    def with_a_flip(key, start, length):
        data = get_range(key, start, length)
        return bytes([data[0] ^ 1]) + data[1:] if key == chunk and flips and flips.pop() else data

    monkeypatch.setattr(source, "get_range", with_a_flip)
    monkeypatch.setattr(copying, "BLOCK_BYTES", block_bytes)
    copy(plan_copy(source, JOB), source, target)
    assert flips == []
    fetching.verify(target, JOB, manifests.read_manifest(target, JOB, NEW))


def test_a_checkpoint_that_lacks_a_chunk_is_not_planned(source):
    source.delete(keys.chunk(JOB, SaveId(2, 20, 0), 0, 1))
    plan = plan_copy(source, JOB)
    assert plan.checkpoint == OLD
    assert [(one.checkpoint, "is missing" in one.reason) for one in plan.skipped] == [(NEW, True)]
    source.delete(keys.manifest(JOB, 1, 10))
    assert plan_copy(source, JOB).checkpoint is None
    assert "without a checkpoint" in describe_copy(plan_copy(source, JOB))


def test_code_that_is_not_what_its_name_says_is_not_copied(source, target):
    plan = plan_copy(source, JOB)
    source.put(keys.code(sha256_of(CODE)), b"x" * len(CODE))
    with pytest.raises(CorruptData, match=keys.code(sha256_of(CODE))):
        copy(plan, source, target)
    source.delete(keys.code(sha256_of(CODE)))
    with pytest.raises(CorruptData, match="was deleted after"):
        copy(plan, source, target)
    with pytest.raises(CorruptData, match=f"{JOB}.*is missing"):
        plan_copy(source, JOB)
    assert not is_there(target)


@pytest.mark.parametrize("size", [2499, 2501, 3500])
def test_an_object_that_changes_since_the_plan_was_made_is_an_error(source, target, size):
    plan = plan_copy(source, JOB)
    source.put(ARTIFACT, b"w" * size)
    with pytest.raises(CorruptData, match=f"{re.escape(ARTIFACT)} changed after the copy"):
        copy(plan, source, target)
    assert not is_there(target)


def test_code_that_a_removal_may_delete_is_not_relied_on(source, target):
    shared = keys.code(sha256_of(CODE))
    target.put(shared, CODE)
    target.put(keys.index("other"), codec.encode(Removal(shared=(shared,))))
    target.put(keys.removal(shared, "other"), b"")
    plan = plan_copy(source, JOB)
    with pytest.raises(CloudspotError, match=f"removal of job 'other' might delete {re.escape(shared)}"):
        copy(plan, source, target)
    # The removal finds the reservation, and leaves the code.
    remove_job(target, "other")
    assert target.get(shared) == CODE
    copy(plan, source, target)
    assert is_there(target)


def test_code_that_a_reaper_may_delete_is_not_relied_on(source, target):
    shared = keys.code(sha256_of(CODE))
    target.put(shared, CODE)
    target.put(keys.removal(shared, "reap.0badcafe"), b"")
    message = rf"`cloudspot reap` might delete {shared}, .* run it again an hour later if it was interrupted"
    with pytest.raises(CloudspotError, match=message):
        copy(plan_copy(source, JOB), source, target)


def test_a_job_is_not_copied_onto_itself(source):
    before = contents(source)
    with pytest.raises(JobExists, match="is already in memory://source"):
        copy(plan_copy(source, JOB), source, source)
    assert contents(source) == before


def test_a_store_that_overwrites_is_refused(source, target, monkeypatch):
    put = target.put

    def overwrite(key, data, *, if_absent=False):
        put(key, data)

    monkeypatch.setattr(target, "put", overwrite)
    with pytest.raises(StoreRefused):
        copy(plan_copy(source, JOB), source, target)


def test_an_object_that_the_target_loses_does_not_make_a_job(source, target, monkeypatch):
    put = target.put

    def lose(key, data, *, if_absent=False):
        if key != keys.exit_record(JOB, 2, 0):
            put(key, data, if_absent=if_absent)

    monkeypatch.setattr(target, "put", lose)
    with pytest.raises(TransientError, match=keys.exit_record(JOB, 2, 0)):
        copy(plan_copy(source, JOB), source, target)
    assert not is_there(target)


def test_a_large_object_is_never_in_memory_as_a_whole(source, target, tmp_path):
    lengths = []

    class Measured(Watched):
        def get_range(self, key, start, length):
            lengths.append(length)
            return super().get_range(key, start, length)

    plan = plan_copy(source, JOB)
    here, there = Measured(source, tmp_path), Measured(target, tmp_path)
    copy(plan, here, there)
    assert {1500, 2500, 2800} <= {one.size for one in plan.everything}
    assert (max(lengths), here.calls["get"]) == (1001, 1)  # the submission
    target.delete(keys.spec(JOB))
    target.delete(JOURNAL[-1])
    lengths.clear()
    copy(plan, here, there)  # Compares what stands.
    assert max(lengths) == 1001


def test_compressed_chunks_are_copied_as_they_are_and_compared_by_what_they_hold(target, checkpoints):
    source = InMemoryStore("memory://source")
    write_job(source, checkpoints, compression=Compression())
    plan = plan_copy(source, JOB)
    assert {one.key for one in plan.chunks if not one.key.endswith(".z")} == set()
    told = []
    copy(plan, source, target, progress=told.append)
    assert sum(told) == plan.num_bytes == sum(len(target.get(one.key)) for one in plan.everything)
    assert all(target.get(one.key) == source.get(one.key) for one in plan.chunks)
    fetching.verify(target, JOB, manifests.read_manifest(target, JOB, NEW))
    for key in (keys.spec(JOB), JOURNAL[-1]):
        target.delete(key)
    copy(plan, source, target)  # Compares what stands.
    chunk = plan.chunks[0]
    good = source.get(chunk.key)
    bad = good[:-1] + bytes([good[-1] ^ 1])
    for key in (keys.spec(JOB), JOURNAL[-1]):
        target.delete(key)
    target.put(chunk.key, bad)
    with pytest.raises(
        CloudspotError, match=f"{re.escape(chunk.key)} differs from the object in memory://source"
    ):
        copy(plan, source, target)
    target.delete(chunk.key)
    source.put(chunk.key, bad)
    with pytest.raises(DamagedCheckpoint, match=chunk.key):
        copy(plan, source, target)


def test_a_chunk_that_another_version_of_zstd_compressed_is_the_same(target, checkpoints, monkeypatch):
    source = InMemoryStore("memory://source")
    write_job(source, checkpoints, compression=Compression())
    plan = plan_copy(source, JOB)
    copy(plan, source, target)
    chunk = plan.chunks[0]
    data = b"".join(data for _, data in chunks.read_blocks(source, chunk.chunk))
    with monkeypatch.context() as patch:
        patch.setattr(compression, "BLOCK_BYTES", 500)
        others = bytes(compression.compress(data))
    assert len(others) != chunk.size
    target.put(chunk.key, others)
    for key in (keys.spec(JOB), JOURNAL[-1]):
        target.delete(key)
    told = []
    copy(plan, source, target, progress=told.append)
    assert sum(told) == plan.num_bytes
    fetching.verify(target, JOB, manifests.read_manifest(target, JOB, NEW))


def test_a_target_that_keeps_only_a_part_of_a_compressed_chunk_does_not_get_the_job(target, checkpoints):
    source = InMemoryStore("memory://source")
    write_job(source, checkpoints, compression=Compression())
    plain = target.put

    def put(key, data, **options):
        plain(key, bytes(data)[:3] if key.endswith(".z") else data, **options)

    target.put = put
    with pytest.raises(TransientError, match="is missing or differs from what was written"):
        copy(plan_copy(source, JOB), source, target)
    with pytest.raises(ObjectMissing):
        target.get(keys.spec(JOB))


def test_a_copy_that_has_gone_on_is_left_as_it_is(source, target):
    plan = plan_copy(source, JOB)
    copy(plan, source, target)
    target.put(keys.journal(JOB, 12), b"{}")
    for one in (*plan.manifests, *plan.chunks):
        target.delete(one.key)  # retention
    before = contents(target)
    told = []
    copy(plan, source, target, progress=told.append)
    assert contents(target) == before
    assert sum(told) == plan.num_bytes


@pytest.mark.full
def test_a_job_that_comes_back_goes_on_there_all_at_once(source, target, checkpoints, tmp_path):
    """The first store has the beginning of its journal, and older checkpoints."""
    copy(plan_copy(source, JOB), source, target)
    before = contents(source)
    make, newest = Records(), CheckpointId(3, 30)
    resumed = msgspec.structs.replace(HistoryReader(target, JOB).read().submission, resumption=2)
    sha256 = hash_of(codec.encode(resumed))
    target.put(keys.submission(JOB, sha256), codec.encode(resumed))
    generation = make.generation(3, launch=3, restored=(NEW.generation, NEW.step))
    for record in (make.resumed(2, sha256=sha256), make.intent(3), generation):
        made_journal.append(target, JOB, record)
    checkpoints.session(target, newest, [b"e" * 4000], job_id=JOB)
    target.put(keys.slot(JOB, 3, 0), codec.encode(make.slot("i-3-0")))
    target.put(keys.certificate(JOB, 3, "i-3-0"), codec.encode(make.certificate("i-3-0", launch=3)))
    made_journal.append(target, JOB, make.finished(at=400.0))
    plan = plan_copy(target, JOB)
    seen = set()
    dies_at = 0
    while True:
        home = InMemoryStore("memory://source")
        for key, data in before.items():
            home.put(key, data)
        with suppress(Killed):
            copy(plan, target, Watched(home, tmp_path, dies_at=dies_at), num_threads=1)
            break
        seen.add(len(Journal(home, JOB).read()))
        copy(plan, target, home)
        here, there = HistoryReader(home, JOB).read(), HistoryReader(target, JOB).read()
        assert described(here) == described(there)
        assert standing(home) == (newest, NEW, OLD)
        dies_at += 1
    assert seen == {9, 14}


def test_a_job_whose_pasts_differ_does_not_come_back(source, target):
    plan = plan_copy(source, JOB)
    copy(plan, source, target)
    target.put(JOURNAL[-1], b"{}")
    before = contents(target)
    with pytest.raises(CloudspotError, match=JOURNAL[-1]):
        copy(plan, source, target)
    assert contents(target) == before
