import json
import logging
import threading
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType

import pytest
from support.clouds.troubled_service import troubled_services

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.model import Instance, InstanceState, Market
from cloudspot.testing.machine import Machine, OtherEvent
from cloudspot.testing.nodekit import NodeIdentityTests, PreemptionSourceTests
from cloudspot_aws.imds import DISABLED, ENDPOINT, Imds, SpotNoticeSource, node_identity
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.provider import AwsProvider

NODE = {
    "meta-data/instance-id": "i-0123456789abcdef0",
    "meta-data/ami-launch-index": "1",
    "meta-data/local-ipv4": "172.31.5.6",
    "meta-data/placement/availability-zone": "us-east-1b",
    "meta-data/instance-type": "g5.xlarge",
    "meta-data/instance-life-cycle": "spot",
}
ACTION = "meta-data/spot/instance-action"
REBALANCE = "meta-data/events/recommendations/rebalance"


class Service:
    """IMDSv2 as the user guide describes it: no answer without a token of its own."""

    def __init__(self):
        self.values = dict(NODE)
        self.tokens = []
        self.requests = []
        self.status = None
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self):
                if self.path != "/latest/api/token":
                    return self.answer(405, "")
                service.requests.append("token")
                assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"] == str(Imds.token_seconds)
                if self.headers.get("X-Forwarded-For"):
                    return self.answer(403, "")
                service.tokens.append(f"token-{len(service.tokens)}")
                return self.answer(200, service.tokens[-1])

            def do_GET(self):
                path = self.path.removeprefix("/latest/")
                service.requests.append(path)
                if self.headers.get("X-aws-ec2-metadata-token") not in service.tokens[-1:]:
                    return self.answer(401, "")
                if service.status is not None:
                    return self.answer(service.status, "")
                value = service.values.get(path)
                return self.answer(404, "") if value is None else self.answer(200, value)

            def answer(self, status, text):
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def service(monkeypatch):
    service = Service()
    monkeypatch.setenv(ENDPOINT, service.url)
    monkeypatch.delenv(DISABLED, raising=False)
    yield service
    service.close()


class NodeOfTheService(Machine):
    instance = Instance(
        id="i-0123456789abcdef0", state=InstanceState.RUNNING, job_id="kit-1", launch=1, rank=1,
        address="172.31.5.6", zone="us-east-1b", instance_type="g5.xlarge", market=Market.SPOT,
    )  # fmt: skip

    notice_seconds = 120.0

    def __init__(self, service, monkeypatch, troubled):
        self.service, self.monkeypatch, self.troubled = service, monkeypatch, troubled

    def provider(self):
        return AwsProvider(AwsOptions())

    def give_notice(self, deadline):
        if deadline is None:
            self.service.values[ACTION] = '{"action": "terminate"}'
            return
        self.service.values[ACTION] = f'{{"action": "terminate", "time": "{deadline:%Y-%m-%dT%H:%M:%SZ}"}}'

    def give_other_event(self, event):
        if event is OtherEvent.ANOTHER_MACHINE:
            raise NotImplementedError
        code = "system-reboot" if event is OtherEvent.REBOOT else "system-maintenance"
        planned = [{"Code": code, "NotBefore": "21 Jan 2027 09:00:43 GMT", "State": "active"}]
        self.service.values["meta-data/events/maintenance/scheduled"] = json.dumps(planned)
        self.service.values[REBALANCE] = '{"noticeTime": "2026-11-05T18:02:00Z"}'

    def silence(self):
        self.monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1/")

    def trouble_with(self, trouble):
        self.monkeypatch.setenv(ENDPOINT, self.troubled(trouble))


class TestNodeKit(PreemptionSourceTests, NodeIdentityTests):
    deviations = MappingProxyType(
        {
            "test_trouble_is_no_absence_of_a_notice[garbage]": (
                "whatever stands at the path of a notice says that the machine goes, readable or not"
            ),
            **dict.fromkeys(
                (
                    "test_a_notice_is_heard_behind_what_does_not_take_the_machine[another machine]",
                    "test_what_does_not_take_the_machine_is_no_notice[another machine]",
                ),
                "the service tells of its own machine alone",
            ),
        }
    )

    @pytest.fixture
    def machine(self, service, monkeypatch):
        with troubled_services() as troubled:
            yield NodeOfTheService(service, monkeypatch, troubled)


def test_a_machine_that_is_not_spot_says_so(service):
    service.values["meta-data/instance-life-cycle"] = "on-demand"
    assert node_identity().market is Market.ON_DEMAND


@pytest.mark.parametrize("missing", ["meta-data/instance-id", "meta-data/ami-launch-index"])
def test_metadata_that_is_not_there_yet_is_waited_for(service, missing):
    del service.values[missing]
    with pytest.raises(TransientError, match=f"has no {missing} yet"):
        node_identity()


def test_an_index_that_is_no_number_is_no_rank(service):
    service.values["meta-data/ami-launch-index"] = "<html>"
    with pytest.raises(TransientError, match="ami-launch-index is '<html>', not a rank"):
        node_identity()


def test_one_token_serves_until_four_fifths_of_its_life(service):
    now = 0.0
    imds = Imds(monotonic=lambda: now)
    imds.get("meta-data/instance-id")
    now = 0.79 * Imds.token_seconds
    imds.get("meta-data/instance-id")
    assert service.requests.count("token") == 1
    now = 0.8 * Imds.token_seconds
    assert imds.get("meta-data/instance-id") == "i-0123456789abcdef0"
    assert service.requests.count("token") == 2


def test_a_token_that_the_service_has_forgotten_is_replaced(service):
    imds = Imds()
    imds.get("meta-data/instance-id")
    service.tokens.clear()
    assert imds.get("meta-data/instance-id") == "i-0123456789abcdef0"
    assert service.requests == [
        "token",
        "meta-data/instance-id",
        "meta-data/instance-id",
        "token",
        "meta-data/instance-id",
    ]


def test_a_service_that_refuses_fresh_tokens_is_not_asked_for_ever(service, monkeypatch):
    monkeypatch.setattr(service, "tokens", _Forgetful())
    with pytest.raises(TransientError, match="answered 401 to meta-data/instance-id"):
        Imds().get("meta-data/instance-id")
    assert service.requests.count("token") == 2


class _Forgetful(list):
    def append(self, token):
        pass

    def __getitem__(self, index):
        return [] if isinstance(index, slice) else "forgotten"


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_each_action_is_a_notice_with_its_time(service, action):
    service.values[ACTION] = f'{{"action": "{action}", "time": "2026-11-20T08:22:00Z"}}'
    notice = SpotNoticeSource().poll()
    assert notice.action == action
    assert notice.deadline == datetime(2026, 11, 20, 8, 22, tzinfo=timezone.utc)
    assert notice.source == "imds"


@pytest.mark.parametrize("text", ["", "{}", "terminate", '{"action": "terminate", "time": 5}', "[]"])
def test_a_notice_that_cannot_be_read_is_a_notice_without_a_time(service, text, caplog):
    service.values[ACTION] = text
    notice = SpotNoticeSource().poll()
    assert (notice.action, notice.deadline) == ("terminate", None)
    assert "cannot be read" in caplog.text


def test_a_rebalance_recommendation_is_a_hint_that_is_logged_once_and_no_notice(service, caplog):
    source = SpotNoticeSource()
    assert (source.poll(), source.is_at_risk()) == (None, False)
    service.values[REBALANCE] = '{"noticeTime": "2026-11-20T08:22:00Z"}'
    source = SpotNoticeSource()
    with caplog.at_level(logging.WARNING, logger="cloudspot"):
        assert [source.poll() for _ in range(25)] == [None] * 25
    assert [record.name for record in caplog.records] == ["cloudspot.aws.imds"]
    assert "2026-11-20T08:22:00Z" in caplog.text
    assert service.requests.count(REBALANCE) == 4
    assert source.is_at_risk()


def test_tags_are_read_one_by_one(service):
    service.values["meta-data/tags/instance/MASTER_ADDR"] = "172.31.5.5"
    assert Imds().get("meta-data/tags/instance/MASTER_ADDR") == "172.31.5.5"
    assert Imds().get("meta-data/tags/instance/Other") is None


def test_an_error_of_the_service_tells_nothing(service):
    service.status = 500
    with pytest.raises(TransientError, match="answered 500 to meta-data/spot/instance-action"):
        SpotNoticeSource().poll()


def test_where_the_environment_forbids_the_service_it_is_not_asked(service, monkeypatch):
    monkeypatch.setenv(DISABLED, "true")
    with pytest.raises(CloudspotError, match="AWS_EC2_METADATA_DISABLED=true"):
        node_identity()
    assert service.requests == []
