"""Which survivors save, and where."""

import pytest

from cloudspot.agent.membership.rescues import Choice, choose
from cloudspot.jobstore.layout.records import HeldState


def held(rank, boundary=7, *, before=None, step=None, digest="same", draws=False, differs=False, **more):
    return HeldState(
        rank=rank,
        boundary=boundary,
        before=boundary - 1 if before is None else before,
        step=boundary if step is None else step,
        digest=digest,
        draws=draws,
        differs=differs,
        **more,
    )


def test_the_newest_boundary_that_any_rank_holds_is_saved_by_those_that_hold_it():
    assert choose([held(2, 7), held(0, 6), held(3, 7)], world_size=4) == Choice(
        7, 7, (2, 3), (), is_exact=True
    )


def test_nothing_is_saved_where_no_rank_holds_anything():
    assert choose([], world_size=2) == "no rank holds the state of a boundary"


def test_ranks_that_are_further_apart_do_not_meet_in_each_step():
    assert "more than one apart" in choose([held(0, 5), held(1, 7)], world_size=3)


def test_of_boundaries_without_a_step_between_the_first_is_held():
    # At the end of an epoch, or where GradScaler has left out a step.
    assert choose([held(0, 5), held(1, 7, before=5)], world_size=3) == Choice(7, 7, (1,), (), is_exact=True)


def test_savers_that_hold_different_weights_save_nothing():
    assert "same weights" in choose([held(0), held(1, digest="other")], world_size=3)
    assert "same weights" in choose([held(0), held(1, step=9)], world_size=3)


def test_each_part_of_a_sharded_state_needs_a_saver():
    groups = ((0, 2), (1, 3))
    assert choose([held(0, holders=groups), held(3, holders=groups)], world_size=4) == Choice(
        7, 7, (0, 3), (), is_exact=True
    )
    reason = "only ranks that were lost held a part of the state, or knew their place in the data"
    assert choose([held(0, holders=groups), held(2, holders=groups)], world_size=4) == reason
    assert choose([held(0, holders=((0,), (1,)))], world_size=2) == reason


def test_the_boundary_before_is_saved_if_the_newest_lacks_a_part():
    groups = ((0, 2), (1, 3))
    reports = [held(0, 8, holders=groups), held(1, 7, holders=groups), held(2, 7, holders=groups)]
    assert choose(reports, world_size=4) == Choice(7, 7, (1, 2), (), is_exact=True)


@pytest.mark.parametrize(
    ("reports", "is_exact"),
    [
        ([held(0)], True),
        ([held(0, draws=True)], False),
        ([held(0, draws=True), held(1, draws=True)], True),  # nobody is lost
        ([held(1, differs=True)], False),  # rank 0's buffers count
        ([held(0, differs=True)], True),
    ],
)
def test_it_is_exact_unless_a_lost_rank_had_something_of_its_own(reports, is_exact):
    assert choose(reports, world_size=2).is_exact is is_exact


@pytest.mark.parametrize(
    ("reports", "keepers", "is_exact"),
    [
        ([held(2, draws=True, keeps=(1,))], ((1, 2),), False),  # nobody has what rank 0 had
        ([held(1, draws=True, keeps=(0,)), held(2, draws=True)], ((0, 1),), True),
        ([held(0, draws=True), held(2, draws=True, keeps=(1,))], ((1, 2),), True),
        ([held(0, draws=True, keeps=(1,)), held(2, draws=True, keeps=(1,))], ((1, 0),), True),
        ([held(1, draws=True, keeps=(0,)), held(2, draws=True, keeps=(0, 1))], ((0, 1),), True),
        ([held(1, differs=True, keeps=(0,))], ((0, 1),), True),  # rank 0's buffers are there
        ([held(1, differs=True), held(2, differs=True, keeps=())], (), False),
        # A rank that is one boundary behind saves nothing, nor what it keeps.
        ([held(1, 8, draws=True), held(2, 7, draws=True, keeps=(0,))], (), False),
    ],
)
def test_what_lost_ranks_had_is_saved_by_savers_that_keep_it(reports, keepers, is_exact):
    choice = choose(reports, world_size=3)
    assert (choice.keepers, choice.is_exact) == (keepers, is_exact)


def test_where_each_rank_alone_knows_its_place_all_have_to_be_known():
    reason = "only ranks that were lost held a part of the state, or knew their place in the data"
    assert choose([held(0, needs_all=True)], world_size=2) == reason
    choice = choose([held(0, draws=True, needs_all=True, keeps=(1,))], world_size=2)
    assert choice == Choice(7, 7, (0,), ((1, 0),), is_exact=True)
    assert choose([held(0, needs_all=True), held(1, needs_all=True)], world_size=2).is_exact
