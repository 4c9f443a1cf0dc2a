"""A job that was stopped goes on with the same state, as itself or as the beginning of another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from e2e.test_kills import check_end
from e2e.test_ordered_stop import newest_step
from e2e.test_random_faults import settings
from support.jobs.acting_user import User, wait_for

pytestmark = pytest.mark.full


CALM = settings(1, step_seconds=0.0)
SLOW = (*settings(1, step_seconds=0.05), 'checkpoint.interval="10m"')


def stop_in_the_middle(user: User, name: str) -> int:
    """Run the job to the middle, and stop it; return the step at which it was saved."""
    cli = user.start_tiny(name, sets=SLOW)
    wait_for("step 60 of 240", lambda: newest_step(user) >= 60)
    user.cloudspot("stop", name, "--wait", status=10)
    wait_for("the end of the run", lambda: cli.poll() is not None)
    step = user.show(name)["last_commit"]["step"]
    assert isinstance(step, int)
    return step


def test_a_stopped_job_that_is_resumed_ends_like_one_that_nothing_disturbed(
    user: User, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    step = stop_in_the_middle(user, "halved")
    done = user.cloudspot("resume", "halved", "--set", "run.env.TINY_STEP_SECONDS=0")
    assert f", at step {step}" in done.stdout
    check_end(user, "halved")
    shown = user.show("halved")
    assert [turn["what"] for turn in shown["turns"]] == ["stopped", "resumed", "succeeded"]
    assert shown["final"]["weights_sha256"] == undisturbed(CALM)["final"]["weights_sha256"]
    assert [one["restored"] for one in shown["generations"]] == [None, {"generation": 1, "step": step}]
    assert shown["steps_lost"] == 0
    assert len(shown["ledger"]) == 2


@pytest.mark.soak
def test_a_fork_ends_like_the_job_that_it_was_forked_from(
    user: User, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    step = stop_in_the_middle(user, "parent")
    user.cloudspot("fork", "parent", "--name", "child", "--set", "run.env.TINY_STEP_SECONDS=0")
    user.cloudspot("rm", "parent", "--yes")
    check_end(user, "child")
    shown = user.show("child")
    assert shown["forked_from"] == {"id": "parent", "step": step}
    assert shown["final"]["weights_sha256"] == undisturbed(CALM)["final"]["weights_sha256"]
