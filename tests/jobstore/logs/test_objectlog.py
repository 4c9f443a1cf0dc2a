"""Log lines in the object store."""

import random
import re
from datetime import datetime, timedelta, timezone

import pytest
from support.stores.faultstore import FaultPlan, FaultyStore, Outage
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import CorruptData, TransientError
from cloudspot.interfaces import LogSink
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.logs import objectlog
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import LogRecord
from cloudspot.testing.logkit import LogSinkTests

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


@pytest.fixture
def store():
    return InMemoryStore()


@pytest.fixture
def sink(store):
    return ObjectStoreLogSink(with_retries(store, sleep=lambda seconds: None), "x")


class TestPromises(LogSinkTests):
    """Log lines in the object store are kept as any sink promises to."""

    @pytest.fixture
    def make_sink(self, store):
        return lambda: ObjectStoreLogSink(with_retries(store, sleep=lambda seconds: None), "x")


def lines(first, last, stream="1-0", start=NOON, step=1.0):
    """Records ``first`` to ``last``, inclusive."""
    return [
        LogRecord(stream=stream, seq=seq, time=start + timedelta(seconds=seq * step), text=f"line {seq}")
        for seq in range(first, last + 1)
    ]


def seqs(sink, stream="1-0", after=-1):
    return [record.seq for record in sink.read(stream, after=after)]


def segments(store):
    return [meta.key.removeprefix("jobs/x/logs/") for meta in store.list_objects(keys.logs_prefix("x"))]


def test_lines_come_back_as_they_were_in_order(store, sink):
    odd = LogRecord(stream="1-0", seq=3, time=NOON, text='a\r\n\x85\u2028 "é" \ud7ff\x00', source="setup")
    sink.write(lines(0, 2))
    sink.write([odd])
    assert list(sink.read("1-0")) == [*lines(0, 2), odd]
    assert segments(store) == ["1-0/2026-11-20/000000000000", "1-0/2026-11-20/000000000003"]
    assert list(sink.read("1-0", after=1)) == [lines(2, 2)[0], odd]
    assert seqs(sink, after=3) == []
    assert seqs(sink, "2-0") == []


def test_a_segment_holds_the_lines_of_one_utc_date(store, sink):
    before_midnight = datetime(2026, 11, 20, 23, 59, 58, tzinfo=timezone.utc)
    records = lines(0, 4, start=before_midnight)
    elsewhere = timezone(timedelta(hours=9))
    records[1] = LogRecord(stream="1-0", seq=1, time=records[1].time.astimezone(elsewhere), text="line 1")
    sink.write(records)
    assert segments(store) == ["1-0/2026-11-20/000000000000", "1-0/2026-11-21/000000000002"]
    assert seqs(sink) == [0, 1, 2, 3, 4]


def test_a_clock_that_goes_back_over_midnight_changes_no_order(store, sink):
    day = timedelta(days=1)
    for seq, time in enumerate([NOON, NOON + day, NOON, NOON + day]):
        sink.write([LogRecord(stream="1-0", seq=seq, time=time, text="")])
    assert seqs(sink) == [0, 1, 2, 3]
    assert len(segments(store)) == 4


def test_lines_delivered_again_are_shown_once_and_new_ones_are_kept(store, sink):
    sink.write(lines(0, 4))
    sink.write(lines(0, 4))
    sink.write(lines(0, 7))
    assert segments(store) == ["1-0/2026-11-20/000000000000", "1-0/2026-11-20/000000000005"]
    sink.write(lines(3, 9))
    sink.write(lines(3, 12))
    assert seqs(sink) == list(range(13))
    assert [record.text for record in sink.read("1-0", after=7)] == [f"line {n}" for n in range(8, 13)]


@pytest.mark.parametrize("seed", range(30))
def test_any_overlap_of_deliveries_reads_as_each_line_once_in_order(seed):
    generator = random.Random(seed)
    store = InMemoryStore()
    sink = ObjectStoreLogSink(with_retries(store, sleep=lambda seconds: None), "x")
    delivered = 0
    while delivered < 60:
        first = generator.randint(max(0, delivered - 10), delivered)
        last = generator.randint(max(first, delivered), delivered + 8)
        sink.write(lines(first, last, step=3600 * generator.choice((1.0, 0.0))))
        delivered = max(delivered, last + 1)
        after = generator.randint(-1, delivered)
        assert seqs(sink, after=after) == list(range(after + 1, delivered))
    assert seqs(ObjectStoreLogSink(store, "x")) == list(range(delivered))
    assert [record.seq for record in sink.read_back("1-0")] == list(range(delivered))[::-1]


def test_streams_are_named_by_listing(store, sink):
    for stream in ("2-0", "1-0", "1-1", "10-0"):
        sink.write(lines(0, 2, stream))
        sink.write(lines(3, 4, stream))
    store.put(keys.logs_prefix("x") + ".DS_Store", b"")
    store.put(keys.logs_prefix("xy") + "9-9/2026-11-20/000000000000", b"")
    assert sink.streams() == ("1-0", "1-1", "10-0", "2-0")
    assert ObjectStoreLogSink(store, "none").streams() == ()
    with pytest.raises(ValueError, match="stream"):
        sink.write(lines(0, 0, "../1-0"))


def test_one_who_follows_does_not_fetch_what_he_has_seen(store, tmp_path):
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    writer, reader = ObjectStoreLogSink(store, "x"), ObjectStoreLogSink(counted, "x")
    for first in range(0, 100, 10):
        writer.write(lines(first, first + 9))
    assert seqs(reader) == list(range(100))
    counted.calls.clear()
    assert seqs(reader, after=99) == []
    assert counted.calls == {"list_page": 1}
    writer.write(lines(100, 103))
    counted.calls.clear()
    assert seqs(reader, after=99) == [100, 101, 102, 103]
    assert counted.calls == {"list_page": 1, "get": 1}
    assert seqs(reader, after=49) == list(range(50, 104))


def test_one_who_follows_a_long_stream_lists_only_what_may_be_new(store, tmp_path, monkeypatch):
    monkeypatch.setattr(objectlog, "_WHOLE_LISTING", 20)
    listed = []

    def list_page(*arguments, inner=store.list_page, **options):
        page = inner(*arguments, **options)
        listed.append(len(page.objects))
        return page

    monkeypatch.setattr(store, "list_page", list_page)
    writer, reader = ObjectStoreLogSink(store, "x"), ObjectStoreLogSink(store, "x")
    day = timedelta(days=1)
    for seq in range(30):
        writer.write(lines(seq, seq, start=NOON + (seq // 10) * day))
    assert seqs(reader) == list(range(30))
    listed.clear()
    assert seqs(reader, after=29) == []
    writer.write(lines(30, 30, start=NOON + 2 * day))
    writer.write(lines(31, 31, start=NOON + 3 * day))
    assert seqs(reader, after=29) == [30, 31]
    writer.write(lines(32, 32, start=NOON + 2 * day))  # a clock went back over midnight
    assert seqs(reader, after=31) == [32]
    assert sum(listed) == 2 + 1 + 1  # that of the newest date is found twice
    assert seqs(reader) == list(range(33))


@pytest.mark.parametrize(
    "faults", [{"fail_every": 5}, {"fail_every": 3}, {"lose_every": 1}, {"lose_every": 2}]
)
def test_over_a_faulty_store_no_line_is_lost_or_shown_twice(store, tmp_path, faults):
    sink = ObjectStoreLogSink(
        with_retries(FaultyStore(store, FaultPlan(**faults), tmp_path), sleep=lambda seconds: None), "x"
    )
    for first in range(0, 40, 4):
        sink.write(lines(first, first + 3))
    assert seqs(sink) == list(range(40))
    assert len(segments(store)) == 10


def test_what_an_outage_held_back_is_delivered_later_in_order(store, tmp_path):
    now = [0.0]
    plan = FaultPlan(outages=(Outage(start=10, end=40),))
    sink = ObjectStoreLogSink(
        with_retries(FaultyStore(store, plan, tmp_path, clock=lambda: now[0]), sleep=lambda seconds: None),
        "x",
    )
    held = []
    for seq in range(60):
        now[0] = float(seq)
        held += lines(seq, seq)
        try:
            sink.write(held)
        except TransientError:
            assert 10 <= now[0] < 40
        else:
            held = []
    assert [record.text for record in sink.read("1-0")] == [f"line {seq}" for seq in range(60)]


def test_the_end_is_read_without_the_rest(store, tmp_path):
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    writer, reader = ObjectStoreLogSink(store, "x"), ObjectStoreLogSink(counted, "x")
    for first in range(0, 1000, 10):
        writer.write(lines(first, first + 9))
    back = reader.read_back("1-0")
    assert [next(back).seq for _ in range(15)] == list(range(999, 984, -1))
    assert counted.calls == {"list_page": 1, "get": 2}
    assert [record.seq for record in back] == list(range(984, -1, -1))
    assert list(reader.read_back("2-0")) == []


def test_one_who_read_the_end_and_follows_fetches_nothing_older(store, tmp_path):
    counted = FaultyStore(store, FaultPlan(), tmp_path)
    writer, reader = ObjectStoreLogSink(store, "x"), ObjectStoreLogSink(counted, "x")
    for first in range(0, 1000, 10):
        writer.write(lines(first, first + 9))
    back = reader.read_back("1-0")
    assert [next(back).seq for _ in range(5)] == [999, 998, 997, 996, 995]
    back.close()
    counted.calls.clear()
    writer.write(lines(1000, 1001))
    assert seqs(reader, after=999) == [1000, 1001]
    assert counted.calls == {"list_page": 1, "get": 1}
    assert seqs(reader, after=989) == list(range(990, 1002))
    assert seqs(reader, after=950) == list(range(951, 1002))


def test_a_gap_that_nobody_can_explain_hides_no_older_line(store, sink):
    sink.write(lines(0, 4))
    sink.write(lines(8, 9))
    assert [record.seq for record in sink.read_back("1-0")] == [9, 8, 4, 3, 2, 1, 0]


def test_a_sink_that_only_reads_forward_can_be_read_back(store, sink):
    sink.write(lines(0, 4))
    assert [record.seq for record in LogSink.read_back(sink, "1-0")] == [4, 3, 2, 1, 0]


def test_no_line_is_shorter_than_is_assumed(store, sink):
    sink.write([LogRecord(stream="1-0", seq=0, time=NOON, text="", source="")])
    (meta,) = store.list_objects(keys.logs_prefix("x"))
    assert meta.size >= objectlog._LEAST_LINE_BYTES


def test_a_malformed_segment_is_named(store, sink):
    sink.write(lines(0, 3))
    key = keys.log_segment("x", "1-0", "2026-11-20", 0)
    store.put(key, store.get(key)[:-20])
    with pytest.raises(CorruptData, match=re.escape(key)):
        seqs(sink)


def test_to_write_nothing_stores_nothing(store, sink):
    sink.write([])
    assert segments(store) == []


def test_the_newest_line_may_be_in_a_segment_before_several_that_begin_later(sink):
    # An agent whose clock had been ahead forgot what it had delivered, and began anew.
    day = timedelta(days=1)
    sink.write(lines(3, 3, start=NOON + day))
    sink.write(lines(5, 5, start=NOON + 2 * day))
    sink.write(lines(0, 9))
    assert [record.seq for record in sink.read_back("1-0")] == list(range(10))[::-1]
