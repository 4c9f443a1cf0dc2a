"""The example of a small GPT, reclaimed in the middle, ends with the weights of an undisturbed run."""

from __future__ import annotations

import pytest
from support.jobs.acting_user import EXAMPLES, User

SETS = ("--set", 'run.args=["--size", "tiny"]', "--set", 'run.env.OMP_NUM_THREADS="1"')


@pytest.mark.full
def test_tinygpt_reclaimed_in_the_middle_ends_with_the_same_weights(user: User) -> None:
    run = ("run", "--provider", "local", str(EXAMPLES / "tinygpt" / "job.toml"), *SETS)
    user.cloudspot(*run, "--name", "calm", "--set", "providers.local.reclaims=[]")
    # Early: all 120 steps take a second or two, and a drain comes some tenths of a second after its notice.
    user.cloudspot(*run, "--name", "hit", "--set", 'providers.local.reclaims=[{after_steps=10, notice="8s"}]')
    calm, hit = user.show("calm"), user.show("hit", "--verify")
    assert (calm["state"], hit["state"]) == ("succeeded", "succeeded")
    assert (len(calm["nodes"]), len(hit["nodes"])) == (1, 2)
    assert (len(hit["notices"]), hit["steps_lost"]) == (1, 0)
    assert hit["steps_total"] == calm["steps_total"] == 120
    assert hit["last_commit"]["verified"] is True
    assert hit["final"]["weights_sha256"] == calm["final"]["weights_sha256"]
    samples = [user.home / "store" / "jobs" / name / "artifacts" / "sample.txt" for name in ("calm", "hit")]
    assert samples[0].read_text() == samples[1].read_text()
    assert samples[0].read_text().startswith("def ")
