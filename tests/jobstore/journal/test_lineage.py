"""What the journal says of generations and checkpoints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records.made_records import Records

from cloudspot.jobstore.journal.consistency import JournalOrder
from cloudspot.jobstore.journal.lineage import counts, head, lineage, newest_generation, why_over
from cloudspot.jobstore.layout.records import CheckpointId, Commit, Generation

MADE = Records()
ELSEWHERE = "the job had ended and was resumed with other machines"
C = CheckpointId


def test_before_the_first_commit_there_is_nothing_to_resume_from():
    assert lineage([]) == ()
    assert head([]) is None
    assert lineage([MADE.intent(1), MADE.generation(1)]) == ()
    assert head([MADE.intent(1), MADE.generation(1)]) is None


def test_the_newest_commits_come_first():
    journal = [
        MADE.intent(1), MADE.generation(1), MADE.commit(1, 10), MADE.commit(1, 20),
        MADE.generation(2, restored=(1, 20)), MADE.commit(2, 25), MADE.commit(2, 30),
    ]  # fmt: skip
    assert lineage(journal) == (C(2, 30), C(2, 25), C(1, 20), C(1, 10))
    assert head(journal) == C(2, 30)
    assert head(journal[:5]) == C(1, 20)
    assert newest_generation(journal).number == 2


def test_what_a_generation_passed_over_comes_last():
    """1-20 and 2-30 did not verify."""
    journal = [
        MADE.intent(1), MADE.generation(1), MADE.commit(1, 5), MADE.commit(1, 10), MADE.commit(1, 20),
        MADE.generation(2, restored=(1, 20)), MADE.commit(2, 30), MADE.generation(3, restored=(1, 10)),
    ]  # fmt: skip
    assert lineage(journal) == (C(1, 10), C(1, 5), C(2, 30), C(1, 20))
    assert head(journal) == C(1, 10)
    assert lineage([*journal, MADE.commit(3, 12)])[:3] == (C(3, 12), C(1, 10), C(1, 5))


def test_a_generation_that_started_afresh_passes_over_all_before_it():
    journal = [MADE.intent(1), MADE.generation(1), MADE.commit(1, 10), MADE.generation(2), MADE.commit(2, 3)]
    assert lineage(journal) == (C(2, 3), C(1, 10))
    assert head(journal[:4]) is None


@pytest.mark.parametrize(
    ("journal", "launch", "why"),
    [
        ([MADE.intent(1)], 1, None),
        ([MADE.intent(1), MADE.generation(1), MADE.commit(1, 5)], 1, None),
        ([MADE.intent(1), MADE.intent(2)], 1, None),
        ([MADE.intent(1), MADE.intent(2), MADE.generation(1, launch=2)], 1, None),
        ([MADE.intent(1), MADE.suspended()], 1, None),
        ([MADE.intent(1), MADE.finished()], 1, "the job is over"),
        ([MADE.intent(1), MADE.finished(), MADE.moved()], 1, "the job is over"),
        ([MADE.intent(1), MADE.finished(), MADE.resumed(1)], 1, ELSEWHERE),
        ([MADE.intent(1), MADE.finished(), MADE.resumed(1), MADE.intent(2)], 1, ELSEWHERE),
        ([MADE.intent(1), MADE.finished(), MADE.resumed(1), MADE.intent(2)], 2, None),
        ([MADE.intent(1), MADE.finished(), MADE.resumed(1), MADE.finished()], 1, "the job is over"),
        ([MADE.finished(), MADE.resumed(1), MADE.intent(1)], 1, None),
    ],
)
def test_a_launch_has_nothing_left_to_do_once_the_job_is_over_even_if_that_goes_on_with_others(
    journal, launch, why
):
    JournalOrder("x").extend(journal)
    assert why_over(journal, launch) == why


def test_the_newest_generation_counts_until_the_job_is_over():
    journal = [
        MADE.intent(1), MADE.generation(1), MADE.generation(2), MADE.intent(2), MADE.finished(),
        MADE.moved(), MADE.resumed(1),
    ]  # fmt: skip
    assert [counts(journal[:number], 2) for number in range(8)] == [False] * 3 + [True] * 2 + [False] * 2 + [
        True
    ]
    assert [counts(journal[:number], 0) for number in range(4)] == [True, True, False, False]


@st.composite
def journals(draw):
    """Generations that each resume from a candidate of the lineage so far, and commit later steps."""
    journal = [MADE.intent(1)]
    for number in range(1, draw(st.integers(0, 6)) + 1):
        candidates = lineage(journal)
        skipped = draw(st.integers(0, len(candidates)))
        restored = candidates[skipped] if skipped < len(candidates) else None
        journal.append(
            MADE.generation(
                number, restored=None if restored is None else (restored.generation, restored.step)
            )
        )
        step = -1 if restored is None else restored.step
        for more in draw(st.lists(st.integers(1, 9), max_size=4)):
            step += more
            journal.append(MADE.commit(number, step))
    return journal


@pytest.mark.full
@given(journals())
def test_the_lineage_is_a_path_of_ever_older_commits_along_restore_from(journal):
    JournalOrder("x").extend(journal)
    found = lineage(journal)
    commits = [one.id for one in journal if isinstance(one, Commit)]
    generations = {one.number: one for one in journal if isinstance(one, Generation)}
    assert sorted(found) == sorted(commits)
    # Walk the chain independently: every commit up to the one from which the next generation began.
    path, limit, number = [], None, len(generations)
    while number:
        own = [one for one in commits if one.generation == number and (limit is None or one.step <= limit)]
        path += reversed(own)
        restored = generations[number].restore_from
        number, limit = (restored.generation, restored.step) if restored else (0, None)
    assert list(found[: len(path)]) == path
    assert head(journal) == next(iter(path), None)
