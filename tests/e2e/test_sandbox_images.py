"""A whole job on an image that has no cloudspot, as clouds' own have none: the agent comes from what was staged."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.jobs.acting_user import COMMAND, JOBS
from support.jobs.isolated_machines import WHY_NOT

SYSTEM_PYTHON = "/usr/bin/python3"
IMAGES = {
    "aliyun": ('image_family="cloudspot-bare"', "/opt/pytorch/bin/python"),
    "aws": ('image="ami-0c10d5b07ca5e0002"', "/opt/pytorch/bin/python"),
    "gcp": (
        'image="projects/ubuntu-os-cloud/global/images/ubuntu-2204-jammy-v20261101"',
        "/opt/conda/bin/python",
    ),
}
"""By cloud, the option that names a bare image, and where a machine of it has torch."""
TINY = JOBS / "tiny" / "job.toml"

# What the training finds on the image: by itself torch and no cloudspot; then the agent's copy, without what
# else the agent has.
SETUP = """
fails() { (env -u PYTHONPATH "$@" && echo did not fail) 2>&1 | tail -n 1 || true; }
fails python3 -c "import cloudspot"
fails TRAIN_PYTHON -c "import torch, cloudspot"
TRAIN_PYTHON -c "import sys, cloudspot.train; print(cloudspot.train.__file__, {'msgspec', 'boto3', 'google.auth', 'oss2'} & {*sys.modules})"
ls "$PYTHONPATH"
"""

LOOK = """
import json, subprocess, sys

def cloudspot(*args):
    done = subprocess.run([sys.executable, "-m", "cloudspot", *args], capture_output=True, text=True)
    assert done.returncode == 0, (args, done.stdout[-8000:], done.stderr[-4000:])
    return done.stdout

cloudspot("run", *sys.argv[1:], "--name", "tiny")
print(json.dumps({
    "show": json.loads(cloudspot("show", "tiny", "--json")),
    "setup": [json.loads(line)["text"] for line in cloudspot("logs", "tiny", "--source", "setup", "--json").splitlines()],
}))
"""


def why_no_bare_image() -> str | None:
    """Return why no job can run on such an image here, or None."""
    if WHY_NOT is not None:
        return f"no isolated machines: {WHY_NOT}"
    code = "import sys, sysconfig, venv; print(sys.version_info[:2], sysconfig.get_platform())"
    asked = [
        subprocess.run([one, "-c", code], capture_output=True, text=True)
        for one in (SYSTEM_PYTHON, sys.executable)
    ]
    if asked[0].stdout != asked[1].stdout:
        # The machine has no package index: the agent's dependencies come as they are installed here.
        return f"{SYSTEM_PYTHON} is not of the version that runs the tests, or has no venv"
    return None


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cloud", IMAGES)
def test_a_job_runs_on_an_image_that_has_only_the_systems_python_and_a_python_with_torch(
    user, tmp_path, cloud
):
    reason = why_no_bare_image()
    if reason is not None:
        pytest.skip(f"NOT TESTED, {reason}")
    look = tmp_path / "look.py"
    look.write_text(LOOK)
    image, train_python = IMAGES[cloud]
    sets = [
        f"providers.{cloud}.{image}",
        f'providers.{cloud}.train_python="{train_python}"',
        f"run.setup='''{SETUP.replace('TRAIN_PYTHON', train_python)}'''",
    ]
    words = [word for one in sets for word in ("--set", one)]
    inside = [sys.executable, str(look), str(TINY), "--provider", cloud, *words]
    command = [*COMMAND, "sandbox", cloud, "--reclaim", "none", "--keep", "--", *inside]
    done = subprocess.run(command, env=user.environ, capture_output=True, text=True)
    consoles = [path.read_text() for path in user.home.glob("sandboxes/*/state/machines/*/console.log")]
    assert done.returncode == 0, (done.stdout[-8000:], done.stderr[-8000:], consoles)
    seen = json.loads(done.stdout)
    assert (seen["show"]["state"], len(consoles)) == ("succeeded", 1)
    package = "/var/lib/cloudspot/pythonpath/cloudspot"
    assert seen["setup"] == [
        "ModuleNotFoundError: No module named 'cloudspot'",
        "ModuleNotFoundError: No module named 'cloudspot'",
        f"{package}/train/__init__.py set()",
        "cloudspot",
    ]
    assert "the image has this cloudspot" not in consoles[0]
