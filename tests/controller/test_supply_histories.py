"""Random histories of the protocol of supply, by seed: real controllers, job store and agents' verdict.

Two or three controllers run the real loop against the real job store, and people move the job. They are
interleaved at every call, suspended inside calls for up to a quarter of an hour, and killed; answers are lost,
tokens expire, listings lag, launches come smaller, machines die with and without a notice, hang in their boot,
fall silent, or come up long after everybody has given them up; nodes take each other for lost without reason.
Whatever happens: never more than ``nodes.max`` machines are there to stay, nor twice as many in all; no user code
runs in a seat that is void or another's; no committed step is lost, nor a drain that steady nodes have sealed; no
healthy member is sent away without a stand-in; the job ends, and nothing runs on.
"""

import dataclasses
import itertools
import os
import random

import msgspec
import pytest
from support.worlds.few_or_many import few_or_many
from support.worlds.launch_histories import first_violation, play, violation_of
from support.worlds.simnodes import Script

from cloudspot.controller import deaths, loop, reap
from cloudspot.controller import decide as decide_module
from cloudspot.controller.actions import Create, OpenLaunch, VoidSeat
from cloudspot.controller.assess import assessment, limits
from cloudspot.controller.decide import decide
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.nodes.seats import seats_of

NUM_HISTORIES = 400
TOO_MANY = "are there to stay"


# --- the protocol ---------------------------------------------------------------------------------


@pytest.mark.costly
@few_or_many(100, NUM_HISTORIES)
def test_every_history_keeps_the_protocol_and_comes_to_its_end(seeds):
    results = [play(seed) for seed in seeds]
    # They are worth something only if much goes wrong in them.
    assert sum(one.num_launches for one in results) > 2 * len(results)
    assert sum(one.num_generations for one in results) > 1.3 * len(results)
    assert sum(one.outcome == "stopped" for one in results) > 0


@pytest.mark.full
@few_or_many(20, 100)
def test_nodes_that_hang_are_told_from_the_dead_and_from_those_that_go_on(seeds):
    for seed in seeds:
        play(seed, script=Script(hang=0.02))


@pytest.mark.full
def test_people_who_move_a_long_job_at_any_moment_cost_it_no_step_and_no_healthy_node():
    results = [play(seed, moves=2, script=Script(num_steps=90)) for seed in range(60)]
    assert sum(one.num_stand_ins for one in results) > 0.2 * len(results)


@pytest.mark.full
@few_or_many(30, 300)
def test_people_who_resume_the_job_at_any_moment_start_no_second_one(seeds):
    results = [play(seed, resumes=True, nodes=(1, 1)) for seed in seeds]
    assert sum(one.num_resumptions > 0 for one in results) > len(seeds) / 6
    assert sum(one.num_resumptions > 1 for one in results) > len(seeds) / 60


def share_over_limit(seeds, **options):
    """Play long jobs with a limit that most of them reach; return the share that passes it of those that do."""
    passed = []
    for seed in seeds:
        max_cost = random.Random(seed).uniform(0.1, 2.0)
        one = play(seed, max_cost=max_cost, script=Script(num_steps=90), **options)
        if one.stop_reason == "max_cost":
            passed.append(one.money > max_cost)
    assert len(passed) > len(seeds) / 5
    return sum(passed) / len(passed)


@pytest.mark.full
def test_a_limit_on_cost_holds_but_for_late_looks_and_slow_stops():
    # Each history checks that nothing else has passed the limit; here drivers are suspended for a quarter of an hour.
    assert share_over_limit(range(150)) < 0.4


@pytest.mark.full
def test_a_limit_on_cost_holds_where_no_driver_is_suspended():
    # Few pass it at all: those whose stop takes longer than it should.
    assert share_over_limit(range(50), is_calm=True) < 0.2


@pytest.mark.full
def test_a_limit_that_does_not_count_the_stop_is_passed_by_what_the_stop_costs(monkeypatch):
    monkeypatch.setattr(limits, "stop_seconds", lambda history: 0.0)
    assert share_over_limit(range(50), is_calm=True) > 0.8


@pytest.mark.full
def test_decide_is_pure_in_whatever_histories_bring(change_decisions):
    seen = set()

    def decide_twice(actions, *args):
        before = repr(args)
        assert decide(*args) == actions
        assert repr(args) == before
        seen.update(type(getattr(action, "record", action)).__name__ for action in actions)
        return actions

    change_decisions(decide_twice)
    for seed in range(60):
        play(seed)
    assert seen == {
        "FetchOffers",
        "OpenLaunch",
        "Create",
        "Announce",
        "VoidSeat",
        "Certify",
        "Finished",
        "Terminate",
        "CleanUp",
        "Release",
        "Repriced",
        "Postpone",
    }


SOAK_HISTORIES = int(os.environ.get("CLOUDSPOT_SOAK_HISTORIES", "100000"))
SOAK_BLOCK = 5000


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(NUM_HISTORIES, SOAK_HISTORIES, SOAK_BLOCK))
def test_very_many_histories_keep_the_protocol(first):
    for seed in range(first, min(first + SOAK_BLOCK, SOAK_HISTORIES)):
        play(seed)


# --- plausible shortcuts, and that these histories find them out ----------------------------------


@pytest.fixture
def change_decisions(monkeypatch):
    """Return a function that puts another ``decide`` in the place of the real one."""

    def change(new):
        monkeypatch.setattr(loop, "decide", lambda *args: new(decide(*args), *args))

    return change


@pytest.fixture
def change_seats(monkeypatch):
    """Return a function that puts other ``seats_of`` in the place of the real ones, for decisions alone."""

    def change(new):
        monkeypatch.setattr(assessment, "seats_of", lambda *args: new(seats_of(*args), *args))

    return change


def test_if_unclaimed_seats_do_not_count_too_many_machines_come(change_seats, change_decisions):
    def claimed(seats, launches, generations):
        taken = {Seat(one.number, rank) for one in launches for rank in one.claimed}
        return dataclasses.replace(seats, live=seats.live & taken)

    def create_first(actions, assessed, observed):
        waiting = [one.number for one in assessed.history.live_launches if not observed.machines_of(one)]
        kept = [one for one in actions if not isinstance(one, OpenLaunch)]
        return (*kept, *map(Create, waiting)) if waiting else actions

    change_seats(claimed)
    change_decisions(create_first)
    assert first_violation(TOO_MANY, known=(1,)) is not None


def forget_seats(change_seats, gone):
    """Count the seats in ``gone`` as if they were void already."""
    change_seats(lambda seats, *_: dataclasses.replace(seats, live=seats.live - gone))


@pytest.mark.full
def test_without_a_void_after_a_refusal_too_many_machines_come(change_decisions, change_seats):
    gone = set()

    def note(actions, *args):
        gone.update(one.seat for one in actions if isinstance(one, VoidSeat))
        return tuple(one for one in actions if not isinstance(one, VoidSeat))

    forget_seats(change_seats, gone)
    change_decisions(note)
    assert first_violation(TOO_MANY, known=(0,)) is not None


@pytest.mark.full
def test_if_a_void_is_taken_for_granted_too_many_machines_come(change_decisions, change_seats):
    gone = set()

    def note(actions, *args):
        gone.update(one.seat for one in actions if isinstance(one, VoidSeat))
        return actions

    forget_seats(change_seats, gone)
    change_decisions(note)
    assert first_violation(TOO_MANY, known=(5,)) is not None


def test_if_silence_is_death_too_many_machines_come(monkeypatch):
    real = deaths.certificates

    def certificates(history, observed, now):
        silent = {
            history.launches[seat.launch - 1].claimed[seat.rank].instance_id
            for seat, seconds in observed.silent_seconds.items()
            if seconds >= 20.0
        }
        listed = observed.instances or ()
        absent = {**observed.absent_seconds, **dict.fromkeys(silent, 9000.0)}
        shown = tuple(one for one in listed if one.id not in silent)
        changed = dataclasses.replace(
            observed, instances=None if observed.instances is None else shown, absent_seconds=absent
        )
        return real(history, changed, now)

    monkeypatch.setattr(decide_module, "certificates", certificates)
    assert first_violation(TOO_MANY, known=(0,), script=Script(hang=0.02)) is not None


def test_if_absence_is_death_at_once_too_many_machines_come():
    def change(cloud):
        cloud.absence_proves_after_seconds = 0.0

    assert first_violation(TOO_MANY, known=(5,), change_cloud=change) is not None


def test_if_seats_are_not_read_user_code_runs_twice_in_one():
    def change(cloud):
        cloud.token_seconds = 20.0

    options = {"script": Script(heeds_seats=False), "nodes": (1, 1), "change_cloud": change}
    assert first_violation("run user code in the same seat", known=(37,), **options) is not None


@pytest.mark.full
def test_if_a_node_with_a_stand_in_may_get_another_too_many_machines_come(monkeypatch):
    monkeypatch.setattr("cloudspot.controller.moving.room", lambda spec, seats, **_: 9)
    monkeypatch.setattr("cloudspot.controller.moving.Assessment", WithoutPrincipals)
    assert first_violation("more machines than twice nodes.max", known=(13,), moves=6) is not None


class WithoutPrincipals(assessment.Assessment):
    @property
    def seats(self):
        return dataclasses.replace(super().seats, principals={})


@pytest.mark.full
def test_if_the_reaper_ends_who_has_a_notice_drained_steps_are_lost(monkeypatch):
    real = reap._reason_to_end

    def why(history, seats, instance, observed, now):
        launch = (
            history.launches[instance.launch - 1] if 1 <= instance.launch <= len(history.launches) else None
        )
        has_notice = launch is not None and instance.rank in launch.notices
        return "it has a notice" if has_notice else real(history, seats, instance, observed, now)

    monkeypatch.setattr(reap, "_reason_to_end", why)
    assert first_violation("every right to run", known=(52,)) is not None


def test_appending_after_a_lost_race_is_refused_by_the_journal(monkeypatch):
    real = Journal.append

    def append(self, record, number):
        while not real(self, record, number):
            number += 1
        return True

    monkeypatch.setattr(Journal, "append", append)
    with pytest.raises(ValueError, match="would contradict those before it"):
        first_violation()


@pytest.mark.full
def test_with_seats_a_token_of_any_age_gives_one_machine_of_each(change_decisions):
    def replay_for_ever(actions, assessed, observed):
        return decide(assessed, dataclasses.replace(observed, intent_seconds={}))

    change_decisions(replay_for_ever)
    violations = [str(one) for seed in range(100) if (one := violation_of(seed)) is not None]
    # A seat whose intent has no age is not made void for that no machine came, so that a job may wait for ever.
    waits = "the job does not end", "a warm survivor is let go although there are capacity and a controller"
    assert [one for one in violations if one not in waits] == []
    assert len(violations) < 5


def render_again(monkeypatch):
    """Let every ``create`` send what it would ask for now, with the launch's old token."""
    real, zones = Journal.request, itertools.cycle("ab")

    def request(self, launch):
        found = real(self, launch)
        return msgspec.structs.replace(found, body={**found.body, "zone": next(zones)})

    monkeypatch.setattr(Journal, "request", request)


@pytest.mark.full
def test_with_seats_rendering_again_costs_money_and_nothing_else(monkeypatch):
    render_again(monkeypatch)
    assert first_violation(num_tries=100) is None


@pytest.mark.full
def test_without_a_reaper_machines_run_on(monkeypatch):
    monkeypatch.setattr(decide_module, "reapable", lambda *_: ())
    assert first_violation("run on") is not None


@pytest.mark.full
def test_a_reaper_with_records_older_than_its_listing_ends_machines_that_have_a_right_to_run(monkeypatch):
    real = loop.Controller._read_history

    def read_first(self, listing, problems):
        read_before = real(self, listing, problems)
        real(self, self._list_instances(problems), problems)  # which the assessment takes then
        return read_before

    monkeypatch.setattr(loop.Controller, "_read_history", read_first)
    assert first_violation("every right to run") is not None


@pytest.mark.full
def test_without_a_boot_limit_a_job_hangs_with_its_machine(monkeypatch):
    monkeypatch.setattr(decide_module, "BOOT_LIMIT_SECONDS", float("inf"))
    assert first_violation("does not end", known=(105,)) is not None
