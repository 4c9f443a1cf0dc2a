"""A machine that is shut down by hand, or by its cloud without a notice of its own: the agent gets SIGTERM."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from e2e.test_kills import check_end, command_lines
from support.jobs.acting_user import User, wait_for

from cloudspot.train.handoff import read_progress


def newest_step(user: User) -> int:
    """Return the newest step that the training has begun on any machine."""
    found = (user.home / "machines").glob("*/node/generations/*/progress-0")
    return max((read_progress(path.parent, 0) or (0,))[0] for path in [*found] or [Path()])


@pytest.mark.full
def test_sigterm_to_the_agent_saves_the_step_and_the_job_goes_on_elsewhere(user: User) -> None:
    # Between the saves of an interval, so that only the drain's own can have kept the step.
    sets = ('run.env.TINY_EPOCHS="12"', 'run.env.TINY_STEP_SECONDS="0.05"', 'checkpoint.interval="10m"')
    cli = user.start_tiny("stopped", sets=sets)
    wait_for("step 20", lambda: newest_step(user) >= 20)
    (first,) = user.machines()
    (agent,) = (pid for pid, line in command_lines(first).items() if "-m cloudspot.agent" in line)
    os.kill(agent, signal.SIGTERM)
    wait_for("the end of the run", lambda: cli.poll() is not None, seconds=150)
    assert cli.returncode == 0, user.output(cli)[-6000:]
    check_end(user, "stopped")
    shown = user.show("stopped")
    assert [one["outcome"] for one in shown["launches"]] == ["reclaimed", "succeeded"]
    history = user.history("stopped")
    assert shown["steps_lost"] == 0
    assert [one.why for one in history.generations] == ["first", "relaunched"]
    resumed = history.generations[1].restore_from
    assert resumed is not None
    assert resumed.generation == 1
    (notice,) = shown["notices"]
    assert (notice["source"], notice["action"]) == ("SIGTERM", "stop")
