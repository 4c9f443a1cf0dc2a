"""The words for seats, each with an example of its own."""

import pytest
from support.records.made_records import Records

from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.nodes.seats import seats_of

MADE = Records()


def launch(number, num_nodes=1, *, stands_in_for=(), **fields):
    """A launch whose seats are all claimed, unless told."""
    return MADE.launch(
        number, intent=MADE.intent(number, num_nodes=num_nodes, stands_in_for=stands_in_for), **fields
    )


def trained(*generations):
    """Generations with the seats of each."""
    return tuple(MADE.generation(number, seats=seats) for number, seats in enumerate(generations, start=1))


def names(seats):
    return {str(seat) for seat in seats}


def void():
    return MADE.slot(None)


def exited(number, rank=0, outcome="drained"):
    return {rank: MADE.exit(outcome, instance_id=f"i-{number}-{rank}", launch=number, rank=rank)}


def proven(number, rank=0):
    return {f"i-{number}-{rank}": MADE.certificate(f"i-{number}-{rank}", launch=number, rank=rank)}


def test_before_the_first_launch_there_is_nothing():
    found = seats_of((), ())
    assert (found.live, found.members, found.staying, found.newcomers) == (set(), (), set(), set())


def test_a_seat_is_the_place_of_a_node_in_its_launch():
    found = seats_of([launch(1, 2), launch(2)], ())
    assert names(found.live) == {"1.0", "1.1", "2.0"}


def test_a_seat_that_nobody_has_claimed_is_live():
    found = seats_of([launch(1, 2, claimed=False)], ())
    assert names(found.live) == names(found.staying) == names(found.newcomers) == {"1.0", "1.1"}


def test_a_void_seat_is_not_live():
    found = seats_of([launch(1, 2, slots={0: void()})], ())
    assert names(found.live) == {"1.1"}


@pytest.mark.parametrize("end", [{"exits": exited(1)}, {"certificates": proven(1)}])
def test_a_seat_is_over_by_its_owners_exit_record_or_by_proof(end):
    found = seats_of([launch(1, 2, **end)], trained([(1, 0), (1, 1)]))
    assert names(found.live) == names(found.staying) == {"1.1"}


@pytest.mark.parametrize(
    "end",
    [
        {"exits": {0: MADE.exit("drained", instance_id="i-9")}},
        {"certificates": {"i-9": MADE.certificate("i-9")}},
    ],
)
def test_a_seat_is_not_over_by_the_end_of_another_machine(end):
    found = seats_of([launch(1, **end)], ())
    assert names(found.live) == {"1.0"}


def test_the_members_are_the_nodes_of_the_newest_generation_in_rank_order_even_those_that_are_over():
    launches = [launch(1, 2, exits=exited(1)), launch(2)]
    found = seats_of(launches, trained([(1, 0), (1, 1)], [(2, 0), (1, 0)]))
    assert found.members == (Seat(2, 0), Seat(1, 0))
    assert names(found.live) == {"1.1", "2.0"}


def test_a_newcomer_was_in_no_generation_yet():
    found = seats_of([launch(1, 2), launch(2)], trained([(1, 0), (1, 1)], [(1, 0)]))
    assert names(found.newcomers) == {"2.0"}


def test_a_newcomer_that_is_over_is_none():
    found = seats_of([launch(1), launch(2, exits=exited(2))], trained([(1, 0)]))
    assert found.newcomers == set()


def test_an_excluded_node_was_in_an_earlier_generation_and_is_not_in_the_newest():
    found = seats_of([launch(1, 3)], trained([(1, 0), (1, 1)], [(1, 0), (1, 2)]))
    assert names(found.excluded) == names(found.leaving) == {"1.1"}
    assert names(found.staying) == {"1.0", "1.2"}


@pytest.mark.parametrize("is_member", [True, False])
def test_a_live_node_with_a_notice_is_leaving(is_member):
    generations = trained([(1, 0), (1, 1)]) if is_member else ()
    found = seats_of([launch(1, 2, notices={1: MADE.notice(rank=1)})], generations)
    assert names(found.leaving) == {"1.1"}
    assert names(found.staying) == {"1.0"}


def test_a_node_that_is_over_leaves_no_more():
    found = seats_of([launch(1, notices={0: MADE.notice()}, certificates=proven(1))], trained([(1, 0)]))
    assert (found.leaving, found.staying) == (set(), set())


def test_a_node_for_which_a_live_seat_stands_in_is_named_and_does_not_stay():
    """From the intent on: a machine that nobody has seen yet may be on its way."""
    found = seats_of(
        [launch(1, 2), launch(2, stands_in_for=[(1, 1)], claimed=False)], trained([(1, 0), (1, 1)])
    )
    assert names(found.named) == {"1.1"}
    assert names(found.staying) == {"1.0", "2.0"}
    assert found.leaving == set()


@pytest.mark.parametrize(
    "lost",
    [
        {"slots": {0: void()}},
        {"exits": exited(2)},
        {"certificates": proven(2)},
        {"notices": {0: MADE.notice(launch=2)}},
    ],
)
def test_a_stand_in_that_is_void_or_over_or_leaves_names_nobody(lost):
    """Its seat stops counting in the same moment as that of its principal counts again."""
    found = seats_of([launch(1), launch(2, stands_in_for=[(1, 0)], **lost)], trained([(1, 0)]))
    assert found.named == set()
    assert names(found.staying) == {"1.0"}


def test_a_node_may_be_named_by_a_stand_in_that_is_named_itself():
    """The first stand-in still stands in: it is live and does not leave."""
    launches = [launch(1), launch(2, stands_in_for=[(1, 0)]), launch(3, stands_in_for=[(2, 0)])]
    found = seats_of(launches, trained([(1, 0)]))
    assert names(found.named) == {"1.0", "2.0"}
    assert names(found.staying) == {"3.0"}


def test_a_launch_may_stand_in_for_some_and_add_others():
    launches = [launch(1, 2), launch(2, 3, stands_in_for=[(1, 1), None, (1, 0)])]
    found = seats_of(launches, trained([(1, 0), (1, 1)]))
    assert found.principals == {Seat(2, 0): Seat(1, 1), Seat(2, 2): Seat(1, 0)}
    assert names(found.named) == {"1.0", "1.1"}
    assert names(found.staying) == {"2.0", "2.1", "2.2"}


def test_what_a_reader_has_not_seen_yet_makes_no_seat_stay_but_an_intent():
    """Whatever else comes, one record at a time, only takes from those that stay, or leaves them as they are."""
    before = [launch(1, 2), launch(2, stands_in_for=[(1, 1)])]
    generations = trained([(1, 0), (1, 1)])
    staying = seats_of(before, generations).staying
    assert names(staying) == {"1.0", "2.0"}
    for number, rank in [(1, 0), (1, 1), (2, 0)]:
        for news in (
            {"exits": exited(number, rank)},
            {"certificates": proven(number, rank)},
            {"notices": {rank: MADE.notice(launch=number, rank=rank)}},
        ):
            after = [MADE.change(one, **news) if one.number == number else one for one in before]
            assert len(seats_of(after, generations).staying) <= len(staying)
    for seats in ([(1, 0)], [(1, 0), (2, 0)], [(2, 0)], [(1, 1)]):
        assert len(seats_of(before, (*generations, MADE.generation(2, seats=seats))).staying) <= len(staying)
    assert len(seats_of([*before, launch(3)], generations).staying) == len(staying) + 1
