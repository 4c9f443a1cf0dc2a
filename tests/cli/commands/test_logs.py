"""``cloudspot logs``, and the tail that it and the attached loop read."""

import json
import re
import threading
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
from support.records import jobclock
from support.records.jobclock import ago
from support.stores.faultstore import FaultPlan, FaultyStore

from cloudspot.cli.commands.logs import print_records
from cloudspot.cli.joblog.logtail import LogTail
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import LogRecord

START = datetime(2026, 11, 20, 6, tzinfo=timezone.utc)


def at(minutes):
    return START + timedelta(minutes=minutes)


def texts(result):
    return [line.split(" ", 1)[1].split(None, 1)[1] for line in result.stdout.splitlines()]


def test_all_nodes_are_printed_in_order(jobs):
    result = jobs.run("logs", jobs.reclaimed_and_finished())
    assert texts(result) == ["step 1", "step 40", "step 41", "step 100"]


def test_a_line_has_its_time_and_who_speaks(jobs):
    jobs.submit("new-1")
    jobs.add_log("new-1", "1-0", ["hello  world "], minutes=0, source="setup")
    line = jobs.run("logs", "new-1").stdout
    assert line[20:] == " setup     hello  world \n"
    assert (line[4], line[10], line[19]) == ("-", "T", "Z")


def test_one_generation_alone(jobs):
    assert texts(jobs.run("logs", jobs.reclaimed_and_finished(), "--generation", "2")) == [
        "step 41",
        "step 100",
    ]


def test_a_generation_that_never_was_is_an_error(jobs):
    result = jobs.run("logs", jobs.reclaimed_and_finished(), "--generation", "3", status=2)
    assert (
        result.stderr == "error: --generation must be <= 2, the number of generations of digits-7k3f: got 3\n"
    )


def test_one_node_alone(jobs):
    jobs.submit("new-1")
    jobs.add_log("new-1", "1-0", ["from node 0"], minutes=0)
    jobs.add_log("new-1", "1-1", ["from node 1"], minutes=0)
    assert texts(jobs.run("logs", "new-1", "--node", "1.1")) == ["from node 1"]
    result = jobs.run("logs", "new-1", "--node", "9.0", status=2)
    assert result.stderr.startswith("error: --node: job new-1 has no node 9.0; see: ")
    result = jobs.run("logs", "new-1", "--node", "1", status=2)
    assert result.stderr == "error: --node: '1' is not a node's name; expected one such as 2.0\n"


def test_several_nodes_are_merged_by_time_and_named(jobs):
    jobs.job_file.write_text('name = "digits"\nnodes = 2\n[run]\nentrypoint = "train.py"\n')
    jobs.submit("new-1")
    jobs.add_log("new-1", "1-0", ["a", "c"], minutes=0)
    jobs.add_log("new-1", "1-1", ["b", "d"], minutes=0.005)
    lines = jobs.run("logs", "new-1").stdout.splitlines()
    assert [line[21:] for line in lines] == ["train[1.0] a", "train[1.1] b", "train[1.0] c", "train[1.1] d"]


def test_json_is_an_object_a_line(jobs):
    result = jobs.run("logs", jobs.reclaimed_and_finished(), "--node", "1.0", "--json")
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
            jobs.add_finished("going-1", "stopped", minutes=9)

    monkeypatch.setattr("cloudspot.cli.commands.logs.time.sleep", sleep)
    assert texts(jobs.run("logs", "going-1", "--follow")) == ["early", "late 1", "late 2"]
    assert threading.active_count() >= 1


def test_follow_prints_late_lines_when_they_arrive_with_their_times_and_the_whole_log_has_them_in_order(
    jobs, monkeypatch
):
    jobs.job_file.write_text('name = "digits"\nnodes = 2\n[run]\nentrypoint = "train.py"\n')
    jobs.submit("going-1")
    jobs.add_log("going-1", "1-0", ["a", "d", "e"], minutes=0)
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 1:
            # Another node's, of the time between those; two of them, which stay in their order.
            jobs.add_log("going-1", "1-1", ["b", "c"], minutes=0.005)
            jobs.add_finished("going-1", "stopped", minutes=9)

    monkeypatch.setattr("cloudspot.cli.commands.logs.time.sleep", sleep)
    followed = jobs.run("logs", "going-1", "--follow").stdout.splitlines()
    whole = jobs.run("logs", "going-1").stdout.splitlines()
    assert [line.rpartition(" ")[2] for line in followed] == ["a", "d", "e", "b", "c"]
    assert [line.rpartition(" ")[2] for line in whole] == ["a", "b", "d", "c", "e"]
    # The same lines: who reads a late one sees when it was written.
    assert sorted(followed) == sorted(whole)


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


@pytest.mark.full
def test_the_last_lines_are_the_end_of_the_whole(jobs, tmp_path):
    lines = write_life(jobs)
    for count in (1, 2, 5, 600, 601, 1000, 2399, 2400, 3000):
        tail = LogTail(ObjectStoreLogSink(jobs.store, "new-1"))
        assert [record.text for record in tail.last_records(count)] == lines[-count:]
        assert list(tail.new_records()) == []


@pytest.mark.full
def test_the_last_lines_cost_no_reading_of_the_whole(jobs, tmp_path):
    lines = write_life(jobs)
    counted, sink = counting_sink(jobs, tmp_path)
    lives = {f"{launch}-{rank}": life(launch) for launch in (1, 2, 3, 4) for rank in (0, 1)}
    tail = LogTail(sink, lives=lambda: lives)
    assert [record.text for record in tail.last_records(20)] == lines[-20:]
    assert counted.calls["get"] <= 6
    counted.calls.clear()
    assert list(tail.new_records()) == []
    assert counted.calls["get"] == 0


def life(launch):
    """When the nodes of a launch of ``write_life`` wrote."""
    return at(launch * 10), at(launch * 10) + timedelta(seconds=300)


def test_nodes_of_several_launches_are_merged_by_time(jobs):
    """Node 1.0 trains all the time, beside 2.0 and then 3.0."""
    jobs.submit("new-1")
    for stream, minutes, num_lines in (("1-0", 0, 4), ("2-0", 0.5, 1), ("3-0", 1 / 40, 3)):
        jobs.add_log("new-1", stream, [f"{stream} {n}" for n in range(num_lines)], minutes=minutes)
    expected = ["1-0 0", "1-0 1", "3-0 0", "1-0 2", "3-0 1", "1-0 3", "3-0 2", "2-0 0"]
    lives = {
        "1-0": (jobclock.at(0), None),
        "2-0": (jobclock.at(0.5), jobclock.at(0.6)),
        "3-0": (jobclock.at(1 / 40), jobclock.at(0.2)),
    }

    def tail(known):
        return LogTail(ObjectStoreLogSink(jobs.store, "new-1"), lives=lambda: known)

    for known in ({}, lives):
        assert [record.text for record in tail(known).new_records()] == expected
        for count in range(1, 9):
            read = tail(known)
            assert [record.text for record in read.last_records(count)] == expected[-count:]
            assert list(read.new_records()) == []


@pytest.mark.full
def test_what_was_over_before_a_time_is_not_read(jobs, tmp_path):
    write_life(jobs)
    counted, sink = counting_sink(jobs, tmp_path)
    lives = {f"{launch}-{rank}": life(launch) for launch in (1, 2, 3, 4) for rank in (0, 1)}
    tail = LogTail(sink, lives=lambda: lives)
    tail.skip_before(at(40) + timedelta(seconds=299))
    assert counted.calls["get"] <= 4
    assert [record.text for record in tail.new_records()] == ["4-0 299", "4-1 299"]


@pytest.mark.full
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


@pytest.mark.full
def test_the_last_lines_of_a_kind_are_found_behind_others(jobs):
    lines = write_life(jobs)
    tail = LogTail(ObjectStoreLogSink(jobs.store, "new-1"))
    shown = tail.last_records(4, shown=lambda record: record.text.startswith("2-"))
    assert [record.text for record in shown] == [text for text in lines if text.startswith("2-")][-4:]


@pytest.mark.full
def test_what_is_before_a_moment_is_skipped(jobs, tmp_path):
    lines = write_life(jobs)
    _, sink = counting_sink(jobs, tmp_path)
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


def test_the_last_lines_are_printed_and_with_follow_what_comes(jobs):
    jobs.reclaimed_and_finished()
    assert texts(jobs.run("logs", "digits-7k3f", "--tail", "3")) == ["step 40", "step 41", "step 100"]
    assert texts(jobs.run("logs", "digits-7k3f", "-n", "1", "-f")) == ["step 100"]
    assert texts(jobs.run("logs", "digits-7k3f", "-n", "0")) == []
    assert texts(jobs.run("logs", "digits-7k3f", "-n", "1", "--node", "1.0")) == ["step 40"]


def test_since_is_a_duration_or_a_time(jobs):
    # Node 1.0 wrote 2 minutes after the fixture's start, node 2.0 after 8.
    job_id = jobs.reclaimed_and_finished()
    assert texts(jobs.run("logs", job_id, "--since", ago(5))) == ["step 41", "step 100"]
    assert texts(jobs.run("logs", job_id, "--since", "4h")) == ["step 1", "step 40", "step 41", "step 100"]
    line = jobs.run_json("logs", job_id, "--tail", "1")
    assert texts(jobs.run("logs", job_id, "--since", line["time"])) == ["step 100"]
    assert texts(jobs.run("logs", job_id, "--since", ago(5), "--tail", "5")) == ["step 41", "step 100"]
    assert texts(jobs.run("logs", job_id, "--since", "1m")) == []
    result = jobs.run("logs", job_id, "--since", "yesterday", status=2)
    assert result.stderr.startswith('error: --since: expected a duration like "10m", or a time like "06:25"')


def test_grep_shows_the_lines_that_match(jobs):
    job_id = jobs.reclaimed_and_finished()
    assert texts(jobs.run("logs", job_id, "--grep", "step [14]0+$")) == ["step 40", "step 100"]
    assert texts(jobs.run("logs", job_id, "--grep", "4", "--tail", "1")) == ["step 41"]
    result = jobs.run("logs", job_id, "--grep", "step [", status=2)
    assert result.stderr.startswith("error: --grep: 'step [' is not a regular expression: ")


def test_on_a_terminal_what_matches_is_coloured(jobs, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    record = LogRecord(stream="1-0", seq=0, time=START, text="\x1b[1mloss 0.5\x1b[0m and loss 0.4")
    with monkeypatch.context() as patch:
        patch.setattr("click.utils.should_strip_ansi", lambda *_: False)
        print_records([record], name_nodes=False, highlight=re.compile(r"loss [\d.]+"))
    line = capsys.readouterr().out
    assert line.endswith(" \x1b[31mloss 0.5\x1b[0m and \x1b[31mloss 0.4\x1b[0m\n")


def test_one_source_alone(jobs):
    jobs.submit("new-1")
    jobs.add_log("new-1", "1-0", ["pip install"], minutes=0, source="setup")
    jobs.add_log("new-1", "1-1", ["step 1"], minutes=0)
    jobs.add_log("new-1", "1-2", ['{"step": 1}'], minutes=0, source="metrics")
    assert texts(jobs.run("logs", "new-1")) == ["pip install", "step 1"]
    assert texts(jobs.run("logs", "new-1", "--source", "setup")) == ["pip install"]
    assert texts(jobs.run("logs", "new-1", "--source", "train", "--source", "metrics")) == [
        "step 1",
        '{"step": 1}',
    ]
    assert jobs.run_json("logs", "new-1", "--source", "metrics")["text"] == '{"step": 1}'


NASTY = "\x1b]0;owned\x07\x1b[2Jhello\x9b31m \x00world"


def test_what_a_line_says_to_a_terminal_is_not_passed_on(jobs):
    jobs.submit("new-1")
    jobs.add_log("new-1", "1-0", [NASTY], minutes=0)
    assert texts(jobs.run("logs", "new-1")) == ["hello world"]
    assert jobs.run_json("logs", "new-1")["text"] == NASTY


def test_a_download_has_a_file_for_each_node(jobs, tmp_path):
    jobs.reclaimed_and_finished()
    jobs.add_log("digits-7k3f", "2-1", [NASTY], minutes=0)
    jobs.add_log("digits-7k3f", "3-0", ["of a launch that is unknown"], minutes=0, source="agent")
    jobs.add_log("digits-7k3f", "4-0", ["{}"], minutes=0, source="metrics")
    target = tmp_path / "deep" / "logs"
    result = jobs.run("logs", "digits-7k3f", "--download", str(target))
    assert {path.name for path in target.iterdir()} == {
        "node-1.0.log",
        "node-2.0.log",
        "node-2.1.log",
        "node-3.0.log",
    }
    first = (target / "node-1.0.log").read_text().splitlines()
    assert [line[20:] for line in first] == [" train     step 1", " train     step 40"]
    assert (target / "node-2.1.log").read_text().endswith(f"Z train     {NASTY}\n")
    assert result.stdout.splitlines()[0] == f"{target}/node-1.0.log: 2 lines"


def test_a_download_takes_the_filters_and_replaces_what_was_there(jobs, tmp_path):
    jobs.reclaimed_and_finished()
    (tmp_path / "node-2.0.log").write_text("old")
    written = jobs.run_json("logs", "digits-7k3f", "--download", str(tmp_path), "--grep", "41")
    path = tmp_path / "node-2.0.log"
    assert written == [{"file": str(path), "node": "2.0", "launch": 2, "rank": 0, "lines": 1}]
    assert path.read_text().endswith(" step 41\n")
    assert not list(tmp_path.glob(".*"))
    assert jobs.run("logs", "digits-7k3f", "--download", str(tmp_path), "--grep", "none").stdout == (
        "job digits-7k3f has no log that matches\n"
    )
    result = jobs.run("logs", "digits-7k3f", "--download", str(tmp_path), "-f", status=2)
    assert result.stderr == ("error: --download writes whole files; give it without --follow and --tail\n")
    (tmp_path / "file").write_text("")
    result = jobs.run("logs", "digits-7k3f", "--download", str(tmp_path / "file" / "x"), status=1)
    assert result.stderr == f"error: --download: {tmp_path}/file/x cannot be written: Not a directory\n"


def test_objects_beside_the_nodes_logs_are_passed_over(jobs):
    job_id = jobs.reclaimed_and_finished()
    before = jobs.run("logs", job_id).stdout
    for name in (
        "foo/2026-01-01/000000000000",
        "1-0-1/2026-01-01/000000000000",
        "1-0/9999-99-99/000000000000",
    ):
        jobs.store.put(f"jobs/{job_id}/logs/{name}", b"\0")
    assert jobs.run("logs", job_id).stdout == before
    assert [each["rank"] for each in jobs.run_json("logs", job_id, "--list")] == [0, 0]
    jobs.run("logs", job_id, "--prune", "2020-01-01", "--yes")
    jobs.run("logs", job_id, "--download", str(jobs.scratch / "log"))
    assert len(list((jobs.scratch / "log").iterdir())) == 2
