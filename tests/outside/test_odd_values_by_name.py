"""Single values that were tracebacks, or were taken for what they cannot be, each with what they come to now."""

import json
import socket
import sys
import threading
from datetime import datetime, timezone
from http.server import HTTPServer
from types import SimpleNamespace

import pytest

from cloudspot.cli import function
from cloudspot.decoding import decode
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import moment, moment_of, number, price, readable
from cloudspot_aliyun import functionserver, osspayload
from cloudspot_aliyun.api import items
from cloudspot_aliyun.listing import parse_time as aliyun_time
from cloudspot_aliyun.names import rank_of
from cloudspot_aws import ec2, pricing
from cloudspot_aws.clients import parse_time as aws_time
from cloudspot_aws.functionhost import _seconds as aws_seconds
from cloudspot_aws.imds import Imds, SpotNoticeSource
from cloudspot_aws.imds import node_identity as aws_identity
from cloudspot_aws.listing import to_instance
from cloudspot_aws.options import AwsOptions
from cloudspot_gcp import gcs, metadata
from cloudspot_gcp import pricing as gcp_pricing
from cloudspot_gcp.attributes import launch_and_rank
from cloudspot_gcp.cloudloggingentries import EntryReader, milliseconds
from cloudspot_gcp.cloudloggingrequests import _milliseconds
from cloudspot_gcp.gcsbucket import _size_and_time
from cloudspot_gcp.listing import to_time as gcp_time
from cloudspot_kubernetes import notice
from cloudspot_kubernetes.listing import parse_time as pod_time

MANY = "9" * 5000
AT = datetime(2026, 11, 20, 8, 30, tzinfo=timezone.utc)


class Said(Imds):
    """A metadata service that says the same to everything."""

    def __init__(self, text):
        super().__init__()
        self._text = text

    def get(self, path):
        return self._text


class Notice(metadata.Metadata):
    def __init__(self, text):
        super().__init__()
        self._text = text

    def get(self, path):
        return self._text


class Pod(notice.PodApi):
    def __init__(self, grace):
        self._grace = grace

    def read(self, path):
        return {"metadata": {"deletionTimestamp": "x", "deletionGracePeriodSeconds": self._grace}}


def rank_at_aws(text):
    return aws_identity(Said(text)).rank


def end_at_aws(reason):
    return to_instance(
        {
            "InstanceId": "i-1",
            "State": {"Name": "terminated"},
            "Tags": [{"Key": machinetags.JOB, "Value": "x"}],
            "StateTransitionReason": reason,
        }
    ).ended_at


def limit_at_aws(text, started=AT):
    machines = ec2.Ec2Provisioner(AwsOptions(), None)
    tags = [{"Key": machinetags.JOB, "Value": "x"}, {"Key": machinetags.MAX_SECONDS, "Value": text}]
    machines._taken_in(
        [{"InstanceId": "i-1", "State": {"Name": "running"}, "Tags": tags, "LaunchTime": started}]
    )
    return machines._limits


def listed_price_at_aws(text):
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": text}}
    return pricing._usd(
        json.dumps({"terms": {"OnDemand": {"a": {"priceDimensions": {"b": dimension}}}}}), "Hrs"
    )


def listed_price_at_gcp(units, nanos=0):
    rates = [{"unitPrice": {"units": units, "nanos": nanos}}]
    return gcp_pricing._usd({"pricingInfo": [{"pricingExpression": {"tieredRates": rates}}]})


def entry_of_gcp(**labels):
    own = {"job": "x", "stream": "1-0", "seq": "1", "source": "train", **labels}
    return list(EntryReader("1-0", {"job": "x"}).add({"labels": own, "timestamp": "2026-11-20T08:30:00Z"}))


def rank_of_pod(monkeypatch, **said):
    for name, value in {"name": "x", "uid": "u", "rank": "0", "address": "10.0.0.1", **said}.items():
        monkeypatch.setenv(getattr(notice.POD, name), value)
    return notice.node_identity().rank


VALUES = [
    *((f"number {value!r:.20}", lambda value=value: number(value, most=9), None)
      for value in ("nan", "inf", "-1", "1_0", "", "x", MANY, True, None, [], float("nan"), 10**400)),
    ("number 7", lambda: number("7", most=9), 7.0),
    *((f"price {value!r:.20}", lambda value=value: price(value), None) for value in ("nan", "inf", "-0.1", 2e9)),
    *((f"moment {value!r}", lambda value=value: moment(value), None)
      for value in ("2026-13-45T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "", None, 7)),
    ("moment", lambda: moment("2026-11-20T09:30:00+01:00"), AT),
    *((f"moment of {value!r}", lambda value=value: moment_of(value), None) for value in (-1, 1e300, float("nan"), "x")),
    ("rank at AWS, many digits", lambda: rank_at_aws(MANY), TransientError),
    ("rank at AWS, of no key", lambda: rank_at_aws("10000"), TransientError),
    ("rank at AWS, no digit of ours", lambda: rank_at_aws("\u00b2"), TransientError),
    ("notice of AWS, nested", lambda: SpotNoticeSource(Said("[" * 100_000)).poll().action, "terminate"),
    ("notice of AWS, long", lambda: len(SpotNoticeSource(Said('{"action": "%s", "time": "2026-11-20T08:30:00Z"}' % ("x" * 999))).poll().action), 40),
    ("end at AWS", lambda: end_at_aws("User initiated (2026-11-20 08:30:00 GMT)"), AT),
    ("end at AWS, month 13", lambda: end_at_aws("User initiated (2026-13-45 08:22:00 GMT)"), None),
    ("end at AWS, year 0", lambda: end_at_aws("User initiated (0000-01-01 08:22:00 GMT)"), None),
    ("limit at AWS, many digits", lambda: limit_at_aws(MANY), {}),
    ("limit at AWS, far", lambda: limit_at_aws("9" * 15), {}),
    ("limit at AWS, no digit of ours", lambda: limit_at_aws("\u00b2"), {}),
    ("time at AWS", lambda: aws_time("1e12"), ValueError),
    ("rate at AWS", lambda: aws_seconds("rate(x minutes)"), None),
    ("rate at AWS, many digits", lambda: aws_seconds(f"rate({MANY} minutes)"), None),
    *((f"listed price at AWS {text}", lambda text=text: listed_price_at_aws(text), None) for text in ("NaN", "inf", "-1")),
    ("listed price at AWS", lambda: listed_price_at_aws("0.5"), 0.5),
    ("listed price at GCP", lambda: listed_price_at_gcp("1", 500_000_000), 1.5),
    *((f"listed price at GCP {units!r:.10}", lambda units=units: listed_price_at_gcp(units), 0.0)
      for units in (MANY, "x", "-1", [])),
    ("listed price at GCP, nanos", lambda: listed_price_at_gcp("0", "x"), 0.0),
    ("name at GCP", lambda: launch_and_rank("cs-x-0123abcd-1-2"), (1, 2)),
    ("name at GCP, many digits", lambda: launch_and_rank(f"cs-x-0123abcd-{MANY}-0"), None),
    ("name at GCP, no digit of ours", lambda: launch_and_rank("cs-x-0123abcd-1-\u0663"), None),
    ("name at GCP, rank of no key", lambda: launch_and_rank("cs-x-0123abcd-1-10000"), None),
    ("time at GCP", lambda: gcp_time("0001-01-01T00:00:00+23:59"), None),
    ("reached at GCS", lambda: gcs._REACHED.fullmatch(f"bytes=0-{MANY}"), None),
    ("size at GCS", lambda: _size_and_time({"size": "7", "updated": "2026-11-20T08:30:00Z"})[0], 7),
    ("notice at GCP", lambda: metadata._notice_seconds(Notice("120")), 120.0),
    *((f"notice at GCP {text}", lambda text=text: metadata._notice_seconds(Notice(text)), 30.0)
      for text in ("nan", "inf", "1e300", "x")),
    ("log at GCP", lambda: len(entry_of_gcp()), 1),
    *((f"log at GCP {name}", lambda name=name: entry_of_gcp(**{name: MANY}), []) for name in ("seq", "part", "parts", "time")),
    ("log at GCP, negative", lambda: entry_of_gcp(seq="-1"), []),
    ("milliseconds at GCP", lambda: milliseconds("9999-12-31T23:59:59Z"), 0),
    ("date at GCP", lambda: _milliseconds("x"), 0),
    ("rank at Aliyun", lambda: rank_of("x-1-9999"), 9999),
    ("rank at Aliyun, of no key", lambda: rank_of("x-1-123456"), None),
    ("time at Aliyun, month 13", lambda: aliyun_time("2026-13-20T08:30Z"), None),
    ("time at Aliyun, no digit of ours", lambda: aliyun_time("202\u0666-11-20T08:30Z"), None),
    *((f"sum at Aliyun {text:.5}", lambda text=text: osspayload.compare({osspayload.CRC_HEADER: text}, b"x", "it"), TransientError)
      for text in ("x", "-1", MANY)),
    *((f"list at Aliyun {found!r:.20}", lambda found=found: items({"A": {"B": found}}, "A", "B"), TransientError)
      for found in ("x", 7, {"a": 1}, ["x"])),
    ("list at Aliyun, missing", lambda: items({"A": None}, "A", "B"), []),
    ("time of a pod", lambda: pod_time("today"), None),
    ("launch in tags", lambda: machinetags.launch_of({machinetags.LAUNCH: MANY}), 0),
    ("launch in tags, no digit of ours", lambda: machinetags.launch_of({machinetags.LAUNCH: "\u00b2"}), 0),
    ("nested JSON", lambda: decode(b"[" * 100_000, list), ValueError),
]  # fmt: skip


@pytest.mark.parametrize(("call", "expected"), [pytest.param(*rest, id=name) for name, *rest in VALUES])
def test_the_value_is_bounded_or_refused(call, expected):
    if not isinstance(expected, type):
        assert call() == expected
        return
    with pytest.raises(expected):
        call()


@pytest.mark.parametrize("said", [{"rank": MANY}, {"rank": "\u00b2"}, {"rank": "10000"}, {"market": "free"}])
def test_a_pod_that_says_nonsense_of_itself_has_no_identity(monkeypatch, said):
    assert rank_of_pod(monkeypatch) == 0
    with pytest.raises(TransientError):
        rank_of_pod(monkeypatch, **said)


@pytest.mark.parametrize("grace", ["nan", float("inf"), -1, 1e300, ["x"], "x"])
def test_a_grace_period_that_is_not_a_time_leaves_the_least_that_is_promised(monkeypatch, tmp_path, grace):
    for name in (notice.POD.namespace, notice.POD.name):
        monkeypatch.setenv(name, "x")
    (tmp_path / notice.TERMINATING).touch()
    source = notice.PodNoticeSource(
        grace=60.0, shutdown_grace=15.0, watch_taints=False, api=Pod(grace), directory=tmp_path
    )
    assert source.poll().source == "SIGTERM"


@pytest.mark.parametrize("seconds", ["x", "nan", -1, [], None, 10**400])
def test_an_event_that_names_no_time_to_wait_is_not_waited_for(monkeypatch, seconds):
    waits = []
    monkeypatch.setattr(function, "time", SimpleNamespace(sleep=waits.append))
    monkeypatch.setattr(function.program, "main", lambda *_, **__: sys.exit(0))
    monkeypatch.setenv(function.NAME, "x")
    monkeypatch.setenv(function.EVERY, "60")
    assert function.handle({"wait_seconds": seconds}) == {"status": 0}
    assert waits == [0.0]


@pytest.mark.parametrize("length", [MANY, "-1", "x"])
def test_a_function_is_not_run_for_a_request_of_no_size(length):
    with HTTPServer(("127.0.0.1", 0), functionserver._Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with socket.create_connection(server.server_address, timeout=30) as connection:
            connection.sendall(f"POST /invoke HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())
            assert connection.makefile("rb").read().startswith(b"HTTP/1.1 413 ")


def test_what_reading_an_answer_raises_is_one_line_and_an_error_of_ours_stays_as_it_is():
    for read in (
        lambda: {}["x"],
        lambda: int("x"),
        lambda: b"x".decode("ascii")[1],
        lambda: None.x,
        lambda: 10**400 / 1.0,
    ):
        with pytest.raises(TransientError, match="asking: the answer cannot be read"), readable("asking"):
            read()
    with pytest.raises(CloudspotError, match="own"), readable("asking"):
        raise CloudspotError("own")
