"""What the hosts of functions ask of each driver alike."""

from __future__ import annotations

import pytest

from cloudspot.errors import SpecError
from cloudspot.model import DriverFunction
from cloudspot.plugin.functionchecks import bucket_of, passes_a_month, whole_minutes


def every(seconds):
    return DriverFunction(
        name="driver", archive=b"", unpacked_bytes=0, handler="x.y", every_seconds=seconds,
        store_url="s3://mine/below", environment={},
    )  # fmt: skip


def test_whole_minutes_are_counted_and_anything_else_is_refused():
    assert [whole_minutes(every(one), scheduler="the timer") for one in (60.0, 300.0)] == [1, 5]
    for seconds in (0.0, 30.0, 90.0):
        with pytest.raises(SpecError, match="--every: the timer runs a function every minute"):
            whole_minutes(every(seconds), scheduler="the timer")


def test_a_month_has_730_hours():
    assert passes_a_month(1) == pytest.approx(43776.0)
    assert passes_a_month(60) == pytest.approx(729.6)


def test_the_store_has_to_be_the_hosts_own():
    assert bucket_of(every(60.0), scheme="s3", needs="it needs S3") == "mine"
    with pytest.raises(SpecError, match="it needs OSS; this one is s3://mine/below"):
        bucket_of(every(60.0), scheme="oss", needs="it needs OSS")
