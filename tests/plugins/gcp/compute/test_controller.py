"""Real controllers on the strict Compute Engine over HTTP, with the plugin between them; simulated nodes."""

import os

import pytest
from cloud_histories import Town, check_histories, play
from launch_histories import OneAtATime
from requests.adapters import HTTPAdapter

from cloudspot.jobfile.spec import decode_options
from cloudspot.jobstore import parallel
from cloudspot.model import EndReason
from cloudspot.story.events import LaunchClosed
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.provider import GcpProvider
from cloudspot_gcp.request import request_id
from cloudspot_gcp_sandbox.strict_compute import StrictCompute

NUM_HISTORIES = 6
FIRST, SECOND = "us-central1", "us-east1"
BULK_INSERT = "compute.regionInstances.bulkInsert"


class FatefulAdapter(HTTPAdapter):
    """Others run, and controllers die, before each request and after each answer."""

    def __init__(self, town):
        super().__init__()
        self._town = town

    def send(self, *args, **kwargs):
        self._town.meet_fate()
        answer = super().send(*args, **kwargs)
        self._town.meet_fate()
        return answer


class FatefulClients(GcpClients):
    """As a process of its own has them, but for the login."""

    def __init__(self, town):
        super().__init__(project=town.project)
        self._found = (town.credentials, town.project)
        self._town = town

    def _make_compute(self, kind):
        client = super()._make_compute(kind)
        client._transport._session.mount("http://", FatefulAdapter(self._town))
        return client


class GcpTown(Town):
    """A job on the emulated Google Cloud."""

    provider_name = "gcp"
    zones = ("us-central1-a", "us-central1-b", "us-east1-b")
    faults_of_the_api = (("rateLimitExceeded", 403), ("internalError", 500), ("backendError", 503))

    def __init__(self, door, clients, *, operation_seconds=0.0, **tables):
        self._door = door
        self.project = clients.project
        self.credentials = clients.credentials()
        super().__init__(**tables)
        self.compute.operation_seconds = operation_seconds

    def options(self):
        return {
            "project": self.project,
            "regions": [FIRST, SECOND],
            "zones": list(self.zones),
            "machine_types": ["n2-standard-4"],
            "image_has_cloudspot": True,
        }

    def emulate(self):
        self._door.faults.__init__()
        self.compute = StrictCompute(
            self.host,
            identities=self._door.identities,
            faults=self._door.faults,
            clock=self.unix_time,
            project=self.project,
        )
        self._door.app = self.compute
        return self._door.faults

    def provider(self):
        provider = GcpProvider(decode_options(self.spec, "gcp", GcpOptions))
        provider._clients = FatefulClients(self)
        return provider

    def zone_of(self, emulated):
        return emulated.metadata["zone"]

    def instance_id_of(self, emulated):
        return "/".join(str(emulated.metadata[part]) for part in ("zone", "name", "id"))

    def check_leftovers(self):
        self.compute.machines.refresh()
        assert self.compute.machines.shown() == []
        assert self.compute.site.policies == {}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(parallel, "ThreadPoolExecutor", OneAtATime)


@pytest.fixture
def found(compute_door, cloud):
    """``found(**tables)``: found a town."""
    return lambda **tables: GcpTown(compute_door, cloud.clients, **tables)


def closing_texts(town):
    return [event.text for event in town.events if isinstance(event, LaunchClosed)]


# --- capacity -------------------------------------------------------------------------------------


def test_the_first_regions_zones_have_none_and_the_other_region_runs_the_job(found):
    town = found()
    town.faults.capacity["us-central1-a", "*", "*"] = 0
    town.faults.capacity["us-central1-b", "*", "*"] = 0
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", FIRST, "capacity"), ("spot", SECOND, "succeeded")]
    assert "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" in closing_texts(town)[0]
    town.check_end()


def test_a_region_with_one_zone_that_has_machines_runs_the_job_there(found):
    town = found(nodes={"min": 2, "max": 2})
    town.faults.capacity["us-central1-a", "*", "*"] = 1
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", FIRST, "succeeded")]
    assert {one.zone for one in town.host.truth.machines.values()} == {"us-central1-b"}
    town.check_end()


def test_no_region_has_any_within_max_wait_and_the_job_fails(found):
    town = found(spot={"policy": "spot", "max_wait": 300.0})
    town.faults.capacity["*", "*", "*"] = 0
    finished = town.run().finished
    assert (finished.outcome, finished.exit_code) == ("failed", 1)
    assert finished.detail == "no spot capacity within spot.max_wait of 300 s"
    assert {outcome for _, _, outcome in town.outcomes()} == {"capacity"}
    assert town.host.truth.machines == {}
    town.check_end()


def test_without_spot_capacity_the_job_goes_on_demand_after_max_wait(found):
    town = found(spot={"max_wait": 120.0})
    town.faults.capacity["*", "*", "spot"] = 0
    assert town.run().finished.outcome == "succeeded"
    markets = [market for market, _, _ in town.outcomes()]
    assert markets == ["spot"] * (len(markets) - 1) + ["on-demand"]
    town.check_end()


def test_a_quota_is_told_and_the_other_market_is_taken(found):
    town = found(spot={"max_wait": 60.0})
    town.faults.vcpu_quota["spot"] = 0
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [
        ("spot", FIRST, "quota"),
        ("spot", SECOND, "quota"),
        ("on-demand", FIRST, "succeeded"),
    ]
    assert "Quota 'PREEMPTIBLE_CPUS' exceeded" in town.warnings()[0]
    assert "ask for more under IAM & Admin > Quotas" in town.warnings()[0]
    town.check_end()


def test_machines_that_are_preempted_while_they_are_created_are_followed_by_others(found):
    town = found()
    town.host.reclaim = lambda machine_id, *, notice_seconds: town.host.truth.end(
        next(iter(town.host.truth.machines.values())), EndReason.RECLAIMED
    )
    town.faults.inject("preemption", "")
    assert town.run().finished.outcome == "succeeded"
    # It was gone before it had claimed its rank.
    assert [outcome for _, _, outcome in town.outcomes()] == ["voided", "succeeded"]
    assert town.history.launches[0].closed.machines[0].end_reason == "reclaimed"
    town.check_end()


def test_an_operation_that_is_done_with_an_error_costs_a_launch_and_leaves_nothing(found):
    town = found(nodes={"min": 2, "max": 2})
    town.faults.inject(f"operation {BULK_INSERT}", "INTERNAL_ERROR", message="so it is", happens=True)
    town.is_rightful = lambda machine: False  # What a launch that failed has left has no right to run.
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes()[0] == ("spot", FIRST, "capacity")
    assert "so it is (INTERNAL_ERROR)" in closing_texts(town)[0]
    town.check_end()


def test_every_third_call_is_throttled_and_the_job_succeeds(found):
    town = found(nodes={"min": 2, "max": 2}, options={"placement_policy": "auto"})
    town.faults.throttle_every = 3
    assert town.run().finished.outcome == "succeeded"
    assert any(call.error == "rateLimitExceeded" for call in town.faults.calls)
    town.faults.throttle_every = 0
    town.check_end()


def test_an_unwell_api_costs_time_and_no_machine(found):
    town = found(operation_seconds=15.0)
    town.faults.inject(BULK_INSERT, "internalError", happens=True)
    town.faults.inject("compute.instances.aggregatedList", "backendError", status=503, times=6)
    assert town.run().finished.outcome == "succeeded"
    assert len(town.host.made) == 1
    assert town.outcomes()[-1][2] == "succeeded"
    town.check_end()


def test_a_reclaimed_machine_is_followed_by_another(found):
    town = found()

    def reclaim():
        yield 25.0
        machine = next(iter(town.host.truth.machines.values()))
        town.host.truth.end(machine, EndReason.RECLAIMED)

    town.world.start(reclaim())
    assert town.run().finished.outcome == "succeeded"
    assert [outcome for _, _, outcome in town.outcomes()] == ["reclaimed", "succeeded"]
    assert town.history.launches[0].closed.machines[0].end_reason == "reclaimed"
    town.check_end()


def test_the_placement_policy_and_stopped_machines_go_with_the_job(found):
    town = found(nodes={"min": 2, "max": 2}, options={"placement_policy": "auto"})
    assert town.run().finished.outcome == "succeeded"
    assert town.faults.count("compute.resourcePolicies.insert") == 1
    town.check_end()


def test_the_intents_bytes_are_what_compute_engine_gets(found):
    town = found()
    town.run()
    intent = town.journal[0]
    (call,) = [call for call in town.faults.calls if call.action == BULK_INSERT]
    assert call.parameters["requestId"] == request_id(intent.token)
    assert call.parameters["body"] == intent.request.body["bulk_insert"]


# --- histories ------------------------------------------------------------------------------------


def histories(found, seeds):
    def slow(*, seed, **tables):
        return found(seed=seed, operation_seconds=[0.0, 0.0, 20.0][seed % 3], **tables)

    towns = [play(slow, seed, several={"placement_policy": "auto"}) for seed in seeds]
    check_histories(towns)


def test_controllers_that_are_killed_between_any_two_requests_never_have_two_live_attempts(found):
    histories(found, range(NUM_HISTORIES))


@pytest.mark.soak
def test_many_histories_never_have_two_live_attempts(found):
    number = int(os.environ.get("CLOUDSPOT_SOAK_GCP", "40"))
    histories(found, range(NUM_HISTORIES, NUM_HISTORIES + number))
