"""What every sink for a cloud's log service does with clocks, rights and failures, against the emulated clouds.

A subclass brings the fixtures ``service`` (a LogService) and ``make_sink``: ``make_sink(**options)`` returns a
sink of the test's own job, whose retries do not sleep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from cloudspot.emulation.api_faults import Faults
from cloudspot.errors import AuthError, TransientError
from cloudspot.model import LogRecord


@dataclass(frozen=True)
class LogService:
    """An emulated log service, as the tests see it."""

    faults: Faults
    write_action: str
    failed: tuple[str, int]
    """The code and status of an error after which the outcome is unknown."""
    read_rights: Sequence[str]
    write_right: str
    other_store: str
    """The URL of another store than the sinks'."""
    endpoint_variable: str
    make_clients: Any

    def fail(self, *, times: int = 1, happens: bool = False) -> None:
        code, status = self.failed
        self.faults.inject(self.write_action, code, status=status, times=times, happens=happens)


def line(seq, text="text", *, at=None, stream="1-0"):
    return LogRecord(stream=stream, seq=seq, time=at or datetime.now(timezone.utc), text=text)


def seqs(records):
    return [record.seq for record in records]


class LogServiceTests:
    """What such a sink promises beyond LogSinkTests, a test for each."""

    @pytest.mark.full
    def test_two_stores_jobs_of_one_id_do_not_see_each_other(self, service, make_sink):
        one, other = make_sink(), make_sink(store_url=service.other_store)
        one.write([line(0, "one's"), line(1, "one's")])
        other.write([line(0, "the other's")])
        other.write([line(0, stream="2-0")])
        assert (tuple(one.streams()), tuple(other.streams())) == (("1-0",), ("1-0", "2-0"))
        assert [record.text for record in one.read("1-0")] == ["one's"] * 2
        assert [record.text for record in other.read_back("1-0")] == ["the other's"]

    def test_lines_of_any_age_are_taken_and_keep_their_time(self, make_sink):
        now = datetime.now(timezone.utc)
        ages = [timedelta(days=days) for days in (40, 13, -400, 1.25, 0, -2)]
        written = [line(seq, at=now - age) for seq, age in enumerate(ages)]
        make_sink().write(written)
        assert list(make_sink().read("1-0")) == written

    def test_a_clock_that_jumps_far_back_loses_no_line(self, make_sink):
        now = [datetime.now(timezone.utc)]
        sink = make_sink(now=lambda: now[0])
        sink.write([line(0, at=now[0])])
        now[0] -= timedelta(hours=20)
        sink.write([line(1, at=now[0])])
        assert seqs(make_sink().read("1-0")) == [0, 1]

    def test_a_new_process_goes_on_behind_what_another_delivered(self, make_sink):
        now = datetime.now(timezone.utc)
        make_sink().write([line(0, at=now)])
        make_sink().write([line(1, at=now - timedelta(hours=3))])
        assert seqs(make_sink().read("1-0")) == [0, 1]
        assert seqs(make_sink().read_back("1-0")) == [1, 0]

    def test_a_role_that_may_only_write_can(self, service, make_sink):
        service.faults.denied.update(service.read_rights)
        make_sink().write([line(0), line(1)])
        service.faults.denied.clear()
        assert seqs(make_sink().read("1-0")) == [0, 1]

    def test_a_right_that_is_missing_is_an_auth_error_that_names_it(self, service, make_sink):
        service.faults.denied.add(service.write_right)
        with pytest.raises(AuthError, match=f"access denied: .*{service.write_right}") as caught:
            make_sink().write([line(0)])
        assert "\n" not in str(caught.value)

    def test_a_delivery_that_fails_in_passing_is_made_again(self, service, make_sink):
        slept: list[float] = []
        sink = make_sink(sleep=slept.append)
        service.fail(times=2)
        sink.write([line(0)])
        assert slept == [0.1, 0.2]
        service.fail(times=5)
        with pytest.raises(TransientError, match="failed: injected"):
            sink.write([line(1)])
        service.fail(happens=True)
        sink.write([line(1), line(2)])
        assert seqs(make_sink().read("1-0")) == [0, 1, 2]

    def test_a_line_that_came_late_is_waited_for_and_one_that_is_lost_is_not(self, make_sink):
        writer, now = make_sink(), [datetime.now(timezone.utc)]
        reader = make_sink(now=lambda: now[0])
        writer.write([line(0), line(1)])
        writer.write([line(5), line(6)])
        assert seqs(reader.read("1-0")) == [0, 1]
        now[0] += timedelta(minutes=2)
        assert seqs(reader.read("1-0")) == [0, 1, 5, 6]
        assert seqs(reader.read("1-0", after=1)) == [5, 6]
        assert seqs(reader.read_back("1-0")) == [6, 5, 1, 0]
        now[0] -= timedelta(minutes=2)
        writer.write([line(2), line(3), line(4)])
        assert seqs(make_sink().read("1-0")) == list(range(7))

    def test_a_service_that_does_not_answer_is_a_transient_error(self, service, make_sink, monkeypatch):
        monkeypatch.setenv(service.endpoint_variable, "http://127.0.0.1:1")
        with pytest.raises(TransientError, match=r"no answer from 127\.0\.0\.1:1: .*refused"):
            make_sink(clients=service.make_clients()).write([line(0)])
