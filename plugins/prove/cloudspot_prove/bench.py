"""What the steps of a first run work with: commands whose requests are recorded, jobs, and the money left."""

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
"""How long it is from one look at a job to the next."""
BOOT_SECONDS: Final = 900.0
"""How long a machine may take until it trains: its boot, and a setup that installs PyTorch."""
END_SECONDS: Final = 900.0
"""How long a machine may take from the end of its training to its own end."""
STEP_SECONDS: Final = 0.25
"""Of the training, for one step."""


class StepFailed(CloudspotError):
    """A step did not do what it is to show; the message holds no name of the account's."""


class StepSkipped(CloudspotError):
    """A step was not tried; the message says why."""


class Bench:
    """One run at work."""

    def __init__(self, record: RunRecord) -> None:
        """Do no I/O."""
        self.record = record
        self.told = record.began
        self.cloud: Cloud = cloud_of(self.told.provider)
        self.step = ""
        self.facts: dict[str, Any] = {}
        """What this step has measured."""
        self._jobs: dict[str, Job] = {}

    @cached_property
    def provider(self) -> Provider:
        """Open the provider, with the run's settings."""
        return open_overridden(
            self.told.provider, [one for one in self.told.settings if one.startswith("providers.")]
        )

    # --- commands -------------------------------------------------------------------------------

    def start(self, *words: str, is_quiet: bool = False) -> subprocess.Popen[str]:
        """Start a command of cloudspot, with its requests recorded and its output shown as it comes."""
        assignment = Assignment(
            provider=self.told.provider,
            directory=str(self.record.recordings),
            key=self.told.key,
            step=self.step,
            began=self.told.at,
        )
        environment = {
            **os.environ,
            "CLOUDSPOT_STORE": self.told.store_url,
            VARIABLE: msgspec.json.encode(assignment).decode(),
        }
        child = subprocess.Popen(
            [sys.executable, "-m", "cloudspot_prove.recorded", *words],
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

    def call(self, *words: str, seconds: float = 600.0) -> int:
        """Run a command to its end and return its status; one that hangs is ended."""
        output.echo(f"    $ cloudspot {' '.join(words)}")
        child = self.start(*words)
        try:
            return child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            end(child)
            raise StepFailed(f"`cloudspot {words[0]}` had not ended after {seconds:.0f} s") from None

    def ask(self, *words: str, seconds: float = 600.0) -> tuple[int, Any]:
        """Run a command that prints JSON, and return its status and what it printed; None: nothing."""
        child = self.start(*words, is_quiet=True)
        try:
            printed, told = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            end(child)
            raise StepFailed(f"`cloudspot {words[0]}` had not ended after {seconds:.0f} s") from None
        try:
            return child.returncode, json.loads(printed)
        except ValueError:
            for line in told.splitlines():
                output.echo(f"    {line}")
            return child.returncode, None

    # --- jobs -----------------------------------------------------------------------------------

    def new_job(self, *, num_machines: int = 1) -> str:
        """Note that a job of this step will be submitted, and return its id; the money must be enough."""
        share = self._share(num_machines)
        number = len(self.record.jobs(self.step)) + 1
        job_id = f"prove-{self.told.run}-{self.step}-{number}"
        self.record.write(JobIntended(step=self.step, job_id=job_id, max_cost=share))
        return job_id

    @contextmanager
    def job_file(self) -> Iterator[Path]:
        """Lend the training's job file."""
        place = importlib.resources.files("cloudspot_prove") / "training"
        with importlib.resources.as_file(place) as directory:
            yield directory / "job.toml"

    def words(self, job_id: str, *more: str) -> list[str]:
        """Return what follows ``cloudspot run`` or ``plan`` besides the job file."""
        intended = next((one for one in self.record.jobs() if one.job_id == job_id), None)
        told, cloud = self.told, self.cloud
        steps = max(20, round(told.train_seconds / STEP_SECONDS))
        sets = [
            f'run.env.PROVE_CLOUD="{told.provider}"',
            f'run.env.PROVE_STEPS="{steps}"',
            f'run.env.PROVE_STEP_SECONDS="{STEP_SECONDS}"',
            *(() if intended is None else (f"limits.max_cost={intended.max_cost}",)),
            *(() if told.currency is None else (f'limits.currency="{told.currency}"',)),
        ]
        if cloud.setup and not told.image_has_torch:
            sets += [f"run.setup={json.dumps(list(cloud.setup))}", f'run.python="{cloud.python}"']
        sets += [*told.settings, *more]
        return ["--provider", told.provider, *(word for one in sets for word in ("--set", one))]

    def history(self, job_id: str) -> History | None:
        """Return the job's records as they are; None: there is no such job yet."""
        job = self._jobs.setdefault(job_id, Job(open_store(self.told.store_url), job_id))
        try:
            return job.history()
        except JobNotFound:
            return None

    def shown(self, job_id: str) -> dict[str, Any]:
        """Return what ``show --json`` tells of a job; empty: there is none."""
        history = self.history(job_id)
        return {} if history is None else show_json(history, datetime.now(timezone.utc))

    def wait(self, job_id: str, what: str, is_so: Callable[[History], bool], *, seconds: float) -> History:
        """Wait until the job's records show something, and return them.

        Raises:
            StepFailed: they do not after so many seconds, or the job has ended before.
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
            seconds=BOOT_SECONDS + self.told.train_seconds,
        )

    # --- money ----------------------------------------------------------------------------------

    def spent(self) -> float:
        """Return what the run's jobs have cost by now; of one whose records cannot be read, its limit."""
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
        """Return what the next job may cost: enough for its machines, and no more than is left."""
        needed = self.needed(num_machines)
        left = self.told.max_cost - self.spent()
        if needed > left:
            raise StepSkipped(f"--max-cost leaves {max(0.0, left):.4f}, but this step may cost {needed:.4f}")
        return round(needed, 6)

    def needed(self, num_machines: int) -> float:
        """Return what a job of so many machines may cost: boots and all, at the price of the first step."""
        ended = self.record.ended.get("price")
        price = float(ended.facts.get("most_per_hour", 0.0)) if ended is not None else 0.0
        hours = (2 * BOOT_SECONDS + 2 * self.told.train_seconds) / 3600
        # While one machine takes over from another, both run.
        return max(0.001, price * hours * (num_machines + 1))


def end(child: subprocess.Popen[str]) -> None:
    """End a command as Ctrl-C does, which leaves its job alone; kill it if that does not help."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(timeout=20)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def is_job_over(history: History) -> bool:
    """Return whether no machine of the job runs or will, by its records."""
    return history.finished is not None or is_over(history)


def _show(stream: IO[str]) -> None:
    for line in stream:
        output.echo(f"    {line.rstrip()}")


def final_of(shown: Mapping[str, Any]) -> str | None:
    """Return the hash of the weights with which a job ended."""
    final = shown.get("final")
    return None if final is None else final.get("weights_sha256")


def types_of(shown: Mapping[str, Any]) -> Sequence[str]:
    """Return the types of machines that a job has trained on."""
    return sorted({one["instance_type"] for one in shown.get("launches", ())})
