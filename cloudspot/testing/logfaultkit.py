"""Tests of a log sink's promises about failures and other jobs, which a plugin's author subclasses.

::

    from cloudspot.testing.account import LogAccount
    from cloudspot.testing.logfaultkit import LogFaultTests

    class TestMyLogsFaults(LogFaultTests):
        @pytest.fixture
        def logs(self):
            return MyLogAccount()  # a LogAccount
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.interfaces import LogSink
from cloudspot.model import LogRecord
from cloudspot.testing.account import Call, Fault, LogAccount
from cloudspot.testing.kit import Kit, cases

JOBS = ("kit-1", "kit-10", "kit-1-0", "kit-2")
"""Job ids, some of which begin with the id of another job."""
_KINDS = {
    Fault.DENIED: AuthError,
    Fault.UNWELL: TransientError,
    Fault.THROTTLED: TransientError,
}
_READS: dict[str, Callable[[LogSink], object]] = {
    "read": lambda sink: list(sink.read("1-0")),
    "read back": lambda sink: list(sink.read_back("1-0")),
    "streams": lambda sink: list(sink.streams()),
    "pieces": lambda sink: list(sink.pieces()),
}


class LogFaultTests(Kit):
    """A test for each promise of LogSink about other jobs and failures; ``logs`` is a LogAccount."""

    def test_each_job_sees_its_own_lines_alone(self, logs: LogAccount) -> None:
        for number, job_id in enumerate(JOBS):
            logs.sink(job_id).write(_lines(job_id, 3))
            logs.sink(job_id).write(_lines(job_id, 1, stream=f"2-{number}"))
        for number, job_id in enumerate(JOBS):
            sink = logs.sink(job_id)
            assert list(sink.streams()) == ["1-0", f"2-{number}"]
            assert [one.text for one in sink.read("1-0")] == [f"{job_id} {seq}" for seq in range(3)]
            assert [one.text for one in sink.read_back("1-0")] == [f"{job_id} {seq}" for seq in (2, 1, 0)]
            assert {one.stream for one in sink.pieces()} == {"1-0", f"2-{number}"}

    def test_what_one_job_removes_the_others_keep(self, logs: LogAccount) -> None:
        for job_id in JOBS:
            logs.sink(job_id).write(_lines(job_id, 3))
        sink = logs.sink(JOBS[0])
        try:
            sink.remove(sink.pieces())
        except CloudspotError:
            pass  # a sink may leave removal to its service's retention
        else:
            assert list(logs.sink(JOBS[0]).read("1-0")) == []
        for job_id in JOBS[1:]:
            assert [one.text for one in logs.sink(job_id).read("1-0")] == [
                f"{job_id} {seq}" for seq in range(3)
            ]

    @cases(
        "read, fault",
        {f"{name}, {fault.value}": (read, fault) for name, read in _READS.items() for fault in _KINDS},
    )
    def test_a_log_that_cannot_be_read_is_not_empty(
        self, logs: LogAccount, read: Callable[[LogSink], object], fault: Fault
    ) -> None:
        logs.sink(JOBS[0]).write(_lines("text", 3))
        sink = logs.sink(JOBS[0])
        logs.inject(Call.READ_LINES, fault)
        with pytest.raises(CloudspotError) as caught:
            read(sink)
        assert isinstance(caught.value, _KINDS[fault])

    @cases("fault", {fault.value: fault for fault in _KINDS})
    def test_a_delivery_that_fails_says_so_and_is_made_good(self, logs: LogAccount, fault: Fault) -> None:
        sink = logs.sink(JOBS[0])
        sink.write(_lines("text", 2))
        logs.inject(Call.WRITE_LINES, fault)
        with pytest.raises(CloudspotError) as caught:
            sink.write(_lines("text", 4)[2:])
        assert isinstance(caught.value, _KINDS[fault])
        logs.heal()
        sink.write(_lines("text", 4)[2:])
        assert [one.seq for one in logs.sink(JOBS[0]).read("1-0")] == [0, 1, 2, 3]

    def test_a_delivery_whose_answer_is_lost_is_shown_once(self, logs: LogAccount) -> None:
        sink = logs.sink(JOBS[0])
        logs.inject(Call.WRITE_LINES, Fault.LOST_ANSWER)
        with suppress(TransientError):
            sink.write(_lines("text", 3))
        logs.heal()
        sink.write(_lines("text", 5))
        assert [one.seq for one in logs.sink(JOBS[0]).read("1-0")] == [0, 1, 2, 3, 4]

    def test_a_machine_that_may_not_read_can_write(self, logs: LogAccount) -> None:
        logs.inject(Call.READ_LINES, Fault.DENIED)
        logs.sink(JOBS[0]).write(_lines("text", 3))
        logs.heal()
        assert [one.seq for one in logs.sink(JOBS[0]).read("1-0")] == [0, 1, 2]


def _lines(text: str, num: int, *, stream: str = "1-0") -> list[LogRecord]:
    start = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(hours=1)
    return [
        LogRecord(stream=stream, seq=seq, time=start + timedelta(seconds=seq), text=f"{text} {seq}")
        for seq in range(num)
    ]
