"""``cloudspot offers``: what a job could buy, by what the store's jobs have met."""

import pytest
from support.records.jobclock import at

from cloudspot.calls import OffersResult
from cloudspot.controller.supply.experience import leave_experience
from cloudspot.jobstore.jobs.reader import HistoryReader, write_summary
from cloudspot.jobstore.layout import keys
from cloudspot.local.provisioner import LocalProvisioner
from cloudspot.plugin.priceparts import with_extras
from cloudspot.story.report import summarise


@pytest.fixture
def experienced(jobs):
    """A store in which a job of the same name was reclaimed after six minutes, and succeeded in six more."""
    job_id = jobs.reclaimed_and_finished()
    history = HistoryReader(jobs.store, job_id).read()
    assert leave_experience(jobs.store, history, "local", at(13)) is None
    return jobs


def test_a_store_without_jobs_knows_what_is_usual_and_stays_empty(jobs, local_home, tmp_path):
    result = jobs.run("offers", str(jobs.job_file))
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[:2] == [
        "TYPE ZONE MARKET PER HOUR OF ON DEMAND LOST A DAY UNTIL LOSS WITH RESTARTS SEEN",
        "local local-a spot 0.3000 USD 30% 11.0 2h 10m 0.3115 USD usual",
    ]
    assert lines[3] == "local local-a on-demand 1.0000 USD 100% 1.0000 USD"
    assert (
        lines[5] == f"no job in {jobs.store.url} has seen this spot market yet, so usual values are assumed"
    )
    assert lines[6].endswith("a machine starts in 5m 00s (not measured yet)")
    assert result.stderr == ""
    assert [meta.key for meta in jobs.store.list_objects("")] == [keys.STORE_ID]
    assert list(local_home.iterdir()) == []


def test_what_a_job_met_in_a_zone_is_told_and_the_other_zone_is_usual(experienced):
    found = experienced.run_json("offers", str(experienced.job_file))
    assert found["num_jobs"] == 1
    spot = {one["zone"]: one for one in found["offers"] if one["market"] == "spot"}
    assert (spot["local-a"]["num_losses"], spot["local-a"]["watched_hours"]) == (1.0, pytest.approx(0.2))
    assert (spot["local-b"]["num_losses"], spot["local-b"]["watched_hours"]) == (0.0, 0.0)
    # 12 minutes at 1.658 an hour are 0.33 usual losses, so 1 loss gives a factor of (1 + 2) / (0.33 + 2) = 1.29.
    assert spot["local-a"]["hours_until_loss"] < spot["local-b"]["hours_until_loss"]
    assert spot["local-a"]["losses_per_day"] > 11.1 > spot["local-b"]["losses_per_day"]
    assert [one["zone"] for one in found["offers"]] == ["local-b", "local-a", "local-a", "local-b"]


def test_a_line_tells_from_what_it_was_learned(experienced):
    lines = experienced.run("offers", str(experienced.job_file)).stdout.splitlines()
    assert any(line.endswith("1 loss in 12m 00s") for line in lines)
    assert (
        f"SEEN: losses seen by 1 job in {experienced.store.url} during 12m 00s; usual: no job was there"
        in lines
    )


def test_a_start_is_as_long_as_in_the_newest_job_of_the_name(experienced):
    history = HistoryReader(experienced.store, "digits-7k3f").read()
    write_summary(experienced.store, summarise(history, at(13)))
    lines = experienced.run("offers", str(experienced.job_file)).stdout.splitlines()
    assert lines[-1].endswith("a machine starts in 1m 00s (as in job digits-7k3f)")


def test_a_record_that_is_malformed_costs_one_warning(experienced):
    key = keys.market_seen("local", 1, "w")
    experienced.store.put(key, b"{}")
    result = experienced.run("offers", str(experienced.job_file))
    assert result.stderr == f"warning: {key}: malformed, so not counted; delete objects that no job wrote\n"
    assert "SEEN: losses seen by 1 job" in result.stdout


def test_only_the_markets_of_the_policy_are_shown(jobs):
    on_demand = jobs.run("offers", str(jobs.job_file), "--set", "spot.policy=on-demand")
    assert [line.split()[2] for line in on_demand.stdout.splitlines()[1:3]] == ["on-demand"] * 2
    assert len(on_demand.stdout.splitlines()) == 4
    found = jobs.run_json("offers", str(jobs.job_file), "--set", "spot.policy=spot")
    assert {one["market"] for one in found["offers"]} == {"spot"}


def test_a_price_holds_all_that_a_machine_costs(jobs, monkeypatch):
    find = LocalProvisioner.offers

    def offers(self, request):
        return OffersResult(
            offers=tuple(with_extras(one, {"disk": 0.1}) for one in find(self, request).offers)
        )

    monkeypatch.setattr(LocalProvisioner, "offers", offers)
    found = jobs.run_json("offers", str(jobs.job_file))["offers"][0]
    assert (found["price_per_hour"], found["on_demand_price_per_hour"]) == (
        pytest.approx(0.4),
        pytest.approx(1.1),
    )
    assert found["price_share"] == pytest.approx(0.4 / 1.1)


def test_a_job_that_no_offer_fits_is_refused_as_by_plan(jobs, monkeypatch):
    monkeypatch.setattr(LocalProvisioner, "offers", lambda *_: OffersResult(offers=()))
    assert "has no offer that fits" in jobs.run("offers", str(jobs.job_file), status=2).stderr
