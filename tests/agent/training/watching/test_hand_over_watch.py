"""What is told of ranks that hand over nothing."""

from cloudspot.agent.status import Status
from cloudspot.agent.training.watching.hand_over_watch import HandOverWatch
from cloudspot.train import handoff as files


def test_a_rank_that_hands_over_nothing_is_told_once_and_until_the_next_generation(tmp_path, caplog):
    status = Status()
    status.ranks = (2, 3)
    watch = HandOverWatch(tmp_path, status)
    watch.look()
    assert status.warnings == ()
    files.write_json(files.own_state_path(tmp_path, 3), {"problem": "it would take 2 %"})
    watch.look()
    watch.look()
    assert status.warnings == (
        "a rank's own state, such as its random generators, would be lost with it; rank 3: it would take 2 %",
    )
    assert [each.getMessage() for each in caplog.records] == [
        "rank 3 does not hand over its own state: it would take 2 %"
    ]
    files.own_state_path(tmp_path, 2).write_text("[]")
    watch.look()
    (told,) = status.warnings
    assert told.endswith("would be lost with it; rank 3: it would take 2 %; rank 2: it reports no reason")
    HandOverWatch(tmp_path / "next", status)
    assert status.warnings == ()
