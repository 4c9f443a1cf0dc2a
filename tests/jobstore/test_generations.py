"""Generations and lineage."""

from datetime import datetime, timezone

import pytest
from faultstore import FaultPlan, FaultyStore
from hypothesis import given
from hypothesis import strategies as st

from cloudspot.errors import CorruptData
from cloudspot.jobstore import keys
from cloudspot.jobstore.generations import lineage, propose, read_generations
from cloudspot.jobstore.records import CheckpointId, Generation, Member, new_nonce
from cloudspot.local.filestore import FileStore

AT = datetime(2026, 11, 20, tzinfo=timezone.utc)
C = CheckpointId


def generation(number, restore_from=None):
    return Generation(
        number=number, launch=1, members=(Member(rank=0, instance_id="i", address="a"),), endpoint="a:1",
        restore_from=restore_from, why="first", at=AT, writer=new_nonce(),
    )  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return FileStore(f"file://{tmp_path}/store")


def test_the_loser_of_a_proposal_gets_the_winners_record(store):
    first, second = generation(1), generation(1)
    assert propose(store, "x", first) == first
    assert propose(store, "x", second) == first
    assert propose(store, "x", first) == first
    assert read_generations(store, "x") == (first,)


def test_known_generations_are_not_read_again(store, tmp_path):
    for number in (1, 2, 3):
        propose(store, "x", generation(number))
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    known = read_generations(counted, "x")
    assert [one.number for one in known] == [1, 2, 3]
    counted.calls.clear()
    assert read_generations(counted, "x", known=known) == known
    assert counted.calls == {"get": 1}
    new = propose(store, "x", generation(4))
    assert read_generations(counted, "x", known=known) == (*known, new)


def test_a_malformed_generation_is_corrupt(store):
    store.put(keys.generation("x", 1), b"[]")
    with pytest.raises(CorruptData, match="generations/000001"):
        read_generations(store, "x")


def test_before_the_first_commit_there_is_nothing_to_resume_from():
    assert lineage([], []) == ()
    assert lineage([], [C(1, 1)]) == ()
    assert lineage([generation(1)], []) == ()


def test_the_newest_generations_commits_come_first_newest_first():
    generations = [generation(1), generation(2, C(1, 20))]
    commits = [C(1, 10), C(1, 20), C(2, 25), C(2, 30)]
    assert lineage(generations, commits) == (C(2, 30), C(2, 25), C(1, 20), C(1, 10))


def test_a_late_commit_of_a_superseded_generation_is_no_candidate():
    generations = [generation(1), generation(2, C(1, 20))]
    assert lineage(generations, [C(1, 10), C(1, 20), C(1, 99)]) == (C(1, 20), C(1, 10))


def test_a_generation_that_chose_an_older_one_cuts_the_branch_between():
    generations = [generation(1), generation(2, C(1, 20)), generation(3, C(1, 10))]
    commits = [C(1, 5), C(1, 10), C(1, 20), C(2, 30), C(3, 12)]
    assert lineage(generations, commits) == (C(3, 12), C(1, 10), C(1, 5))


def test_a_generation_that_started_afresh_ends_the_lineage():
    generations = [generation(1), generation(2, None)]
    assert lineage(generations, [C(1, 10), C(2, 3)]) == (C(2, 3),)


def test_a_restored_checkpoint_that_was_collected_still_leads_back():
    generations = [generation(1), generation(2, C(1, 20)), generation(3, C(2, 25))]
    assert lineage(generations, [C(1, 10), C(1, 20), C(3, 40)]) == (C(3, 40), C(1, 20), C(1, 10))


def test_where_the_only_checkpoint_of_the_lineage_is_gone_the_late_commits_after_it_count():
    """Else the job would start from the beginning, with good checkpoints in the bucket."""
    generations = [generation(1), generation(2, C(1, 50))]
    assert lineage(generations, [C(1, 60)]) == (C(1, 60),)
    assert lineage(generations, [C(1, 50), C(1, 60)]) == (C(1, 50),)
    assert lineage(generations, [C(1, 60), C(2, 55)]) == (C(2, 55),)


def test_a_record_that_restores_from_its_own_future_ends_the_lineage():
    assert lineage([generation(1, C(2, 1)), generation(2, C(2, 1))], [C(1, 1), C(2, 1)]) == (C(2, 1),)


@st.composite
def histories(draw):
    """Generations that each restored from a candidate of the lineage so far; then late commits."""
    generations, commits, late = [], [], []
    for number in range(1, draw(st.integers(0, 6)) + 1):
        candidates = lineage(generations, commits)
        skipped = draw(st.integers(0, len(candidates)))
        restore_from = candidates[skipped] if skipped < len(candidates) else None
        if generations:
            for step in draw(st.sets(st.integers(0, 50), max_size=2)):
                zombie = C(draw(st.integers(1, number - 1)), step)
                if zombie not in commits:
                    late.append((zombie, number))
        generations.append(generation(number, restore_from))
        commits += [C(number, step) for step in draw(st.sets(st.integers(0, 50), max_size=4))]
        commits += [zombie for zombie, _ in late if zombie not in commits]
    return generations, draw(st.permutations(commits))


@given(histories())
def test_the_lineage_is_a_descending_path_of_existing_commits_along_restore_from(history):
    generations, commits = history
    found = lineage(generations, commits)
    assert set(found) <= set(commits)
    assert list(found) == sorted(set(found), reverse=True)
    # Walk the chain independently: every commit up to the step at which the next one left it.
    path, limit = {}, None
    number = len(generations)
    while number:
        path[number] = limit
        restored = generations[number - 1].restore_from
        number, limit = (restored.generation, restored.step) if restored else (0, None)
    assert set(found) == {
        commit
        for commit in commits
        if commit.generation in path
        and (path[commit.generation] is None or commit.step <= path[commit.generation])
    }
    if generations:
        own = [commit.step for commit in commits if commit.generation == len(generations)]
        newest = [commit.step for commit in found if commit.generation == len(generations)]
        assert newest == sorted(own, reverse=True)
