"""When a drain starts: at once for a short notice, late for a long one, by what a save was measured to take."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from cloudspot.agent.reclaim import understand
from cloudspot.agent.training.watching.drain_schedule import DrainSchedule, drain_at, guard_of, join_is_due
from cloudspot.jobstore.layout.records import StopRequest
from cloudspot.model import PreemptionNotice
from cloudspot.train import handoff as files

SEEN = 1000.0
WALL = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)


class Node:
    """An agent's life with a notice that it has seen, and what its saves have taken so far."""

    def __init__(self, bench, *, notice_seconds, **tables):
        self.context = bench.life(**tables).context
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


def test_before_a_long_step_that_would_not_end_in_time_the_drain_is_ordered(bench, monkeypatch):
    """With two minutes' notice, steps of 75 s and a drain in the last minute, two in five came too late."""
    node = Node(bench, notice_seconds=120.0)
    node.measure(stall=0.0, upload=10.0)
    assert node.starts_after() == 60
    status = node.context.status
    status.ranks, status.handoff = (0,), node.context.node.handoff(1)
    status.handoff.mkdir(parents=True)
    files.progress_path(status.handoff, 0).touch()
    monkeypatch.setattr(status, "progress", lambda: (20, None))
    for step_seconds, starts_after in ((10.0, 60), (45.0, 14), (75.0, 0)):
        node.context.memory.training_began_at = SEEN - 20 * step_seconds
        assert abs(node.starts_after() - starts_after) <= 2


def test_where_no_save_was_measured_the_last_minute_is_left(bench):
    assert Node(bench, notice_seconds=300.0).starts_after() == 240


def test_a_save_within_the_notice_that_takes_longer_starts_the_drain_earlier(bench):
    node = Node(bench, notice_seconds=300.0)
    node.measure(stall=0.1, upload=5.0)
    assert node.drains.due(SEEN + 150) is None
    node.measure(stall=0.1, upload=60.0)
    assert node.drains.due(SEEN + 150) == files.Drain(kind="notice", guard=SEEN + 300 - 90 - 1)


def test_a_script_is_told_at_once_until_its_saves_were_measured(bench):
    """Nobody knows how long its save takes; a minute may not do."""
    told = {"directory": "out/*", "on_notice": "SIGTERM"}
    node = Node(bench, notice_seconds=300.0, checkpoint=told)
    assert node.starts_after() == 0
    node.measure(stall=0.1, upload=None)
    assert node.starts_after() == 240
    node.measure(stall=30.0, upload=10.0)
    assert node.starts_after() == 180
    assert Node(bench, notice_seconds=300.0, checkpoint={"directory": "out/*"}).starts_after() == 240


def test_a_script_hears_of_the_end_of_another_node_as_of_its_own(bench):
    told = {"directory": "out/*", "on_notice": "SIGTERM"}
    drains = DrainSchedule(bench.life(checkpoint=told).context)
    assert drains.due(SEEN) is None
    assert drains.due(SEEN, peers_deadline=SEEN + 100) == files.Drain(kind="notice", guard=SEEN + 99)
    of_session = DrainSchedule(bench.life().context)  # whose ranks agree among themselves
    assert of_session.due(SEEN, peers_deadline=SEEN + 100) is None


def test_a_stop_waits_for_a_script_as_long_as_its_saves_take(bench):
    drains = DrainSchedule(bench.life(checkpoint={"directory": "out/*", "on_notice": "stop"}).context)
    drains._context.orders.give(stop=StopRequest(reason="user", at=WALL, writer="w"))
    drains._context.status.stall_seconds, drains._context.status.upload_seconds = 100.0, 50.0
    drain = drains.due(SEEN)
    assert drain == files.Drain(kind="stop", guard=SEEN + 450)
    assert not drains.is_over(drain, SEEN + 449)
    assert drains.is_over(drain, SEEN + 450)


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


def test_newcomers_are_taken_in_after_ten_times_what_the_start_took() -> None:
    assert not join_is_due(SEEN + 9999.0, began_at=SEEN, training_began_at=0.0)
    assert not join_is_due(SEEN + 329.0, began_at=SEEN, training_began_at=SEEN + 30.0)
    assert join_is_due(SEEN + 330.0, began_at=SEEN, training_began_at=SEEN + 30.0)


def test_a_drain_for_newcomers_has_time_and_yields_to_a_notice(bench) -> None:
    node = Node(bench, notice_seconds=300.0)
    assert node.drains.due(SEEN + 1.0) is None
    assert node.drains.due(SEEN + 1.0, joins=True) == files.Drain(kind="join", guard=SEEN + 121.0)
    due = node.drains.due(SEEN + 299.0, joins=True)
    assert due is not None
    assert due.kind == "notice"


def test_a_node_that_is_replaced_already_does_not_train_its_notice_through(bench) -> None:
    node = Node(bench, notice_seconds=300.0)
    due = node.drains.due(SEEN + 1.0, is_replaced=True)
    assert due is not None
    assert (due.kind, due.guard > SEEN + 121.0) == ("notice", True)
