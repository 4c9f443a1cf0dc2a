"""The notice on the monotonic clock: its deadline, its guard, and when its drain starts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from cloudspot.agent.notices.notice_poller import NoticePoller
from cloudspot.agent.reclaim import understand
from cloudspot.agent.training.drain_schedule import drain_at, guard_of
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
    reclaim = understand(notice, notice_seconds=30.0, now=5.0, wall=WALL)
    assert (reclaim.deadline, reclaim.deadline_at) == (5.0, WALL)


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


def test_of_two_notices_the_one_of_the_nearer_end_counts(bench, wait_until) -> None:
    source, heard = bench.provider.notices, []
    watcher = NoticePoller(source, heard.append)
    source.notice = PreemptionNotice(deadline=datetime.now(timezone.utc) + timedelta(seconds=100))
    watcher.start()
    try:
        wait_until(lambda: len(heard) == 1)
        source.notice = PreemptionNotice(deadline=datetime.now(timezone.utc) + timedelta(seconds=110))
        wait_until(lambda: source.polls_since_change() > 3)
        source.notice = PreemptionNotice(deadline=datetime.now(timezone.utc) + timedelta(seconds=10))
        wait_until(lambda: len(heard) == 2)
        assert heard[1].deadline < heard[0].deadline - 80
    finally:
        watcher.stop()


def test_a_nearer_end_replaces_the_order_and_a_later_one_does_not(bench) -> None:
    orders = bench.life().context.orders
    now = datetime.now(timezone.utc)
    for left in (60.0, 90.0, 20.0, 30.0):
        notice = PreemptionNotice(deadline=None)
        orders.give(reclaim=understand(notice, notice_seconds=left, now=1000.0, wall=now))
    assert orders.deadline(otherwise=5000.0) == 1020.0
    assert orders.deadline(otherwise=1001.0) == 1001.0
