"""The tools of a first run's steps: commands whose requests are recorded, jobs, and the remaining budget."""

from __future__ import annotations

import importlib.resources
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from cloudspot.cli.config import open_overridden
from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.errors import CloudspotError, JobNotFound
from cloudspot.interfaces import Provider
from cloudspot.jobstore.journal.history import History
from cloudspot.registry import open_store
from cloudspot.story.ledger import bill
from cloudspot.story.report import show_json
from cloudspot.story.states import is_over
from cloudspot_prove.clouds import Cloud, cloud_of
from cloudspot_prove.recorded import VARIABLE, Assignment
from cloudspot_prove.run_record import JobIntended, RunRecord

LOOK_SECONDS: Final = 2.0
"""The time from one look at a job to the next, in seconds."""
BOOT_SECONDS: Final = 900.0
"""How long a machine may take until it trains, for its boot and a setup that installs PyTorch."""
END_SECONDS: Final = 900.0
"""How long a machine may take from the end of its training until it has ended."""
STEP_SECONDS: Final = 0.25
"""The duration of one training step."""


class StepFailed(CloudspotError):
    """A step has failed; the message contains no name that belongs to the account."""


class StepSkipped(CloudspotError):
    """A step was not tried; the message says why."""


class Bench:
    """Runs commands and jobs for one run."""

    def __init__(self, record: RunRecord) -> None:
        """Do no I/O."""
        self.record = record
        self.began = record.began
        self.cloud: Cloud = cloud_of(self.began.provider)
        self.step = ""
        self.facts: dict[str, Any] = {}
        """The measurements of the current step."""
        self._jobs: dict[str, Job] = {}

    @cached_property
    def provider(self) -> Provider:
        """Open the provider, with the run's settings."""
        return open_overridden(
            self.began.provider, [one for one in self.began.settings if one.startswith("providers.")]
        )

    # --- commands -------------------------------------------------------------------------------

    def start(self, *arguments: str, is_quiet: bool = False) -> subprocess.Popen[str]:
        """Start a cloudspot command, with its requests recorded and its output shown as it arrives."""
        assignment = Assignment(
            provider=self.began.provider,
            directory=str(self.record.recordings),
            key=self.began.key,
            step=self.step,
            began=self.began.at,
        )
        environment = {
            **os.environ,
            "CLOUDSPOT_STORE": self.began.store_url,
            VARIABLE: msgspec.json.encode(assignment).decode(),
        }
        child = subprocess.Popen(
            [sys.executable, "-m", "cloudspot_prove.recorded", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if is_quiet else subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if not is_quiet:
            assert child.stdout is not None
            threading.Thread(target=_show, args=(child.stdout,), daemon=True).start()
        return child

    def call(self, *arguments: str, seconds: float = 600.0) -> int:
        """Run a command to its end and return its exit status; a command that hangs is ended."""
        output.echo(f"    $ cloudspot {' '.join(arguments)}")
        child = self.start(*arguments)
        try:
            return child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            end(child)
            raise StepFailed(f"`cloudspot {arguments[0]}` had not ended after {seconds:.0f} s") from None

    def ask(self, *arguments: str, seconds: float = 600.0) -> tuple[int, Any]:
        """Run a command that prints JSON; return its exit status and the JSON, or None if it prints none."""
        child = self.start(*arguments, is_quiet=True)
        try:
            printed, errors = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            end(child)
            raise StepFailed(f"`cloudspot {arguments[0]}` had not ended after {seconds:.0f} s") from None
        try:
            return child.returncode, json.loads(printed)
        except ValueError:
            for line in errors.splitlines():
                output.echo(f"    {line}")
            return child.returncode, None

    # --- jobs -----------------------------------------------------------------------------------

    def new_job(self, *, num_machines: int = 1) -> str:
        """Record that a job of this step will be submitted, and return its id, if the budget suffices."""
        share = self._share(num_machines)
        number = len(self.record.jobs(self.step)) + 1
        job_id = f"prove-{self.began.run}-{self.step}-{number}"
        self.record.write(JobIntended(step=self.step, job_id=job_id, max_cost=share))
        return job_id

    @contextmanager
    def job_file(self) -> Iterator[Path]:
        """Provide the training's job file for the duration of the context."""
        place = importlib.resources.files("cloudspot_prove") / "training"
        with importlib.resources.as_file(place) as directory:
            yield directory / "job.toml"

    def job_arguments(self, job_id: str, *more: str) -> list[str]:
        """Return the arguments of ``cloudspot run`` or ``plan`` that follow the job file."""
        intended = next((one for one in self.record.jobs() if one.job_id == job_id), None)
        began, cloud = self.began, self.cloud
        steps = max(20, round(began.train_seconds / STEP_SECONDS))
        sets = [
            f'run.env.PROVE_CLOUD="{began.provider}"',
            f'run.env.PROVE_STEPS="{steps}"',
            f'run.env.PROVE_STEP_SECONDS="{STEP_SECONDS}"',
            *(() if intended is None else (f"limits.max_cost={intended.max_cost}",)),
            *(() if began.currency is None else (f'limits.currency="{began.currency}"',)),
        ]
        if cloud.setup and not began.image_has_torch:
            sets += [f"run.setup={json.dumps(list(cloud.setup))}", f'run.python="{cloud.python}"']
        sets += [*began.settings, *more]
        return ["--provider", began.provider, *(argument for one in sets for argument in ("--set", one))]

    def history(self, job_id: str) -> History | None:
        """Return the job's current records, or None if the job does not exist yet."""
        job = self._jobs.setdefault(job_id, Job(open_store(self.began.store_url), job_id))
        try:
            return job.history()
        except JobNotFound:
            return None

    def shown(self, job_id: str) -> dict[str, Any]:
        """Return the output of ``show --json`` for a job, or an empty dict if the job does not exist."""
        history = self.history(job_id)
        return {} if history is None else show_json(history, datetime.now(timezone.utc))

    def wait(self, job_id: str, what: str, is_so: Callable[[History], bool], *, seconds: float) -> History:
        """Wait until the job's records satisfy ``is_so``, and return them.

        Raises:
            StepFailed: they do not within ``seconds``, or the job ended first.
        """
        until = time.monotonic() + seconds
        while True:
            history = self.history(job_id)
            if history is not None and is_so(history):
                return history
            if history is not None and history.finished is not None:
                raise StepFailed(f"the job ended before {what}: {history.finished.outcome}")
            if time.monotonic() > until:
                raise StepFailed(f"this did not happen within {seconds:.0f} s: {what}")
            time.sleep(LOOK_SECONDS)

    def wait_for_commit(self, job_id: str) -> History:
        """Wait until a checkpoint of the job is committed."""
        return self.wait(
            job_id,
            "a checkpoint was committed",
            lambda history: history.head is not None,
            seconds=BOOT_SECONDS + self.began.train_seconds,
        )

    # --- money ----------------------------------------------------------------------------------

    def spent(self) -> float:
        """Return the cost of the run's jobs so far; a job with unreadable records counts with its limit."""
        total = 0.0
        for one in self.record.jobs():
            try:
                history = self.history(one.job_id)
            except CloudspotError:
                total += one.max_cost
                continue
            if history is not None:
                total += bill(history, datetime.now(timezone.utc)).spent
        return total

    def _share(self, num_machines: int) -> float:
        """Return the cost limit of the next job, which must fit into the remaining budget."""
        needed = self.needed(num_machines)
        left = self.began.max_cost - self.spent()
        if needed > left:
            raise StepSkipped(f"--max-cost leaves {max(0.0, left):.4f}, but this step may cost {needed:.4f}")
        return round(needed, 6)

    def needed(self, num_machines: int) -> float:
        """Return the highest cost of a job with this many machines, at the price that ``price`` found."""
        ended = self.record.ended.get("price")
        price = float(ended.facts.get("most_per_hour", 0.0)) if ended is not None else 0.0
        hours = (2 * BOOT_SECONDS + 2 * self.began.train_seconds) / 3600
        # While one machine replaces another, both run.
        return max(0.001, price * hours * (num_machines + 1))


def end(child: subprocess.Popen[str]) -> None:
    """End a command as Ctrl-C does, which does not end its job; kill it if that does not help."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(timeout=20)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def is_job_over(history: History) -> bool:
    """Return whether, by its records, the job runs no machine and will run none."""
    return history.finished is not None or is_over(history)


def _show(stream: IO[str]) -> None:
    for line in stream:
        output.echo(f"    {line.rstrip()}")


def final_of(shown: Mapping[str, Any]) -> str | None:
    """Return the hash of the weights with which a job ended."""
    final = shown.get("final")
    return None if final is None else final.get("weights_sha256")


def types_of(shown: Mapping[str, Any]) -> Sequence[str]:
    """Return the machine types on which a job has trained."""
    return sorted({one["instance_type"] for one in shown.get("launches", ())})
