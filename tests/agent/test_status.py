"""What the agent reads of a training's progress."""

import json
import math

import pytest

from cloudspot.agent.status import MAX_METRICS_BYTES, Status
from cloudspot.jobstore.layout.records import RankLikeness
from cloudspot.train import handoff as files


def test_metrics_are_read_piece_by_piece_and_a_line_of_any_length_is_passed_over(tmp_path):
    status = Status()
    status.handoff, status.ranks = tmp_path, (0,)
    path = files.metrics_path(tmp_path, 0)
    path.write_text(json.dumps({"values": {"loss": 2.0}}) + "\n")
    assert status.metrics() == {"loss": 2.0}
    with path.open("a") as file:
        file.write("x" * (2 * MAX_METRICS_BYTES + 10) + "\n")
        file.write(json.dumps({"values": {"loss": 1.0}}) + "\n")
    assert [status.metrics() for _ in range(3)] == [{"loss": 2.0}, {"loss": 2.0}, {"loss": 1.0}]


@pytest.mark.parametrize(
    "line",
    [
        '{"values": {"loss": "0.5"}}', '{"values": {"loss": null}}', '{"values": {"loss": [1]}}', '{"values": []}',
        '{"values": {"loss": 1%s}}' % ("0" * 400), "[]", "{}", "[" * 100_000,
    ],
)  # fmt: skip
def test_what_a_training_writes_that_is_no_metric_comes_into_no_heartbeat(tmp_path, line):
    """A script may write to the file itself. No reader would take such a heartbeat."""
    status = Status()
    status.handoff, status.ranks = tmp_path, (0,)
    path = files.metrics_path(tmp_path, 0)
    path.write_text(f'{{"values": {{"loss": -Infinity}}}}\n{line}\n')
    assert status.metrics() == {"loss": -math.inf}


def test_ranks_that_have_told_nothing_of_use_are_not_known_to_be_like_the_others(tmp_path):
    status = Status()
    assert status.likeness == ()
    status.handoff, status.ranks = tmp_path, (2, 3, 4)
    said = {"rank": 2, "draws": False, "digests": [[2, "a"], [3, "b"]]}
    files.write_json(files.likeness_path(tmp_path, 2), said)
    files.likeness_path(tmp_path, 3).write_text("[]")
    files.write_json(files.likeness_path(tmp_path, 4), {**said, "rank": 4, "digests": [[2, "a"]] * 5})
    assert status.likeness == (RankLikeness(rank=2, draws=False, digests=((2, "a"), (3, "b"))),)
