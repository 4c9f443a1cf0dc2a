"""Log lines in Cloud Logging, against a strict one."""

import itertools
import logging
from datetime import datetime, timedelta, timezone

import google.cloud.logging
import pytest

from cloudspot.errors import AuthError, SpecError, TransientError
from cloudspot.model import LogRecord
from cloudspot.testing.logkit import LogSinkTests
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.cloudlogging import CloudLoggingSink

STORE = "gs://bucket/one"
NOW = datetime.now(timezone.utc).replace(microsecond=0)

_numbers = itertools.count()


@pytest.fixture
def job(gcp):
    return f"job-{next(_numbers)}"


@pytest.fixture
def make_sink(job):
    """``make_sink(**options)``: a sink of the test's own job; clients take long to make."""
    common = {
        "store_url": STORE,
        "clients": GcpClients(),
        "sleep": lambda seconds: None,
        "share_seconds": 0.0,
    }
    return lambda **options: CloudLoggingSink(job, **{**common, **options})


class TestPromises(LogSinkTests):
    """As any sink."""


class TestPromisesInSmallPages(LogSinkTests):
    """As any sink, where a page of the service holds few entries."""

    @pytest.fixture(autouse=True)
    def small_pages(self, gcp, monkeypatch):
        monkeypatch.setattr(gcp.logging, "page_entries", 7)

    test_many_lines_at_once_are_no_matter = None


def line(seq, text="x", *, stream="1-0", at=NOW):
    return LogRecord(stream=stream, seq=seq, time=at, text=text)


def seqs(records):
    return [record.seq for record in records]


def lists(gcp):
    return gcp.faults.count("logging.entries.list")


# --- what is in Logging ----------------------------------------------------------------------------------


def test_entries_are_text_that_can_be_found_by_job_and_node(gcp, job, make_sink):
    make_sink().write([line(0, "epoch 1", stream="2-3"), line(1, "epoch 2", stream="2-3")])
    client = google.cloud.logging.Client(_use_grpc=False, client_options={"api_endpoint": gcp.url})
    (first, second) = client.list_entries(
        filter_=f'labels.job="{job}" AND labels.stream="2-3" AND timestamp>="2020-01-01T00:00:00Z"'
    )
    assert (first.payload, second.payload) == ("epoch 1", "epoch 2")
    assert first.log_name == f"projects/{gcp.account.project}/logs/cloudspot"
    assert first.timestamp == NOW
    assert (first.labels["seq"], first.labels["source"]) == ("0", "train")
    assert first.insert_id < second.insert_id


def test_jobs_of_one_log_do_not_mix_whatever_their_case_or_store(make_sink, job):
    make_sink().write([line(0, "mine")])
    CloudLoggingSink(job.upper(), store_url=STORE).write([line(0, "another's")])
    make_sink(store_url="gs://bucket/two").write([line(0, "another store's"), line(1, "and more")])
    assert [record.text for record in make_sink().read("1-0")] == ["mine"]
    assert tuple(make_sink().streams()) == ("1-0",)


def test_a_log_that_is_named_is_another(make_sink):
    make_sink().write([line(0)])
    assert list(make_sink(log_name="train").read("1-0")) == []
    with pytest.raises(SpecError, match="log name must be 1 to 200 letters"):
        make_sink(log_name="a b")


def test_what_others_write_under_a_jobs_labels_is_passed_over(gcp, job, make_sink):
    sink = make_sink()
    sink.write([line(0)])
    client = google.cloud.logging.Client(_use_grpc=False, client_options={"api_endpoint": gcp.url})
    labels = {**sink._labels, "stream": "1-0"}
    client.logger("cloudspot").log_text("hello", labels=labels)
    client.logger("cloudspot").log_struct({"a": 1}, labels={**labels, "seq": "x", "source": "train"})
    sink.write([line(1)])
    assert seqs(make_sink().read("1-0")) == [0, 1]


# --- times -----------------------------------------------------------------------------------------------


def test_a_time_that_logging_would_refuse_or_drop_is_kept_beside_the_entry(make_sink):
    times = [NOW - timedelta(days=40), NOW + timedelta(days=400), NOW - timedelta(days=1), NOW]
    make_sink().write([line(seq, at=at) for seq, at in enumerate(times)])
    found = list(make_sink().read("1-0"))
    assert [record.time for record in found] == times


def test_a_new_process_goes_on_behind_what_another_delivered(make_sink):
    make_sink().write([line(0, at=NOW)])
    make_sink().write([line(1, at=NOW - timedelta(hours=3))])
    assert seqs(make_sink().read("1-0")) == [0, 1]


def test_who_may_only_write_writes(gcp, make_sink):
    gcp.faults.denied.add("logging.logEntries.list")
    make_sink().write([line(0), line(1)])
    gcp.faults.denied.clear()
    assert seqs(make_sink().read("1-0")) == [0, 1]


# --- following -------------------------------------------------------------------------------------------


def test_one_who_follows_many_nodes_asks_once_for_all_and_not_too_often(gcp, make_sink):
    clock = [0.0]
    writer, reader = make_sink(), make_sink(share_seconds=2.0, clock=lambda: clock[0])
    streams = [f"1-{rank}" for rank in range(8)]
    for stream in streams:
        writer.write([line(0, stream=stream)])
    newest = {stream: seqs(reader.read(stream))[-1] for stream in streams}
    before = lists(gcp)
    for number in range(1, 11):
        for stream in streams:
            writer.write([line(number, stream=stream)])
        clock[0] += 1.0
        for stream in streams:
            for record in reader.read(stream, after=newest[stream]):
                assert record.seq == newest[stream] + 1
                newest[stream] = record.seq
    clock[0] += 2.0
    for stream in streams:
        newest[stream] = max([newest[stream], *seqs(reader.read(stream, after=newest[stream]))])
    assert lists(gcp) - before == 6
    assert newest == dict.fromkeys(streams, 10)


def test_a_line_that_shows_late_is_not_lost_to_one_who_follows(gcp, make_sink, monkeypatch):
    writer, reader = make_sink(), make_sink()
    writer.write([line(0)])
    assert seqs(reader.read("1-0")) == [0]
    real = gcp.logging._list

    def without_one(body):
        answer = real(body)
        entries = [one for one in answer.get("entries", []) if one["labels"]["seq"] != "1"]
        return {**answer, "entries": entries}

    monkeypatch.setattr(gcp.logging, "_list", without_one)
    writer.write([line(1), line(2), line(3)])
    assert seqs(reader.read("1-0", after=0)) == []
    monkeypatch.setattr(gcp.logging, "_list", real)
    assert seqs(reader.read("1-0", after=0)) == [1, 2, 3]
    assert seqs(reader.read("1-0", after=3)) == []


def test_a_line_that_never_comes_is_passed_over_after_a_minute(make_sink):
    now = [datetime.now(timezone.utc)]
    writer, reader = make_sink(), make_sink(now=lambda: now[0])
    writer.write([line(0), line(2)])
    assert seqs(reader.read("1-0")) == [0]
    now[0] += timedelta(seconds=61)
    assert seqs(reader.read("1-0", after=0)) == [2]


def test_only_the_pages_that_are_needed_are_read_from_behind(gcp, make_sink, monkeypatch):
    monkeypatch.setattr(gcp.logging, "page_entries", 10)
    make_sink().write([line(seq) for seq in range(100)])
    before = lists(gcp)
    back = make_sink().read_back("1-0")
    assert [next(back).seq for _ in range(15)] == list(range(99, 84, -1))
    assert lists(gcp) - before == 2


# --- what goes wrong -------------------------------------------------------------------------------------


def test_what_fails_in_passing_is_asked_again(gcp, make_sink):
    slept = []
    sink = make_sink(sleep=slept.append)
    gcp.faults.inject("logging.entries.write", "backendError", status=503, times=2, happens=True)
    sink.write([line(0)])
    gcp.faults.inject("logging.entries.list", "RESOURCE_EXHAUSTED", status=429, times=9)
    assert seqs(sink.read("1-0")) == [0]
    assert sum(slept) == pytest.approx(0.1 + 0.2 + 51.1)
    gcp.faults.inject("logging.entries.write", "backendError", status=503, times=5)
    with pytest.raises(TransientError, match="Google failed"):
        sink.write([line(1)])


@pytest.mark.parametrize(
    ("right", "call"),
    [
        ("logging.logEntries.create", lambda sink: sink.write([line(0)])),
        ("logging.logEntries.list", lambda sink: list(sink.read("1-0"))),
    ],
)
def test_a_right_that_is_missing_is_named_in_one_line(gcp, make_sink, right, call):
    gcp.faults.denied.add(right)
    with pytest.raises(AuthError) as caught:
        call(make_sink())
    assert str(caught.value) == (
        f"log cloudspot of project {gcp.account.project}: access denied: Permission '{right}' denied on resource "
        "(or it may not exist). (forbidden)"
    )


def test_lines_that_logging_refuses_do_not_hold_up_those_to_come(gcp, make_sink, caplog):
    gcp.faults.inject("logging.entries.write", "badRequest", status=400)
    sink = make_sink()
    with caplog.at_level(logging.WARNING):
        sink.write([line(0)])
    assert "Cloud Logging refuses lines of 1-0" in caplog.text
    sink.write([line(1)])
    assert seqs(make_sink(now=lambda: NOW + timedelta(hours=1)).read("1-0")) == [1]


def test_a_service_that_does_not_answer_is_a_transient_error(gcp, make_sink, monkeypatch):
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING", "http://127.0.0.1:1")
    with pytest.raises(TransientError, match=r"no answer from 127\.0\.0\.1:1: .*refused"):
        make_sink().write([line(0)])
