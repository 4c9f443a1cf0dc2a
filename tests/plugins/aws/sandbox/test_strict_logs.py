"""The emulated CloudWatch Logs refuses what the service refuses."""

import itertools
import time

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

MINUTE_MS = 60_000
_numbers = itertools.count()


@pytest.fixture
def put(aws):
    """``put(events)``: put them into a stream of the test's own."""
    client = boto3.session.Session().client(
        "logs", region_name="eu-central-1", config=Config(retries={"total_max_attempts": 1})
    )
    where = {"logGroupName": f"strict/{next(_numbers)}", "logStreamName": "s"}
    client.create_log_group(logGroupName=where["logGroupName"])
    client.create_log_stream(**where)
    put = lambda events: client.put_log_events(**where, logEvents=events)  # noqa: E731
    put.read = lambda **options: client.get_log_events(**where, startFromHead=True, **options)
    return put


def refused(call, *args):
    with pytest.raises(ClientError) as caught:
        call(*args)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def now_ms():
    return int(time.time() * 1000)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (lambda now: [{"timestamp": now, "message": "x"}] * 10_001, "10000"),
        (lambda now: [{"timestamp": now, "message": "x" * 200_000}] * 6, "Upload too large"),
        (lambda now: [{"timestamp": now, "message": "x" * (1_048_576 - 25)}], "Upload too large"),
        (lambda now: [{"timestamp": now, "message": "x" * 1_048_577}], "event too large"),
        (lambda now: [{"timestamp": now - age, "message": "x"} for age in (1, 2)], "chronological"),
        (lambda now: [{"timestamp": now - age, "message": "x"} for age in (1441 * MINUTE_MS, 0)], "24 hours"),
    ],
)
def test_a_batch_that_breaks_a_limit_is_refused(put, events, message):
    code, said = refused(put, events(now_ms()))
    assert code == "InvalidParameterException"
    assert message in said
    assert put.read()["events"] == []


@pytest.mark.full
def test_a_batch_within_the_limits_is_taken_and_read_in_pages(aws, put, monkeypatch):
    now = now_ms()
    put([{"timestamp": now, "message": str(number)} for number in range(10_000)])
    put([{"timestamp": now, "message": "x" * (1_048_576 - 26)}])
    put([{"timestamp": now - 1440 * MINUTE_MS, "message": "x"}, {"timestamp": now, "message": "x"}])
    monkeypatch.setattr(aws.logs, "page_events", 3)
    first = put.read()
    assert len(first["events"]) == 3
    assert len(put.read(nextToken=first["nextForwardToken"], limit=2)["events"]) == 2


def test_what_is_too_old_is_left_out_and_said(put):
    answer = put([{"timestamp": now_ms() - 15 * 1440 * MINUTE_MS, "message": "x"}])
    assert answer["rejectedLogEventsInfo"] == {"tooOldLogEventEndIndex": 0}


def test_signatures_and_rights_are_checked(aws, put, monkeypatch):
    event = [{"timestamp": now_ms(), "message": "x"}]
    aws.faults.denied.add("logs:PutLogEvents")
    assert refused(put, event)[0] == "AccessDeniedException"
    aws.faults.denied.clear()
    aws.faults.inject("PutLogEvents", "ThrottlingException", status=400)
    assert refused(put, event)[0] == "ThrottlingException"
    aws.faults.expired_keys.add("AKIAIOSFODNN7EXAMPLE")
    assert refused(put, event)[0] == "ExpiredTokenException"
    aws.faults.expired_keys.clear()
    put(event)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    other = boto3.session.Session().client("logs", region_name="eu-central-1")
    assert refused(other.describe_log_groups)[0] == "InvalidSignatureException"
    assert [call.error for call in aws.faults.calls if call.action == "PutLogEvents"] == [
        "AccessDeniedException",
        "ThrottlingException",
        "ExpiredTokenException",
        None,
    ]
