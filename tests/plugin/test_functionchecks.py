"""What the hosts of functions ask of each driver alike."""

from __future__ import annotations

import dataclasses
import platform
import sys

import msgspec
import pytest

from cloudspot.errors import SpecError
from cloudspot.model import DriverFunction
from cloudspot.plugin.functionchecks import (
    FunctionLimits,
    bucket_of,
    once_effective,
    passes_a_month,
    whole_minutes,
)


def every(seconds):
    return DriverFunction(
        name="driver", archive=b"", unpacked_bytes=0, handler="x.y", every_seconds=seconds,
        store_url="s3://mine/below", environment={},
    )  # fmt: skip


def test_whole_minutes_are_counted_and_anything_else_is_refused():
    assert [whole_minutes(every(one), scheduler="the timer") for one in (60.0, 300.0)] == [1, 5]
    for seconds in (0.0, 30.0, 90.0):
        with pytest.raises(
            SpecError, match="--every: the timer runs functions only at intervals of whole minutes"
        ):
            whole_minutes(every(seconds), scheduler="the timer")


def test_a_month_has_730_hours():
    assert passes_a_month(1) == pytest.approx(43776.0)
    assert passes_a_month(60) == pytest.approx(729.6)


def test_the_store_has_to_be_the_hosts_own():
    assert bucket_of(every(60.0), scheme="s3", needs="it needs S3") == "mine"
    with pytest.raises(SpecError, match="it needs OSS; the store is s3://mine/below"):
        bucket_of(every(60.0), scheme="oss", needs="it needs OSS")


LIMITS = FunctionLimits(
    host="The Host",
    runtime="its runtime",
    machines={"x86_64": "x86-64", "aarch64": "arm64"},
    glibc={(3, 10): (2, 26), (3, 14): (2, 34), sys.version_info[:2]: (2, 30)},
    max_packed_bytes=2_000_000,
    max_unpacked_bytes=5_000_000,
)


@pytest.fixture
def linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def sized(packed=1_000_000, unpacked=4_000_000, needs_glibc=(2, 17)):
    made = every(60.0)
    return msgspec.structs.replace(
        made, archive=bytes(packed), unpacked_bytes=unpacked, needs_glibc=needs_glibc
    )


def test_a_function_that_fits_is_told_with_its_size(linux):
    LIMITS.require_fit(sized())
    assert LIMITS.size_of(sized()) == ("its code: 1.0 MB packed, 4 MB unpacked; The Host accepts 2 and 5 MB")
    assert (
        dataclasses.replace(LIMITS, max_packed_bytes=None, max_unpacked_bytes=None)
        .size_of(sized())
        .endswith("; The Host sets no limit")
    )


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (sized(packed=2_000_001), "has 2 MB packed; The Host accepts at most 2 MB"),
        (sized(unpacked=6_000_000), "has 6 MB unpacked; The Host accepts at most 5 MB"),
        (
            sized(needs_glibc=(2, 31)),
            "glibc 2.31 or newer, but its runtime has glibc 2.30: install an older package, or deploy from Python 3.14",
        ),
        (sized(needs_glibc=(2, 40)), "newer, but its runtime has glibc 2.30: install an older package$"),
    ],
)
@pytest.mark.skipif(sys.version_info[:2] == (3, 14), reason="the newest Python is the one that is advised")
def test_one_that_does_not_fit_is_refused(linux, made, says):
    with pytest.raises(SpecError, match=says):
        LIMITS.require_fit(made)


def test_other_systems_are_refused(linux, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    says = r"from Linux on x86-64 or arm64 with Python 3\.10 to 3\.14; this is Python .* on linux, riscv64"
    with pytest.raises(SpecError, match=says):
        LIMITS.require_fit(sized())


def test_what_is_new_is_waited_for_and_nothing_else():
    waited, answers = [], [SpecError("the role is new"), SpecError("the role is new"), "made"]

    def call():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(within_seconds=3600.0):
        return once_effective(
            call, kind=SpecError, is_new=lambda error: "new" in str(error), within_seconds=within_seconds,
            sleep=waited.append,
        )  # fmt: skip

    assert ask() == "made"
    assert waited == [2.0, 2.0]
    answers[:] = [SpecError("the name is taken"), "made"]
    with pytest.raises(SpecError, match="is taken"):
        ask()
    answers[:] = [SpecError("the role is new"), "made"]
    with pytest.raises(SpecError, match="is new"):
        ask(within_seconds=0.0)
