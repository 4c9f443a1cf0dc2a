"""The log pump: each line once, in order, through outages of the sink and the death of the agent."""

from __future__ import annotations

import errno
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.stores.directorystore import directory_store
from support.stores.faultstore import FaultPlan, FaultyStore

from cloudspot.agent.delivery.log_pump import LogPump, flush_seconds_of
from cloudspot.errors import TransientError
from cloudspot.interfaces import LogSink
from cloudspot.jobstore.layout.records import LogStanding
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import LogRecord


class ListSink(LogSink):
    """Keeps what it was given; fails as often as told, before or after it kept it."""

    def __init__(self) -> None:
        self.records: dict[int, LogRecord] = {}
        self.fail_before = 0
        self.fail_after = 0

    def write(self, records: Sequence[LogRecord]) -> None:
        if self.fail_before:
            self.fail_before -= 1
            message = "down"
            raise TransientError(message)
        for record in records:
            assert self.records.setdefault(record.seq, record) == record
        if self.fail_after:
            self.fail_after -= 1
            message = "the answer was lost"
            raise TransientError(message)

    def streams(self) -> Sequence[str]:
        return ("1-0",)

    def read(self, stream: str, *, after: int = -1) -> Iterator[LogRecord]:
        return iter(record for seq, record in sorted(self.records.items()) if seq > after)

    def texts(self) -> list[str]:
        assert sorted(self.records) == list(range(len(self.records)))
        return [record.text for _, record in sorted(self.records.items())]


def pump(sink: LogSink, directory: Path) -> LogPump:
    made = LogPump(sink, stream="1-0", position_path=directory / "position.json", flush_seconds=3600.0)
    made.follow(directory / "a.log", "train")
    return made


def finish(made: LogPump) -> bool:
    made.start()
    return made.finish(deadline=time.monotonic() + 20.0)


def test_lines_are_delivered_once_and_in_order(tmp_path: Path) -> None:
    sink = ListSink()
    (tmp_path / "a.log").write_text("".join(f"line {i}\n" for i in range(1000)))
    assert finish(pump(sink, tmp_path))
    assert sink.texts() == [f"line {i}" for i in range(1000)]


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    sink = ListSink()
    (tmp_path / "a.log").write_text("one\nTraceback")
    assert finish(pump(sink, tmp_path))
    assert sink.texts() == ["one", "Traceback"]


def test_a_bar_that_draws_itself_again_and_again_is_one_line(tmp_path: Path) -> None:
    sink = ListSink()
    (tmp_path / "a.log").write_bytes(b"\r 10%\r 50%\r100%\nof another system\r\n\n\x85\xe2\x80\xa8end\n")
    assert finish(pump(sink, tmp_path))
    assert sink.texts() == ["\r 10%\r 50%\r100%", "of another system", "", "\ufffd\u2028end"]


@pytest.mark.parametrize("fault", ["fail_before", "fail_after"])
def test_what_an_outage_held_back_comes_later_in_order(tmp_path: Path, fault: str) -> None:
    sink = ListSink()
    setattr(sink, fault, 2)
    (tmp_path / "a.log").write_text("one\ntwo\nthree\n")
    assert finish(pump(sink, tmp_path))
    assert sink.texts() == ["one", "two", "three"]


def test_a_new_agent_goes_on_where_the_dead_one_stood(tmp_path: Path) -> None:
    sink = ListSink()
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\n")
    assert finish(pump(sink, tmp_path))
    with log.open("a") as file:
        file.write("three\n")
    assert finish(pump(sink, tmp_path))
    assert sink.texts() == ["one", "two", "three"]


def test_a_batch_whose_delivery_was_not_noted_is_delivered_again_alike(tmp_path: Path) -> None:
    sink = ListSink()
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\n")
    sink.fail_after = 1
    killed = pump(sink, tmp_path)
    assert not killed._deliver(final=False)
    with log.open("a") as file:
        file.write("three\n")
    assert finish(pump(sink, tmp_path))
    assert sink.texts() == ["one", "two", "three"]


def test_an_unreadable_byte_is_shown_and_kills_nothing(tmp_path: Path) -> None:
    sink = ListSink()
    (tmp_path / "a.log").write_bytes(b"caf\xe9\n")
    assert finish(pump(sink, tmp_path))
    assert sink.texts() == ["caf�"]


def test_several_files_make_one_stream(tmp_path: Path) -> None:
    sink = ListSink()
    made = pump(sink, tmp_path)
    made.follow(tmp_path / "b.log", "setup")
    (tmp_path / "a.log").write_text("a\n")
    (tmp_path / "b.log").write_text("b\n")
    assert finish(made)
    assert [(r.source, r.text) for r in sink.read("1-0")] == [("train", "a"), ("setup", "b")]


def test_a_line_is_not_cut_because_another_file_filled_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudspot.agent.delivery.log_pump.BATCH_BYTES", 16)
    sink = ListSink()
    made = pump(sink, tmp_path)
    made.follow(tmp_path / "b.log", "setup")
    (tmp_path / "a.log").write_text("0123456789\n")
    (tmp_path / "b.log").write_text("abcdefghi\n")
    assert finish(made)
    assert sink.texts() == ["0123456789", "abcdefghi"]


class Watched:
    """A pump whose clock is set by hand."""

    def __init__(self, directory: Path, source: str = "train") -> None:
        self.sink, self.log, self.seconds = ListSink(), directory / "a.log", 0
        self.pump = LogPump(
            self.sink,
            stream="1-0",
            position_path=directory / "position.json",
            flush_seconds=3600.0,
            now=lambda: datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self.seconds),
        )
        self.pump.follow(self.log, source)

    def texts_at(self, seconds: int, more: bytes = b"") -> list[str]:
        """Return the lines that are out after a delivery at that second, before which ``more`` was written."""
        with self.log.open("ab") as file:
            file.write(more)
        self.seconds = seconds
        assert self.pump._deliver(final=False)
        return self.sink.texts()


def test_a_bar_that_never_ends_its_line_is_delivered_after_a_while(tmp_path: Path) -> None:
    """A job that only drew a progress bar showed nothing for hours."""
    watched = Watched(tmp_path)
    assert watched.texts_at(0, b"begin\n\r 1%\r 2%") == ["begin"]
    assert watched.texts_at(10, b"\r 3%") == ["begin"]
    assert watched.texts_at(29) == ["begin"]
    first = ["begin", "\r 1%\r 2%\r 3%\r 4%"]
    assert watched.texts_at(40, b"\r 4%\r") == first, "the carriage return may belong to a newline"
    assert watched.texts_at(100) == first, "nothing but that carriage return"
    assert watched.texts_at(101, b" 5%") == first
    assert watched.texts_at(130, b"\r 6%") == [*first, "\r 5%\r 6%"]
    assert watched.texts_at(131, b"\r100%\ndone\n") == [*first, "\r 5%\r 6%", "\r100%", "done"]


def test_the_end_of_a_line_that_was_delivered_without_it_is_no_line_of_its_own(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.texts_at(0, b"loading ...") == []
    assert watched.texts_at(30) == ["loading ..."]
    assert watched.texts_at(31, b"\ndone\n\nend\n") == ["loading ...", "done", "", "end"]


def test_a_line_that_stays_without_an_end_is_cut_between_two_characters(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    half, rest = "Größe: ö".encode()[:-1], "ö".encode()[1:]
    assert watched.texts_at(0, half) == []
    assert watched.texts_at(30) == ["Größe: "]
    assert watched.texts_at(60) == ["Größe: "]
    assert watched.texts_at(61, rest + b"\n") == ["Größe: ", "ö"]


def test_half_a_line_of_metrics_waits_for_its_end(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "metrics")
    assert watched.texts_at(0, b'{"step"') == []
    assert watched.texts_at(1000) == []
    assert watched.texts_at(1001, b": 1}\n") == ['{"step": 1}']


@pytest.mark.parametrize("text", ["ä", "語", "🙂", "a🙂", "ab🙂", "abc🙂"])
def test_a_line_longer_than_a_batch_is_cut_between_two_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("cloudspot.agent.delivery.log_pump.BATCH_BYTES", 17)
    sink = ListSink()
    (tmp_path / "a.log").write_text(text * 20 + "\r\nend")
    assert finish(pump(sink, tmp_path))
    *pieces, end = sink.texts()
    assert ("".join(pieces), end) == (text * 20, "end")
    assert len(pieces) > 1


def test_a_full_disk_stops_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cloudspot.agent.delivery.log_pump.write_whole", fail)
    sink = ListSink()
    made = pump(sink, tmp_path)
    (tmp_path / "a.log").write_text("No space left on device\n")
    assert finish(made)
    assert sink.texts() == ["No space left on device"]


def test_it_tells_how_many_lines_there_are_and_what_waits_for_the_sink(tmp_path: Path) -> None:
    sink, text = ListSink(), b"one\ntwo\n"
    made = pump(sink, tmp_path)
    made.follow(tmp_path / "not-there", "setup")
    assert made.standing() == LogStanding(num_lines=0, waiting_bytes=0)
    (tmp_path / "a.log").write_bytes(text)
    assert made.standing() == LogStanding(num_lines=0, waiting_bytes=8)
    sink.fail_before = 1
    made._deliver(final=False)
    assert made.standing() == LogStanding(num_lines=2, waiting_bytes=0, error="down")
    assert finish(made)
    assert made.standing() == LogStanding(num_lines=2, waiting_bytes=0)


def test_the_first_node_delivers_as_often_as_asked_and_many_others_less_often():
    """64 nodes that print delivered 32 times a second."""
    assert flush_seconds_of(0, num_nodes=64, asked_seconds=2.0) == 2.0
    assert flush_seconds_of(4, num_nodes=5, asked_seconds=2.0) == 2.0
    assert flush_seconds_of(1, num_nodes=64, asked_seconds=2.0) == 25.6
    assert flush_seconds_of(1, num_nodes=64, asked_seconds=60.0) == 60.0


@pytest.mark.parametrize(("flush_seconds", "waits"), [(2.0, [2.0, 4.0, 8.0, 15.0]), (25.6, [25.6] * 4)])
def test_failures_make_the_wait_longer_and_never_shorter_than_asked(tmp_path, flush_seconds, waits):
    """A flush above 15 s was taken for 15 s."""
    sink = ListSink()
    pump = LogPump(sink, stream="1-0", position_path=tmp_path / "p", flush_seconds=flush_seconds)
    pump.follow(tmp_path / "train.log", "train")
    (tmp_path / "train.log").write_text("a\n")
    sink.fail_before = 3
    found = []
    for _ in waits:
        found.append(pump._wait_seconds())
        pump._deliver(final=False)
    assert found == waits


class TimedSink(ListSink):
    """A sink whose deliveries take a while, during which the training goes on writing."""

    def __init__(
        self,
        log: Path,
        *,
        line_seconds: float,
        line: Callable[[int], str],
        put_seconds: float,
        inner: LogSink | None = None,
    ) -> None:
        super().__init__()
        self._inner = inner
        self._end = math.inf
        self.now = 0.0
        self.puts: list[int] = []
        self.num_written = 0
        self._log, self._line = log, line
        self._line_seconds, self._put_seconds = line_seconds, put_seconds

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        with self._log.open("a") as file:
            while self.num_written * self._line_seconds < self.now:
                file.write(self._line(self.num_written) + "\n")
                self.num_written += 1

    def write(self, records: Sequence[LogRecord]) -> None:
        super().write(records)
        if self._inner is not None:
            self._inner.write(records)
        self.puts.append(len(records))
        assert self.now < self._end + 10.0, "the pump never leaves its loop"
        self.pass_time(self._put_seconds)

    def drive(self, directory: Path, *, seconds: float, flush_seconds: float = 2.0) -> LogPump:
        """Have a pump deliver for so long, by this sink's clock."""
        self._end = seconds

        def wait(for_seconds: float) -> bool:
            self.pass_time(for_seconds)
            return self.now > seconds

        made = LogPump(
            self,
            stream="1-0",
            position_path=directory / "position.json",
            flush_seconds=flush_seconds,
            wait=wait,
        )
        made.follow(self._log, "train")
        made._run()
        return made


def metrics_line(step: int) -> str:
    return json.dumps({"step": step, "time": 1.7e9 + step, "values": {"loss": 1 / (step + 1), "lr": 3e-4}})


@pytest.mark.full
@pytest.mark.parametrize(
    ("line_seconds", "line"),
    [(0.002, metrics_line), (0.02, "line {}".format)],
    ids=["a step of 2 ms that logs a metric", "50 lines a second"],
)
@pytest.mark.parametrize("put_seconds", [0.04, 0.4])
def test_a_put_a_flush_however_fast_lines_come(tmp_path, line_seconds, line, put_seconds):
    """Lines that came during a put went with the next one at once: 5.8 and 9.9 puts a second."""
    sink = TimedSink(tmp_path / "a.log", line_seconds=line_seconds, line=line, put_seconds=put_seconds)
    made = sink.drive(tmp_path, seconds=120.0)
    assert 0.4 < len(sink.puts) / sink.now <= 0.5
    num_written = sink.num_written
    assert (num_written - sum(sink.puts)) * line_seconds <= 2.0 + put_seconds, "those since the last flush"
    assert finish(made)
    assert sink.texts()[:num_written] == [line(number) for number in range(num_written)]


@pytest.mark.full
def test_in_a_store_a_flush_is_one_request(tmp_path):
    store = FaultyStore(directory_store(tmp_path / "store"), FaultPlan(), tmp_path)
    inner = ObjectStoreLogSink(store, "x")
    sink = TimedSink(tmp_path / "a.log", line_seconds=0.002, line=metrics_line, put_seconds=0.04, inner=inner)
    sink.drive(tmp_path, seconds=60.0)
    num_dates = len({record.time.date() for record in sink.records.values()})
    assert sum(store.calls.values()) < len(sink.puts) + num_dates
    assert len(sink.puts) <= 30
    assert len(list(inner.read("1-0"))) == sum(sink.puts)


def test_lines_that_fill_a_batch_do_not_wait_for_the_next_flush(tmp_path, monkeypatch):
    """All that has come by the time of a call goes in it, however many full batches that takes."""
    monkeypatch.setattr("cloudspot.agent.delivery.log_pump.BATCH_BYTES", 1000)
    sink = TimedSink(tmp_path / "a.log", line_seconds=0.01, line="{:09d}".format, put_seconds=0.04)
    sink.drive(tmp_path, seconds=60.0)
    assert sink.puts[:3] == [100, 100, 8], "two full ones, and what came during both"
    assert len(sink.puts) <= 3 * sink.now / 2.0


def test_a_batch_has_so_many_lines_at_the_most(tmp_path, monkeypatch):
    """A MiB of empty lines was a batch of a million records, and a segment of 100 MB."""
    monkeypatch.setattr("cloudspot.agent.delivery.log_pump.BATCH_LINES", 100)
    sink = TimedSink(tmp_path / "a.log", line_seconds=1.0, line=str, put_seconds=0.0)
    made = pump(sink, tmp_path)
    made.follow(tmp_path / "b.log", "setup")
    (tmp_path / "a.log").write_text("\n" * 250)
    (tmp_path / "b.log").write_text("\n" * 60 + "end")
    assert finish(made)
    assert sink.puts == [100, 100, 100, 11]
    assert sink.texts() == [""] * 310 + ["end"]
