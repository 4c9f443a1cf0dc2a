import random

import pytest

from cloudspot.controller.reconcile import Reconciler
from cloudspot.errors import JobNotFound, PluginError
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.reader import HistoryReader
from cloudspot.model import EndReason, LaunchRequest
from cloudspot.testing.simcloud import SimCloud, SimProvider
from cloudspot.testing.simnodes import SimNode, Training
from cloudspot.testing.simulation import SimStore, World


class Town:
    """Several jobs in one store, on one cloud."""

    def __init__(self, records):
        self.records = records
        self.world = World(random.Random(0), calm_at=0.0)
        self.store = SimStore(self.world)
        self.cloud = SimCloud(
            self.world,
            min_nodes=1,
            node=lambda machine: SimNode(self.world, self.cloud, self.store, machine, Training()).live(),
            is_rightful=lambda machine: False,
        )
        self.opened = []

    def submit(self, job_id, provider="sim"):
        submission = self.records.change(self.records.history().submission, job_id=job_id, provider=provider)
        self.store.put(keys.spec(job_id), codec.encode(submission))
        self.store.put(keys.index(job_id), b"")

    def open_provider(self, name, spec):
        self.opened.append((name, spec.name))
        if name != "sim":
            raise PluginError(f'no provider "{name}" is installed')
        return SimProvider(self.cloud)

    def reconciler(self):
        return Reconciler(self.store, self.open_provider, clock=self.world.clock(), sleep=self.world.sleep)

    def stray(self, job_id, launch=1):
        """Create a machine that no controller asked for."""
        body = {"job_id": job_id, "launch": launch, "num_nodes": 1, "zone": "a", "market": "spot"}
        (machine,) = self.cloud._create(LaunchRequest(provider="sim", body=body))
        return machine


@pytest.fixture
def town(records):
    return Town(records)


def drive(town, reconciler, *, passes=60):
    told = []
    for _ in range(passes):
        told += list(reconciler.run_pass())
        town.world.run(until=town.world.time + 10)
    return told


def test_passes_drive_all_jobs_of_the_store_to_their_ends(town):
    town.submit("one")
    town.submit("two")
    drive(town, town.reconciler())
    for job_id in ("one", "two"):
        assert HistoryReader(town.store, job_id).read().finished.outcome == "succeeded"
    assert all(machine.has_ended for machine in town.cloud.machines.values())


def test_each_pass_may_be_by_a_new_process(town):
    town.submit("one")
    for _ in range(60):
        list(town.reconciler().run_pass())
        town.world.run(until=town.world.time + 10)
    assert HistoryReader(town.store, "one").read().finished.outcome == "succeeded"


def test_a_job_that_cannot_be_driven_keeps_no_other_from_it(town):
    town.submit("broken", provider="aws")
    town.store.put(keys.index("half"), b"")
    town.submit("whole")
    told = {one.job_id: one for one in town.reconciler().run_pass()}
    assert str(told["broken"].error) == 'no provider "aws" is installed'
    assert isinstance(told["half"].error, JobNotFound)
    assert told["whole"].error is None
    assert len(town.cloud.machines) == 1


def test_only_the_named_jobs_are_driven(town):
    town.submit("one")
    town.submit("two")
    assert [one.job_id for one in town.reconciler().run_pass(job_ids=["two"])] == ["two"]
    assert [one.job_id for one in town.cloud.machines.values()] == ["two"]


def test_a_settled_job_is_left_alone_until_a_machine_of_it_shows_up(town):
    town.submit("one")
    reconciler = town.reconciler()
    drive(town, reconciler)
    assert list(reconciler.run_pass()) == []
    late = town.stray("one")
    (told,) = reconciler.run_pass()
    assert told.tick.actions[0].instance_ids == (late.id,)


def test_machines_of_unknown_jobs_are_reported_and_never_ended(town):
    town.submit("one")
    stray = town.stray("elsewhere")
    ended = town.stray("elsewhere")
    town.cloud.end(ended, EndReason.SELF)
    reconciler = town.reconciler()
    list(reconciler.run_pass())
    assert [one.id for one in reconciler.orphans()] == [stray.id]
    assert not stray.has_ended
    assert [state.value for _, state in stray.states] == ["running"]
