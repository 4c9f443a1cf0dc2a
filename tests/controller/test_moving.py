"""Moves by hand: whom they move and where to, when they are refused, and who completes them."""

import pytest
from controller.test_loop import House, outcomes
from support.worlds.simnodes import Script

from cloudspot.controller.moving import Target, has_moved, is_given_up, plan_move
from cloudspot.errors import CapacityError, CloudspotError
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.layout.records import Seat
from cloudspot.model import EndReason, Market
from cloudspot.testing import plaincalls

AT = 10_000.0


@pytest.fixture
def plan(records):
    """``plan(target, *launches, ...)``: the move of a job whose newest generation has these nodes."""
    offers = [
        records.offer(zone, market, price)
        for zone, market, price in (
            ("z-a", "spot", 0.3),
            ("z-b", "spot", 0.4),
            ("z-a", "on-demand", 1.0),
        )
    ]

    def plan(target, *launches, nodes=2, seats=None, at=AT, **changes):
        if seats is not None:
            changes["generations"] = (records.generation(1, seats=seats),)
        spec = records.spec(nodes={"min": nodes, "max": nodes})
        return plan_move(
            spec, records.history(*launches, **changes), offers, records.at(at), Target(**target)
        )

    return plan


@pytest.fixture
def two(records):
    """Two spot nodes in z-a."""
    return records.launch(1, intent=records.intent(num_nodes=2, offer=records.offer(zone="z-a")))


BOTH = [(1, 0), (1, 1)]
ELSEWHERE = {"zone": "z-b"}


def test_all_nodes_are_stood_in_for_in_one_launch_and_the_market_stays(plan, two):
    launch = plan(ELSEWHERE, two, seats=BOTH)
    assert (launch.launch, launch.num_nodes, launch.min_nodes, launch.why) == (2, 2, 2, "moved")
    assert launch.stands_in_for == (Seat(1, 0), Seat(1, 1))
    assert (launch.offer.zone, launch.offer.market) == ("z-b", Market.SPOT)


def test_the_type_and_any_zone_stay_where_only_the_market_is_named(plan, two):
    launch = plan({"market": Market.ON_DEMAND}, two, seats=BOTH)
    assert (launch.offer.market, launch.offer.instance_type) == (
        Market.ON_DEMAND,
        two.intent.offer.instance_type,
    )


def test_who_is_there_already_stays(plan, records):
    gone = {"i-1-0": records.certificate()}
    intent = records.intent(num_nodes=2, offer=records.offer(zone="z-a"))
    here = records.launch(1, intent=intent, certificates=gone)
    there = records.launch(2, intent=records.intent(2, offer=records.offer(zone="z-b")))
    launch = plan(ELSEWHERE, here, there, seats=[(1, 1), (2, 0)])
    assert launch.stands_in_for == (Seat(1, 1),)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"zone": "z-a"}, "all nodes of job digits-1 already run on such machines: spot/z-a/"),
        (
            {"zone": "z-x"},
            "there is no offer of .* in zone z-x [(]spot[)]; to see all offers, run: cloudspot plan",
        ),
        ({"instance_type": "huge"}, "there is no offer of huge [(]spot[)]"),
    ],
)
def test_a_move_to_nowhere_is_refused(plan, two, target, said):
    with pytest.raises(CloudspotError, match=said):
        plan(target, two, seats=BOTH)


def test_a_job_that_is_being_moved_is_not_moved_again(plan, records, two):
    stand_ins = records.launch(2, intent=records.intent(2, num_nodes=2, why="moved", stands_in_for=BOTH))
    with pytest.raises(CloudspotError, match="is already being moved; to follow it, run: cloudspot attach"):
        plan(ELSEWHERE, two, stand_ins, seats=BOTH)


def test_a_job_without_a_training_or_at_its_end_is_not_moved(plan, records, two):
    with pytest.raises(
        CloudspotError, match=r"is not training now \(launching\): there is nothing to move yet"
    ):
        plan(ELSEWHERE, two)
    gone = records.launch(1, intent=records.intent(num_nodes=2), outcome="succeeded")
    with pytest.raises(CloudspotError, match="job digits-1 has succeeded: there is nothing to move"):
        plan(ELSEWHERE, gone, seats=BOTH)
    kept = records.launch(1, intent=records.intent(num_nodes=2), kept=records.kept())
    with pytest.raises(CloudspotError, match="job digits-1 has failed: there is nothing to move"):
        plan(ELSEWHERE, kept, seats=BOTH)


def test_an_offer_that_was_refused_is_left_alone_for_a_while(plan, records, two):
    refused = records.capacity(2, at=AT - 10, offer=records.offer(zone="z-b"))
    with pytest.raises(CapacityError, match="was refused or lost a short time ago; try again in 50 s"):
        plan(ELSEWHERE, two, refused, seats=BOTH)
    assert plan(ELSEWHERE, two, refused, seats=BOTH, at=AT + 50).launch == 3


def test_there_are_never_more_than_twice_as_many_machines_as_the_job_may_have(plan, records, two):
    generations = (records.generation(1, seats=BOTH), records.generation(2, seats=[(2, 0), (2, 1)]))
    now = records.launch(2, intent=records.intent(2, num_nodes=2))
    with pytest.raises(CloudspotError, match=r"4 machines; with 2 more, .* nodes.max \(2\): try again when"):
        plan({"zone": "z-b"}, two, now, generations=generations)


def test_a_move_is_given_up_once_the_rest_of_its_nodes_has_taken_over(records, two):
    """One of two stand-ins is lost: the other takes its place alone, and another launch has to move the rest."""
    intent = records.intent(2, num_nodes=2, why="moved", stands_in_for=BOTH)
    lost = {"i-2-1": records.certificate("i-2-1", launch=2, rank=1, end_reason="reclaimed")}
    before, after = (records.generation(n, seats=seats) for n, seats in ((1, BOTH), (2, [(1, 1), (2, 0)])))

    def ends(*generations, certificates):
        launch = records.launch(2, intent=intent, certificates=certificates)
        history = records.history(two, launch, generations=generations)
        return has_moved(history, 2), is_given_up(history, 2)

    assert ends(before, certificates={}) == (False, False)
    assert ends(before, certificates=lost) == (False, False), "the other may still take over"
    assert ends(before, after, certificates=lost) == (False, True)
    handed_over = records.generation(2, seats=[(2, 0), (2, 1)])
    assert ends(before, handed_over, certificates={}) == (True, False)
    assert ends(before, handed_over, certificates=lost)[0], "what is lost later is replaced as ever"


@pytest.fixture
def moved(records):
    """``moved()``: a house whose job trains in zone a, and whose move to zone b a driver has just intended."""

    def moved():
        house = House(records, script=Script(doubt=0.0, num_steps=120))
        controller = house.controller()
        while not house.history.commits:
            controller.run_pass()
            house.run(5)
        history = house.history
        spec = spec_from_json(history.submission.spec)
        offers = plaincalls.offers(house.cloud, spec.resources.to_model())
        launch = plan_move(spec, history, offers, history.generations[0].at, Target(zone="b"))
        assert controller.open_launch(launch, history)
        return house, controller

    return moved


@pytest.mark.full
@pytest.mark.parametrize("num_calls", range(16))
def test_a_driver_killed_at_any_call_after_its_intent_leaves_the_move_to_the_next(moved, num_calls):
    house, _ = moved()
    steps = house.steps()
    made = [next(steps, None) for _ in range(num_calls + 1)]
    assert num_calls < 15 or made[-1] is None, "the last one has come to its end"
    steps.close()
    history = house.controller().run_until_finished()
    assert [str(seat) for one in history.generations for seat in one.seats] == ["1.0", "2.0"]
    assert has_moved(history, 2)
    assert outcomes(history) == ["left", "succeeded"]
    assert len(house.cloud.machines) == 2


@pytest.mark.full
def test_a_stand_in_that_is_reclaimed_before_it_takes_over_changes_nothing(moved):
    house, controller = moved()
    while len(house.cloud.machines) < 2:
        controller.run_pass()
    house.cloud.end(house.machine(2), EndReason.RECLAIMED)
    while not is_given_up(house.history, 2):
        controller.run_pass()
        house.run(5)
    assert not has_moved(house.history, 2)
    history = controller.run_until_finished()
    assert [str(seat) for one in history.generations for seat in one.seats] == ["1.0"]
    assert history.finished.outcome == "succeeded"
