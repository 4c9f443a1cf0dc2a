"""A whole job that meets a notice, a loss without one, and a stop with a resumption; run as a script, too.

``interrupted_job.py PROVIDER JOB_FILE STEPS [ARGUMENT...]`` prints as JSON what ``Interrupted`` holds: a sandbox runs that.
STEPS is how many steps the script makes between two of its saves.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support.jobs.acting_user import COMMAND

from cloudspot.testing import plaincalls

NAME = "interrupted"
NOTICE = "20s"
"""Of the provider ``local``; a cloud gives its own."""
SECONDS = 600.0
_START = re.compile(r"cloudspot training (?:starts|resumes) at step")
_COMMIT = re.compile(r"cloudspot checkpoint at step \d+ committed")
_STEP = re.compile(r"train\S* +(?:step|epoch) \d+$")


@dataclass(frozen=True)
class Interrupted:
    """What there was to see."""

    show: dict[str, Any]
    log: list[dict[str, Any]]
    """The lines of the training."""
    commits: list[dict[str, Any]]
    """``last_commit`` of ``show`` right before each of the three, and in the end."""
    artifacts: list[str]
    checkpoint: list[str]
    """The files of the newest checkpoint."""


class _Screen:
    """What ``run`` or ``resume`` prints while it follows the job."""

    def __init__(self, file: Path, process: subprocess.Popen[bytes]) -> None:
        self._file = file
        self._process = process

    def wait(self, what: str, is_met: Callable[[list[str]], bool]) -> None:
        """Return once the lines since the newest start of the training are as wanted."""
        end = time.monotonic() + SECONDS
        while True:
            lines = self._file.read_text(errors="replace").splitlines()
            starts = [number for number, line in enumerate(lines) if _START.search(line)]
            if starts and is_met(lines[starts[-1] :]):
                return
            late = time.monotonic() > end or self._process.poll() is not None
            assert not late, "\n".join([f"{what} did not come", *lines[-200:]])
            time.sleep(0.2)

    def wait_for_launch(self, launch: int, num_commits: int, num_steps: int) -> None:
        """Wait until the training of a launch has saved, and has made some steps since."""

        def is_met(lines: list[str]) -> bool:
            is_there = any(f"node {launch}.0: running" in line for line in lines)
            commits = [number for number, line in enumerate(lines) if _COMMIT.search(line)]
            if not is_there or len(commits) < num_commits:
                return False
            return sum(_STEP.search(line) is not None for line in lines[commits[-1] :]) >= num_steps

        self.wait(f"launch {launch} with {num_commits} commits and {num_steps} steps after them", is_met)

    def wait_for_end(self, status: int) -> None:
        """Wait until the command has ended with this status."""
        found = self._process.wait(SECONDS)
        assert found == status, "\n".join(self._file.read_text(errors="replace").splitlines()[-200:])


def interrupt(
    provider: str,
    job: Path,
    save_steps: int,
    arguments: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
) -> Interrupted:
    """Run the job, interrupt it three times in the middle between two of its saves, and let it end."""
    commits = []

    def cloudspot(*words: str, status: int = 0) -> str:
        done = subprocess.run([*COMMAND, *words], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == status, (words, done.stdout[-8000:], done.stderr[-4000:])
        return done.stdout

    def show() -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(cloudspot("show", NAME, "--json"))
        commits.append(shown["last_commit"])
        return shown

    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        outputs = [Path(directory, name) for name in ("run", "resume")]

        def follow(*words: str) -> _Screen:
            file = outputs.pop(0)
            with file.open("wb") as output:
                process = subprocess.Popen(
                    [*COMMAND, *words], env=environ, stdout=output, stderr=subprocess.STDOUT
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return _Screen(file, process)

        screen = follow("run", str(job), "--provider", provider, "--name", NAME, *arguments)
        screen.wait_for_launch(1, 2, save_steps // 2)
        show()
        cloudspot("preempt", NAME, *(("--notice", NOTICE) if provider == "local" else ()))
        screen.wait_for_launch(2, 2, save_steps // 2)
        _end_machine(provider, show(), cloudspot)
        screen.wait_for_launch(3, 1, save_steps // 2)
        show()
        cloudspot("stop", NAME, "--wait", status=10)
        screen.wait_for_end(10)
        screen = follow("resume", NAME, "--set", 'run.env.STEP_SECONDS="0"')
        screen.wait_for_end(0)
        shown = show()
        log = cloudspot("logs", NAME, "--source", "train", "--json").splitlines()
        artifacts = json.loads(cloudspot("artifacts", "ls", NAME, "--json"))
        cloudspot("checkpoints", "export", NAME, "--to", str(Path(directory, "export")))
        files = [path.relative_to(Path(directory, "export")) for path in Path(directory, "export").rglob("*")]
        return Interrupted(
            show=shown,
            log=[json.loads(line) for line in log],
            commits=commits,
            artifacts=sorted(one["name"] for one in artifacts),
            checkpoint=sorted(path.as_posix() for path in files),
        )


def _end_machine(provider: str, shown: Mapping[str, Any], cloudspot: Callable[..., str]) -> None:
    """Take the newest machine without a notice."""
    if provider == "local":
        cloudspot("preempt", NAME, "--no-notice")
        return
    from cloudspot.registry import open_provider

    # As by its owner's hand: a drill of a cloud always gives the cloud's notice.
    plaincalls.terminate(open_provider(provider, None).provisioner(), [shown["nodes"][-1]["instance_id"]])


if __name__ == "__main__":
    _, name, path, steps, *rest = sys.argv
    print(json.dumps(asdict(interrupt(name, Path(path), int(steps), rest))))
