"""Real controllers on the strict Compute Engine over HTTP, with the plugin between them; simulated nodes."""

from types import MappingProxyType

import pytest
from requests.adapters import HTTPAdapter
from support.clouds.controllertests import ControllerTests, closing_texts, use_one_thread
from support.worlds.cloud_histories import Town

from cloudspot.jobfile.spec import decode_options
from cloudspot.model import EndReason
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.provider import GcpProvider
from cloudspot_gcp.request import request_id
from cloudspot_gcp_sandbox.strict_compute import StrictCompute

pytestmark = pytest.mark.full


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


@pytest.fixture
def found(compute_door, cloud, monkeypatch):
    """``found(**tables)``: found a town."""
    use_one_thread(monkeypatch)
    return lambda **tables: GcpTown(compute_door, cloud.clients, **tables)


class TestControllersOnComputeEngine(ControllerTests):
    first, second = FIRST, SECOND
    zones_of_first = ("us-central1-a", "us-central1-b")
    launch_call, list_call = BULK_INSERT, "compute.instances.aggregatedList"
    broken, unwell = "internalError", "backendError"
    throttled = "rateLimitExceeded"
    several = MappingProxyType({"placement_policy": "auto"})
    no_capacity = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    quota_words = ("Quota 'PREEMPTIBLE_CPUS' exceeded", "ask for more under IAM & Admin > Quotas")
    soak_variable = "CLOUDSPOT_SOAK_GCP"

    def found_slow(self, found, *, seed=None, **tables):
        seconds = 15.0 if seed is None else [0.0, 0.0, 20.0][seed % 3]
        return found(seed=seed, operation_seconds=seconds, **tables)


def test_a_region_with_one_zone_that_has_machines_runs_the_job_there(found):
    town = found(nodes={"min": 2, "max": 2})
    town.faults.capacity["us-central1-a", "*", "*"] = 1
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", FIRST, "succeeded")]
    assert {one.zone for one in town.host.truth.machines.values()} == {"us-central1-b"}
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
    (proof,) = town.history.launches[0].certificates.values()
    assert proof.end_reason is EndReason.RECLAIMED
    town.check_end()


def test_an_operation_that_is_done_with_an_error_costs_a_launch_and_leaves_nothing(found):
    town = found(nodes={"min": 2, "max": 2})
    town.faults.inject(f"operation {BULK_INSERT}", "INTERNAL_ERROR", message="so it is", happens=True)
    town.is_rightful = lambda machine: False  # What a launch that failed has left has no right to run.
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes()[0] == ("spot", FIRST, "capacity")
    assert "so it is (INTERNAL_ERROR)" in closing_texts(town)[0]
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
