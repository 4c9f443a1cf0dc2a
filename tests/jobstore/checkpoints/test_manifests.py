"""Commits."""

import threading
from datetime import datetime, timezone

import msgspec
import pytest
from support.records import made_journal
from support.records.uploads import upload_session
from support.stores.faultstore import FaultPlan, FaultyStore, Hook, Outage

from cloudspot.errors import CorruptData, ObjectMissing, TransientError
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.checkpoints import manifests, retention
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import lineage
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import (
    CheckpointId,
    Commit,
    Finished,
    Manifest,
    Part,
    SaveId,
    new_nonce,
)

AT = datetime(2026, 11, 20, tzinfo=timezone.utc)
C = CheckpointId(1, 10)
S = SaveId(1, 10, 0)
DATAS = [b"a" * 4000, b"", b"c" * 1]


def committed(store):
    """The checkpoints that count, best to resume from first."""
    return lineage(Journal(store, "x").read())


def standing(store):
    """The names of the manifests that are there."""
    return [meta.key.rpartition("/")[2] for meta in store.list_objects(keys.manifests_prefix("x"))]


def test_a_manifest_names_all_parts_in_rank_order(store, checkpoints):
    commit = checkpoints.session(store, C, DATAS)
    assert [part.rank for part in commit.parts] == [0, 1, 2]
    assert (commit.id, commit.kind, commit.size) == (C, "session", 4001)
    assert manifests.read_manifest(store, "x", C) == commit
    assert committed(store) == (C,)


def test_there_is_no_manifest_while_a_part_is_missing(store, checkpoints):
    assert manifests.write_manifest(store, "x", S) is None
    seals = checkpoints.seals(C, DATAS)
    for rank in (2, 0, 1):
        assert manifests.write_manifest(store, "x", S) is None
        upload_session(store, "x", seals[rank], DATAS[rank])
    assert manifests.write_manifest(store, "x", S) is not None


@pytest.mark.full
def test_parts_are_read_only_when_all_are_there_and_none_twice(store, checkpoints, tmp_path):
    """After each part all others were read: W parts took W x W / 2 reads."""
    num_parts = 64
    datas = [bytes([rank]) for rank in range(num_parts)]
    seals = checkpoints.seals(C, datas)
    counting, known = FaultyStore(store, FaultPlan(), tmp_path), {}
    for rank in range(num_parts):
        part = upload_session(store, "x", seals[rank], datas[rank])
        if rank % 8 == 0:  # this process's own
            known[keys.part("x", SaveId(1, 10, 0), rank)] = part
        commit = manifests.write_manifest(counting, "x", S, known=known)
        assert (commit is None) is (rank < num_parts - 1)
    assert (counting.calls["get"], counting.calls["list_page"]) == (num_parts - 8, num_parts)
    assert manifests.write_manifest(counting, "x", S, known=known) == commit
    assert counting.calls["get"] == num_parts - 8 + 1  # the commit that stands


def test_of_several_saves_of_a_step_the_first_whole_one_is_committed(store, checkpoints):
    drain, interval = SaveId(1, 10, 5), SaveId(1, 10, 4)
    checkpoints.generation(store, 1)
    journal = Journal(store, "x")
    seal = checkpoints.seals(drain, [b"a", b"b"])[0]
    upload_session(store, "x", seal, b"a")
    assert manifests.commit_whole(store, journal, "x", C) is None
    assert manifests.missing_ranks(store, "x", C) == {1}
    checkpoints.session(store, interval, [b"c", b"d"], commit=False)
    assert manifests.commit_whole(store, journal, "x", C).id == C
    checkpoints.session(store, drain, [b"a", b"b"], commit=False)
    assert manifests.write_manifest(store, "x", drain).save == interval
    assert manifests.complete(store, Journal(store, "x"), "x") == ()
    assert manifests.read_manifest(store, "x", C).save == interval


def test_a_save_that_makes_no_checkpoint_hides_no_other(store, checkpoints):
    checkpoints.generation(store, 1)
    newer = SaveId(1, 10, 5)
    seals = checkpoints.seals(newer, [b"a", b"b"], plan="f" * 64)
    for rank, data in enumerate((b"a", b"b")):
        upload_session(store, "x", seals[rank], data)
    with pytest.raises(CorruptData, match="not those of the plan"):
        manifests.commit_whole(store, Journal(store, "x"), "x", C)
    checkpoints.session(store, C, DATAS, commit=False)
    assert manifests.commit_whole(store, Journal(store, "x"), "x", C).id == C
    assert manifests.read_manifest(store, "x", C).save == S
    assert manifests.missing_ranks(store, "x", CheckpointId(1, 11)) is None


def test_all_who_commit_get_the_same_manifest(store, checkpoints, tmp_path):
    checkpoints.session(store, C, DATAS, commit=False)
    found = []

    def commit():
        faulty = FaultyStore(store, FaultPlan(lose_every=2), tmp_path)
        found.append(manifests.write_manifest(with_retries(faulty, sleep=lambda seconds: None), "x", S))

    threads = [threading.Thread(target=commit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [manifests.read_manifest(store, "x", C)] * 8


def test_parts_that_were_planned_apart_are_no_checkpoint(store, checkpoints):
    seals = checkpoints.seals(C, [b"a" * 10, b"b" * 10])
    others = checkpoints.seals(C, [b"a" * 10, b"b" * 11])
    for data, seal in [(b"a" * 10, seals[0]), (b"b" * 11, others[1])]:
        upload_session(store, "x", seal, data)
    with pytest.raises(CorruptData, match="come from different plans"):
        manifests.write_manifest(store, "x", S)
    assert standing(store) == []


def test_parts_that_disagree_on_their_number_or_their_key_are_no_checkpoint(store, checkpoints):
    checkpoints.session(store, C, [b"a"], commit=False)
    [seal] = checkpoints.seals(C, [b"b"], rank=1, world_size=2)
    upload_session(store, "x", seal, b"b")
    with pytest.raises(CorruptData, match="disagree about how many parts there are"):
        manifests.write_manifest(store, "x", S)
    other = SaveId(1, 11, 0)
    store.put(keys.part("x", SaveId(1, 11, 0), 0), store.get(keys.part("x", SaveId(1, 10, 0), 0)))
    with pytest.raises(CorruptData, match="parts/0000 holds the record of another part: part 0 of 1-10-0"):
        manifests.write_manifest(store, "x", other)


def test_a_foreign_object_among_parts_and_commits_is_passed_over(store, checkpoints):
    store.put(keys.parts_prefix("x", SaveId(1, 10, 0)) + ".DS_Store", b"")
    store.put(keys.manifests_prefix("x") + ".DS_Store", b"")
    assert checkpoints.session(store, C, DATAS).id == C
    assert committed(store) == (C,)


def test_a_missing_or_malformed_commit_is_said_to_be_so(store, checkpoints):
    with pytest.raises(ObjectMissing):
        manifests.read_manifest(store, "x", C)
    data = codec.encode(checkpoints.session(store, C, DATAS))
    for broken in (b"", data[: len(data) // 2], data.replace(b'"size":4001', b'"size":4002')):
        store.put(keys.manifest("x", 1, 10), broken)
        with pytest.raises(CorruptData):
            manifests.read_manifest(store, "x", C)
    store.put(keys.manifest("x", 1, 11), data)
    with pytest.raises(CorruptData, match="holds the manifest of another checkpoint: 1-10"):
        manifests.read_manifest(store, "x", CheckpointId(1, 11))


def test_an_unknown_outcome_is_settled_by_the_next_try(store, checkpoints, tmp_path):
    checkpoints.session(store, C, DATAS, commit=False)
    now = [0.0]
    plan = FaultPlan(outages=(Outage(start=1, end=2),), hooks=(Hook(keys="*/manifests/*", when="after"),))

    def cut(hook, key):
        now[0] = 1.0

    faulty = FaultyStore(store, plan, tmp_path, clock=lambda: now[0], on_hook=cut)
    faulty.plan = msgspec.structs.replace(plan, lose_every=1, lose_keys="*/manifests/*")
    with pytest.raises(TransientError, match="unknown"):
        manifests.write_manifest(with_retries(faulty, sleep=lambda seconds: None), "x", S)
    now[0] = 2.0
    commit = manifests.write_manifest(with_retries(faulty, sleep=lambda seconds: None), "x", S)
    assert commit == manifests.read_manifest(store, "x", C)


def test_records_are_what_the_table_of_types_says(store, checkpoints):
    commit = checkpoints.session(store, C, DATAS)
    assert isinstance(commit, Manifest)
    assert all(isinstance(part, Part) for part in commit.parts)
    assert commit.parts[0].seal == checkpoints.seals(C, DATAS)[0].decode()


def test_a_commit_tells_what_the_manifest_does(store, checkpoints):
    manifest = checkpoints.session(store, C, DATAS)
    (commit,) = (one for one in Journal(store, "x").read() if isinstance(one, Commit))
    assert (commit.id, commit.kind, commit.size) == (C, "session", manifest.size)
    assert commit.sealed_at == min(part.sealed_at for part in manifest.parts)


def test_all_who_commit_at_once_leave_one_record(store, checkpoints, tmp_path):
    checkpoints.generation(store, 1)
    checkpoints.session(store, C, DATAS, commit=False)
    found = []

    def commit():
        faulty = with_retries(
            FaultyStore(store, FaultPlan(lose_every=2), tmp_path), sleep=lambda seconds: None
        )
        found.append(manifests.try_commit(faulty, Journal(faulty, "x"), "x", S))

    threads = [threading.Thread(target=commit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (commit,) = (one for one in Journal(store, "x").read() if isinstance(one, Commit))
    assert found == [commit] * 8


def test_an_older_step_is_not_committed_after_a_newer_one(store, checkpoints):
    checkpoints.session(store, C, DATAS)
    older = CheckpointId(1, 5)
    checkpoints.session(store, older, DATAS, commit=False)
    assert manifests.try_commit(store, Journal(store, "x"), "x", SaveId(1, 5, 0)).id == C
    assert committed(store) == (C,)
    assert standing(store) == ["000001-000000000010"]


def test_a_state_from_which_the_generation_began_is_not_committed_again(store, checkpoints):
    """A drain before the first step saves what was restored."""
    checkpoints.session(store, C, DATAS)
    checkpoints.generation(store, 2, C)
    again = SaveId(2, 10, 1)
    checkpoints.session(store, again, DATAS, commit=False)
    assert manifests.try_commit(store, Journal(store, "x"), "x", again).id == C
    assert manifests.commit_whole(store, Journal(store, "x"), "x", again.checkpoint).id == C


def test_the_state_at_the_end_of_the_loop_is_committed_though_it_has_no_more_steps(store, checkpoints):
    """What its generation began from was saved before the epoch's own code, and the loop has ended after it."""
    checkpoints.session(store, C, DATAS)
    checkpoints.generation(store, 2, C)
    last = SaveId(2, 10, 0)
    checkpoints.session(store, last, DATAS, commit=False)
    for _ in range(2):
        commit = manifests.commit_whole(store, Journal(store, "x"), "x", last.checkpoint, is_of_the_end=True)
        assert commit.save == last
    assert committed(store) == (last.checkpoint, C)
    assert retention.collect(store, Journal(store, "x"), "x", 1, orphan_grace_seconds=0.0) == ()
    checkpoints.generation(store, 3, last.checkpoint)
    assert retention.collect(store, Journal(store, "x"), "x", 1, orphan_grace_seconds=0.0) == (C,)
    assert manifests.read_manifest(store, "x", last.checkpoint).save == last


@pytest.mark.parametrize("what", ["generation", "end"])
def test_nobody_commits_for_a_generation_that_is_not_the_newest_or_after_the_end(store, checkpoints, what):
    checkpoints.generation(store, 1)
    checkpoints.session(store, C, DATAS, commit=False)
    if what == "generation":
        checkpoints.generation(store, 2)
    else:
        finished = Finished(outcome="stopped", detail="", exit_code=1, at=AT, writer=new_nonce())
        made_journal.append(store, "x", finished)
    with pytest.raises(manifests.Superseded, match="1-10 is too late"):
        manifests.try_commit(store, Journal(store, "x"), "x", S)
    assert committed(store) == ()


def test_no_commit_lands_behind_a_generation_that_did_not_see_it(store, checkpoints, tmp_path):
    """A newcomer chose its checkpoint, the old member committed, and the newcomer's generation stood above it."""
    checkpoints.generation(store, 1)
    checkpoints.session(store, C, DATAS, commit=False)

    class Racing(FaultyStore):
        def put(self, key, data, **options):
            if key.startswith(keys.journal_prefix("x")) and len(journal.known) == 2:
                made_journal.start_generation(store, 2)
            super().put(key, data, **options)

    slow = Racing(store, FaultPlan(), tmp_path)
    journal = Journal(slow, "x")
    with pytest.raises(manifests.Superseded):
        manifests.try_commit(slow, journal, "x", S)
    assert committed(store) == ()


def test_what_was_uploaded_whole_is_committed_unless_it_is_older_or_another_generations(store, checkpoints):
    """The node that brought the last part may have died before it could commit."""
    for checkpoint in (CheckpointId(1, 90), CheckpointId(2, 10), CheckpointId(2, 30)):
        checkpoints.session(store, checkpoint, [b"a", b"b"], commit=False)
    checkpoints.session(store, CheckpointId(2, 20), [b"a", b"b"])
    upload_session(store, "x", checkpoints.seals(CheckpointId(2, 40), [b"a", b"b"])[0], b"a")
    assert manifests.complete(store, Journal(store, "x"), "x") == (CheckpointId(2, 30),)
    assert committed(store) == (CheckpointId(2, 30), CheckpointId(2, 20))
    assert manifests.complete(store, Journal(store, "x"), "x") == ()


def test_a_checkpoint_stands_until_its_manifest_is_deleted(store, checkpoints):
    assert not manifests.exists(store, "x", CheckpointId(1, 10))
    commit = checkpoints.session(store, CheckpointId(1, 10), [b"a"])
    assert manifests.exists(store, "x", CheckpointId(1, 10))
    with pytest.raises(CorruptData, match="torn"), manifests.while_it_exists(store, "x", commit.id):
        raise CorruptData("torn")
    store.delete(keys.manifest("x", 1, 10))
    assert not manifests.exists(store, "x", CheckpointId(1, 10))
    with pytest.raises(ObjectMissing), manifests.while_it_exists(store, "x", commit.id):
        raise CorruptData("torn")
