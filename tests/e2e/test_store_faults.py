"""A store that fails, goes away for a while, or loses its answers costs neither a line nor a commit."""

from __future__ import annotations

import json
import re
import time

import pytest
from acting_user import User

from cloudspot.jobstore.objectlog import ObjectStoreLogSink

SETS = ('run.env.TINY_EPOCHS="10"', 'run.env.TINY_STEP_SECONDS="0.03"')
NUM_STEPS = 10 * 20
RECLAIM = 'providers.drill.reclaims=[{launch=1, after_steps=60, notice="9s"}]'


def step_lines(user: User, job_id: str) -> list[int]:
    """Return the steps that the training printed, in the order in which the log shows them.

    Of a line that a full disk has cut off, the number may not be there, or not all of it.
    """
    sink = ObjectStoreLogSink(user.store, job_id)
    found = []
    for stream in sink.streams():
        records = list(sink.read(stream))
        assert [record.seq for record in records] == list(range(len(records)))
        lines = (re.match(r"step (\d+) loss", record.text) for record in records)
        found += [int(line[1]) for line in lines if line is not None]
    return found


def run(user: User, plan: dict[str, object], *sets: str) -> None:
    """Run the job on a store with faults, and check that nothing was lost."""
    user.home.mkdir(exist_ok=True)
    (user.home / "plan.json").write_text(json.dumps(plan))
    store = f"drill://{user.home}/store"
    user.run_tiny("rough", "--store", store, provider="drill", sets=(*SETS, *sets))
    shown = user.show("rough", "--verify")
    assert shown["state"] == "succeeded"
    assert shown["last_commit"]["verified"] is True
    assert shown["last_commit"]["step"] == NUM_STEPS
    assert step_lines(user, "rough") == list(range(NUM_STEPS))


def test_calls_fail_and_answers_of_puts_are_lost(user: User) -> None:
    run(user, {"fail_every": 7, "lose_every": 4}, RECLAIM)


@pytest.mark.soak
@pytest.mark.parametrize("plan", [{"fail_every": 3}, {"fail_every": 5}, {"lose_every": 3}], ids=str)
def test_each_alone(user: User, plan: dict[str, object]) -> None:
    run(user, plan, RECLAIM)


@pytest.mark.parametrize("seconds", [10, pytest.param(30, marks=pytest.mark.soak)])
def test_an_outage_in_the_middle(user: User, seconds: int) -> None:
    # Long enough after the submission for the training to have begun.
    start = time.time() + 6.0
    run(user, {"outages": [{"start": start, "end": start + seconds}]})
