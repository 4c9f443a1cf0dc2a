import pytest

from cloudspot.jobstore.layout.records import Seat
from cloudspot.story.inspection import keep, keeping_seconds

NODE = Seat(1, 0)


def test_a_node_is_kept_for_as_long_as_asked(records):
    spec, history = records.spec(limits={"keep_failed": 600}), records.history(records.launch())
    kept = keep(spec, history, NODE, detail="broken", exit_code=3, now=records.at(100.0))
    assert (kept.seat, kept.instance_id, kept.until) == (NODE, "i-1-0", records.at(700.0))
    assert (kept.detail, kept.exit_code) == ("broken", 3)


def test_no_node_is_kept_once_another_was_or_the_job_is_to_stop_or_is_over(records):
    spec, launch = records.spec(limits={"keep_failed": 600}), records.launch()
    for changes in ({"stop": records.stop()}, {"finished": records.finished("failed")}):
        history = records.history(launch, **changes)
        assert keep(spec, history, NODE, detail="", exit_code=1, now=records.at(100.0)) is None
    assert keep(spec, records.failed_and_kept(), NODE, detail="", exit_code=1, now=records.at(100.0)) is None


def test_a_node_is_kept_for_as_long_as_max_cost_has_room_after_the_others_have_ended(records):
    spec = records.spec(limits={"keep_failed": 3600, "max_cost": 1.0})
    history = records.history(records.launch())
    # At 1 USD an hour: 1810 s are paid, and 300 s until all machines have ended, of which it needs 120.
    assert keeping_seconds(spec, history, NODE, records.at(1820.0)) == pytest.approx(1370)
    two = records.history(records.launch(intent=records.intent(num_nodes=2)))
    assert keeping_seconds(spec, two, NODE, records.at(910.0)) == pytest.approx(1080)
    assert keeping_seconds(spec, history, NODE, records.at(3400.0)) == 0.0
    assert keep(spec, history, NODE, detail="", exit_code=1, now=records.at(3400.0)) is None
