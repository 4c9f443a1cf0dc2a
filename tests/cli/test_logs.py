"""``cloudspot logs``, and the tail that it and the attached loop read."""

import json
import threading
from datetime import datetime, timedelta, timezone

import msgspec

from cloudspot.cli.logtail import LogTail
from cloudspot.jobstore.objectlog import ObjectStoreLogSink
from cloudspot.model import LogRecord
from cloudspot.testing.faultstore import FaultPlan, FaultyStore

START = datetime(2026, 11, 20, 6, tzinfo=timezone.utc)


def at(minutes):
    return START + timedelta(minutes=minutes)


def texts(result):
    return [line.split(" ", 1)[1].split(None, 1)[1] for line in result.stdout.splitlines()]


def test_all_attempts_are_printed_in_order(jobs):
    result = jobs.run("logs", jobs.reclaimed_and_finished())
    assert texts(result) == ["step 1", "step 40", "step 41", "step 100"]


def test_a_line_has_its_time_and_who_speaks(jobs):
    jobs.submit("new-1")
    jobs.add_log("new-1", "1-0", ["hello  world "], minutes=0, source="setup")
    line = jobs.run("logs", "new-1").stdout
    assert line[20:] == " setup     hello  world \n"
    assert (line[4], line[10], line[19]) == ("-", "T", "Z")


def test_one_attempt_alone(jobs):
    assert texts(jobs.run("logs", jobs.reclaimed_and_finished(), "--attempt", "2")) == ["step 41", "step 100"]


def test_an_attempt_that_never_was_is_an_error(jobs):
    result = jobs.run("logs", jobs.reclaimed_and_finished(), "--attempt", "3", status=2)
    assert result.stderr == "error: --attempt must be <= 2, what digits-7k3f had so far: got 3\n"


def test_one_node_alone(jobs):
    jobs.submit("new-1")
    jobs.add_log("new-1", "1-0", ["from node 0"], minutes=0)
    jobs.add_log("new-1", "1-1", ["from node 1"], minutes=0)
    assert texts(jobs.run("logs", "new-1", "--node", "1")) == ["from node 1"]


def test_several_nodes_are_merged_by_time_and_named(jobs):
    jobs.job_file.write_text('name = "digits"\nnodes = 2\n[run]\nentrypoint = "train.py"\n')
    jobs.submit("new-1")
    jobs.add_log("new-1", "1-0", ["a", "c"], minutes=0)
    jobs.add_log("new-1", "1-1", ["b", "d"], minutes=0.005)
    lines = jobs.run("logs", "new-1").stdout.splitlines()
    assert [line[21:] for line in lines] == ["train[0]  a", "train[1]  b", "train[0]  c", "train[1]  d"]


def test_json_is_an_object_a_line(jobs):
    result = jobs.run("logs", jobs.reclaimed_and_finished(), "--attempt", "1", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["launch"], line["rank"], line["seq"], line["text"]) for line in lines] == [
        (1, 0, 0, "step 1"),
        (1, 0, 1, "step 40"),
    ]
    assert lines[0]["source"] == "train"


def test_follow_ends_with_the_job(jobs):
    assert texts(jobs.run("logs", jobs.reclaimed_and_finished(), "-f"))[-1] == "step 100"


def test_follow_prints_what_comes_until_the_job_has_ended(jobs, monkeypatch):
    jobs.running("going-1")
    jobs.add_log("going-1", "1-0", ["early"], minutes=0)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        sink = ObjectStoreLogSink(jobs.store, "going-1")
        first = next(iter(sink.read("1-0")))
        sink.write([type(first)(stream="1-0", seq=len(slept), time=first.time, text=f"late {len(slept)}")])
        if len(slept) == 2:
            jobs.add_finished("going-1", "stopped", number=2, minutes=9)

    monkeypatch.setattr("cloudspot.cli.logs.time.sleep", sleep)
    assert texts(jobs.run("logs", "going-1", "--follow")) == ["early", "late 1", "late 2"]
    assert threading.active_count() >= 1


def test_a_tail_that_is_read_half_goes_on_from_the_next_line(jobs):
    jobs.submit("new-1")
    jobs.add_log("new-1", "1-0", ["a", "b"], minutes=0)
    jobs.add_log("new-1", "1-1", ["c", "d"], minutes=1)
    tail = LogTail(ObjectStoreLogSink(jobs.store, "new-1"))
    records = tail.new_records()
    assert [next(records).text, next(records).text, next(records).text] == ["a", "b", "c"]
    records.close()
    assert [record.text for record in tail.new_records()] == ["d"]
    assert list(tail.new_records()) == []


def counting_sink(jobs, tmp_path):
    counted = FaultyStore(jobs.store, FaultPlan(), tmp_path / "faults")
    return counted, ObjectStoreLogSink(counted, "new-1")


def write_life(jobs, num_launches=4, num_nodes=2, num_batches=30):
    """A job of several launches on two nodes, with ten lines in a segment; return its lines in order."""
    jobs.submit("new-1")
    sink = ObjectStoreLogSink(jobs.store, "new-1")
    for launch in range(1, num_launches + 1):
        for rank in range(num_nodes):
            records = [
                LogRecord(
                    stream=f"{launch}-{rank}",
                    seq=seq,
                    time=at(launch * 10) + timedelta(seconds=seq),
                    text=f"{launch}-{rank} {seq}",
                )
                for seq in range(num_batches * 10)
            ]
            for first in range(0, len(records), 10):
                sink.write(records[first : first + 10])
    return [record.text for record in LogTail(sink).new_records()]


def test_the_last_lines_are_the_end_of_the_whole(jobs, tmp_path):
    lines = write_life(jobs)
    for count in (1, 2, 5, 600, 601, 1000, 2399, 2400, 3000):
        tail = LogTail(ObjectStoreLogSink(jobs.store, "new-1"))
        assert [record.text for record in tail.last_records(count)] == lines[-count:]
        assert list(tail.new_records()) == []


def test_the_last_lines_cost_no_reading_of_the_whole(jobs, tmp_path):
    lines = write_life(jobs)
    counted, sink = counting_sink(jobs, tmp_path)
    tail = LogTail(sink)
    assert [record.text for record in tail.last_records(20)] == lines[-20:]
    assert counted.calls["get"] <= 6
    counted.calls.clear()
    assert list(tail.new_records()) == []
    assert counted.calls["get"] == 0


def test_after_the_last_lines_comes_what_is_new_and_nothing_else(jobs):
    write_life(jobs)
    for count in (0, 3):
        sink = ObjectStoreLogSink(jobs.store, "new-1")
        tail = LogTail(sink)
        tail.last_records(count)
        first = next(sink.read_back("4-1"))
        new = msgspec.structs.replace(first, seq=first.seq + 1, text=f"new {count}")
        sink.write([new])
        assert [record.text for record in tail.new_records()] == [f"new {count}"]


def test_the_last_lines_of_a_kind_are_found_behind_others(jobs):
    lines = write_life(jobs)
    tail = LogTail(ObjectStoreLogSink(jobs.store, "new-1"))
    shown = tail.last_records(4, shown=lambda record: record.text.startswith("2-"))
    assert [record.text for record in shown] == [text for text in lines if text.startswith("2-")][-4:]


def test_what_is_before_a_moment_is_skipped(jobs, tmp_path):
    lines = write_life(jobs)
    counted, sink = counting_sink(jobs, tmp_path)
    moment = at(30) + timedelta(seconds=295)
    tail = LogTail(sink)
    tail.skip_before(moment)
    expected = lines[lines.index("3-0 295") :]
    assert len(expected) == 10 + 600
    assert [record.text for record in tail.new_records()] == expected
    assert [record.text for record in LogTail(sink).last_records(10_000, since=moment)] == expected
    tail = LogTail(sink)
    tail.skip_before(at(1000))
    assert list(tail.new_records()) == []
