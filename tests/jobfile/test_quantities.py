"""Durations, sizes and money."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudspot.jobfile.quantities import parse_duration, parse_moment, parse_money, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172800),
        ("0.5h", 1800),
        ("0s", 0),
        ("30", 30),
        ("2.5", 2.5),
    ],
)
def test_a_duration_is_parsed_to_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1 0", "m", "10 minutes", "-1s", "1e3s", "10M", "1,5h", "inf"])
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="expected a duration such as") as error:
        parse_duration(text)
    assert f'got "{text}"' in str(error.value)


@pytest.mark.parametrize("text", ["30m1h", "1h1h", "5s10s"])
def test_units_of_a_duration_come_once_and_the_largest_first(text):
    with pytest.raises(ValueError, match="each unit once, the largest first"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("7B", 7),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("50 GiB", 50 * 2**30),
        ("500MB", 500_000_000),
        ("1.5TiB", 3 * 2**39),
    ],
)
def test_a_size_is_parsed_to_bytes(text, size):
    assert parse_size(text) == size


@given(st.integers(min_value=0, max_value=10**15))
def test_whole_sizes_are_exact_however_large(number):
    assert parse_size(f"{number}GiB") == number * 2**30


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("50G", "write 50GiB (powers of 1024) or 50GB (powers of 1000)"),
        ("50g", "write 50GiB (powers of 1024) or 50GB (powers of 1000)"),
        ("50gib", "did you mean 50GiB?"),
        ("50", "with its unit"),
        ("50PB", "with its unit"),
        ("large", "expected a size such as"),
        ("-1GiB", "expected a size such as"),
    ],
)
def test_what_is_no_size_is_refused_with_advice(text, advice):
    with pytest.raises(ValueError) as error:
        parse_size(text)
    assert advice in str(error.value)


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 400 + ".5"])
def test_a_size_of_hundreds_of_digits_is_refused_in_few_words(number):
    with pytest.raises(ValueError, match=r"^a size of \d+ digits is too large$"):
        parse_size(f"{number}GiB")


def test_a_duration_that_leads_before_all_time_is_no_moment():
    with pytest.raises(ValueError, match=r"^9+h ago is too far in the past$"):
        parse_moment("9" * 30 + "h", now=NOON)


@pytest.mark.parametrize(
    ("text", "money"), [("12.50", (12.5, None)), ("12.50 USD", (12.5, "USD")), ("3EUR", (3.0, "EUR"))]
)
def test_money_has_an_amount_and_perhaps_a_currency(text, money):
    assert parse_money(text) == money


@pytest.mark.parametrize("text", ["$12", "12,50", "USD", "-1 USD", "12 dollars"])
def test_what_is_no_money_is_refused(text):
    with pytest.raises(ValueError, match="expected an amount"):
        parse_money(text)


NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", "2026-11-20T11:50:00+01:00"),
        ("1d", "2026-11-19T12:00:00+01:00"),
        ("06:25", "2026-11-20T06:25:00+01:00"),
        ("06:25:04", "2026-11-20T06:25:04+01:00"),
        ("18:00", "2026-11-19T18:00:00+01:00"),
        ("2026-11-20", "2026-11-20T00:00:00+01:00"),
        ("2026-11-20 06:25", "2026-11-20T06:25:00+01:00"),
        ("2026-11-20T06:25:04Z", "2026-11-20T06:25:04+00:00"),
        ("2026-11-20T06:25:04+02:00", "2026-11-20T06:25:04+02:00"),
    ],
)
def test_a_moment_is_a_duration_ago_a_time_of_day_or_a_time(text, expected):
    assert parse_moment(text, now=NOON).isoformat() == expected


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "-5m", "2026-13-01", "10"])
def test_no_moment_is_said_to_be_none(text):
    with pytest.raises(ValueError, match="expected a duration like"):
        parse_moment(text, now=NOON)
