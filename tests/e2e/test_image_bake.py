"""``cloudspot image bake`` in emulated clouds: machines that really boot, and others that boot from their disks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.test_sandbox_images import IMAGES, why_no_bare_image
from support.jobs.acting_user import COMMAND
from support.jobs.first_in_full import first_in_full
from support.jobs.isolated_machines import needs_isolated_machines

pytestmark = [pytest.mark.full, needs_isolated_machines, pytest.mark.timeout(600)]

JOB = """
name = "baked"
[run]
command = ["python", "train.py"]
setup = 'echo "$SECONDS" > ~/installed; cat needed > made; echo ran >> runs; sleep {seconds}'
setup_files = ["needed"]
[logs]
flush = "1s"
"""
TRAIN = """
import os
print("training finds", open("made").read(), open("runs").read().split(), os.path.exists(os.path.expanduser("~/installed")))
"""

LOOK = """
import json, signal, subprocess, sys, time
from pathlib import Path

provider, *words = sys.argv[1:]
options = [*words[1:], "--provider", provider]

def cloudspot(*args, status=0):
    done = subprocess.run([sys.executable, "-m", "cloudspot", *args], capture_output=True, text=True)
    assert done.returncode == status, (args, done.stdout[-8000:], done.stderr[-4000:])
    return done.stdout

def images():
    return json.loads(cloudspot("image", "ls", "--provider", provider, "--json"))

def run(name):
    cloudspot("run", "--name", name, *options)
    lines = [json.loads(line) for line in cloudspot("logs", name, "--json").splitlines()]
    return [line["text"] for line in lines]

def interrupt():
    bake = subprocess.Popen(
        [sys.executable, "-m", "cloudspot", "image", "bake", *options], stdout=subprocess.PIPE, text=True
    )
    for line in bake.stdout:
        if ": setup" in line:
            bake.send_signal(signal.SIGINT)
    return bake.wait()

seen = {"words": words[0]}
if words[0] == "interrupted":
    seen["status"] = interrupt()
    (job,) = json.loads(cloudspot("ps", "--all", "--json"))
    seen["stopped"] = cloudspot("attach", job["id"], status=10)
    seen["images"] = images()
else:
    seen["baked"] = cloudspot("image", "bake", *options)
    seen["again"] = cloudspot("image", "bake", *options)
    seen["images"] = images()
    seen["plan"] = cloudspot("plan", *options)
    Path("new.py").write_text("")
    seen["log"] = run("second")
    seen["removed"] = cloudspot("image", "rm", "--provider", provider, seen["images"][0]["id"])
    seen["left"] = images()
    if words[0] == "whole":
        Path("needed").write_text("2")
        seen["later"] = run("third")
    seen["jobs"] = json.loads(cloudspot("ps", "--all", "--json"))
print(json.dumps(seen))
"""


def look(user, directory: Path, cloud: str, *words: str, seconds: float = 0.0):
    """Return what the sandbox's script has seen, and what each machine has printed."""
    directory.mkdir()
    (directory / "job.toml").write_text(JOB.format(seconds=seconds))
    (directory / "train.py").write_text(TRAIN)
    (directory / "needed").write_text("1")
    script = directory.parent / "look.py"
    script.write_text(LOOK)
    inside = [sys.executable, str(script), cloud, *words]
    command = [*COMMAND, "sandbox", cloud, "--reclaim", "none", "--keep", "--", *inside]
    done = subprocess.run(command, env=user.environ, cwd=directory, capture_output=True, text=True)
    machines = sorted(user.home.glob("sandboxes/*/state/machines/*"), key=lambda path: path.stat().st_ctime)
    consoles = [(machine / "console.log").read_text() for machine in machines]
    assert done.returncode == 0, (done.stdout[-8000:], done.stderr[-8000:], consoles)
    return json.loads(done.stdout), consoles


def check(seen):
    assert "jobs with this setup start from it" in seen["baked"]
    (image,) = seen["images"]
    assert (image["job_name"], image["is_ready"], image["failure"]) == ("baked", True, "")
    assert f"machines start from {image['id']}, with the setup done\n" in seen["plan"]
    assert seen["again"] == f"image {image['id']} exists with this setup; jobs start from it\n"
    assert "the image holds this job's setup, so the setup is not run again" in " ".join(seen["log"])
    assert "training finds 1 ['ran'] True" in seen["log"]
    assert seen["left"] == []
    states = {(one["id"].rpartition("-")[0] or one["id"], one["state"]) for one in seen["jobs"]}
    assert states >= {("baked-image", "stopped"), ("second", "succeeded")}


def test_machines_start_from_an_image_with_the_setup_done_until_it_is_removed(user, tmp_path):
    seen, consoles = look(user, tmp_path / "code", "aws", "short")
    check(seen)
    assert len(consoles) == 2


@pytest.mark.parametrize("cloud", first_in_full("gcp", "aws", "aliyun"))
def test_another_setup_and_a_removed_image_run_the_setup(user, tmp_path, cloud):
    seen, _ = look(user, tmp_path / "code", cloud, "whole")
    check(seen)
    assert "training finds 2 ['ran'] True" in seen["later"]


def test_ctrl_c_ends_the_machine_and_makes_no_image(user, tmp_path):
    seen, _ = look(user, tmp_path / "code", "aws", "interrupted", seconds=60.0)
    assert seen["status"] == 1
    assert "it ran to make an image of its machine" in seen["stopped"]
    assert seen["images"] == []


@pytest.mark.soak
@pytest.mark.parametrize("cloud", IMAGES)
def test_an_image_of_a_bare_machine_has_the_agent_too(user, tmp_path, cloud):
    reason = why_no_bare_image()
    if reason is not None:
        pytest.skip(f"NOT TESTED, {reason}")
    image, train_python = IMAGES[cloud]
    sets = [f"providers.{cloud}.{image}", f'providers.{cloud}.train_python="{train_python}"']
    words = [word for one in sets for word in ("--set", one)]
    seen, consoles = look(user, tmp_path / "code", cloud, "whole", *words)
    check(seen)
    said = ["cloudspot: the image has this agent" in one for one in consoles]
    assert said == [False, True, False]
