"""The watch of checkpoints against random habits of scripts."""

from __future__ import annotations

import random

import pytest
from support.worlds.file_habits import COMMIT_SECONDS, Outcome, play, random_habit

SLACK_SECONDS = 5.0
PROVEN = {"marker", "index"}


def check(outcome: Outcome) -> None:
    """Check what holds for every habit."""
    habit = outcome.habit
    for commit in outcome.commits:
        assert commit.save is not None or commit.evidence not in PROVEN, ("torn", habit, commit)
    allowed = 2 * habit.upload_seconds + COMMIT_SECONDS + SLACK_SECONDS
    end = max((commit.at for commit in outcome.commits), default=0.0)
    for moment, save, _ in outcome.recognized:
        # What an agent has set aside is lost with it.
        is_killed = any(moment <= at <= moment + allowed for at in outcome.restarted_at)
        if moment + allowed <= end and not is_killed:
            by_then = [each for each in outcome.commits if each.at <= moment + allowed]
            newest = max((each.save or save for each in by_then), default=0)
            assert newest >= save, ("old", habit, moment, save)
    has_good = False
    for _, kept in outcome.kept:
        has_good = has_good or any(commit.save is not None for commit in kept)
        assert not has_good or any(commit.save is not None for commit in kept), ("lost", habit, kept)


def played(seeds: range) -> list[Outcome]:
    return [play(random_habit(random.Random(seed)), seed) for seed in seeds]


def test_a_few_habits_lose_nothing_that_was_recognized() -> None:
    outcomes = played(range(5))
    for outcome in outcomes:
        check(outcome)
        assert any(one.save for one in outcome.commits)


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_a_thousand_habits_lose_nothing_that_was_recognized(first: int) -> None:
    outcomes = played(range(first, first + 50))
    for outcome in outcomes:
        check(outcome)
    assert sum(any(one.save for one in outcome.commits) for outcome in outcomes) >= 45
    found = {one.evidence for outcome in outcomes for one in outcome.commits}
    assert found == {"marker", "index", "next", "quiet"}
