"""When a driver's function runs."""

from __future__ import annotations

import pytest

from cloudspot.errors import SpecError
from cloudspot.plugin.functionschedule import passes_a_month, whole_minutes


def test_whole_minutes_are_counted_and_anything_else_is_refused():
    assert (whole_minutes(60.0, "the timer"), whole_minutes(300.0, "the timer")) == (1, 5)
    for seconds in (0.0, 30.0, 90.0):
        with pytest.raises(SpecError, match="--every: the timer runs a function every minute"):
            whole_minutes(seconds, "the timer")


def test_a_month_has_730_hours():
    assert passes_a_month(1) == pytest.approx(43776.0)
    assert passes_a_month(60) == pytest.approx(729.6)
