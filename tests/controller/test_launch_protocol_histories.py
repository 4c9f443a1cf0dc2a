"""Random histories of the launch protocol, by seed: real controllers and job store, simulated all else.

Two or three controllers run the real loop against the real job store. They are interleaved at every
call, suspended inside calls for up to a quarter of an hour, and killed; answers are lost, tokens
expire, listings lag, machines die with and without a notice, hang in their boot, or come up long after
everybody has given them up. Whatever happens: never two attempts alive at once, the job ends, and
nothing runs on afterwards.
"""

import dataclasses
import itertools
import os

import msgspec
import pytest
from launch_histories import first_violation, play
from simnodes import Training
from simulation import Odds

from cloudspot.controller import act, attempt, loop
from cloudspot.controller import decide as decide_module
from cloudspot.controller.actions import CloseLaunch, VoidSlot
from cloudspot.controller.decide import decide
from cloudspot.errors import CorruptData
from cloudspot.jobfile.spec import Nodes
from cloudspot.jobstore.journal import Journal
from cloudspot.model import InstanceState

NUM_HISTORIES = 800


# --- the protocol ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(2))
def test_no_history_has_two_live_attempts_and_each_comes_to_its_end(part):
    results = [play(seed) for seed in range(part, NUM_HISTORIES, 2)]
    # They are worth something only if much goes wrong in them.
    assert sum(one.num_launches for one in results) > 2 * len(results)
    assert sum(one.num_attempts for one in results) > 1.2 * len(results)
    assert sum(one.outcome == "stopped" for one in results) > 0


def test_people_who_resume_the_job_at_any_moment_start_no_second_attempt():
    results = [play(seed, resumes=True, nodes=(1, 1)) for seed in range(300)]
    assert sum(one.num_resumptions > 0 for one in results) > 50
    assert sum(one.num_resumptions > 1 for one in results) > 5


def test_decide_is_pure_in_whatever_histories_bring(change_decisions):
    seen = set()

    def decide_twice(actions, *args):
        before = repr(args)
        assert decide(*args) == actions
        assert repr(args) == before
        seen.update(type(action).__name__ for action in actions)
        return actions

    change_decisions(decide_twice)
    for seed in range(60):
        play(seed)
    assert seen == {
        "FetchOffers",
        "OpenLaunch",
        "Create",
        "Announce",
        "VoidSlot",
        "CloseLaunch",
        "Finish",
        "Terminate",
        "CleanUp",
        "Release",
        "Wait",
    }


SOAK_HISTORIES = int(os.environ.get("CLOUDSPOT_SOAK_HISTORIES", "200000"))
SOAK_BLOCK = 5000


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(NUM_HISTORIES, SOAK_HISTORIES, SOAK_BLOCK))
def test_no_history_of_very_many_has_two_live_attempts(first):
    for seed in range(first, min(first + SOAK_BLOCK, SOAK_HISTORIES)):
        play(seed)


# --- plausible shortcuts, and that these histories find them out ----------------------------------


@pytest.fixture
def change_decisions(monkeypatch):
    """Return a function that puts another ``decide`` in the place of the real one."""

    def change(new):
        monkeypatch.setattr(loop, "decide", lambda *args: new(decide(*args), *args))

    return change


def test_closing_without_a_void_gives_two_live_attempts(change_decisions):
    def close(actions, spec, history, observed, now):
        return tuple(
            CloseLaunch(history.num_records + 1, one.launch, one.outcome, one.detail, ())
            if isinstance(one, VoidSlot)
            else one
            for one in actions
        )

    change_decisions(close)
    assert first_violation("are alive at once") is not None


def test_taking_absence_as_death_at_once_gives_two_live_attempts():
    def change(cloud):
        cloud.absence_proves_after_seconds = 0.0

    assert first_violation("are alive at once", change_cloud=change) is not None


def test_taking_shutting_down_as_death_gives_two_live_attempts(monkeypatch):
    real = attempt.provider_proves_death

    def proves(instance_id, observed):
        instance = attempt.find_instance(instance_id, observed)
        is_going = instance is not None and instance.state is InstanceState.SHUTTING_DOWN
        return is_going or real(instance_id, observed)

    monkeypatch.setattr(attempt, "provider_proves_death", proves)
    # A node that hangs trains on, for all that others see, until its machine has gone down.
    options = {"training": Training(hang=0.2), "nodes": (1, 1)}
    assert first_violation("are alive at once", **options) is not None


def test_taking_silence_as_death_gives_two_live_attempts(monkeypatch):
    real = attempt.is_dead

    def is_dead(launch, rank, observed):
        is_silent = observed.silent_seconds.get((launch.number, rank), 0.0) >= 20.0
        return is_silent or real(launch, rank, observed)

    monkeypatch.setattr(decide_module, "is_dead", is_dead)
    assert first_violation("are alive at once") is not None


def test_closing_with_min_nodes_left_gives_two_live_attempts(monkeypatch):
    monkeypatch.setattr(
        loop,
        "decide",
        lambda spec, *args: decide(
            msgspec.structs.replace(spec, nodes=Nodes(min=spec.nodes.max, max=spec.nodes.max)), *args
        ),
    )
    assert first_violation("are alive at once", nodes=(1, 2)) is not None


def test_appending_after_a_lost_race_breaks_the_journal(monkeypatch):
    real = Journal.append

    def append(self, record, number):
        while not real(self, record, number):
            number += 1
        return True

    monkeypatch.setattr(Journal, "append", append)
    with pytest.raises(CorruptData, match="does not follow from the records before it"):
        first_violation()


def test_without_slots_a_late_or_expired_create_gives_two_attempts_and_two_machines_of_one_rank():
    options = {"training": Training(heeds_slots=False), "nodes": (1, 1)}
    assert first_violation("are alive at once", known=(1437,), **options) is not None
    assert first_violation("train as the same rank", known=(391,), **options) is not None


def test_with_slots_a_token_of_any_age_gives_one_machine_of_each_rank(change_decisions):
    def replay_for_ever(actions, spec, history, observed, now):
        young = dataclasses.replace(observed, token_age_seconds=0.0)
        return decide(spec, history, young, now)

    change_decisions(replay_for_ever)
    assert first_violation(num_tries=100) is None


def render_again(monkeypatch):
    """Let every ``create`` send what it would ask for now, with the launch's old token."""
    real, zones = act.Actor._create, itertools.cycle("ab")

    def create(self, launch, events):
        body = {**launch.intent.request.body, "zone": next(zones)}
        request = msgspec.structs.replace(launch.intent.request, body=body)
        intent = msgspec.structs.replace(launch.intent, request=request)
        return real(self, dataclasses.replace(launch, intent=intent), events)

    monkeypatch.setattr(act.Actor, "_create", create)


def test_without_slots_rendering_again_gives_two_machines_of_one_rank(monkeypatch):
    # Nobody is suspended in these: a token that is as young as its replay is the only guard left.
    options = {
        "odds": Odds(interrupt=0, long_pause=0),
        "nodes": (1, 1),
        "training": Training(heeds_slots=False),
    }
    assert first_violation("train as the same rank", num_tries=100, **options) is None
    render_again(monkeypatch)
    assert first_violation("train as the same rank", num_tries=100, **options) is not None


def test_with_slots_rendering_again_costs_money_and_nothing_else(monkeypatch):
    render_again(monkeypatch)
    assert first_violation(num_tries=100) is None


def test_without_a_reaper_machines_run_on(monkeypatch):
    monkeypatch.setattr(decide_module, "reapable", lambda *_: ())
    assert first_violation("run on") is not None


def test_a_reaper_with_records_older_than_its_listing_ends_machines_that_have_a_right_to_run(monkeypatch):
    real = loop.Controller._read_history

    def read_first(self, listing, problems):
        read_before, _ = real(self, listing, problems)
        _, instances = real(self, self._list_instances(problems), problems)
        return read_before, instances

    monkeypatch.setattr(loop.Controller, "_read_history", read_first)
    assert first_violation("every right to run") is not None


def test_without_a_boot_limit_a_job_hangs_with_its_machine(monkeypatch):
    monkeypatch.setattr(decide_module, "BOOT_LIMIT_SECONDS", float("inf"))
    assert first_violation("does not end", known=(112,)) is not None
