"""``cloudspot logs``, and the tail that it and the attached loop read."""

import json
import threading

from cloudspot.cli.logtail import LogTail
from cloudspot.jobstore.objectlog import ObjectStoreLogSink


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
