"""The promises of a log sink as tests, which a plugin's author subclasses.

::

    from cloudspot.testing.logkit import LogSinkTests

    class TestMySink(LogSinkTests):
        @pytest.fixture
        def make_sink(self):
            return lambda: MySink("a-job-that-has-no-log-yet")

Each call of ``make_sink`` returns another sink for the same job, as another process would open it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone

from cloudspot.errors import CloudspotError
from cloudspot.interfaces import LogSink
from cloudspot.model import LogRecord
from cloudspot.testing.kit import Kit
from cloudspot.testing.storekit import raising

MakeSink = Callable[[], LogSink]


class LogSinkTests(Kit):
    """A test for each promise of LogSink."""

    def test_lines_come_back_as_they_were(self, make_sink: MakeSink) -> None:
        at = _recently()
        written = [
            LogRecord(stream="1-0", seq=0, time=at, text="plain"),
            LogRecord(stream="1-0", seq=1, time=at, text="", source="setup"),
            LogRecord(
                stream="1-0", seq=2, time=at, text='a\r\n\x85\u2028 "é" \ud7ff\x00\x1b[0m \\', source="agent"
            ),
            LogRecord(stream="1-0", seq=3, time=at + timedelta(microseconds=1), text=" \t x \U0001f600"),
        ]
        make_sink().write(written)
        assert list(make_sink().read("1-0")) == written
        assert list(make_sink().read_back("1-0")) == written[::-1]

    def test_a_line_may_be_very_long(self, make_sink: MakeSink) -> None:
        at = _recently()
        texts = ["x" * 39_999, "\x00\x1f" * 60_000, "é\U0001f600" * 200_000, "y" * 2_000_000, "end"]
        written = [LogRecord(stream="1-0", seq=seq, time=at, text=text) for seq, text in enumerate(texts)]
        make_sink().write(written)
        assert list(make_sink().read("1-0")) == written
        assert list(make_sink().read_back("1-0")) == written[::-1]

    def test_reading_goes_on_after_a_line(self, make_sink: MakeSink) -> None:
        sink = make_sink()
        sink.write(_lines(0, 9))
        for reader in (sink, make_sink()):
            assert _seqs(reader.read("1-0", after=5)) == [6, 7, 8, 9]
            assert _seqs(reader.read("1-0", after=9)) == []
            assert _seqs(reader.read("1-0", after=99)) == []
            assert _seqs(reader.read("1-0")) == list(range(10))
        reader = make_sink()
        assert _seqs(reader.read("1-0", after=99)) == []
        assert _seqs(reader.read("1-0")) == list(range(10))

    def test_one_who_follows_sees_each_line_once(self, make_sink: MakeSink) -> None:
        writer, reader = make_sink(), make_sink()
        newest = -1
        for first in range(0, 60, 6):
            writer.write(_lines(first, first + 5))
            found = _seqs(reader.read("1-0", after=newest))
            assert found == list(range(newest + 1, first + 6))
            newest = found[-1]

    def test_a_stream_that_nobody_wrote_to_is_empty(self, make_sink: MakeSink) -> None:
        sink = make_sink()
        assert list(sink.read("1-0")) == []
        assert list(sink.read_back("1-0")) == []
        assert tuple(sink.streams()) == ()
        sink.write([])
        assert tuple(sink.streams()) == ()

    def test_streams_are_named_in_order_and_do_not_mix(self, make_sink: MakeSink) -> None:
        sink = make_sink()
        for stream in ("2-0", "1-0", "1-1", "10-0"):
            sink.write(_lines(0, 2, stream))
            sink.write(_lines(3, 4, stream))
        assert tuple(make_sink().streams()) == ("1-0", "1-1", "10-0", "2-0")
        for stream in ("1-0", "10-0"):
            found = list(make_sink().read(stream))
            assert _seqs(found) == [0, 1, 2, 3, 4]
            assert {record.stream for record in found} == {stream}

    def test_a_stream_of_no_good_name_is_a_callers_bug(self, make_sink: MakeSink) -> None:
        for name in ("../1-0", "a/b", "", "a:b", "a*"):
            with raising(ValueError, "stream"):
                make_sink().write(_lines(0, 0, name))

    def test_lines_delivered_again_are_shown_once(self, make_sink: MakeSink) -> None:
        sink = make_sink()
        sink.write(_lines(0, 4))
        sink.write(_lines(0, 4))
        make_sink().write(_lines(0, 7))
        make_sink().write(_lines(3, 9))
        sink.write(_lines(3, 12))
        assert _seqs(make_sink().read("1-0")) == list(range(13))
        assert _seqs(make_sink().read_back("1-0")) == list(range(12, -1, -1))
        found = make_sink().read("1-0", after=7)
        assert [record.text for record in found] == [f"line {seq}" for seq in range(8, 13)]

    def test_any_overlap_of_deliveries_reads_as_each_line_once_in_order(self, make_sink: MakeSink) -> None:
        rng = random.Random(0)
        delivered, reader = 0, make_sink()
        while delivered < 60:
            sink = make_sink()  # the agent has restarted
            first = rng.randint(max(0, delivered - 10), delivered)
            last = rng.randint(max(first, delivered), delivered + 8)
            sink.write(_lines(first, last, step=3600 * rng.choice((1.0, 0.0))))
            delivered = max(delivered, last + 1)
            after = rng.randint(-1, delivered - 1)
            assert _seqs(reader.read("1-0", after=after)) == list(range(after + 1, delivered))
        assert _seqs(make_sink().read_back("1-0")) == list(range(delivered))[::-1]

    def test_a_clock_that_goes_back_changes_no_order(self, make_sink: MakeSink) -> None:
        at, day, sink = _recently(), timedelta(days=1), make_sink()
        times = [at, at - day, at - 3 * day, at, at - timedelta(hours=1)]
        for seq, time in enumerate(times):
            sink.write([LogRecord(stream="1-0", seq=seq, time=time, text="")])
        found = list(make_sink().read("1-0"))
        assert _seqs(found) == [0, 1, 2, 3, 4]
        assert [record.time for record in found] == times

    def test_many_lines_at_once_are_no_matter(self, make_sink: MakeSink) -> None:
        make_sink().write(_lines(0, 12_004, step=0.001))
        assert _seqs(make_sink().read("1-0")) == list(range(12_005))

    def test_the_last_lines_come_first_from_behind(self, make_sink: MakeSink) -> None:
        sink = make_sink()
        for first in range(0, 100, 10):
            sink.write(_lines(first, first + 9))
        back = make_sink().read_back("1-0")
        assert [next(back).seq for _ in range(25)] == list(range(99, 74, -1))

    def test_the_pieces_tell_which_streams_there_are_and_of_what_days(self, make_sink: MakeSink) -> None:
        assert list(make_sink().pieces()) == []
        start, day, sink = _recently(), timedelta(days=1), make_sink()
        for stream, times in {"1-0": [start - day, start], "1-1": [start]}.items():
            for seq, time in enumerate(times):
                sink.write([LogRecord(stream=stream, seq=seq, time=time, text="text")])
        found = make_sink().pieces()
        for stream, first in (("1-0", start - day), ("1-1", start)):
            mine = [piece for piece in found if piece.stream == stream]
            assert min(piece.first_day for piece in mine) == first.date()
            assert max(piece.last_day for piece in mine) == start.date()
            assert all(piece.num_bytes is None or piece.num_bytes > 0 for piece in mine)
        assert {piece.stream for piece in found} == {"1-0", "1-1"}
        assert len({piece.name for piece in found}) == len(found)

    def test_what_is_removed_is_gone_and_the_stream_goes_on(self, make_sink: MakeSink) -> None:
        sink, start = make_sink(), _recently()
        sink.write([LogRecord(stream="1-0", seq=0, time=start - timedelta(days=2), text="old")])
        sink.write([LogRecord(stream="1-0", seq=1, time=start, text="new")])
        sink.write([LogRecord(stream="2-0", seq=0, time=start, text="other")])
        old = [piece for piece in sink.pieces() if piece.last_day < start.date() or piece.stream == "2-0"]
        try:
            make_sink().remove(old)
        except CloudspotError:
            return  # a sink may leave removal to its service's retention
        make_sink().remove(old)
        left = {"1-0": [1], "2-0": []} if len(old) == 2 else {"1-0": [0, 1], "2-0": []}
        for stream, seqs in left.items():
            assert _seqs(make_sink().read(stream)) == seqs
        sink.write([LogRecord(stream="1-0", seq=2, time=start, text="more")])
        assert _seqs(make_sink().read("1-0")) == [*left["1-0"], 2]


def _recently() -> datetime:
    return datetime.now(timezone.utc).replace(microsecond=0) - timedelta(hours=2)


def _lines(first: int, last: int, stream: str = "1-0", step: float = 1.0) -> list[LogRecord]:
    """Return the records ``first`` to ``last``, inclusive."""
    return [
        LogRecord(stream=stream, seq=seq, time=_START + timedelta(seconds=seq * step), text=f"line {seq}")
        for seq in range(first, last + 1)
    ]


def _seqs(records: Iterable[LogRecord]) -> list[int]:
    return [record.seq for record in records]


_START = _recently()
