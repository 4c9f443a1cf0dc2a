"""Random histories with drivers that come and go, as from cron: each pass is a new process.

As in the histories of those that stay, and besides: nodes fall silent, for minutes or for ever, while
their machines run on; the store does not answer for hours; and the clocks of the passes' hosts differ by a
quarter of an hour. Never too many machines at once, none is ended that was not silent for as long as it
takes, and every job ends: a machine that has vanished or hangs is found out by those who only pass.
"""

import os
from contextlib import suppress

import pytest
from support.worlds.few_or_many import few_or_many
from support.worlds.launch_histories import JOB, first_violation, only_pass, pass_and_stay, pass_often, play
from support.worlds.simnodes import Script
from support.worlds.simulation import Odds

from cloudspot.controller.assess.memory import Memory
from cloudspot.controller.assess.observed_duration import lengthened
from cloudspot.controller.loop import Controller
from cloudspot.errors import ObjectMissing, TransientError
from cloudspot.jobstore.jobs.suspicions import write_suspicions
from cloudspot.jobstore.layout import keys

NUM_HISTORIES = 100
SILENCES = {"script": Script(hang=0.02), "nodes": (1, 1), "has_outages": True}


@pytest.mark.costly
@few_or_many(30, NUM_HISTORIES)
@pytest.mark.parametrize("drivers", [only_pass, pass_and_stay])
def test_drivers_that_pass_keep_the_protocol_and_bring_each_job_to_its_end(drivers, seeds):
    results = [play(seed, drivers=drivers) for seed in seeds]
    assert sum(one.num_launches for one in results) > 2 * len(results)
    assert sum(one.num_generations for one in results) > 0.9 * len(results)


@pytest.mark.full
@few_or_many(30, NUM_HISTORIES)
@pytest.mark.parametrize("drivers", [only_pass, pass_and_stay])
def test_the_silent_are_ended_and_an_outage_of_the_store_is_nobodys_death(drivers, seeds):
    results = [play(seed, drivers=drivers, **SILENCES) for seed in seeds]
    # One that hangs for ever takes its hour.
    assert sum(one.seconds > 3600 for one in results) > 0.2 * len(results)


SOAK_HISTORIES = int(os.environ.get("CLOUDSPOT_SOAK_HISTORIES", "200000")) // 10


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("options", [{}, SILENCES])
@pytest.mark.parametrize("drivers", [only_pass, pass_and_stay])
def test_no_history_of_very_many_goes_wrong(drivers, options):
    for seed in range(NUM_HISTORIES, SOAK_HISTORIES):
        play(seed, drivers=drivers, **options)


# --- plausible shortcuts, and that these histories find them out ----------------------------------


def lag(cloud):
    """Show machines late, and say so: what is absent too early is then often alive."""
    cloud.max_lag_seconds, cloud.absence_proves_after_seconds, cloud.lag_chance = 300.0, 330.0, 0.95


LAGGING = {
    "drivers": pass_often,
    "nodes": (1, 1),
    "change_cloud": lag,
    "odds": Odds(long_pause=0.005),
}


@pytest.mark.full
def test_nobody_is_taken_for_dead_by_a_listing_that_lags():
    assert first_violation(num_tries=60, **LAGGING) is None


@pytest.mark.full
def test_if_passes_leave_nothing_to_each_other_a_vanished_node_is_never_replaced(monkeypatch):
    monkeypatch.setattr(Memory, "note_suspicions", lambda *_: None)
    assert first_violation("does not end", known=(2,), drivers=only_pass) is not None


@pytest.mark.full
def test_counting_up_to_the_passes_own_write_takes_the_living_for_dead(monkeypatch):
    # Its time is the store's own too; but the listing is as old by then as the pass was suspended.
    real = Controller._decide

    def decide(self, assessed, offers):
        mine = self._memory.suspicions(assessed.history, self._clock.now())
        if mine is not None:
            with suppress(TransientError, ObjectMissing):
                write_suspicions(self._store, JOB, mine)
                moment = self._store.head(keys.suspicions(JOB)).modified_at
                for one in mine.suspects:
                    is_timed = one.absent is not None and one.absent.until is not None
                    if is_timed and one.instance_id in self._memory._absent:
                        self._memory._absent[one.instance_id] = lengthened(one.absent, moment).seconds
        return real(self, assessed, offers)

    monkeypatch.setattr(Controller, "_decide", decide)
    assert first_violation("are there to stay", known=(11,), **LAGGING) is not None
