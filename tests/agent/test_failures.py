"""What follows a failed training."""

from cloudspot.agent.failures import Again, Failure, GiveUp, judge
from cloudspot.agent.node import NodeMemory


def failure(step, *, seconds=1.0, has_session=True, is_stuck=False):
    return Failure(exit_code=1, step=step, seconds=seconds, has_session=has_session, is_stuck=is_stuck)


def test_twice_at_the_same_step_is_the_scripts_own_error():
    memory = NodeMemory()
    assert judge(failure(7), memory, num_restarts=0, max_restarts=3) == Again(0.0)
    assert judge(failure(7), memory, num_restarts=1, max_restarts=3) == GiveUp(
        "the training failed with exit status 1 twice at step 7"
    )


def test_a_step_further_counts_only_against_the_restarts():
    memory = NodeMemory()
    assert judge(failure(7), memory, num_restarts=0, max_restarts=2) == Again(0.0)
    assert judge(failure(8), memory, num_restarts=1, max_restarts=2) == Again(1.0)
    assert judge(failure(9), memory, num_restarts=2, max_restarts=2) == GiveUp(
        "the training failed with exit status 1 at step 9, after 2 restarts"
    )


def test_being_stuck_twice_at_a_step_is_tried_again():
    memory = NodeMemory()
    judge(failure(7, is_stuck=True), memory, num_restarts=0, max_restarts=3)
    assert judge(failure(7, is_stuck=True), memory, num_restarts=1, max_restarts=3) == Again(1.0)


def test_a_script_without_a_session_fails_for_good_only_when_it_fails_at_once_twice():
    memory = NodeMemory()
    late, early = failure(0, seconds=7200.0, has_session=False), failure(0, has_session=False)
    assert isinstance(judge(late, memory, num_restarts=0, max_restarts=9), Again)
    assert isinstance(judge(late, memory, num_restarts=1, max_restarts=9), Again)
    assert isinstance(judge(early, memory, num_restarts=2, max_restarts=9), Again)
    assert isinstance(judge(early, memory, num_restarts=3, max_restarts=9), GiveUp)
