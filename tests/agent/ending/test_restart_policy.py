"""What follows a failed training."""

import pytest

from cloudspot.agent.ending.restart_policy import (
    FAILED,
    NOT_CONNECTED,
    STUCK,
    Failure,
    GiveUp,
    has_connected,
    judge,
)
from cloudspot.agent.node import NodeMemory
from cloudspot.agent.rank_reports import RankError


def failure(step, *, seconds=1.0, has_session=True, why=FAILED):
    return Failure(exit_code=1, step=step, seconds=seconds, has_session=has_session, why=why)


def test_twice_at_the_same_step_is_the_scripts_own_error():
    memory = NodeMemory()
    assert judge(failure(7), memory, num_restarts=0, max_restarts=3) == 0.0
    assert judge(failure(7), memory, num_restarts=1, max_restarts=3) == GiveUp(
        "the training failed with exit status 1 twice at step 7"
    )


def test_a_step_further_counts_only_against_the_restarts():
    memory = NodeMemory()
    assert judge(failure(7), memory, num_restarts=0, max_restarts=2) == 0.0
    assert judge(failure(8), memory, num_restarts=1, max_restarts=2) == 1.0
    assert judge(failure(9), memory, num_restarts=2, max_restarts=2) == GiveUp(
        "the training failed with exit status 1 at step 9, after 2 restarts"
    )


def test_being_stuck_twice_at_a_step_is_tried_again():
    memory = NodeMemory()
    judge(failure(7, why=STUCK), memory, num_restarts=0, max_restarts=3)
    assert judge(failure(7, why=STUCK), memory, num_restarts=1, max_restarts=3) == 1.0


def test_a_script_without_a_session_fails_for_good_only_when_it_fails_at_once_twice():
    memory = NodeMemory()
    late, early = failure(0, seconds=7200.0, has_session=False), failure(0, has_session=False)
    assert isinstance(judge(late, memory, num_restarts=0, max_restarts=9), float)
    assert isinstance(judge(late, memory, num_restarts=1, max_restarts=9), float)
    assert isinstance(judge(early, memory, num_restarts=2, max_restarts=9), float)
    assert isinstance(judge(early, memory, num_restarts=3, max_restarts=9), GiveUp)


def test_ranks_that_do_not_come_together_are_no_error_of_the_script_and_may_do_so_elsewhere():
    """A port that was taken twice ended the job."""
    memory = NodeMemory()
    unconnected = failure(7, why=NOT_CONNECTED)
    assert judge(unconnected, memory, num_restarts=0, max_restarts=2) == 0.0
    assert judge(unconnected, memory, num_restarts=1, max_restarts=2) == 1.0
    found = judge(unconnected, memory, num_restarts=2, max_restarts=2)
    assert found == GiveUp("the training could not connect its ranks, after 2 restarts", permanent=False)
    assert memory.failure_streak == 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (("torch.distributed.DistNetworkError", "EADDRINUSE"), False),
        (("torch.distributed.DistStoreError", "timed out"), False),
        (("builtins.RuntimeError", "Gloo connectFullMesh failed with ..."), False),
        (("builtins.RuntimeError", "mat1 and mat2 shapes cannot be multiplied"), True),
        (("builtins.ValueError", "connectFullMesh"), True),
    ],
)
def test_only_errors_of_connecting_are_taken_for_such(error, expected):
    assert has_connected(RankError(type=error[0], message=error[1])) is expected
