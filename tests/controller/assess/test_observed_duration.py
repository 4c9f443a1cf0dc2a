from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.controller.assess.observed_duration import (
    BEGUN,
    MAX_PASS_GAP_SECONDS,
    STAMP_SECONDS,
    STILL_SECONDS,
    lengthened,
    looks_still,
)
from cloudspot.jobstore.layout.records import ObservedDuration

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def at(seconds):
    return START + timedelta(seconds=seconds)


def test_the_first_pass_counts_nothing_and_the_second_only_from_the_firsts_write_on():
    second = lengthened(BEGUN, at(100))
    assert second == ObservedDuration(seconds=0.0, until=at(100 + STAMP_SECONDS))
    third = lengthened(second, at(400))
    assert third == ObservedDuration(seconds=300 - STAMP_SECONDS, until=at(400))
    assert lengthened(third, at(460)) == ObservedDuration(seconds=360 - STAMP_SECONDS, until=at(460))


def test_a_long_gap_counts_no_more_than_ten_minutes():
    long = lengthened(ObservedDuration(seconds=5.0, until=at(0)), at(86400))
    assert long == ObservedDuration(seconds=5.0 + MAX_PASS_GAP_SECONDS, until=at(86400))
    assert MAX_PASS_GAP_SECONDS == 600.0


def test_two_writes_within_a_second_count_nothing_and_lose_nothing():
    seen = ObservedDuration(seconds=5.0, until=at(100.9))
    assert lengthened(seen, at(100.0)) == seen


def test_a_gap_that_nobody_could_watch_is_left_out():
    assert lengthened(ObservedDuration(seconds=5.0, until=None), at(100)) == ObservedDuration(
        seconds=5.0, until=at(100 + STAMP_SECONDS)
    )


def test_a_store_whose_clock_was_set_back_begins_anew():
    assert lengthened(ObservedDuration(seconds=500.0, until=at(86400)), at(0)) == ObservedDuration(
        seconds=0.0, until=at(STAMP_SECONDS)
    )


@pytest.mark.parametrize(
    ("seconds", "is_still"), [(0, False), (STILL_SECONDS - 1, False), (STILL_SECONDS, True), (86400, True)]
)
def test_a_word_whose_time_is_far_off_either_way_is_worth_a_note(seconds, is_still):
    assert looks_still(at(0), at(seconds)) is is_still
    assert looks_still(at(seconds), at(0)) is is_still
