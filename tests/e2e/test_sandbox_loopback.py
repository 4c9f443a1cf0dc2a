"""A whole job in each emulated cloud as it is on a host without namespaces, with no option set."""

from __future__ import annotations

import subprocess

import pytest
from support.jobs.acting_user import COMMAND, JOBS

# How long a machine is told before it is taken. On Google Cloud it believes in two minutes, whatever it is here.
NOTICES = {"aws": 60, "gcp": 120, "aliyun": 60}


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cloud", NOTICES)
def test_a_job_runs_with_default_options_on_machines_that_are_not_isolated(user, tmp_path, cloud):
    # Not over before its first machine is taken.
    seconds = "0.1" if NOTICES[cloud] == 60 else "0.8"
    words = [
        "--set",
        "nodes=2",
        "--set",
        f'run.env.TINY_STEP_SECONDS="{seconds}"',
        "--set",
        'run.env.TINY_EPOCHS="12"',
    ]
    inside = ["cloudspot", "run", str(JOBS / "tiny" / "job.toml"), "--provider", cloud, *words]
    reclaim = f"launch=1,rank=0,after_share=0.2,notice={NOTICES[cloud]}"
    command = [*COMMAND, "sandbox", cloud, "--loopback", "--reclaim", reclaim, "--", *inside]
    done = subprocess.run(command, env=user.environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-4000:], done.stderr[-8000:])
    ends = [line.split() for line in done.stdout.splitlines()]
    assert ["job", "succeeded"] in [words[-2:] for words in ends]
    assert ["nodes", "3", "in", "all"] in ends
