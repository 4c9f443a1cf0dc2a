"""What a node reads of the metadata server, against the emulated one on a port of this machine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from types import MappingProxyType

import pytest
from support.clouds.troubled_service import troubled_services

from cloudspot.agent.notices.notice_poller import poll_notices
from cloudspot.emulation.cloud import Answer, MachineView, Request, StandingNotice
from cloudspot.errors import TransientError
from cloudspot.local.metadataservice import MetadataServer
from cloudspot.model import Instance, InstanceState, Market, PreemptionNotice
from cloudspot.testing.machine import Machine, OtherEvent, Trouble
from cloudspot.testing.nodekit import NodeIdentityTests, PreemptionSourceTests
from cloudspot_gcp.attributes import NOTICE_SECONDS
from cloudspot_gcp.metadata import HOST, GcePreemptionSource, Metadata, node_identity
from cloudspot_gcp.provider import GcpProvider
from cloudspot_gcp_sandbox.metadata_server import GceMetadata

NAME = "cs-digits-0a1b2c3d-4-1"
NOTICE = PreemptionNotice(deadline=None, action="terminate", source="metadata")
FACTS = {
    "hostname": f"{NAME}.us-central1-a.c.my-project-123.internal",
    "id": 7000000000000000001,
    "image": "projects/p/global/images/i",
    "ip": "10.128.0.9",
    "machine-type": "g2-standard-8",
    "name": NAME,
    "numeric-project-id": 123456789012,
    "project-id": "my-project-123",
    "scheduling": {"provisioningModel": "SPOT"},
    "service-accounts": [],
    "token-seed": "seed",
    "zone": "us-central1-a",
}


PREEMPTED = ("/computeMetadata/v1/instance/preempted", {"metadata-flavor": "Google"})


class Service(GceMetadata):
    """The emulated server, which keeps what it was asked, and may answer otherwise for once."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        super().__init__(MachineView(address="10.128.0.9", facts=FACTS, tags=lambda: self.tags))
        self.asked: list[str] = []
        self.instead: list[Answer] = []
        self.said: dict[str, bytes] = {}
        self.knows_long_polls = True

    def answer(self, request: Request) -> Answer:
        self.asked.append(request.path.removeprefix("/computeMetadata/v1/"))
        if self.instead and "preempted" in request.path:
            return self.instead.pop(0)
        if self.asked[-1] in self.said:
            return Answer(200, self.said[self.asked[-1]])
        if not self.knows_long_polls:
            request = Request(request.method, request.path.partition("?")[0], request.headers)
        return super().answer(request)

    def preempt(self) -> None:
        self.view.notice = StandingNotice(deadline=datetime.now(timezone.utc))

    def long_polls(self) -> list[str]:
        return [path for path in self.asked if "wait_for_change" in path]


@pytest.fixture
def service(monkeypatch) -> Iterator[Service]:
    service = Service()
    server = MetadataServer(service, "127.0.0.1")
    monkeypatch.setenv(HOST, server.url.removeprefix("http://"))
    yield service
    service.preempt()  # Ends whoever still waits.
    server.close()


class Naps:
    """Sleeps no time, and keeps how much was asked for."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class NodeOfTheService(Machine):
    instance = Instance(
        id=f"us-central1-a/{NAME}/7000000000000000001", state=InstanceState.RUNNING, job_id="digits",
        launch=4, rank=1, address="10.128.0.9", zone="us-central1-a", instance_type="g2-standard-8",
        market=Market.SPOT,
    )  # fmt: skip

    notice_seconds = 30.0

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch, troubled) -> None:
        self.service, self.monkeypatch, self.troubled = service, monkeypatch, troubled

    def provider(self) -> GcpProvider:
        return GcpProvider()

    def give_notice(self, deadline: datetime | None) -> None:
        self.service.preempt()

    def give_other_event(self, event: OtherEvent) -> None:
        if event is not OtherEvent.FREEZE:
            raise NotImplementedError
        self.service.said["instance/maintenance-event"] = b"MIGRATE_ON_HOST_MAINTENANCE"

    def silence(self) -> None:
        self.monkeypatch.setenv(HOST, "127.0.0.1:1")

    def trouble_with(self, trouble: Trouble) -> None:
        self.monkeypatch.setenv(HOST, self.troubled(trouble).removeprefix("http://"))


class TestNodeKit(PreemptionSourceTests, NodeIdentityTests):
    deviations = MappingProxyType(
        {
            **dict.fromkeys(
                (
                    "test_a_notice_is_heard_behind_what_does_not_take_the_machine[another machine]",
                    "test_what_does_not_take_the_machine_is_no_notice[another machine]",
                ),
                "the server tells of its own machine alone",
            ),
            **dict.fromkeys(
                (
                    "test_a_notice_is_heard_behind_what_does_not_take_the_machine[reboot]",
                    "test_what_does_not_take_the_machine_is_no_notice[reboot]",
                ),
                "the server tells of no reboots",
            ),
        }
    )
    states_deadline = False

    @pytest.fixture
    def machine(self, service, monkeypatch):
        with troubled_services() as troubled:
            yield NodeOfTheService(service, monkeypatch, troubled)


def test_a_machine_that_is_not_spot_says_so(service):
    service.view.facts["scheduling"] = {"provisioningModel": "STANDARD"}
    assert node_identity().market is Market.ON_DEMAND


def test_a_machine_is_told_from_another_of_its_name(service):
    before = node_identity().instance_id
    service.view.facts["id"] = 7000000000000000002
    assert before != GcpProvider().node_identity().instance_id == f"us-central1-a/{NAME}/7000000000000000002"


def test_a_machine_that_is_none_of_cloudspots_has_no_rank(service):
    service.view.facts["name"] = "my-workstation"
    with pytest.raises(TransientError, match="instance/name is 'my-workstation', which has no rank"):
        node_identity()


def test_an_error_of_the_server_tells_nothing(service):
    service.instead = [Answer(503)]
    with pytest.raises(TransientError, match="answered 503 to instance/preempted"):
        GcePreemptionSource().poll()


def test_what_does_not_say_that_it_is_googles_is_not_believed(service):
    service.instead = [Answer(200, b"TRUE")]
    with pytest.raises(TransientError, match="is not Google's metadata server"):
        GcePreemptionSource().poll()


@pytest.mark.parametrize(
    ("attribute", "seconds"), [(None, 30.0), ("0", 30.0), ("30", 30.0), ("120", 120.0), ("x", 30.0)]
)
def test_a_notice_is_as_long_as_the_launch_asked_for(service, attribute, seconds):
    service.tags = {} if attribute is None else {NOTICE_SECONDS: attribute}
    assert GcePreemptionSource().notice_seconds == seconds


# --- the notice -------------------------------------------------------------------------------------


def test_a_wait_ends_with_the_preemption_by_one_long_poll_with_the_last_version(service, wait_until):
    source, heard = GcePreemptionSource(), []
    known = Metadata().read("instance/preempted")
    stopped = threading.Event()
    threading.Thread(
        target=poll_notices, args=(source, heard.append, lambda: None, stopped), daemon=True
    ).start()
    wait_until(service.long_polls)
    (long_poll,) = service.long_polls()
    before = time.monotonic()
    service.preempt()
    wait_until(lambda: heard)
    stopped.set()
    assert long_poll.startswith("instance/preempted?wait_for_change=true&timeout_sec=")
    assert long_poll.endswith(f"&last_etag={known.etag}")
    assert heard[0].notice == NOTICE
    # Without a stated time, the deadline counts from now.
    assert before + 30.0 <= heard[0].deadline <= time.monotonic() + 30.0


def test_a_preemption_between_two_waits_is_not_slept_through(service):
    source = GcePreemptionSource()
    assert source.wait(0.0) is None
    service.preempt()
    assert source.wait(3600.0) == NOTICE
    assert service.long_polls() == []


def test_a_wait_that_nothing_ends_returns_when_its_time_is_up(service):
    assert GcePreemptionSource().wait(1.9) is None  # so there is a whole second left after the first look
    (long_poll,) = service.long_polls()
    assert "timeout_sec=1&" in long_poll


@pytest.mark.parametrize("failure", [Answer(503), Answer(200, b"captured by a portal")])
def test_a_long_poll_that_breaks_is_made_again(service, failure):
    naps = Naps()
    source = GcePreemptionSource(monotonic=naps.monotonic, sleep=naps.sleep)
    service.instead = [service.answer(Request("GET", *PREEMPTED)), failure]
    service.asked.clear()

    def sleep(seconds):
        naps.sleep(seconds)
        service.preempt()

    source._sleep = sleep
    assert source.wait(3600.0) == NOTICE
    assert naps.slept == [1.0]


def test_a_server_that_stays_away_is_told_of(service):
    source = GcePreemptionSource(sleep=lambda _: None)
    service.instead = [service.answer(Request("GET", *PREEMPTED)), Answer(503), Answer(503)]
    with pytest.raises(TransientError, match="answered 503"):
        source.wait(3600.0)


def test_a_server_that_knows_no_long_poll_is_asked_each_second(service):
    naps = Naps()
    source = GcePreemptionSource(monotonic=naps.monotonic, sleep=naps.sleep)
    service.knows_long_polls = False
    assert source.wait(10.0) is None
    assert naps.slept == [1.0] * 10


def test_a_maintenance_event_is_logged_once_and_is_no_notice(service, caplog):
    service.view.facts["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    source = GcePreemptionSource()
    with caplog.at_level(logging.WARNING, logger="cloudspot"):
        assert [source.poll() for _ in range(25)] == [None] * 25
        assert source.wait(0.0) is None
    assert [record.name for record in caplog.records] == ["cloudspot.gcp.metadata"]
    assert "TERMINATE_ON_HOST_MAINTENANCE" in caplog.text
    assert service.asked.count("instance/maintenance-event") == 4
    service.view.facts["maintenance-event"] = "NONE"
    source.wait(0.0)
    service.view.facts["maintenance-event"] = "MIGRATE_ON_HOST_MAINTENANCE"
    source.wait(0.0)
    assert "MIGRATE_ON_HOST_MAINTENANCE" in caplog.text
