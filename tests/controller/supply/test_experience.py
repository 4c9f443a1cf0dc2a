"""What one job saw of the market reaches the next one, and stops neither."""

import random

import pytest
from support.worlds.simcloud import SimCloud, SimProvider
from support.worlds.simnodes import Script, SimAgents
from support.worlds.simulation import SimStore, World

from cloudspot.controller.loop import Controller
from cloudspot.controller.supply.experience import leave_experience, read_experience
from cloudspot.errors import AuthError, TransientError
from cloudspot.jobstore.jobs.job_lists import list_live
from cloudspot.jobstore.jobs.removal import remove_job
from cloudspot.jobstore.layout import codec, keys
from cloudspot.model import EndReason
from cloudspot.story.events import EventKind
from cloudspot.story.market_seen import market_seen

JOB = "digits-1"


class House:
    """A job in a store, with a cloud that takes its first machine after half an hour."""

    def __init__(self, records, **tables):
        self.world = World(random.Random(0), calm_at=0.0)
        self.store = SimStore(self.world)
        submission = records.history().submission
        spec = {**submission.spec, **tables}
        self.store.put(keys.spec(JOB), codec.encode(records.change(submission, spec=spec)))
        self.store.put(keys.index(JOB), b"")
        script = Script(doubt=0.0, num_steps=40)
        self.cloud = SimCloud(
            self.world,
            max_nodes=1,
            node=SimAgents(self.world, lambda: self.cloud, lambda: self.store, script=script, min_nodes=1),
            is_rightful=lambda machine: False,
        )

    def controller(self):
        return Controller(
            self.store, JOB, SimProvider(self.cloud), clock=self.world.clock(), sleep=self.world.sleep
        )

    def finish(self):
        """Drive the job to its end; return what it was warned of."""
        warned, is_taken = [], []

        def look(tick):
            warned.extend(one.text for one in tick.events if one.kind is EventKind.WARNED)
            if tick.history.generations and not is_taken:
                is_taken.append(True)
                self.cloud.end(next(iter(self.cloud.machines.values())), EndReason.RECLAIMED)

        history = self.controller().run_until_finished(look)
        assert history.finished.outcome == "succeeded"
        return history, warned

    @property
    def kept(self):
        return [meta.key for meta in self.store.list_objects("market/")]


@pytest.fixture
def house(records):
    return House(records)


@pytest.mark.full
def test_what_a_job_saw_is_kept_when_it_is_settled_and_read_by_the_next(house):
    history, warned = house.finish()
    assert (len(house.kept), warned) == (1, [])
    found = read_experience(house.store, "sim")
    assert (found.num_jobs, found.problem) == (1, "")
    seen = market_seen(history, house.world.now()).tallies
    assert sum(sum(tally.losses) for tally in seen.values()) == 1
    assert found.knowledge.tallies.keys() == seen.keys()
    for name, tally in found.knowledge.tallies.items():
        assert tally.losses == seen[name].losses
        assert tally.up_hours == pytest.approx(seen[name].up_hours, abs=1e-3)


@pytest.mark.full
def test_it_outlives_the_job(house):
    house.finish()
    remove_job(house.store, JOB, num_threads=1)
    assert list(house.store.list_objects("jobs/")) == []
    assert read_experience(house.store, "sim").num_jobs == 1


def test_a_driver_lists_it_once_however_often_it_buys_and_leaves_nothing_before_the_end(house):
    asked = []
    for name in ("put", "get", "list_page"):
        method = getattr(house.store, name)

        def noting(key, *arguments, method=method, **options):
            asked.append(key)
            return method(key, *arguments, **options)

        setattr(house.store, name, noting)
    controller = house.controller()
    while len(house.cloud.machines) < 2:
        if controller.tick().history.commits and len(house.cloud.machines) == 1:
            house.cloud.end(next(iter(house.cloud.machines.values())), EndReason.RECLAIMED)
        house.world.sleep(5)
    assert [key for key in asked if key.startswith("market/")] == [keys.market_prefix("sim")]


def test_a_job_on_demand_leaves_nothing(records):
    house = House(records, spot={"policy": "on-demand"})
    controller = house.controller()
    controller.run_until_finished()
    assert house.kept == []


@pytest.mark.full
@pytest.mark.parametrize("error", [TransientError("the store is away"), AuthError("no right to market/")])
def test_a_store_that_does_not_take_it_costs_a_warning_and_the_job_is_settled(house, error):
    put = house.store.put

    def refuse(key, data, **options):
        if key.startswith("market/"):
            raise error
        put(key, data, **options)

    house.store.put = refuse
    _, warned = house.finish()
    assert warned == [f"what the job saw of the spot market is not kept for later jobs: {error}"]
    assert list_live(house.store) == {}


@pytest.mark.full
def test_not_even_a_bug_in_it_keeps_a_job_from_being_settled(house, monkeypatch):
    monkeypatch.setattr("cloudspot.controller.supply.experience.to_record", lambda seen, now: 1 / 0)
    _, warned = house.finish()
    assert "ZeroDivisionError" in warned[0]
    assert list_live(house.store) == {}


@pytest.mark.full
@pytest.mark.parametrize("error", [TransientError("the store is away"), AuthError("no right")])
def test_a_store_that_does_not_answer_has_seen_nothing(house, error):
    def fail(*_arguments, **_options):
        raise error

    house.store.list_page = fail
    found = read_experience(house.store, "sim")
    assert (found.num_jobs, found.knowledge.tallies) == (0, {})
    assert found.problem == f"what earlier jobs saw of the spot market is not known: {error}"


@pytest.mark.full
def test_malformed_records_are_not_counted_and_told_in_one_line(house):
    house.finish()
    broken = [keys.market_seen("sim", number, f"w{number}") for number in (1, 2, 3)]
    for key in broken:
        house.store.put(key, b"{}")
    found = read_experience(house.store, "sim")
    assert found.num_jobs == 1
    assert (
        found.problem
        == f"{broken[2]} and 2 more: malformed, so not counted; delete objects that no job wrote"
    )


def test_a_job_without_spot_launches_writes_nothing(records, house):
    history = records.history(records.launch(intent=records.intent(offer=records.offer(market="on-demand"))))
    assert leave_experience(house.store, history, "sim", records.at(100)) is None
    assert house.kept == []
