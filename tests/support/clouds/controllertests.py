"""What real controllers promise on every emulated cloud, as tests, with the cloud's plugin between them.

A subclass sets the attributes, and brings the fixture ``found``: ``found(**tables)`` returns the job's ``Town``.
"""

import os
from types import MappingProxyType

import pytest
from support.stores.one_at_a_time import OneAtATime
from support.worlds.cloud_histories import check_histories, play

from cloudspot.controller.decide import BOOT_LIMIT_SECONDS
from cloudspot.jobstore.access import parallel
from cloudspot.model import EndReason
from cloudspot.story.events import EventKind
from cloudspot.story.ledger import bill


def use_one_thread(monkeypatch):
    """Let a history depend on its seed alone."""
    monkeypatch.setattr(parallel, "ThreadPoolExecutor", OneAtATime)


def closing_texts(town):
    return [event.text for event in town.events if event.kind is EventKind.LAUNCH_ENDED]


class ControllerTests:
    """Tests of jobs whose nodes are simulated."""

    first, second = None, None
    """The places that offers name, by price."""
    zones_of_first = ()
    launch_call = None
    list_call = None
    broken, unwell = "InternalError", "ServiceUnavailable"
    """Codes of calls that fail with HTTP status 500 and 503."""
    throttled = None
    several = MappingProxyType({})
    """Options for jobs of several nodes."""
    no_capacity = ""
    """A word of a launch that was refused for lack of capacity."""
    quota_words = ()
    is_reclaim_told = True
    """Every controller can tell that a machine was reclaimed."""
    num_histories = 6
    soak_variable = None

    def sell_out_first(self, town):
        """Let launches in the first place be refused for lack of capacity."""
        for zone in self.zones_of_first:
            town.faults.capacity[zone, "*", "*"] = 0

    def found_slow(self, found, *, seed=None, **tables):
        """Found a town whose cloud may be slow, as the seed says."""
        return found(seed=seed, **tables)

    # --- capacity ---------------------------------------------------------------------------------

    @pytest.mark.full
    def test_the_first_place_has_none_and_the_second_runs_the_job(self, found):
        town = found()
        self.sell_out_first(town)
        assert town.run().finished.outcome == "succeeded"
        assert town.outcomes() == [("spot", self.first, "capacity"), ("spot", self.second, "succeeded")]
        assert self.no_capacity in closing_texts(town)[0]
        town.check_end()

    @pytest.mark.full
    def test_no_place_has_any_within_max_wait_and_the_job_is_suspended_until_one_has(self, found):
        town = found(spot={"policy": "spot", "max_wait": 300.0})
        town.faults.capacity["*", "*", "*"] = 0
        suspended = town.run()
        assert suspended.finished is None
        assert suspended.suspended.detail == "no spot capacity within spot.max_wait of 300 s"
        assert {outcome for _, _, outcome in town.outcomes()} == {"capacity"}
        assert {place for _, place, _ in town.outcomes()} == {self.first, self.second}
        assert town.host.truth.machines == {}
        assert 260 <= town.world.time < 460  # each computer's wall clock is up to 20 s off
        town.faults.capacity.clear()
        assert town.run().finished.outcome == "succeeded"
        town.check_end()

    @pytest.mark.full
    def test_without_spot_capacity_the_job_goes_on_demand_after_max_wait(self, found):
        town = found(spot={"max_wait": 120.0})
        town.faults.capacity["*", "*", "spot"] = 0
        assert town.run().finished.outcome == "succeeded"
        markets = [market for market, _, _ in town.outcomes()]
        assert markets.index("on-demand") >= 2
        # It goes on asking for spot, and takes nothing else.
        assert markets.count("on-demand") == 1
        town.check_end()

    @pytest.mark.full
    def test_a_quota_is_told_and_the_other_market_is_taken(self, found):
        town = found(spot={"max_wait": 60.0})
        town.faults.vcpu_quota["spot"] = 0
        assert town.run().finished.outcome == "succeeded"
        assert town.outcomes()[:2] == [("spot", self.first, "quota"), ("spot", self.second, "quota")]
        assert [(market, outcome) for market, _, outcome in town.outcomes()[2:]] == [
            ("on-demand", "succeeded")
        ]
        for words in self.quota_words:
            assert words in town.warnings()[0]
        town.check_end()

    @pytest.mark.full
    def test_two_nodes_are_all_or_none(self, found):
        town = found(nodes={"min": 2, "max": 2})
        for zone in self.zones_of_first:
            town.faults.capacity[zone, "*", "*"] = 1
        assert town.run().finished.outcome == "succeeded"
        assert town.outcomes() == [("spot", self.first, "capacity"), ("spot", self.second, "succeeded")]
        assert len(town.host.made) == 2
        town.check_end()

    # --- trouble ----------------------------------------------------------------------------------

    @pytest.mark.full
    def test_every_third_call_is_throttled_and_the_job_succeeds(self, found):
        town = found(nodes={"min": 2, "max": 2}, options=self.several)
        town.faults.throttle_every = 3
        assert town.run().finished.outcome == "succeeded"
        assert any(call.error == self.throttled for call in town.faults.calls)
        town.faults.throttle_every = 0
        town.check_end()

    @pytest.mark.full
    def test_an_unwell_api_costs_time_and_no_machine(self, found):
        town = self.found_slow(found, seed=None)
        town.faults.inject(self.launch_call, self.broken, happens=True)
        town.faults.inject(self.list_call, self.unwell, status=503, times=6)
        assert town.run().finished.outcome == "succeeded"
        assert len(town.host.made) == 1
        assert town.outcomes()[-1][2] == "succeeded"
        town.check_end()

    @pytest.mark.full
    def test_a_reclaimed_machine_is_followed_by_another(self, found):
        town = found()

        def reclaim():
            yield 25.0
            machine = next(iter(town.host.truth.machines.values()))
            town.host.truth.end(machine, EndReason.RECLAIMED)

        town.world.start(reclaim())
        assert town.run().finished.outcome == "succeeded"
        assert len(town.outcomes()) == 2
        assert town.outcomes()[1][2] == "succeeded"
        if self.is_reclaim_told:
            assert town.outcomes()[0][2] == "reclaimed"
            (proof,) = town.history.launches[0].certificates.values()
            assert proof.end_reason is EndReason.RECLAIMED
        town.check_end()

    @pytest.mark.full
    def test_a_machine_that_hangs_in_its_boot_is_ended_and_paid_for(self, found):
        town = found()
        live = town.host.truth._node

        def hang():
            return
            yield

        town.host.truth._node = lambda machine: live(machine) if len(town.host.made) > 1 else hang()
        assert town.run().finished.outcome == "succeeded"
        assert [outcome for _, _, outcome in town.outcomes()] == ["voided", "succeeded"]
        (hung, *_) = town.host.truth.machines
        (line,) = [one for one in bill(town.history, town.world.now()).lines if one.instance_id == hung]
        assert line.seconds >= BOOT_LIMIT_SECONDS - town.bill_seconds
        town.check_end()

    # --- histories --------------------------------------------------------------------------------

    def check_seeds(self, found, seeds):
        def slow(**tables):
            return self.found_slow(found, **tables)

        check_histories([play(slow, seed, several=self.several) for seed in seeds])

    @pytest.mark.full
    def test_controllers_that_are_killed_between_any_two_requests_never_have_two_live_attempts(self, found):
        self.check_seeds(found, range(self.num_histories))

    @pytest.mark.soak
    def test_many_histories_never_have_two_live_attempts(self, found):
        number = int(os.environ.get(self.soak_variable, "40"))
        self.check_seeds(found, range(self.num_histories, self.num_histories + number))
