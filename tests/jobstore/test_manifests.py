"""Commits."""

import threading
from datetime import datetime, timezone

import msgspec
import pytest
from faultstore import FaultPlan, FaultyStore, Hook, Outage

from cloudspot.errors import CorruptData, ObjectMissing, TransientError
from cloudspot.jobstore import codec, keys, manifests, parts, retention
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import CheckpointId, Commit, Part, SaveId

AT = datetime(2026, 11, 20, tzinfo=timezone.utc)
C = CheckpointId(1, 10)
S = SaveId(1, 10, 0)
DATAS = [b"a" * 4000, b"", b"c" * 1]


def test_a_commit_names_all_parts_in_rank_order(store, checkpoints):
    commit = checkpoints.session(store, C, DATAS)
    assert [part.rank for part in commit.parts] == [0, 1, 2]
    assert (commit.id, commit.kind, commit.size) == (C, "session", 4001)
    assert manifests.read_commit(store, "x", C) == commit
    assert retention.read_commits(store, "x") == (C,)


def test_there_is_no_commit_while_a_part_is_missing(store, checkpoints):
    assert manifests.try_commit(store, "x", S) is None
    seals = checkpoints.seals(C, DATAS)
    for rank in (2, 0, 1):
        assert manifests.try_commit(store, "x", S) is None
        parts.upload_part(
            store,
            "x",
            S,
            rank=rank,
            num_parts=3,
            data=memoryview(DATAS[rank]),
            seal=seals[rank],
            sealed_at=AT,
        )
    assert manifests.try_commit(store, "x", S) is not None


def test_parts_are_read_only_when_all_are_there_and_none_twice(store, checkpoints, tmp_path):
    """After each part all others were read: W parts took W x W / 2 reads."""
    num_parts = 64
    datas = [bytes([rank]) for rank in range(num_parts)]
    seals = checkpoints.seals(C, datas)
    counting, known = FaultyStore(store, FaultPlan(), tmp_path), {}
    for rank in range(num_parts):
        part = parts.upload_part(
            store, "x", S, rank=rank, num_parts=num_parts, data=memoryview(datas[rank]), seal=seals[rank],
            sealed_at=AT,
        )  # fmt: skip
        if rank % 8 == 0:  # this process's own
            known[keys.part("x", SaveId(1, 10, 0), rank)] = part
        commit = manifests.try_commit(counting, "x", S, known=known)
        assert (commit is None) is (rank < num_parts - 1)
    assert (counting.calls["get"], counting.calls["list_page"]) == (num_parts - 8, num_parts)
    assert manifests.try_commit(counting, "x", S, known=known) == commit
    assert counting.calls["get"] == num_parts - 8 + 1  # the commit that stands


def test_of_several_saves_of_a_step_the_first_whole_one_is_committed(store, checkpoints):
    drain, interval = SaveId(1, 10, 5), SaveId(1, 10, 4)
    seal = checkpoints.seals(drain, [b"a", b"b"])[0]
    parts.upload_part(store, "x", drain, rank=0, num_parts=2, data=memoryview(b"a"), seal=seal, sealed_at=AT)
    assert manifests.commit_whole(store, "x", C) is None
    assert manifests.missing_ranks(store, "x", C) == {1}
    checkpoints.session(store, interval, [b"c", b"d"], commit=False)
    assert manifests.commit_whole(store, "x", C).save == interval
    checkpoints.session(store, drain, [b"a", b"b"], commit=False)
    assert manifests.try_commit(store, "x", drain).save == interval
    assert manifests.complete(store, "x", 1) == ()
    assert manifests.read_commit(store, "x", C).save == interval


def test_a_save_that_makes_no_checkpoint_hides_no_other(store, checkpoints):
    newer = SaveId(1, 10, 5)
    seals = checkpoints.seals(newer, [b"a", b"b"], plan="f" * 64)
    for rank, data in enumerate((b"a", b"b")):
        parts.upload_part(
            store, "x", newer, rank=rank, num_parts=2, data=memoryview(data), seal=seals[rank], sealed_at=AT
        )
    with pytest.raises(CorruptData, match="not those that were planned"):
        manifests.commit_whole(store, "x", C)
    checkpoints.session(store, C, DATAS, commit=False)
    assert manifests.commit_whole(store, "x", C).save == S
    assert manifests.missing_ranks(store, "x", CheckpointId(1, 11)) is None


def test_all_who_commit_get_the_same_manifest(store, checkpoints, tmp_path):
    checkpoints.session(store, C, DATAS, commit=False)
    found = []

    def commit():
        faulty = FaultyStore(store, FaultPlan(lose_every=2), tmp_path)
        found.append(manifests.try_commit(patient(faulty, sleep=lambda seconds: None), "x", S))

    threads = [threading.Thread(target=commit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [manifests.read_commit(store, "x", C)] * 8


def test_parts_that_were_planned_apart_are_no_checkpoint(store, checkpoints):
    seals = checkpoints.seals(C, [b"a" * 10, b"b" * 10])
    others = checkpoints.seals(C, [b"a" * 10, b"b" * 11])
    for rank, (data, seal) in enumerate([(b"a" * 10, seals[0]), (b"b" * 11, others[1])]):
        parts.upload_part(
            store, "x", S, rank=rank, num_parts=2, data=memoryview(data), seal=seal, sealed_at=AT
        )
    with pytest.raises(CorruptData, match="planned apart"):
        manifests.try_commit(store, "x", S)
    assert retention.read_commits(store, "x") == ()


def test_parts_that_disagree_on_their_number_or_their_key_are_no_checkpoint(store, checkpoints):
    checkpoints.session(store, C, [b"a"], commit=False)
    [seal] = checkpoints.seals(C, [b"b"], rank=1, world_size=2)
    parts.upload_part(store, "x", S, rank=1, num_parts=2, data=memoryview(b"b"), seal=seal, sealed_at=AT)
    with pytest.raises(CorruptData, match="disagree on how many"):
        manifests.try_commit(store, "x", S)
    other = SaveId(1, 11, 0)
    store.put(keys.part("x", SaveId(1, 11, 0), 0), store.get(keys.part("x", SaveId(1, 10, 0), 0)))
    with pytest.raises(CorruptData, match="parts/0000 holds the record of part 0 of 1-10-0"):
        manifests.try_commit(store, "x", other)


def test_a_foreign_object_among_parts_and_commits_is_passed_over(store, checkpoints):
    store.put(keys.parts_prefix("x", SaveId(1, 10, 0)) + ".DS_Store", b"")
    store.put(keys.commits_prefix("x") + ".DS_Store", b"")
    assert checkpoints.session(store, C, DATAS).id == C
    assert retention.read_commits(store, "x") == (C,)


def test_commits_are_in_the_order_of_generation_and_step(store, checkpoints):
    wanted = [CheckpointId(1, 9), CheckpointId(1, 10), CheckpointId(2, 1), CheckpointId(10, 0)]
    for checkpoint in reversed(wanted):
        checkpoints.session(store, checkpoint, [b"a"])
    assert retention.read_commits(store, "x") == tuple(wanted)


def test_a_missing_or_malformed_commit_is_said_to_be_so(store, checkpoints):
    with pytest.raises(ObjectMissing):
        manifests.read_commit(store, "x", C)
    data = codec.encode(checkpoints.session(store, C, DATAS))
    for broken in (b"", data[: len(data) // 2], data.replace(b'"size":4001', b'"size":4002')):
        store.put(keys.commit("x", 1, 10), broken)
        with pytest.raises(CorruptData):
            manifests.read_commit(store, "x", C)
    store.put(keys.commit("x", 1, 11), data)
    with pytest.raises(CorruptData, match="holds the manifest of checkpoint 1-10"):
        manifests.read_commit(store, "x", CheckpointId(1, 11))


def test_an_unknown_outcome_is_settled_by_the_next_try(store, checkpoints, tmp_path):
    checkpoints.session(store, C, DATAS, commit=False)
    now = [0.0]
    plan = FaultPlan(outages=(Outage(start=1, end=2),), hooks=(Hook(keys="*/commits/*", when="after"),))

    def cut(hook, key):
        now[0] = 1.0

    faulty = FaultyStore(store, plan, tmp_path, clock=lambda: now[0], on_hook=cut)
    faulty.plan = msgspec.structs.replace(plan, lose_every=1, lose_keys="*/commits/*")
    with pytest.raises(TransientError, match="unknown"):
        manifests.try_commit(patient(faulty, sleep=lambda seconds: None), "x", S)
    now[0] = 2.0
    commit = manifests.try_commit(patient(faulty, sleep=lambda seconds: None), "x", S)
    assert commit == manifests.read_commit(store, "x", C)


def test_records_are_what_the_table_of_types_says(store, checkpoints):
    commit = checkpoints.session(store, C, DATAS)
    assert isinstance(commit, Commit)
    assert all(isinstance(part, Part) for part in commit.parts)
    assert commit.parts[0].seal == checkpoints.seals(C, DATAS)[0].decode()


def test_what_was_uploaded_whole_is_committed_unless_it_is_older_or_another_generations(store, checkpoints):
    """The node that brought the last part may have died before it could commit."""
    for checkpoint in (CheckpointId(1, 90), CheckpointId(2, 10), CheckpointId(2, 30)):
        checkpoints.session(store, checkpoint, [b"a", b"b"], commit=False)
    checkpoints.session(store, CheckpointId(2, 20), [b"a", b"b"])
    parts.upload_part(
        store, "x", SaveId(2, 40, 0), rank=0, num_parts=2, data=memoryview(b"a"),
        seal=checkpoints.seals(CheckpointId(2, 40), [b"a", b"b"])[0], sealed_at=AT,
    )  # fmt: skip
    assert manifests.complete(store, "x", 2) == (CheckpointId(2, 30),)
    assert retention.read_commits(store, "x") == (CheckpointId(2, 20), CheckpointId(2, 30))
    assert manifests.complete(store, "x", 2) == ()
    assert manifests.complete(store, "x", 1) == (CheckpointId(1, 90),)


def test_a_checkpoint_stands_until_its_commit_is_deleted(store, checkpoints):
    assert not manifests.stands(store, "x", CheckpointId(1, 10))
    commit = checkpoints.session(store, CheckpointId(1, 10), [b"a"])
    assert manifests.stands(store, "x", CheckpointId(1, 10))
    with pytest.raises(CorruptData, match="torn"), manifests.while_it_stands(store, "x", commit.id):
        raise CorruptData("torn")
    store.delete(keys.commit("x", 1, 10))
    assert not manifests.stands(store, "x", CheckpointId(1, 10))
    with pytest.raises(ObjectMissing), manifests.while_it_stands(store, "x", commit.id):
        raise CorruptData("torn")
