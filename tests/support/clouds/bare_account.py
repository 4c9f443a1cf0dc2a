"""An account in which nothing is set up: an administrator sets it up, and a submitter does all there is to do.

Run as a script inside ``cloudspot sandbox CLOUD --bare``: ``bare_account.py CLOUD JOB`` prints what came of each
step as JSON. What only one cloud's own tools can do, ``account_CLOUD`` does.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from support.jobs.acting_user import COMMAND


class Steps:
    """What was run, and what came of it."""

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []

    def run(self, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
        """Run a command; return what it printed."""
        begun = time.monotonic()
        done = subprocess.run(
            [*COMMAND, *arguments],
            env={**os.environ, **(environ or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        step = {
            "command": " ".join(arguments),
            "status": done.returncode,
            "seconds": time.monotonic() - begun,
        }
        self.done.append(step if done.returncode == 0 else {**step, "output": done.stdout + done.stderr})
        return done.stdout

    def until_it_trains(self, job: str, environ: Mapping[str, str], *, seconds: float = 120.0) -> None:
        """Wait until the job has made a step."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done = subprocess.run(
                [*COMMAND, "show", job, "--json"],
                env={**os.environ, **environ},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0 and (json.loads(done.stdout).get("step") or 0) > 0:
                return
            time.sleep(0.2)


def act(cloud: str, job: str) -> dict[str, Any]:
    """Set up, do everything as the submitter, and remove all of it again."""
    account = importlib.import_module(f"support.clouds.account_{cloud}")
    steps = Steps()
    begun = time.monotonic()
    submitter, name = account.make_submitter()
    before = account.list_all()
    steps.run("setup", cloud, "--grant-to", name, "--yes")
    set_up = account.list_all()
    granted_at = datetime.now(timezone.utc).isoformat()
    on = ("--provider", cloud, *_sets((*account.SETS, 'run.env.TINY_EPOCHS="40"')))

    def run(*arguments: str) -> str:
        return steps.run(*arguments, environ=submitter)

    run("providers", "check", cloud)
    run("plan", *on, job)
    run("run", "--name", "one", *on, job)
    shown = json.loads(run("show", "one", "--json"))
    run("logs", "one")
    run("run", "--name", "two", "--detach", *on, *_sets(('run.env.TINY_EPOCHS="300"',)), job)
    steps.until_it_trains("two", submitter)
    run("move", "two", "--market", "on-demand", "--yes", "--detach")
    run("providers", "check", cloud)  # now there is a machine to try the rights on
    run("attach", "two")
    for more in account.STEPS:
        run(*(one.format(job=job) for one in more))
    run("image", "bake", *on, job)
    run("image", "ls", *on[:2])
    for image in account.list_images():
        run("image", "rm", image, *on[:2])
    run("driver", "deploy", *on[:2], "--yes")
    run("driver", "status", *on[:2])
    run("reap", *on[:2])
    run("driver", "remove", *on[:2])
    for one in json.loads(run("ps", "--json")):
        run("rm", one["id"], "--yes")
    left_at = datetime.now(timezone.utc).isoformat()
    steps.run("setup", cloud, "--remove", "--yes")
    return {
        "steps": steps.done,
        "seconds": time.monotonic() - begun,
        "show": shown,
        "before": before,
        "set_up": set_up,
        "after": account.list_all(),
        "granted_at": granted_at,
        "left_at": left_at,
    }


def _sets(settings: Sequence[str]) -> list[str]:
    return [word for one in settings for word in ("--set", one)]


if __name__ == "__main__":
    print(json.dumps(act(*sys.argv[1:])))
