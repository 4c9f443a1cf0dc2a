"""Log lines in Cloud Logging, against a strict one."""

import itertools
import logging
from datetime import datetime, timedelta, timezone

import google.cloud.logging
import pytest
from support.clouds.bucketstoretests import rights_named
from support.clouds.elsewhere import elsewhere
from support.clouds.emulated_logs import EmulatedLogs
from support.clouds.logservicetests import LogService, LogServiceTests, line, seqs

from cloudspot.cli.joblog.logtail import LogTail
from cloudspot.errors import AuthError, CloudspotError
from cloudspot.testing.logfaultkit import LogFaultTests
from cloudspot.testing.logkit import LogSinkTests
from cloudspot_gcp import permissions
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.cloudlogging import CloudLoggingSink
from cloudspot_gcp_sandbox.taken import rights_of

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


@pytest.fixture
def service(gcp):
    return LogService(
        faults=gcp.faults,
        write_action="logging.entries.write",
        failed=("backendError", 503),
        read_rights=("logging.logEntries.list",),
        write_right="logging.logEntries.create",
        other_store="gs://bucket/two",
        endpoint_variable="CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING",
        make_clients=GcpClients,
    )


@pytest.mark.full
class TestPromises(LogSinkTests):
    """As any sink."""


@pytest.mark.full
class TestFaults(LogFaultTests):
    """As any sink whose service fails."""

    @pytest.fixture
    def logs(self, service, job):
        clients = GcpClients()

        def make(job_id):
            return CloudLoggingSink(
                job_id, store_url=STORE, clients=clients, sleep=lambda seconds: None, share_seconds=0.0
            )

        return EmulatedLogs(service, make, prefix=f"{job}-", throttled=("rateLimitExceeded", 429))


class TestCloudLogging(LogServiceTests):
    """As any log service's sink."""


@pytest.mark.full
class TestPromisesInSmallPages(LogSinkTests):
    """As any sink, where a page of the service holds few entries."""

    @pytest.fixture(autouse=True)
    def small_pages(self, gcp, monkeypatch):
        monkeypatch.setattr(gcp.logging, "page_entries", 7)

    left_out = elsewhere("test_many_lines_at_once_are_no_matter")


def lists(gcp):
    return gcp.faults.count("logging.entries.list")


# --- what is in Logging ----------------------------------------------------------------------------------


def test_entries_are_text_that_can_be_found_by_job_and_node(gcp, job, make_sink):
    make_sink().write([line(seq, f"epoch {seq + 1}", stream="2-3", at=NOW) for seq in range(2)])
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


def test_what_others_write_under_a_jobs_labels_is_passed_over(gcp, job, make_sink):
    sink = make_sink()
    sink.write([line(0)])
    client = google.cloud.logging.Client(_use_grpc=False, client_options={"api_endpoint": gcp.url})
    labels = {**sink._labels, "stream": "1-0"}
    client.logger("cloudspot").log_text("hello", labels=labels)
    client.logger("cloudspot").log_struct({"a": 1}, labels={**labels, "seq": "x", "source": "train"})
    sink.write([line(1)])
    assert seqs(make_sink().read("1-0")) == [0, 1]


# --- following -------------------------------------------------------------------------------------------


@pytest.mark.full
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


def test_only_the_pages_that_are_needed_are_read_from_behind(gcp, make_sink, monkeypatch):
    monkeypatch.setattr(gcp.logging, "page_entries", 10)
    make_sink().write([line(seq) for seq in range(100)])
    before = lists(gcp)
    back = make_sink().read_back("1-0")
    assert [next(back).seq for _ in range(15)] == list(range(99, 84, -1))
    assert lists(gcp) - before == 2


@pytest.mark.full
def test_one_who_follows_stays_within_half_of_the_quota_also_where_new_nodes_come(gcp, make_sink):
    clock = [0.0]
    writer, tail = make_sink(), LogTail(make_sink(share_seconds=2.0, clock=lambda: clock[0]))
    found = []
    for second in range(80):
        for rank in range(second // 20 + 1):
            writer.write([line(second - rank * 20, stream=f"1-{rank}")])
        if second == 20:
            before = lists(gcp)
        found += [(record.stream, record.seq) for record in tail.new_records()]
        clock[0] += 1.0
    assert lists(gcp) - before <= 60 / 2 + 60 / 30 + 2 * 3  # Three nodes have come.
    clock[0] += 60.0
    found += [(record.stream, record.seq) for record in tail.new_records()]
    assert sorted(found) == sorted((f"1-{rank}", seq) for rank in range(4) for seq in range(80 - rank * 20))


def test_one_who_follows_a_busy_job_asks_less_often(gcp, make_sink, monkeypatch):
    monkeypatch.setattr(gcp.logging, "page_entries", 10)
    clock = [0.0]
    writer, reader = make_sink(), make_sink(share_seconds=2.0, clock=lambda: clock[0])
    writer.write([line(0)])
    assert seqs(reader.read("1-0")) == [0]
    writer.write([line(seq) for seq in range(1, 100)])
    assert seqs(reader.read("1-0", after=0)) == list(range(1, 100))
    before = lists(gcp)
    for _ in range(18):
        clock[0] += 1.0
        assert seqs(reader.read("1-0", after=99)) == []
    assert lists(gcp) == before
    clock[0] += 2.0
    assert seqs(reader.read("1-0", after=99)) == []
    assert lists(gcp) - before == 10


@pytest.mark.full
def test_to_follow_behind_the_last_lines_reads_nothing_before_them(gcp, make_sink, monkeypatch):
    monkeypatch.setattr(gcp.logging, "page_entries", 10)
    writer = make_sink()
    old, now = datetime.now(timezone.utc) - timedelta(hours=2), datetime.now(timezone.utc)
    monkeypatch.setattr(gcp.logging, "_now", lambda: old)
    writer.write([line(seq, at=old) for seq in range(500)])
    monkeypatch.setattr(gcp.logging, "_now", lambda: now)
    writer.write([line(seq) for seq in range(500, 505)])
    reader = make_sink()
    back = reader.read_back("1-0")
    assert [next(back).seq for _ in range(3)] == [504, 503, 502]
    before = lists(gcp)
    assert seqs(reader.read("1-0", after=504)) == []
    assert seqs(reader.read("1-0", after=502)) == [503, 504]
    assert lists(gcp) - before <= 4
    assert seqs(reader.read("1-0")) == list(range(505))


@pytest.mark.full
def test_a_node_that_was_quiet_for_hours_costs_one_who_follows_nothing(gcp, make_sink, monkeypatch):
    monkeypatch.setattr(gcp.logging, "page_entries", 10)
    writer, reader = make_sink(), make_sink()
    old, now = datetime.now(timezone.utc) - timedelta(hours=2), datetime.now(timezone.utc)
    monkeypatch.setattr(gcp.logging, "_now", lambda: old)
    writer.write([line(0, at=old)])
    monkeypatch.setattr(gcp.logging, "_now", lambda: old + timedelta(minutes=1))
    writer.write([line(seq, stream="2-0", at=old) for seq in range(500)])
    monkeypatch.setattr(gcp.logging, "_now", lambda: now)
    for stream, count in (("1-0", 1), ("2-0", 500), ("3-0", 0)):
        assert len(seqs(reader.read(stream))) == count
    before = lists(gcp)
    assert seqs(reader.read("2-0", after=499)) == []
    assert lists(gcp) - before == 1
    writer.write([line(0, stream="3-0")])
    writer.write([line(1), line(2)])
    assert seqs(reader.read("3-0")) == [0]
    assert seqs(reader.read("1-0", after=0)) == [1, 2]


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_readers_clock_that_is_wrong_loses_no_line(make_sink, hours):
    writer = make_sink()
    reader = make_sink(now=lambda: datetime.now(timezone.utc) + timedelta(hours=hours))
    assert seqs(reader.read("1-0")) == []
    for first in range(0, 30, 3):
        writer.write([line(seq) for seq in range(first, first + 3)])
        assert seqs(reader.read("1-0", after=first - 1)) == [first, first + 1, first + 2]


def test_a_line_that_the_shared_lists_have_passed_by_is_looked_for(gcp, make_sink):
    now = [datetime.now(timezone.utc)]
    writer, reader = make_sink(), make_sink(now=lambda: now[0])
    writer.write([line(0)])
    assert seqs(reader.read("1-0")) == [0]
    writer.write([line(1)])
    gcp.logging._entries[-1].parsed["receiveTimestamp"] -= timedelta(minutes=30)
    writer.write([line(2)])
    assert seqs(reader.read("1-0", after=0)) == []  # What is before it may still come.
    now[0] += timedelta(seconds=61)
    assert seqs(reader.read("1-0", after=0)) == [1, 2]


# --- streams and days ------------------------------------------------------------------------------------


def test_a_stream_is_known_also_when_its_first_days_have_ended(gcp, make_sink):
    day = timedelta(days=1)
    for number in range(4):
        make_sink().write([line(2 * number, at=NOW - (3 - number) * day), line(2 * number + 1, at=NOW)])
    gcp.logging._entries = [one for one in gcp.logging._entries if int(one.entry["labels"]["seq"]) > 3]
    assert tuple(make_sink().streams()) == ("1-0",)
    (piece,) = make_sink().pieces()
    assert (piece.first_day, piece.last_day) == ((NOW - day).date(), NOW.date())


def test_a_stream_whose_first_lines_were_refused_is_known(gcp, make_sink, monkeypatch):
    sink = make_sink()
    gcp.faults.inject("logging.entries.write", "badRequest", status=400)
    sink.write([line(0)])
    sink.write([line(1)])
    assert tuple(make_sink().streams()) == ("1-0",)


def test_few_entries_are_marked(gcp, make_sink):
    sink = make_sink()
    for first in range(0, 100, 10):
        sink.write([line(seq, at=NOW + timedelta(microseconds=seq)) for seq in range(first, first + 10)])
    marked = [one.entry["labels"]["seq"] for one in gcp.logging._entries if "mark" in one.entry["labels"]]
    assert marked == ["0"]


@pytest.mark.full
def test_the_days_of_all_nodes_are_one_list(gcp, job, make_sink):
    sink = make_sink()
    for rank in range(64):
        sink.write([line(seq, stream=f"1-{rank}", at=NOW) for seq in range(2)])
    CloudLoggingSink(job.upper(), store_url=STORE).write([line(0, stream="9-9")])
    before = lists(gcp)
    found = make_sink().pieces()
    assert lists(gcp) - before == 1
    assert sorted(piece.stream for piece in found) == sorted(f"1-{rank}" for rank in range(64))
    assert {(piece.first_day, piece.last_day, piece.num_bytes) for piece in found} == {
        (NOW.date(), NOW.date(), None)
    }
    assert found[0].name == f"projects/{gcp.account.project}/logs/cloudspot 1-0"
    assert tuple(make_sink().streams()) == tuple(piece.stream for piece in found)


def test_entries_cannot_be_removed_and_the_line_says_what_can(make_sink):
    sink = make_sink(log_name="train")
    sink.write([line(0)])
    sink.remove([])
    with pytest.raises(CloudspotError) as caught:
        sink.remove(sink.pieces())
    assert str(caught.value) == (
        "lines of one job cannot be deleted from Cloud Logging: they expire after the retention time "
        "of the log's bucket; to delete 'train' with the lines of all its jobs, run: gcloud logging logs delete train"
    )


# --- what goes wrong -------------------------------------------------------------------------------------


def test_a_throttled_list_waits_for_the_quota_of_the_next_minute(gcp, make_sink):
    slept = []
    sink = make_sink(sleep=slept.append)
    sink.write([line(0)])
    gcp.faults.inject("logging.entries.list", "RESOURCE_EXHAUSTED", status=429, times=9)
    assert seqs(sink.read("1-0")) == [0]
    assert sum(slept) == pytest.approx(51.1)


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


def test_a_sink_takes_each_right_on_logs_that_the_roles_grant_and_no_other(gcp, make_sink):
    def rights_taken():
        taken = frozenset().union(*map(rights_of, gcp.faults.calls))
        gcp.faults.calls.clear()
        return {right for right in taken if right.startswith("logging.")}

    for seq in range(2):  # the second by another agent of the machine
        make_sink().write([line(seq)])
    assert rights_taken() == rights_named(permissions.DIRECTORY / "role-node.yaml", "logging")
    reader = make_sink()
    assert seqs(record for stream in reader.streams() for record in reader.read(stream)) == [0, 1]
    assert rights_taken() == rights_named(permissions.DIRECTORY / "role-submitter.yaml", "logging")
