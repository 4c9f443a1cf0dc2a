"""What a node reads of ECS's metadata service, in hardened and in normal mode."""

from __future__ import annotations

import re
import threading
from datetime import datetime, timedelta, timezone
from types import MappingProxyType

import pytest
from support.clouds.troubled_service import troubled_services

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.local.metadataservice import Answer, MachineView, MetadataServer, StandingNotice
from cloudspot.model import Instance, InstanceState, Market
from cloudspot.testing.machine import Machine
from cloudspot.testing.nodekit import NodeIdentityTests, PreemptionSourceTests
from cloudspot_aliyun.metadata import (
    DISABLED,
    ENDPOINT,
    TERMINATION,
    AliyunNoticeSource,
    EcsMetadata,
    node_identity,
)
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.provider import AliyunProvider
from cloudspot_aliyun_sandbox.metadata_server import EcsMetadataService

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
FACTS = {
    "hostname": "digits-1-2-3",
    "http-tokens": "required",
    "instance-id": "i-bp13znx0m0me8cquu001",
    "instance-type": "ecs.gn7i-c8g1.2xlarge",
    "mac": "00:16:3e:0f:00:09",
    "market": "spot",
    "private-ipv4": "192.168.0.9",
    "region-id": "cn-hangzhou",
    "zone-id": "cn-hangzhou-i",
}


class Service(EcsMetadataService):
    """The emulated service, which a test may make say something else; notes what it was asked."""

    def __init__(self):
        self.tags = {}
        self.now = NOW
        super().__init__(
            MachineView(address="192.168.0.9", facts=FACTS, tags=lambda: self.tags), now=lambda: self.now
        )
        self.said = {}
        """Path -> an answer instead of the service's own."""
        self.requests = []
        self._noting = threading.Lock()
        self.server = MetadataServer(self, "127.0.0.1")

    def answer(self, request):
        path = request.path.removeprefix("/latest/")
        with self._noting:
            self.requests.append(path)
        own = super().answer(request)
        return self.said.get(path, own) if own.status != 403 else own


@pytest.fixture
def service(monkeypatch):
    service = Service()
    monkeypatch.setenv(ENDPOINT, service.server.url)
    monkeypatch.delenv(DISABLED, raising=False)
    yield service
    service.server.close()


class NodeOfTheService(Machine):
    instance = Instance(
        id="i-bp13znx0m0me8cquu001", state=InstanceState.RUNNING, job_id="digits-1", launch=2, rank=3,
        address="192.168.0.9", zone="cn-hangzhou-i", instance_type="ecs.gn7i-c8g1.2xlarge",
        market=Market.SPOT,
    )  # fmt: skip

    notice_seconds = 300.0

    def __init__(self, service, monkeypatch, troubled):
        self.service, self.monkeypatch, self.troubled = service, monkeypatch, troubled

    def provider(self):
        return AliyunProvider(AliyunOptions())

    def give_notice(self, deadline):
        if deadline is None:
            raise NotImplementedError
        self.service.view.notice = StandingNotice(deadline=deadline, given_at=NOW)

    def silence(self):
        self.monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")

    def trouble_with(self, trouble):
        self.monkeypatch.setenv(ENDPOINT, self.troubled(trouble))


class TestNodeKit(PreemptionSourceTests, NodeIdentityTests):
    deviations = MappingProxyType(
        {
            "test_a_notice_without_a_time_is_heard_without_one": "a notice of ECS's is a time",
            **dict.fromkeys(
                (
                    "test_a_notice_is_heard_behind_what_does_not_take_the_machine",
                    "test_what_does_not_take_the_machine_is_no_notice",
                ),
                "the path that is read has nothing but the reclaim of the machine itself",
            ),
        }
    )

    @pytest.fixture
    def machine(self, service, monkeypatch):
        with troubled_services() as troubled:
            yield NodeOfTheService(service, monkeypatch, troubled)


@pytest.mark.parametrize("name", ["iZbp13znx0m0me8cquu001Z", ""])
def test_a_host_name_without_a_number_is_no_rank(service, name):
    service.said["meta-data/hostname"] = Answer(200, name.encode())
    with pytest.raises(TransientError, match=f"hostname is '{name}', which does not end in a number"):
        node_identity()


def test_metadata_that_is_not_there_yet_is_waited_for(service):
    service.said["meta-data/private-ipv4"] = Answer(404)
    with pytest.raises(TransientError, match="has no meta-data/private-ipv4 yet"):
        node_identity()


def test_one_token_serves_until_four_fifths_of_its_life(service):
    now = 0.0
    metadata = EcsMetadata(monotonic=lambda: now)
    metadata.get("meta-data/instance-id")
    now = 0.79 * 21600
    metadata.get("meta-data/instance-id")
    assert service.requests.count("api/token") == 1
    now = 0.8 * 21600
    assert metadata.get("meta-data/instance-id") == "i-bp13znx0m0me8cquu001"
    assert service.requests.count("api/token") == 2


def test_a_token_that_has_run_out_is_replaced(service):
    metadata = EcsMetadata()
    metadata.get("meta-data/instance-id")
    service.now += timedelta(hours=7)  # the machine slept
    assert metadata.get("meta-data/instance-id") == "i-bp13znx0m0me8cquu001"
    assert service.requests.count("api/token") == 2


def test_a_service_that_knows_no_tokens_is_asked_without(service):
    service.said["api/token"] = Answer(404)
    service.view.facts["http-tokens"] = "optional"
    metadata = EcsMetadata()
    assert metadata.get("meta-data/instance-id") == "i-bp13znx0m0me8cquu001"
    metadata.get("meta-data/instance-id")
    assert service.requests == ["api/token", "meta-data/instance-id", "meta-data/instance-id"]


def test_in_normal_mode_a_token_is_used_all_the_same(service):
    service.view.facts["http-tokens"] = "optional"
    assert EcsMetadata().get("meta-data/instance-id") == "i-bp13znx0m0me8cquu001"
    assert service.requests[0] == "api/token"


def test_a_machine_that_is_hardened_later_is_asked_with_a_token(service):
    service.said["api/token"] = Answer(404)
    service.view.facts["http-tokens"] = "optional"
    metadata = EcsMetadata()
    metadata.get("meta-data/instance-id")
    service.said.clear()
    service.view.facts["http-tokens"] = "required"
    assert metadata.get("meta-data/instance-id") == "i-bp13znx0m0me8cquu001"


def test_a_disabled_service_is_not_asked_for_ever(service):
    service.view.facts["http-endpoint"] = "disabled"
    with pytest.raises(TransientError, match=r"gave no token \(HTTP 403\)"):
        EcsMetadata().get("meta-data/instance-id")
    assert service.requests == ["api/token"]


def test_not_found_and_empty_both_mean_that_there_is_no_notice(service):
    source = AliyunNoticeSource()
    assert source.poll() is None
    for empty in (b"", b"\n"):
        service.said[TERMINATION] = Answer(200, empty)
        assert source.poll() is None


def test_a_time_that_cannot_be_read_is_a_notice_without_one(service, caplog):
    service.said[TERMINATION] = Answer(200, b"2026-11-20 at noon")
    assert AliyunNoticeSource().poll().deadline is None
    assert "'2026-11-20 at noon', which is not a time" in caplog.text


def test_a_page_of_words_tells_nothing(service):
    service.said[TERMINATION] = Answer(200, b"<h1>404 - Not Found</h1>")
    with pytest.raises(TransientError, match="'<h1>404 - Not Found</h1>', which is not a time"):
        AliyunNoticeSource().poll()


def test_an_error_of_the_service_tells_nothing(service):
    service.said[TERMINATION] = Answer(500)
    with pytest.raises(TransientError, match=f"answered 500 to {re.escape(TERMINATION)}"):
        AliyunNoticeSource().poll()


def test_where_the_environment_forbids_the_service_it_is_not_asked(service, monkeypatch):
    monkeypatch.setenv(DISABLED, "true")
    with pytest.raises(CloudspotError, match="ALIBABA_CLOUD_ECS_METADATA_DISABLED=true"):
        node_identity()
    assert service.requests == []
