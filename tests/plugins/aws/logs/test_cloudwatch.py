"""Log lines in CloudWatch, against a strict one."""

import itertools
import json
from datetime import datetime, timedelta, timezone

import boto3
import msgspec
import pytest
from support.clouds.bucketstoretests import rights_named
from support.clouds.elsewhere import elsewhere
from support.clouds.emulated_logs import EmulatedLogs
from support.clouds.logservicetests import LogService, LogServiceTests, line, seqs

from cloudspot.errors import AuthError
from cloudspot.testing.logfaultkit import LogFaultTests
from cloudspot.testing.logkit import LogSinkTests
from cloudspot_aws import permissions
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.cloudwatch import CloudWatchLogSink
from cloudspot_aws_sandbox.rights import rights_of

STORE = "s3://bucket/one"
MARK = "2ddc08ea"
"""What stands for it."""

_numbers = itertools.count()


@pytest.fixture
def job(aws):
    return f"job-{next(_numbers)}"


@pytest.fixture(scope="module")
def clients():
    """Clients of the emulated AWS, whose address does not change; they take long to make."""
    return AwsClients()


@pytest.fixture(scope="module")
def logs_client():
    made = []

    def make(url):
        made[:] = made or [
            boto3.session.Session().client("logs", region_name="eu-central-1", endpoint_url=url)
        ]
        return made[0]

    return make


@pytest.fixture
def logs(aws, logs_client):
    """A client beside the sink, as a stranger's."""
    return logs_client(aws.url)


@pytest.fixture
def make_sink(job, clients):
    """``make_sink(**options)``: a sink of the test's own job."""
    common = {"store_url": STORE, "clients": clients, "sleep": lambda seconds: None}
    return lambda **options: CloudWatchLogSink(job, **{**common, **options})


@pytest.fixture
def service(aws):
    return LogService(
        faults=aws.faults,
        write_action="PutLogEvents",
        failed=("ServiceUnavailableException", 500),
        read_rights=("logs:GetLogEvents", "logs:DescribeLogStreams"),
        write_right="logs:PutLogEvents",
        other_store="s3://bucket/two",
        endpoint_variable="AWS_ENDPOINT_URL",
        make_clients=AwsClients,
    )


@pytest.mark.full
class TestPromises(LogSinkTests):
    """As any sink."""


@pytest.mark.full
class TestFaults(LogFaultTests):
    """As any sink whose service fails."""

    @pytest.fixture
    def logs(self, service, job, clients):
        def make(job_id):
            return CloudWatchLogSink(job_id, store_url=STORE, clients=clients, sleep=lambda seconds: None)

        return EmulatedLogs(service, make, prefix=f"{job}-", throttled=("ThrottlingException", 400))


class TestCloudWatch(LogServiceTests):
    """As any log service's sink."""


@pytest.mark.full
class TestPromisesInSmallPages(LogSinkTests):
    """As any sink, where a page of the service holds few events."""

    @pytest.fixture(autouse=True)
    def small_pages(self, aws, monkeypatch):
        monkeypatch.setattr(aws.logs, "page_events", 7)

    left_out = elsewhere("test_many_lines_at_once_are_no_matter")


class TestPromisesInASharedGroup(LogSinkTests, LogServiceTests):
    """As any sink, in a group that jobs share."""

    @pytest.fixture
    def make_sink(self, make_sink):
        return lambda **options: make_sink(group="shared/group", **options)

    left_out = elsewhere(
        "test_many_lines_at_once_are_no_matter",
        "test_a_line_may_be_very_long",
    )


def events(logs, group, stream="1-0", prefix=""):
    answer = logs.get_log_events(
        logGroupName=group, logStreamName=f"{prefix}{MARK}/{stream}", startFromHead=True
    )
    return answer["events"]


def test_a_stranger_reads_lines_with_number_time_and_source(logs, job, make_sink):
    at = datetime.now(timezone.utc).replace(microsecond=250000) - timedelta(seconds=5)
    make_sink().write([line(0, "hello", at=at), line(1, "again", at=at)])
    found = events(logs, f"/cloudspot/{job}")
    assert [json.loads(event["message"]) for event in found] == [
        {"seq": 0, "time": at.isoformat().replace("+00:00", "Z"), "source": "train", "text": "hello"},
        {"seq": 1, "time": at.isoformat().replace("+00:00", "Z"), "source": "train", "text": "again"},
    ]
    assert [event["timestamp"] for event in found] == [int(at.timestamp() * 1000)] * 2


def test_a_group_is_made_once_with_its_retention_and_one_that_is_there_is_left_alone(
    aws, logs, job, make_sink
):
    make_sink(retention_days=7).write([line(0)])
    make_sink().write([line(0, stream="1-1")])
    (group,) = logs.describe_log_groups(logGroupNamePrefix=f"/cloudspot/{job}")["logGroups"]
    assert group["retentionInDays"] == 7
    logs.create_log_group(logGroupName=f"mine/{job}")
    make_sink(group=f"mine/{job}").write([line(0)])
    (group,) = logs.describe_log_groups(logGroupNamePrefix=f"mine/{job}")["logGroups"]
    assert "retentionInDays" not in group
    assert [event["message"] for event in events(logs, f"mine/{job}", "1-0", f"{job}/")] != []
    assert aws.faults.count("PutRetentionPolicy") == 1


def test_jobs_that_share_a_group_do_not_see_each_other(job, clients):
    one, other = (
        CloudWatchLogSink(name, store_url=STORE, group="shared/pair", clients=clients)
        for name in (job, f"{job}-b")
    )
    one.write([line(0)])
    other.write([line(0, stream="2-0")])
    assert (one.streams(), other.streams()) == (("1-0",), ("2-0",))


@pytest.mark.full
def test_lines_go_in_batches_within_the_services_limits(aws, job, make_sink):
    at = datetime.now(timezone.utc)
    make_sink().write([line(seq, "x" * 30_000, at=at) for seq in range(100)])
    assert aws.faults.count("PutLogEvents") == 4  # The first finds no group; 3 MB then go in three batches.
    assert len(list(make_sink().read("1-0"))) == 100
    make_sink().write([line(seq, "", at=at, stream="1-1") for seq in range(10_001)])
    sizes = [
        call.parameters["logEvents"]
        for call in aws.faults.calls
        if call.action == "PutLogEvents"
        and call.parameters["logStreamName"] == f"{MARK}/1-1"
        and call.error is None
    ]
    assert sum(sizes) == 10_001
    assert max(sizes) <= 10_000


def test_a_throttled_delivery_is_made_again(aws, make_sink):
    slept = []
    aws.faults.inject("PutLogEvents", "ThrottlingException", status=400, times=2)
    make_sink(sleep=slept.append).write([line(0)])
    assert slept == [0.1, 0.2]


def test_a_right_that_is_missing_is_an_auth_error(aws, job, make_sink):
    aws.faults.denied.add("logs:CreateLogGroup")
    with pytest.raises(AuthError, match=f"log group /cloudspot/{job}: access denied: .*logs:CreateLogGroup"):
        make_sink().write([line(0)])


@pytest.mark.full
def test_one_who_follows_does_not_fetch_what_he_has_seen(aws, make_sink, monkeypatch):
    monkeypatch.setattr(aws.logs, "page_events", 10)
    start = datetime.now(timezone.utc) - timedelta(hours=2)
    writer, reader = make_sink(), make_sink()
    writer.write([line(seq, at=start + timedelta(minutes=seq)) for seq in range(100)])
    assert len(list(reader.read("1-0"))) == 100
    before = aws.faults.count("GetLogEvents")
    writer.write([line(100)])
    assert seqs(reader.read("1-0", after=99)) == [100]
    assert aws.faults.count("GetLogEvents") - before == 2
    before = aws.faults.count("GetLogEvents")
    back = make_sink().read_back("1-0")
    assert [next(back).seq for _ in range(5)] == [100, 99, 98, 97, 96]
    assert aws.faults.count("GetLogEvents") - before == 1


@pytest.mark.full
def test_one_who_follows_many_streams_stays_within_the_accounts_quota(aws, make_sink, monkeypatch):
    """Each stream takes two requests a round, and the account has ten a second."""
    clock, asked = [0.0], []
    reader = make_sink(
        sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds), monotonic=lambda: clock[0]
    )
    writer = make_sink()
    for rank in range(20):
        writer.write([msgspec.structs.replace(line(0), stream=f"1-{rank}")])
    record = aws.faults.record

    def noting(call):
        if call.action == "GetLogEvents":
            asked.append(clock[0])
        record(call)

    monkeypatch.setattr(aws.faults, "record", noting)
    assert [len(list(reader.read(f"1-{rank}"))) for rank in range(20)] == [1] * 20
    assert len(asked) == 40
    assert max(sum(at <= other < at + 1.0 for other in asked) for at in asked) <= 10


def test_what_others_write_into_the_stream_is_skipped(logs, job, make_sink):
    make_sink().write([line(0)])
    now = int(datetime.now(timezone.utc).timestamp() * 1000)
    logs.put_log_events(
        logGroupName=f"/cloudspot/{job}",
        logStreamName=f"{MARK}/1-0",
        logEvents=[{"timestamp": now, "message": text} for text in ("hello", "{}", '{"seq": "x"}')],
    )
    make_sink().write([line(1)])
    assert seqs(make_sink().read("1-0")) == [0, 1]


def test_a_stream_is_a_piece_that_can_be_removed_and_is_made_again_by_its_writer(aws, job, make_sink):
    writer = make_sink()
    writer.write([line(0), line(1)])
    writer.write([line(0, stream="1-1")])
    pieces = make_sink().pieces()
    assert [(piece.stream, piece.num_bytes) for piece in pieces] == [("1-0", None), ("1-1", None)]
    assert pieces[0].name.startswith(f"/cloudspot/{job}:")
    make_sink().remove(pieces[:1])
    assert make_sink().streams() == ("1-1",)
    writer.write([line(2)])
    assert seqs(make_sink().read("1-0", after=1)) == [2]
    aws.faults.denied.add("logs:DeleteLogStream")
    with pytest.raises(AuthError, match="logs:DeleteLogStream"):
        make_sink().remove(pieces)


def test_a_sink_takes_each_right_on_logs_that_the_policies_grant_and_no_other(aws, make_sink):
    def rights_taken():
        taken = frozenset().union(*map(rights_of, aws.faults.calls))
        aws.faults.calls.clear()
        return taken

    for seq in range(2):  # the second by another agent of the machine
        make_sink().write([line(seq)])
    assert rights_taken() == rights_named(permissions.DIRECTORY / "policy-node.json", "logs")
    reader = make_sink()
    assert seqs(record for stream in reader.streams() for record in reader.read(stream)) == [0, 1]
    reader.remove(reader.pieces())
    assert rights_taken() == rights_named(permissions.DIRECTORY / "policy-submitter.json", "logs")
