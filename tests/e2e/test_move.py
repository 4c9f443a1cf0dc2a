"""A running job moves to another market and zone: the new machine is ready before the old one stops."""

from __future__ import annotations

import pytest
from e2e.test_replacement import pauses
from e2e.test_store_faults import step_lines
from support.jobs.acting_user import User, wait_for

from cloudspot.cli.exit_codes import STOPPED


@pytest.mark.full
def test_a_job_moves_to_on_demand_in_another_zone_without_a_step_lost(user: User) -> None:
    cli = user.start_tiny("mover", sets=('run.env.TINY_EPOCHS="500"', 'run.env.TINY_STEP_SECONDS="0.05"'))
    wait_for("the first checkpoint", (user.home / "store/jobs/mover/journal/00000003").exists)
    moved = user.cloudspot("move", "mover", "--market", "on-demand", "--zone", "local-b", "--yes")
    assert "moving node 1.0 from spot/local-a/local to on-demand/local-b/local\n" in moved.stdout
    assert "job mover has moved to on-demand/local-b/local" in moved.stdout
    wait_for("a checkpoint of the new machine", lambda: user.history("mover").commits[-1].generation == 2)
    again = user.cloudspot("move", "mover", "--zone", "local-b", "--yes", status=1)
    assert (
        again.stderr
        == "error: all nodes of job mover already run on such machines: on-demand/local-b/local\n"
    )
    user.cloudspot("stop", "mover", "--wait", status=STOPPED)
    wait_for("the end of the run", lambda: cli.poll() is not None)
    shown = user.show("mover", "--verify")
    assert [(one["nodes"], one["why"]) for one in shown["generations"]] == [
        (["1.0"], "first"),
        (["2.0"], "handed-over"),
    ]
    ((_, _, seconds),) = pauses(shown)
    print(f"the training stood still for {seconds:.1f} s")
    assert [(one["why"], one["stands_in_for"], one["zone"]) for one in shown["launches"]] == [
        ("first", [], "local-a"),
        ("moved", ["1.0"], "local-b"),
    ]
    assert (shown["steps_lost"], shown["last_commit"]["verified"]) == (0, True)
    assert step_lines(user, "mover") == list(range(shown["step"]))
    # It was ready while the other trained, and that time has a name in the bill.
    assert shown["cost"]["purposes"]["standby"]["seconds"] > seconds
    assert len(user.machines()) == 2
