"""What a job's launches tell of the spot market, in hours by hand."""

import random

import msgspec
import pytest

from cloudspot.jobstore.layout import codec
from cloudspot.jobstore.layout.records import NUM_MARKET_AGES, MarketSeen
from cloudspot.market.hazards import NUM_AGES, Hazards, Tally, estimate, mean_hours
from cloudspot.market.knowledge import Knowledge
from cloudspot.story.market_seen import MAX_GAP_HOURS, MAX_RECORD_WEIGHT, learned, market_seen, to_record

HOUR = 3600.0


@pytest.fixture
def seen(records):
    """``seen(launch, ...)``: what they tell, a hundred hours after the submission."""

    def tell(*launches, now=100 * HOUR, **options):
        return market_seen(records.history(*launches), records.at(now), **options).tallies

    return tell


@pytest.fixture
def held(records):
    """``held(number, since, until, outcome)``: a launch whose machines were up, in hours."""

    def make(number, since, until, outcome="reclaimed", *, num_nodes=1, asked=None, **offer):
        asked = since if asked is None else asked
        intent = records.intent(number, at=asked * HOUR, offer=records.offer(**offer), num_nodes=num_nodes)
        launch = records.launch(number, outcome=outcome, ended=until * HOUR, intent=intent)
        proofs = {
            one.instance_id: records.change(one, started_at=records.at(since * HOUR))
            for one in launch.certificates.values()
        }
        return records.change(launch, certificates=proofs)

    return make


def refused(records, number, at, outcome="capacity", **offer):
    return records.capacity(number, at=at * HOUR, outcome=outcome, offer=records.offer(**offer))


def test_a_job_that_never_launched_has_seen_nothing(seen):
    assert seen() == {}


def test_a_machine_that_was_reclaimed_is_a_loss_at_its_age_and_its_hours_are_split_by_age(seen, held):
    assert seen(held(1, 1.0, 4.5)) == {
        "a/big": Tally(losses=(0, 0, 1, 0), up_hours=(0.25, 0.75, 2.5, 0.0)),
    }
    (tally,) = seen(held(1, 0.0, 6.0)).values()
    assert (tally.losses, tally.up_hours) == ((0, 0, 0, 1), (0.25, 0.75, 3.0, 2.0))


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "stopped", "lost"])
def test_a_machine_that_the_provider_did_not_take_was_up_and_not_lost(seen, held, outcome):
    assert seen(held(1, 0.0, 2.0, outcome)) == {"a/big": Tally(up_hours=(0.25, 0.75, 1.0, 0.0))}


def test_a_machine_that_ends_itself_after_a_notice_is_lost_and_one_with_a_notice_is_still_up(records, seen):
    notices = {0: records.notice(at=1800.0)}
    drained = records.launch(notices=notices, exits={0: records.exit("drained", at=1.5 * HOUR)})
    (tally,) = seen(drained).values()
    assert (tally.losses, tally.up_hours) == ((0, 0, 1, 0), (0.25, 0.75, 0.5, 0.0))
    (tally,) = seen(records.launch(notices=notices), now=HOUR).values()
    assert (tally.losses, tally.up_hours) == ((0, 0, 0, 0), (0.25, 0.75, 0.0, 0.0))
    ended = records.certificate(started=0.0, ended=1.5 * HOUR, end_reason="self")
    (tally,) = seen(records.launch(notices=notices, certificates={"i-1-0": ended})).values()
    assert tally.losses == (0, 0, 1, 0)


def test_a_machine_that_runs_is_up_from_its_request_until_now(records, seen):
    (tally,) = seen(records.launch(), now=2 * HOUR).values()
    assert (sum(tally.losses), tally.up_hours) == (0, (0.25, 0.75, 1.0, 0.0))


def test_a_machine_that_was_taken_before_it_claimed_its_seat_is_lost(records, seen):
    proof = records.certificate("i-9", rank=None, started=0.0, ended=900.0, end_reason="reclaimed")
    slots = {0: records.slot(at=950.0, detail="voided: i-9 ended before it claimed its seat")}
    (tally,) = seen(records.launch(slots=slots, certificates={"i-9": proof})).values()
    assert (tally.losses, tally.up_hours) == ((0, 1, 0, 0), (0.25, 0.0, 0.0, 0.0))


def test_the_nodes_of_a_launch_are_one_sample_that_ends_with_the_first_one_that_is_taken(records, seen, held):
    launch = held(1, 0.0, 2.0, num_nodes=3)
    later = {
        name: records.change(one, ended_at=records.at(one.rank * HOUR + HOUR))
        for name, one in launch.certificates.items()
    }
    (tally,) = seen(records.change(launch, certificates=later)).values()
    assert (tally.losses, tally.up_hours) == ((0, 0, 1, 0), (0.25, 0.75, 0.0, 0.0))


def test_machines_on_demand_and_of_another_provider_tell_nothing(seen, held):
    assert seen(held(1, 0.0, 2.0, market="on-demand")) == {}
    assert seen(held(1, 0.0, 2.0), provider="other") == {}
    assert list(seen(held(1, 0.0, 2.0), provider="sim")) == ["a/big"]


def test_a_pool_is_down_from_a_refusal_until_a_launch_gets_machines(records, seen, held):
    found = seen(refused(records, 1, 0.0), refused(records, 2, 0.5), held(3, 1.2, 2.2, "stopped", asked=1.0))
    assert found == {
        "a/big": Tally(
            up_hours=(0.25, 0.75, 0.0, 0.0),
            gains=(0, 0, 1, 0),
            down_hours=(0.25, 0.75, 0.0, 0.0),
        )
    }


def test_a_pool_is_down_from_a_loss_until_a_launch_gets_machines(seen, held):
    (tally,) = seen(held(1, 0.0, 2.0), held(2, 2.1, 3.0, "stopped")).values()
    assert tally.gains == (1, 0, 0, 0)
    assert tally.down_hours == pytest.approx((0.1, 0.0, 0.0, 0.0))


def test_a_loss_beside_a_machine_of_the_same_pool_leaves_the_pool_up(seen, held):
    """A replacement was bought at the notice, and its pool was counted as down for an hour after that."""
    (tally,) = seen(held(1, 0.0, 2.0), held(2, 1.9, 9.0), held(3, 9.5, 10.0, "stopped")).values()
    assert (sum(tally.losses), tally.gains, sum(tally.down_hours)) == (2, (0, 1, 0, 0), 0.5)


def test_a_night_in_which_nobody_asked_counts_as_an_hour_at_most(records, seen, held):
    (tally,) = seen(refused(records, 1, 0.0), held(2, 9.0, 9.0, "stopped")).values()
    assert (tally.gains, sum(tally.down_hours)) == ((0, 0, 1, 0), 1.0)
    (tally,) = seen(refused(records, 1, 0.0), refused(records, 2, 8.0), held(3, 8.5, 8.5, "stopped")).values()
    assert (tally.gains, tally.down_hours) == ((0, 0, 1, 0), (0.25, 0.75, 0.5, 0.0))


def test_a_capacity_that_is_found_after_a_night_says_that_the_market_is_about_as_usual():
    usual = mean_hours(Hazards((1.0,) * NUM_AGES, Knowledge().usual.gain).gain).sum()
    assert usual == pytest.approx(1.3, abs=0.01)
    assert pytest.approx(usual, rel=0.25) == MAX_GAP_HOURS


def test_what_comes_after_the_last_look_is_not_known(records, seen, held):
    assert seen(refused(records, 1, 5.0)) == {}
    (tally,) = seen(held(1, 0.0, 2.0)).values()
    assert sum(tally.down_hours) == 0.0


@pytest.mark.parametrize("outcome", ["quota", "refused", "voided"])
def test_a_launch_that_failed_for_another_reason_says_nothing_of_the_market(records, seen, held, outcome):
    found = seen(refused(records, 1, 0.0, outcome), held(2, 0.5, 0.5, "stopped"))
    assert found == {}


def test_a_launch_of_which_some_machines_came_has_found_capacity(records, seen, held):
    launch = held(2, 0.5, 1.0, "stopped", num_nodes=2)
    half = records.change(
        launch,
        slots={0: launch.slots[0], 1: records.slot(at=0.5 * HOUR, detail="capacity: only 1 of 2 came")},
    )
    (tally,) = seen(refused(records, 1, 0.3), half).values()
    assert tally.gains == (1, 0, 0, 0)
    assert sum(tally.down_hours) == pytest.approx(0.2)


def test_each_pool_has_its_own_tally(records, seen, held):
    found = seen(held(1, 0.0, 1.0), held(2, 0.0, 2.0, zone="b"), held(3, 0.0, 3.0, instance_type="small"))
    assert {name: sum(tally.up_hours) for name, tally in found.items()} == {
        "a/big": 1,
        "b/big": 2,
        "a/small": 3,
    }


def test_clocks_that_are_off_give_no_negative_hours(records, seen, held):
    for launches in ([held(1, 2.0, 1.0)], [refused(records, 1, 3.0), held(2, 2.0, 2.5)]):
        for tally in seen(*launches).values():
            assert min(*tally.up_hours, *tally.down_hours) >= 0.0


@pytest.mark.full
def test_many_launches_in_a_market_tell_its_hazards(records, held):
    chance, launches, at = random.Random(7), [], 0.0
    for number in range(1, 2001, 2):
        lived, lacked = chance.expovariate(0.5), chance.expovariate(4.0)
        launches += [held(number, at, at + lived), refused(records, number + 1, at + lived + lacked / 2)]
        at += lived + lacked
    found = estimate(market_seen(records.history(*launches), records.at(at * HOUR)).tallies["a/big"])
    assert found.loss == pytest.approx((0.5,) * NUM_AGES, rel=0.25)
    assert found.gain[:2] == pytest.approx((4.0, 4.0), rel=0.15)


# --- for later jobs -----------------------------------------------------------------------------

SEEN = Tally(
    losses=(1, 0, 2, 0), up_hours=(0.25, 0.5, 3.0, 9.5), gains=(0, 1, 0, 0), down_hours=(0.25, 0.125, 0, 0)
)


def test_what_was_seen_comes_back_from_its_record(records):
    record = to_record(Knowledge({"a/big": SEEN, "b/big": SEEN}), records.start)
    back = codec.decode(codec.encode(record), MarketSeen)
    assert learned([back]).tallies == {"a/big": SEEN, "b/big": SEEN}
    assert NUM_MARKET_AGES == NUM_AGES


def test_the_records_of_several_jobs_add_up(records):
    first = to_record(Knowledge({"a/big": SEEN}), records.start)
    second = to_record(Knowledge({"a/big": SEEN, "b/big": SEEN}), records.start)
    assert learned([first, second]).tallies == {"a/big": SEEN + SEEN, "b/big": SEEN}
    assert learned([]).tallies == {}


@pytest.mark.parametrize(
    "huge",
    [
        Tally(up_hours=(0, 0, 0, 1e6)),
        Tally(losses=(1e6, 0, 0, 0), up_hours=(1, 0, 0, 0)),
        Tally(gains=(1e6, 1e6, 1e6, 1e6)),
    ],
)
def test_no_record_weighs_more_than_a_few_weeks_and_its_rates_stay(records, huge):
    """Whoever writes to the bucket could make every market look as if it never lost a machine."""
    told = to_record(Knowledge({"a/big": SEEN}), records.start)
    raw = {name: list(getattr(huge, name)) for name in huge.__struct_fields__}
    forged = codec.decode(
        codec.encode(told).replace(codec.encode(told.pools["a/big"]), msgspec.json.encode(raw)), MarketSeen
    )
    assert (
        max(forged.pools["a/big"].up_hours + forged.pools["a/big"].losses + forged.pools["a/big"].gains)
        == 1e6
    )
    (tally,) = learned([forged]).tallies.values()
    assert max(
        sum(tally.losses) + sum(tally.gains), sum(tally.up_hours) + sum(tally.down_hours)
    ) == pytest.approx(MAX_RECORD_WEIGHT)
    assert tally.losses[0] * huge.up_hours[0] == pytest.approx(tally.up_hours[0] * huge.losses[0])


def test_a_record_holds_the_pools_that_were_watched_longest(records):
    pools = {f"zone-{number}/big": Tally(up_hours=(0, 0, 0, number)) for number in range(300)}
    pools["z" * 201] = Tally(up_hours=(0, 0, 0, 400))
    record = to_record(Knowledge(pools), records.start)
    assert set(record.pools) == {f"zone-{number}/big" for number in range(100, 300)}
