"""What the agent reads of a training's progress."""

import json

from cloudspot.agent.status import MAX_METRICS_BYTES, Status
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
