"""The kit of sink tests: a sink that is broken on purpose fails the tests that are meant for it, alone."""

from datetime import timedelta

import msgspec
import pytest
from support.stores.memorystore import InMemoryStore

from cloudspot.interfaces import LogSink
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.testing.logkit import LogSinkTests


def failures(kind):
    """Run each test of the kit on sinks of a store of its own; return the names of those that fail."""
    found = set()
    for name in dir(LogSinkTests):
        if name.startswith("test_"):
            store = InMemoryStore()
            try:
                getattr(LogSinkTests(), name)(lambda store=store: kind(store, "x"))
            except Exception:  # noqa: BLE001 - whatever it fails with
                found.add(name)
    return found


class Sink(ObjectStoreLogSink):
    """Every change is told apart by the line that it changes."""


class ShowsRepeats(Sink):
    def read(self, stream, *, after=-1):
        for segment in self._segments(stream):
            yield from (record for record in self._read_segment(segment.key) if record.seq > after)


class ReadsAfterInclusively(Sink):
    def read(self, stream, *, after=-1):
        yield from super().read(stream, after=max(after - 1, -1))


class KeepsNoSource(Sink):
    def write(self, records):
        super().write([msgspec.structs.replace(record, source="train") for record in records])


class StripsLines(Sink):
    def write(self, records):
        super().write([msgspec.structs.replace(record, text=record.text.strip()) for record in records])


class CutsLongLines(Sink):
    def write(self, records):
        super().write([msgspec.structs.replace(record, text=record.text[:100_000]) for record in records])


class OrdersByTime(Sink):
    def read(self, stream, *, after=-1):
        yield from sorted(super().read(stream, after=after), key=lambda record: record.time)


class ReadsBackForwards(Sink):
    def read_back(self, stream):
        yield from self.read(stream)


class MixesStreams(Sink):
    def read(self, stream, *, after=-1):
        for one in self.streams():
            if one.startswith(stream[:2]):
                yield from super().read(one, after=after)


class ListsByArrival(Sink):
    def streams(self):
        return tuple(reversed(super().streams()))


class TakesAnyName(Sink):
    def write(self, records):
        super().write([msgspec.structs.replace(record, stream="1-0") for record in records])


class ForgetsWhatIsNewAfterTheFirstRead(Sink):
    def read(self, stream, *, after=-1):
        yield from () if self._last_seq else super().read(stream, after=after)


class TellsTheWrongDay(Sink):
    def pieces(self):
        day = timedelta(days=1)
        return [msgspec.structs.replace(one, first_day=one.first_day - day) for one in super().pieces()]


class RemovesTheWholeStream(Sink):
    def remove(self, pieces):
        super().remove([msgspec.structs.replace(one, name=one.name[:-11]) for one in pieces])


class RemovesNothing(Sink):
    def remove(self, pieces):
        pass


class CannotRemove(Sink):
    def remove(self, pieces):
        LogSink.remove(self, pieces)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Sink, set()),
        (CannotRemove, set()),
        (TellsTheWrongDay, {"test_the_pieces_tell_which_streams_there_are_and_of_what_days"}),
        (RemovesTheWholeStream, {"test_what_is_removed_is_gone_and_the_stream_goes_on"}),
        (RemovesNothing, {"test_what_is_removed_is_gone_and_the_stream_goes_on"}),
        (
            ShowsRepeats,
            {
                "test_any_overlap_of_deliveries_reads_as_each_line_once_in_order",
                "test_lines_delivered_again_are_shown_once",
            },
        ),
        (
            ReadsAfterInclusively,
            {
                "test_any_overlap_of_deliveries_reads_as_each_line_once_in_order",
                "test_lines_delivered_again_are_shown_once",
                "test_one_who_follows_sees_each_line_once",
                "test_reading_goes_on_after_a_line",
            },
        ),
        (KeepsNoSource, {"test_lines_come_back_as_they_were"}),
        (StripsLines, {"test_a_line_may_be_very_long", "test_lines_come_back_as_they_were"}),
        (CutsLongLines, {"test_a_line_may_be_very_long"}),
        (
            OrdersByTime,
            {
                "test_a_clock_that_goes_back_changes_no_order",
                "test_any_overlap_of_deliveries_reads_as_each_line_once_in_order",
            },
        ),
        (
            ReadsBackForwards,
            {
                "test_a_line_may_be_very_long",
                "test_any_overlap_of_deliveries_reads_as_each_line_once_in_order",
                "test_lines_come_back_as_they_were",
                "test_lines_delivered_again_are_shown_once",
                "test_the_last_lines_come_first_from_behind",
            },
        ),
        (MixesStreams, {"test_streams_are_named_in_order_and_do_not_mix"}),
        (ListsByArrival, {"test_streams_are_named_in_order_and_do_not_mix"}),
        (
            TakesAnyName,
            {
                "test_a_stream_of_no_good_name_is_a_callers_bug",
                "test_streams_are_named_in_order_and_do_not_mix",
                "test_the_pieces_tell_which_streams_there_are_and_of_what_days",
            },
        ),
        (
            ForgetsWhatIsNewAfterTheFirstRead,
            {
                "test_any_overlap_of_deliveries_reads_as_each_line_once_in_order",
                "test_one_who_follows_sees_each_line_once",
                "test_reading_goes_on_after_a_line",
            },
        ),
    ],
)
def test_a_broken_sink_fails_what_is_named_after_its_fault_and_nothing_else(kind, expected):
    assert failures(kind) == expected
