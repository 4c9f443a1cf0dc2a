"""The two ways by which a job on Compute Engine hears of a reclaim, each alone: in the emulated Google Cloud."""

from __future__ import annotations

import os

import pytest
from support.clouds.sandboxed import run_sandboxed, weights_of
from support.jobs.acting_user import EXAMPLES, JOBS, PLUGINS
from support.jobs.isolated_machines import needs_isolated_machines

pytestmark = [
    needs_isolated_machines,
    pytest.mark.timeout(900),
]

SETS = ('run.env.TINY_STEP_SECONDS="0.06"', 'run.env.TINY_EPOCHS="9"', "providers.gcp.preemption_notice=0")


def run_deaf(user, job, *, reclaims, sets=()):
    """Run the job where machines of the second launch cannot ask whether they are preempted."""
    path = os.pathsep.join((str(PLUGINS / "deaf"), user.environ["PYTHONPATH"]))
    return run_sandboxed(
        user,
        "gcp",
        job,
        sandbox="deaf-gcp",
        arguments=[word for one in sets for word in ("--set", one)],
        options=[word for one in reclaims for word in ("--reclaim", one)],
        environ={"PYTHONPATH": path},
    )


def told(seen):
    """Return the launch and rank of each machine whose shutdown script had something to tell."""
    names = [name for name, text in seen.consoles.items() if "cloudspot: this machine goes down" in text]
    return ["-".join(name.split("-")[-2:]) for name in names]


def notices(seen):
    return [(one["launch"], one["rank"], one["source"]) for one in seen.show["notices"]]


@pytest.mark.soak
def test_a_job_is_taken_once_with_a_long_poll_and_once_with_the_shutdown_script_alone(user):
    seen = run_deaf(
        user,
        JOBS / "tiny" / "job.toml",
        sets=SETS,
        # The power button of the first comes half a minute after its notice.
        reclaims=("launch=1,after_share=0.3,notice=60s", "launch=2,after_share=0.6,notice=30s"),
    )
    assert (seen.show["state"], seen.show["steps_lost"]) == ("succeeded", 0)
    assert notices(seen) == [(1, 0, "metadata"), (2, 0, "shutdown-script")]
    assert all(one["commit"] is not None for one in seen.show["notices"])
    # The first had left by its own when its power button was pressed: there was nobody to tell.
    assert told(seen) == ["2-0"]
    assert seen.account["instances"] == []


@pytest.mark.soak
def test_the_digits_example_taken_both_ways_makes_the_weights_that_it_makes_locally(user):
    digits = EXAMPLES / "digits" / "job.toml"
    user.cloudspot("run", str(digits), "--name", "local", timeout=600)
    seen = run_deaf(
        user,
        digits,
        sets=("providers.gcp.preemption_notice=0",),
        reclaims=("launch=1,rank=0,after_share=0.3,notice=60s", "launch=2,rank=0,after_share=0.6,notice=30s"),
    )
    assert notices(seen) == [(1, 0, "metadata"), (2, 0, "shutdown-script")]
    assert told(seen) == ["2-0"]
    assert weights_of(seen.show) == weights_of(user.show("local"))
