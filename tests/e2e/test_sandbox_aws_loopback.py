"""A whole job on the emulated AWS as it is on a host without namespaces, with no option set."""

from __future__ import annotations

import subprocess

import pytest
from acting_user import COMMAND, JOBS


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_job_runs_with_default_options_on_machines_that_are_not_isolated(user, tmp_path):
    # Not over before its first machine is taken.
    words = ["--set", "nodes=2", "--set", 'run.env.TINY_STEP_SECONDS="0.1"']
    inside = ["cloudspot", "run", str(JOBS / "tiny" / "job.toml"), "--provider", "aws", *words]
    command = [*COMMAND, "sandbox", "aws", "--loopback", "--", *inside]
    done = subprocess.run(command, env=user.environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-4000:], done.stderr[-8000:])
    ends = [line.split() for line in done.stdout.splitlines()]
    assert ["job", "succeeded"] in [words[-2:] for words in ends]
    assert ["attempts", "2"] in ends
