"""The rate of losses by which a job chooses the interval of its saves."""

import msgspec
import pytest
from support.records.made_records import Records

from cloudspot.agent.delivery.loss_rate import JOINT_LOSSES_PER_SECOND, losses_per_second
from cloudspot.jobstore.layout.seals import Rescue

DAY = 86400.0
ONE_NODE_DAY = 1 / DAY


def generation(number, *, at, num_nodes=1, **changes):
    return Records().generation(number, ranks=tuple(range(num_nodes)), at=at, **changes)


def commit(number, *, at, is_last=False, rescue=None):
    record = Records().commit(number, step=int(at), at=at)
    return msgspec.structs.replace(record, is_last=is_last, rescue=rescue)


def test_a_job_without_a_history_loses_one_machine_a_node_and_day():
    assert losses_per_second([], 4) == pytest.approx(4 * ONE_NODE_DAY)
    assert losses_per_second([generation(1, at=0, num_nodes=4)], 4) == pytest.approx(4 * ONE_NODE_DAY)


def test_time_without_a_loss_makes_the_next_one_less_likely():
    history = [generation(1, at=0, num_nodes=4), commit(1, at=DAY)]
    assert losses_per_second(history, 4) == pytest.approx(4 / (5 * DAY))


def test_a_generation_that_ends_behind_its_steps_is_a_loss():
    history = [generation(1, at=0), commit(1, at=DAY), generation(2, at=DAY + 50, restored=(1, 60))]
    assert losses_per_second(history, 1) == pytest.approx(2 / (2 * DAY))


@pytest.mark.parametrize(
    "kept",
    [
        {"is_last": True},
        {"rescue": Rescue(cause="lost", lost=(1,), is_exact=False)},
    ],
    ids=["drained", "saved-by-survivors"],
)
def test_a_drain_and_a_save_of_survivors_leave_no_loss(kept):
    history = [generation(1, at=0), commit(1, at=DAY, **kept), generation(2, at=DAY + 50, restored=(1, 60))]
    assert losses_per_second(history, 1) == pytest.approx(1 / (2 * DAY))


def test_waiting_for_machines_is_no_evidence():
    history = [
        generation(1, at=0),
        commit(1, at=60, is_last=True),
        generation(2, at=30 * DAY, restored=(1, 60)),
    ]
    assert losses_per_second(history, 1) == pytest.approx(1 / (DAY + 60))


def test_the_prior_of_joint_losses_outlives_any_history():
    history = [generation(1, at=0, num_nodes=8), commit(1, at=400 * DAY)]
    assert losses_per_second(history, 8) == JOINT_LOSSES_PER_SECOND
