"""What follows a failed training."""

import msgspec
import pytest
from support.records.made_records import Records

from cloudspot.agent.ending.restart_policy import (
    FAILED,
    NOT_CONNECTED,
    STUCK,
    Failure,
    GiveUp,
    decide_restart,
    fingerprint_of,
    has_connected,
    restarts_in_a_row,
    saved_without_progress,
)
from cloudspot.agent.node import NodeMemory
from cloudspot.agent.rank_reports import RankError
from cloudspot.jobstore.layout.records import CheckpointId
from cloudspot.jobstore.layout.seals import Rescue


def failure(step, *, seconds=1.0, has_session=True, why=FAILED, fingerprint="exit status 1"):
    return Failure(
        exit_code=1, step=step, seconds=seconds, has_session=has_session, why=why, fingerprint=fingerprint
    )


def test_twice_at_the_same_step_is_the_scripts_own_error():
    memory = NodeMemory()
    assert decide_restart(failure(7), memory, num_restarts=0, max_restarts=3) == 0.0
    assert decide_restart(failure(7), memory, num_restarts=1, max_restarts=3) == GiveUp(
        "the training failed with exit status 1 twice at step 7"
    )


def test_failing_otherwise_at_the_same_step_counts_only_against_the_restarts():
    memory = NodeMemory()
    for number, fingerprint in enumerate("abab"):
        found = decide_restart(
            failure(7, fingerprint=fingerprint), memory, num_restarts=number, max_restarts=4
        )
        assert found == 2.0**number - 1.0
    assert isinstance(
        decide_restart(failure(7, fingerprint="b"), memory, num_restarts=4, max_restarts=9), GiveUp
    )


def test_what_may_come_from_outside_counts_only_against_the_restarts():
    memory = NodeMemory()
    for number in range(3):
        found = decide_restart(failure(7, fingerprint=None), memory, num_restarts=number, max_restarts=3)
        assert found == 2.0**number - 1.0
    assert decide_restart(failure(7, fingerprint=None), memory, num_restarts=3, max_restarts=3) == GiveUp(
        "the training failed with exit status 1 at step 7, after 3 restarts"
    )


def test_the_scripts_own_error_is_known_again_after_what_came_from_outside():
    memory = NodeMemory()
    decide_restart(failure(7), memory, num_restarts=0, max_restarts=9)
    decide_restart(failure(5, fingerprint=None), memory, num_restarts=1, max_restarts=9)
    decide_restart(failure(7, why=STUCK), memory, num_restarts=2, max_restarts=9)
    assert isinstance(decide_restart(failure(7), memory, num_restarts=3, max_restarts=9), GiveUp)


def test_a_memory_of_an_earlier_version_counts_as_another_failure():
    memory = NodeMemory(failed_at_step=7)
    assert decide_restart(failure(7), memory, num_restarts=1, max_restarts=9) == 1.0


def test_a_step_further_counts_only_against_the_restarts():
    memory = NodeMemory()
    assert decide_restart(failure(7), memory, num_restarts=0, max_restarts=2) == 0.0
    assert decide_restart(failure(8), memory, num_restarts=1, max_restarts=2) == 1.0
    assert decide_restart(failure(9), memory, num_restarts=2, max_restarts=2) == GiveUp(
        "the training failed with exit status 1 at step 9, after 2 restarts"
    )


def test_being_stuck_twice_at_a_step_is_tried_again():
    memory = NodeMemory()
    decide_restart(failure(7, why=STUCK), memory, num_restarts=0, max_restarts=3)
    assert decide_restart(failure(7, why=STUCK), memory, num_restarts=1, max_restarts=3) == 1.0


def test_a_script_without_a_session_fails_for_good_only_when_it_fails_at_once_twice():
    memory = NodeMemory()
    late, early = failure(0, seconds=7200.0, has_session=False), failure(0, has_session=False)
    assert isinstance(decide_restart(late, memory, num_restarts=0, max_restarts=9), float)
    assert isinstance(decide_restart(late, memory, num_restarts=1, max_restarts=9), float)
    assert isinstance(decide_restart(early, memory, num_restarts=2, max_restarts=9), float)
    assert isinstance(decide_restart(early, memory, num_restarts=3, max_restarts=9), GiveUp)


def test_checkpoints_of_other_nodes_are_no_progress_of_one_that_cannot_resume():
    """Between its failures the first node committed, and the job went on for ever."""
    memory = NodeMemory()
    found = [
        decide_restart(
            Failure(
                7,
                step,
                1.0,
                has_session=False,
                why=FAILED,
                fingerprint="exit status 7",
                contributes_part=False,
            ),
            memory,
            num_restarts=1,
            max_restarts=9,
        )
        for step in (42, 48)
    ]
    assert found == [1.0, GiveUp("the training failed with exit status 7 twice at step 48")]


def test_ranks_that_do_not_come_together_are_no_error_of_the_script_and_may_do_so_elsewhere():
    """A port that was taken twice ended the job."""
    memory = NodeMemory()
    unconnected = failure(7, why=NOT_CONNECTED)
    assert decide_restart(unconnected, memory, num_restarts=0, max_restarts=2) == 0.0
    assert decide_restart(unconnected, memory, num_restarts=1, max_restarts=2) == 1.0
    found = decide_restart(unconnected, memory, num_restarts=2, max_restarts=2)
    assert found == GiveUp("the training could not connect its ranks, after 2 restarts", permanent=False)
    assert memory == NodeMemory()


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


def error(message, *causes, kind="builtins.RuntimeError"):
    return RankError(type=kind, message=message, causes=causes)


@pytest.mark.parametrize("status", [128 + 1, 128 + 2, 128 + 9, 128 + 15])
def test_a_signal_that_others_send_proves_nothing(status):
    assert fingerprint_of(status, None) is None
    assert fingerprint_of(status, error("mat1 and mat2 shapes cannot be multiplied")) is None


@pytest.mark.parametrize(
    "reported",
    [
        error("[Errno 28] No space left on device: 'out/model.pt'", kind="builtins.OSError"),
        error("[Errno 122] Disk quota exceeded", kind="builtins.OSError"),
        error("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
        error("write(): fd 3 failed with No space left on device"),
        error("I/O error: No space left on device (os error 28)", kind="safetensors.SafetensorError"),
        error("cannot save", "no archive", "[Errno 28] No space left on device"),
        error("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"),
        error("NCCL error: ncclRemoteError: ...", kind="torch.distributed.DistBackendError"),
        error("wait timeout", kind="torch.distributed.DistStoreError"),
        error("[Errno 104] Connection reset by peer", kind="builtins.ConnectionResetError"),
    ],
)
def test_a_full_disk_or_a_lost_connection_proves_nothing(reported):
    assert fingerprint_of(1, reported) is None


SHAPES = error("mat1 and mat2 shapes cannot be multiplied (16x32 and 31x1)")


def test_the_same_error_is_known_again_with_other_numbers_and_whatever_its_status():
    again = error(
        "mat1 and mat2 shapes cannot be multiplied (16x32 and 29x1)\nat 0x7f03d8d3d790\n", "a cause"
    )
    assert fingerprint_of(1, SHAPES) == fingerprint_of(134, again) is not None


@pytest.mark.parametrize(
    ("status", "other"),
    [
        (1, error("CUDA out of memory")),
        (1, error(SHAPES.message, kind="builtins.ValueError")),
        (1, None),
        (139, None),
    ],
)
def test_another_error_is_another_failure(status, other):
    assert fingerprint_of(status, other) not in {fingerprint_of(1, SHAPES), fingerprint_of(3, None), None}


def test_failures_count_since_the_last_new_checkpoint():
    told = [("first", None), (FAILED, 50), ("drained", 60), (FAILED, 60), (STUCK, 60), (FAILED, 55)]
    generations = [
        msgspec.structs.replace(
            Records().generation(number, restored=None if step is None else (number - 1, step)), why=why
        )
        for number, (why, step) in enumerate(told, start=1)
    ]
    counts = [restarts_in_a_row(generations[:n], {FAILED, STUCK}) for n in range(1, len(told) + 1)]
    # 50 and 60 were progress, and 55 is none.
    assert counts == [0, 1, 0, 1, 2, 3]


def test_what_each_failure_saves_is_no_progress():
    """A script that fails a step later each time would be started without end."""
    generations = [
        msgspec.structs.replace(
            Records().generation(number, restored=None if number == 1 else (number - 1, 10 + number)),
            why="first" if number == 1 else FAILED,
        )
        for number in range(1, 5)
    ]
    saved = {one.restore_from for one in generations}
    assert restarts_in_a_row(generations, {FAILED}, saved_by_failures=saved) == 3
    assert restarts_in_a_row(generations, {FAILED}) == 1


def test_a_training_that_saves_between_its_failures_makes_progress():
    """Else a job that trains for weeks, and fails once in a day, would be given up."""
    rescue = Rescue(cause="failed", lost=(), is_exact=True)
    commits = []
    for number in (1, 2, 3):
        if number != 3:
            commits.append(Records().commit(number, 10 * number))
        commits.append(msgspec.structs.replace(Records().commit(number, 10 * number + 5), rescue=rescue))
    assert saved_without_progress(commits) == {CheckpointId(3, 35)}
    generations = [
        msgspec.structs.replace(Records().generation(number, restored=restored), why=FAILED)
        for number, restored in ((1, None), (2, (1, 15)), (3, (2, 25)), (4, (3, 35)))
    ]
    counts = [
        restarts_in_a_row(generations[:n], {FAILED}, saved_by_failures=saved_without_progress(commits))
        for n in (1, 2, 3, 4)
    ]
    assert counts == [1, 1, 1, 2]
