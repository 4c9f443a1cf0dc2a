"""One job in every emulated cloud: nothing in the agent, the trainer or the SDKs knows that it is one.

The same job file survives a reclaim on each and ends with the weights that it ends with locally. A new cloud
joins by its name here, and a module ``account_NAME`` that looks at its account.
"""

from __future__ import annotations

import importlib
import os

import pytest
from acting_user import JOBS, User
from sandboxed import run_sandboxed, weights_of

from cloudspot.local.enclosure import why_not
from cloudspot.local.home import lock

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=f"NOT TESTED, no isolated machines: {why_not()}"),
    pytest.mark.timeout(900),
]

CLOUDS = ("aws",)
TINY = JOBS / "tiny" / "job.toml"
SETS = ("nodes=2", 'run.env.TINY_STEP_SECONDS="0.1"', 'run.env.TINY_EPOCHS="10"')
ARGUMENTS = tuple(word for one in SETS for word in ("--set", one))


@pytest.fixture(scope="session")
def local_weights(tmp_path_factory) -> str:
    """The hash of the weights that the job makes on local machines; made once for all workers of a run."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    found = shared / "local-weights"
    with lock(shared / "local-weights.lock"):
        if not found.exists():
            user = User(shared / "local-weights-home")
            user.environ["XDG_CONFIG_HOME"] = str(shared / "no-config")
            user.cloudspot("run", str(TINY), "--name", "local", *ARGUMENTS)
            found.write_text(weights_of(user.show("local")))
        return found.read_text()


@pytest.mark.parametrize("reclaimed", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_job_on_two_machines_survives_a_reclaim_and_makes_the_weights_that_it_makes_locally(
    user, local_weights, cloud, reclaimed
):
    # A minute's notice: a longer one would be partly trained through.
    reclaim = f"rank={reclaimed},after_share=0.4,notice=60"
    seen = run_sandboxed(user, cloud, TINY, arguments=ARGUMENTS, options=["--reclaim", reclaim])
    assert seen.show["state"] == "succeeded"
    assert len(seen.show["attempts"]) == 2
    assert len(seen.show["notices"]) == 1
    assert weights_of(seen.show) == local_weights
    assert len(seen.log) > seen.show["steps_total"]  # the first rank prints a line a step
    importlib.import_module(f"account_{cloud}").check(seen)
