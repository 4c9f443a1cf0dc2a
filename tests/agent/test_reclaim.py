"""A notice on the monotonic clock: its deadline."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from cloudspot.agent.reclaim import understand
from cloudspot.model import PreemptionNotice

WALL = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)


def test_a_stated_time_is_believed_when_it_is_the_earlier_one() -> None:
    notice = PreemptionNotice(deadline=WALL + timedelta(seconds=90))
    assert understand(notice, notice_seconds=120.0, now=1000.0, wall=WALL).deadline == 1090.0


def test_a_wall_clock_that_lags_promises_no_more_than_the_notice() -> None:
    late = WALL - timedelta(minutes=10)
    notice = PreemptionNotice(deadline=WALL + timedelta(seconds=90))
    assert understand(notice, notice_seconds=120.0, now=1000.0, wall=late).deadline == 1120.0


def test_a_notice_without_a_time_counts_from_when_it_was_seen() -> None:
    assert (
        understand(PreemptionNotice(deadline=None), notice_seconds=30.0, now=5.0, wall=WALL).deadline == 35.0
    )


def test_a_deadline_that_has_passed_is_now() -> None:
    notice = PreemptionNotice(deadline=WALL - timedelta(seconds=3))
    assert understand(notice, notice_seconds=30.0, now=5.0, wall=WALL).deadline == 5.0


def test_a_time_by_the_machines_monotonic_clock_counts_whatever_the_other_clocks_say() -> None:
    """With one an hour behind, nothing of a notice was left; with one an hour ahead, too much of it."""
    for hours in (-1, 1):
        notice = PreemptionNotice(deadline=WALL + timedelta(hours=hours), deadline_monotonic=1015.0)
        assert understand(notice, notice_seconds=120.0, now=1000.0, wall=WALL).deadline == 1015.0


def test_a_drill_gives_as_long_a_notice_as_it_says() -> None:
    """`preempt --notice 25s` gave the 10 s that are usual."""
    notice = PreemptionNotice(deadline=WALL + timedelta(seconds=25), deadline_monotonic=1025.0)
    assert understand(notice, notice_seconds=10.0, now=1000.0, wall=WALL).deadline == 1025.0
