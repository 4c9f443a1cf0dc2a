"""Random histories of jobs that fail for good, and whose machine is then kept for inspection (P7).

As in the histories of supply, and besides: trainings fail for good, or so often that a driver says so; the
nodes agree which of their machines is kept; agents hang on it; people stop it, or resume the job; the cloud
takes it back. No machine outlives its time, none is in no bill, none is ended before, and no job begins again
beside one.
"""

import dataclasses
import os

import pytest
from support.worlds.few_or_many import few_or_many
from support.worlds.launch_histories import first_violation, passing_every, play
from support.worlds.simnodes import Script

from cloudspot.controller import decide as decide_module

KEPT = {"script": Script(fails=0.3, hang=0.01), "keeps": 1200.0, "max_restarts": 1}


def pass_by(rng):
    """Drivers that come every minute, whose clocks are right to some seconds."""
    return [lambda *house: passing_every(*house, 60.0, max_skew_seconds=20.0)] * rng.randint(1, 2)


@pytest.mark.costly
@few_or_many(10, 300, portion=73)
def test_no_machine_that_is_kept_outlives_its_time_or_is_ended_before_or_is_unbilled(seeds):
    results = [play(seed, **KEPT) for seed in seeds]
    assert sum(one.num_kept for one in results) > len(results) / 4
    assert sum(one.outcome == "failed" for one in results) > len(results) / 4


@pytest.mark.full
@few_or_many(20, 150, portion=65)
def test_so_it_is_where_drivers_only_pass(seeds):
    results = [play(seed, drivers=pass_by, **KEPT) for seed in seeds]
    assert sum(one.num_kept for one in results) > len(results) / 4


@pytest.mark.full
@few_or_many(20, 150, portion=65)
def test_people_who_resume_the_job_start_nothing_beside_one(seeds):
    results = [play(seed, resumes=True, nodes=(1, 1), **KEPT) for seed in seeds]
    assert sum(one.num_kept for one in results) > len(results) / 4
    assert sum(one.num_resumptions > 0 and one.num_kept > 0 for one in results) > len(results) / 20


@pytest.mark.full
@few_or_many(20, 150, portion=65)
def test_the_limit_on_cost_holds_for_them_too(seeds):
    results = [play(seed, max_cost=0.4, **KEPT) for seed in seeds]
    assert sum(one.num_kept for one in results) > len(results) / 10


@pytest.mark.full
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(883, id="a person moves the job while one node is kept and another has yet to end"),
        pytest.param(9421, id="an agent stands still while it writes that its machine is kept"),
    ],
)
def test_what_histories_have_found_stays_mended(seed):
    assert play(seed, **KEPT).outcome == "failed"


SOAK_HISTORIES = int(os.environ.get("CLOUDSPOT_SOAK_HISTORIES", "100000")) // 10


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(300, max(301, SOAK_HISTORIES), 1000))
def test_very_many_histories_keep_them_for_their_time_alone(first):
    for seed in range(first, min(first + 1000, SOAK_HISTORIES)):
        play(seed, **KEPT)


# --- plausible shortcuts, and that these histories find them out ----------------------------------


@pytest.mark.full
def test_a_reaper_that_does_not_know_of_them_ends_them_early(monkeypatch):
    real = decide_module.reapable

    def reapable(history, seats, observed, now):
        forgetful = [dataclasses.replace(one, kept=None) for one in history.launches]
        return real(dataclasses.replace(history, launches=tuple(forgetful)), seats, observed, now)

    monkeypatch.setattr(decide_module, "reapable", reapable)
    assert first_violation("every right to run", **KEPT) is not None


@pytest.mark.full
def test_without_a_guard_and_a_reaper_an_agent_that_hangs_outlives_its_time(monkeypatch):
    monkeypatch.setattr("support.worlds.simnodes.GUARD_SECONDS", 1e9)
    monkeypatch.setattr("cloudspot.controller.reap.why_to_end", lambda *_: None)
    assert first_violation(**KEPT) is not None
