"""A stranger's first job, with nothing but the pages: the very scripts and commands of docs/first-job.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs.acting_user import User, wait_for

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "first-job.md"


def blocks() -> list[tuple[str, str]]:
    """Return the page's code blocks in their order: the language and the text."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


class Stranger:
    """Types the page's commands in a directory of their own."""

    def __init__(self, user: User, directory: Path) -> None:
        self.directory = directory
        self.user = user
        program = directory.parent / "bin" / "cloudspot"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cloudspot "$@"\n')
        program.chmod(0o755)
        user.environ["PATH"] = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def type(self, script: str) -> str:
        """Run a block of the page to its end, and return what it printed."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.directory,
            env=self.user.environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout


@pytest.mark.full
def test_a_script_of_ones_own_is_made_durable_reclaimed_and_its_weights_brought_home(
    user: User, tmp_path: Path
) -> None:
    directory = tmp_path / "first"
    directory.mkdir()
    stranger = Stranger(user, directory)
    page = iter(blocks())

    language, install = next(page)
    assert (language, "pip install" in install) == ("sh", True)  # done already, for these tests

    language, script = next(page)
    assert (language, "cloudspot" in script) == ("python", False)
    (directory / "train.py").write_text(script)
    language, diff = next(page)
    added = [line for line in diff.splitlines() if re.match(r"\+(?!\+\+)\s*\S", line)]
    removed = [line for line in diff.splitlines() if re.match(r"-(?!--)", line)]
    assert (language, len(added), len(removed)) == ("diff", 3, 1)
    subprocess.run(["git", "apply", "-p0"], input=diff, cwd=directory, text=True, check=True)
    # What `init` writes where there is no script is the same.
    template = ROOT / "cloudspot" / "cli" / "templates" / "train.py.txt"
    assert (directory / "train.py").read_text() == template.read_text()

    language, _epochs = next(page)  # how a script with code of its own around its batches looks
    assert language == "python"
    assert "wrote job.toml for train.py" in stranger.type(next(page)[1])
    assert not (user.home / "store").exists()
    # A stranger has the computer for this training alone; here other tests want its cores.
    with (directory / "job.toml").open("a") as job:
        job.write('\n[run.env]\nOMP_NUM_THREADS = "1"\n')

    language, run = next(page)
    running = user.start_shell(run, directory)
    wait_for(
        "the training", lambda: re.search(r"train +step +[1-9]\d*00 ", user.output(running)), seconds=150
    )
    assert "reclaiming" in stranger.type(next(page)[1])
    wait_for("the end of the run", lambda: running.poll() is not None, seconds=200)
    assert running.returncode == 0, user.output(running)[-6000:]

    told = stranger.type(next(page)[1])
    assert "succeeded" in told
    shown = user.show("first", "--verify")
    assert (len(shown["nodes"]), len(shown["notices"]), shown["steps_lost"]) == (2, 1, 0)
    assert (shown["step"], shown["steps_total"]) == (1500, 1500)
    assert shown["last_commit"]["verified"] is True

    stranger.type(next(page)[1])
    language, load = next(page)
    assert (language, "cloudspot" in load) == ("python", False)
    (directory / "load.py").write_text(load)
    tensors = stranger.type("python -I load.py").splitlines()
    assert tensors == [
        "0.weight (128, 48) torch.float32",
        "2.bias (256,) torch.float32",
        "2.weight (256, 1536) torch.float32",
        "4.bias (128,) torch.float32",
        "4.weight (128, 256) torch.float32",
    ]
    assert next(page, None) is None
