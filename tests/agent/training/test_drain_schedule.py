"""When a drain starts: at once for a short notice, late for a long one, by what a save was measured to take."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from cloudspot.agent.reclaim import understand
from cloudspot.agent.training.drain_schedule import DrainSchedule, drain_at, guard_of
from cloudspot.model import PreemptionNotice
from cloudspot.train import handoff as files

SEEN = 1000.0
WALL = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)


class Node:
    """An agent's life with a notice that it has seen, and what its saves have taken so far."""

    def __init__(self, bench, *, notice_seconds):
        self.context = bench.life().context
        self.drains = DrainSchedule(self.context)
        notice = PreemptionNotice(deadline=None)
        self.context.orders.give(
            reclaim=understand(notice, notice_seconds=notice_seconds, now=SEEN, wall=WALL)
        )

    def measure(self, *, stall, upload):
        self.context.status.stall_seconds = stall
        self.context.status.upload_seconds = upload

    def starts_after(self):
        """Return the first whole second after the notice at which a drain is due."""
        return next(second for second in range(1000) if self.drains.due(SEEN + second) is not None)


@pytest.mark.parametrize(
    ("stall", "upload", "starts_after"),
    [
        (0.1, 4.9, 240),  # the last minute, though a save takes less
        (0.5, 19.5, 240),
        (2.0, 38.0, 180),  # three times what a save and its upload take
        (10.0, 80.0, 30),
        (10.0, 120.0, 0),  # five minutes are not enough for more
    ],
)
def test_five_minutes_are_trained_through_until_three_saves_and_uploads_are_left(
    bench, stall, upload, starts_after
):
    node = Node(bench, notice_seconds=300.0)
    node.measure(stall=stall, upload=upload)
    assert node.starts_after() == starts_after


def test_where_no_save_was_measured_the_last_minute_is_left(bench):
    assert Node(bench, notice_seconds=300.0).starts_after() == 240


def test_a_save_within_the_notice_that_takes_longer_starts_the_drain_earlier(bench):
    node = Node(bench, notice_seconds=300.0)
    node.measure(stall=0.1, upload=5.0)
    assert node.drains.due(SEEN + 150) is None
    node.measure(stall=0.1, upload=60.0)
    assert node.drains.due(SEEN + 150) == files.Drain(kind="notice", guard=SEEN + 300 - 90 - 1)


def test_a_notice_of_a_minute_drains_at_once(bench):
    assert Node(bench, notice_seconds=60.0).starts_after() == 0


def test_a_short_notice_drains_at_once() -> None:
    assert drain_at(130.0, now=100.0, save_seconds=1.0) == 100.0


def test_a_long_notice_is_trained_through_until_a_minute_is_left() -> None:
    assert drain_at(400.0, now=100.0, save_seconds=5.0) == 340.0


def test_a_long_notice_leaves_three_times_what_a_save_costs() -> None:
    assert drain_at(400.0, now=100.0, save_seconds=50.0) == 250.0


def test_the_guard_keeps_back_one_and_a_half_uploads_and_a_second() -> None:
    assert guard_of(100.0, now=0.0, upload_seconds=10.0) == 84.0


def test_the_guard_leaves_two_fifths_of_the_time_to_the_ranks_whatever_the_upload_took() -> None:
    assert guard_of(100.0, now=0.0, upload_seconds=1000.0) == 40.0
