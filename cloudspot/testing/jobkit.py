"""Tests of whole jobs with a reclaim, which a plugin's author subclasses.

::

    from cloudspot.testing.jobkit import JobCloud, WholeJobTests

    class TestMyJobs(WholeJobTests):
        @pytest.fixture
        def cloud(self):
            return JobCloud(provider="mycloud", prefix=("cloudspot", "sandbox", "mycloud", "--"))

Everything is real: the command line, machines that boot with the boot script, the agent, torchrun and the
training. The machines need torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloudspot.testing.kit import Kit, cases

JOB_FILE = Path(__file__).parent / "job" / "job.toml"
MOST_SECONDS = 900.0
CLOUDSPOT = (sys.executable, "-m", "cloudspot")


@dataclass(frozen=True)
class JobCloud:
    """The cloud on which the kit's jobs run."""

    provider: str
    store: str | None = None
    """The URL of an empty store; None means the provider's default, or the sandbox's store."""
    settings: Sequence[str] = ()
    """The values for ``cloudspot run --set``, such as ``providers.mycloud.region="north"``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables, such as credentials, in addition to this process's environment."""
    prefix: Sequence[str] = ()
    """A command that runs the command given after it, such as ``cloudspot sandbox mycloud --``."""
    notice: str | None = "20s"
    """The length of the reclaim's notice; None means the provider's own notice."""
    job_id: str = "kit"
    is_reclaimed_by_prefix: bool = False
    """Whether the prefix reclaims a machine, as ``cloudspot sandbox --reclaim`` does; if not, the kit does.
    """


class WholeJobTests(Kit):
    """A job on one node and on two, one of which is reclaimed; the fixture ``cloud`` is a JobCloud."""

    @pytest.mark.timeout(2 * MOST_SECONDS)
    @cases("num_nodes", {"one node": 1, "two nodes": 2})
    def test_a_job_outlives_a_reclaim_and_makes_the_weights_of_an_undisturbed_one(
        self, cloud: JobCloud, num_nodes: int, tmp_path: Path
    ) -> None:
        undisturbed = JobCloud(provider="local", store=(tmp_path / "store").as_uri())
        calm = _run(undisturbed, tmp_path / "calm", num_nodes, is_reclaimed=False)
        hit = _run(cloud, tmp_path / "hit", num_nodes, is_reclaimed=True)
        assert (calm["state"], hit["state"]) == ("succeeded", "succeeded")
        assert len(hit["notices"]) == 1, "the node did not get the notice"
        assert hit["steps_lost"] == 0
        assert len(hit["nodes"]) == num_nodes + 1
        assert hit["final"]["weights_sha256"] == calm["final"]["weights_sha256"]


def _run(cloud: JobCloud, directory: Path, num_nodes: int, *, is_reclaimed: bool) -> dict[str, Any]:
    """Run the job with this module's own command line, after the prefix; return the output of ``show``."""
    directory.mkdir()
    orders = {
        "run": [
            *("run", str(JOB_FILE), "--provider", cloud.provider, "--name", cloud.job_id),
            *(word for one in (f"nodes={num_nodes}", *cloud.settings) for word in ("--set", one)),
        ],
        "job_id": cloud.job_id,
        "reclaim": is_reclaimed and not cloud.is_reclaimed_by_prefix,
        "notice": cloud.notice,
    }
    environment = {**os.environ, "CLOUDSPOT_LOCAL_HOME": str(directory / "home"), **cloud.environment}
    environment.pop("CLOUDSPOT_STORE", None)
    if cloud.store is not None:
        environment["CLOUDSPOT_STORE"] = cloud.store
    done = subprocess.run(
        [*cloud.prefix, sys.executable, "-m", __name__, json.dumps(orders)],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    shown: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return shown


def main(orders: Mapping[str, Any]) -> None:
    """Run a job, reclaim its first node once there is a checkpoint, and print the last output of ``show``."""
    training = subprocess.Popen([*CLOUDSPOT, *orders["run"]], stdout=sys.stderr)
    if orders["reclaim"]:
        while training.poll() is None and _show(orders["job_id"]).get("last_commit") is None:
            time.sleep(0.5)
        notice = () if orders["notice"] is None else ("--notice", orders["notice"])
        subprocess.run([*CLOUDSPOT, "preempt", orders["job_id"], *notice], check=True, stdout=sys.stderr)
    training.wait()
    print(json.dumps(_show(orders["job_id"])))
    sys.exit(training.returncode)


def _show(job_id: str) -> dict[str, Any]:
    """Return the output of ``show``, or an empty dict if the job does not exist yet."""
    done = subprocess.run([*CLOUDSPOT, "show", job_id, "--json"], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
