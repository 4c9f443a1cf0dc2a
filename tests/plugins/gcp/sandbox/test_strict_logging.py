"""The emulated Cloud Logging: what is refused, what queries find, and when."""

from datetime import datetime, timedelta, timezone

import pytest

from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.logfilter import moment, parse_filter

from .conftest import reason_of

NOW = datetime.now(timezone.utc)


def shown(at):
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.fixture
def write(call, gcp):
    """``write(*entries, **fields)``: the answer to a write of entries, whose missing fields are good ones."""
    project = gcp.account.project

    def send(*entries, **fields):
        body = {
            "logName": f"projects/{project}/logs/x",
            "resource": {"type": "global", "labels": {"project_id": project}},
            "entries": [{"textPayload": "t", **entry} for entry in entries],
            **fields,
        }
        return call("POST", "/v2/entries:write", json=body)

    return send


@pytest.fixture
def find(call, gcp):
    """``find(query, **fields)``: the answer to a list."""

    def ask(query="", **fields):
        body = {"resourceNames": [f"projects/{gcp.account.project}"], "filter": query, **fields}
        return call("POST", "/v2/entries:list", json=body).json()

    return ask


def test_an_entry_is_one_by_its_log_time_and_insert_id(write, find):
    for text in ("first", "again"):
        write({"insertId": "a", "timestamp": shown(NOW), "textPayload": text})
    write({"insertId": "a", "timestamp": shown(NOW + timedelta(seconds=1)), "textPayload": "later"})
    write({"textPayload": "by itself"}, {"textPayload": "by itself"})
    texts = [entry["textPayload"] for entry in find()["entries"]]
    assert sorted(texts) == ["by itself", "by itself", "first", "later"]


def test_pages_are_of_fifty_unless_more_is_asked_for(write, find):
    write(*({"insertId": f"{number:03}", "timestamp": shown(NOW)} for number in range(120)))
    first = find()
    assert [entry["insertId"] for entry in first["entries"]] == [f"{number:03}" for number in range(50)]
    second = find(pageToken=first["nextPageToken"])
    assert second["entries"][0]["insertId"] == "050"
    assert "nextPageToken" not in find(pageSize=120)
    back = find(orderBy="timestamp desc", pageSize=100)
    assert back["entries"][0]["insertId"] == "119"
    rest = find(orderBy="timestamp desc", pageSize=100, pageToken=back["nextPageToken"])
    assert [entry["insertId"] for entry in rest["entries"]][-1] == "000"


def test_what_is_too_old_is_taken_and_never_shown(write, find):
    assert write({"timestamp": shown(NOW - timedelta(days=31))}).json() == {}
    assert find() == {}


def test_entries_show_after_a_while(gcp, write, find, monkeypatch):
    monkeypatch.setattr(gcp.logging, "lag_seconds", 60.0)
    write({})
    assert find() == {}
    monkeypatch.setattr(gcp.logging, "lag_seconds", 0.0)
    assert len(find()["entries"]) == 1


@pytest.mark.parametrize(
    ("entry", "fields", "words"),
    [
        ({"insert_idd": "x"}, {}, "Unknown name \"insert_idd\" at 'entries[0]'"),
        ({"insertId": "a b"}, {}, "invalid insert id"),
        ({"logName": "x"}, {}, "invalid or missing log name"),
        ({}, {"resource": None}, "invalid or missing monitored resource"),
        ({}, {"resource": {"type": "moon"}}, "invalid or missing monitored resource"),
        ({"jsonPayload": {}}, {}, "exactly one payload"),
        ({"textPayload": "x" * 300_000}, {}, "exceeds maximum size"),
        ({"timestamp": shown(NOW + timedelta(days=2))}, {}, "too far in the future"),
        ({"timestamp": "yesterday"}, {}, "timestamp"),
        ({"severity": "BAD"}, {}, "severity"),
        ({"labels": {f"k{number}": "" for number in range(65)}}, {}, "more than 64 labels"),
        ({}, {"entries": []}, "at least one log entry"),
        ({}, {"partial": True}, 'Unknown name "partial"'),
    ],
)
def test_an_entry_that_logging_would_refuse_is_refused(write, find, entry, fields, words):
    answer = write(entry, **fields)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert find() == {}


def test_a_call_without_a_good_token_or_right_is_refused(gcp, call, write):
    assert reason_of(call("POST", "/v2/entries:list", json={}, token=None)) == (401, "required")
    gcp.faults.denied.add("logging.logEntries.create")
    assert reason_of(write({})) == (403, "forbidden")


def test_logs_are_listed_and_deleted(gcp, call, write):
    write({})
    parent = f"projects/{gcp.account.project}"
    assert call("GET", f"/v2/{parent}/logs").json() == {"logNames": [f"{parent}/logs/x"]}
    assert call("DELETE", f"/v2/{parent}/logs/x").json() == {}
    assert call("GET", f"/v2/{parent}/logs").json() == {"logNames": []}


# --- queries ----------------------------------------------------------------------------------------------

ENTRY = {
    "logName": "projects/p/logs/x",
    "labels": {"job": "Vision", "a/b": "1"},
    "severity": "WARNING",
    "textPayload": "Epoch 7 done",
    "timestamp": moment("2026-01-02T03:04:05Z"),
}


@pytest.mark.parametrize(
    ("query", "is_about"),
    [
        ("", True),
        ('labels.job="vision"', True),
        ('labels.job="Vision" AND severity>=WARNING', True),
        ('labels.job="x" OR textPayload:"epoch"', True),
        ('labels.job="x" OR textPayload:"epoch" AND severity=ERROR', False),
        ('(labels.job="x" OR textPayload:"epoch") severity=WARNING', True),
        ('NOT labels.job="x"', True),
        ('labels."a/b"="1"', True),
        ('labels.none="1"', False),
        ('labels.none!="1"', True),
        ('timestamp>="2026-01-02T03:04:05Z" AND timestamp<"2026-01-02T03:04:05.000001Z"', True),
        ('timestamp>"2026-01-02"', True),
        ('textPayload=~"Epoch [0-9]"', True),
        ('textPayload!~"Epoch [0-9]"', False),
        ('labels.job=("x" OR "vision")', True),
    ],
)
def test_a_query_finds_what_it_says(query, is_about):
    assert parse_filter(query)(ENTRY) is is_about


@pytest.mark.parametrize(
    "query",
    [
        "labels.job=",
        'lables.job="x"',
        "(severity=INFO",
        "severity=LOUD",
        'timestamp>"noon"',
        "a b c",
        "x" * 20_001,
    ],
)
def test_a_query_that_cannot_be_read_is_refused(query):
    with pytest.raises(ApiError) as caught:
        parse_filter(query)
    assert caught.value.status == 400
