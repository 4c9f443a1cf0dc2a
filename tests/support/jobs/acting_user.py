"""Runs cloudspot as a user does: the installed command, real machines, real torchrun."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloudspot.host.process_marks import marked_processes
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.local.filestore import FileStore
from cloudspot.local.machines import MachineDirectory
from cloudspot.local.processes import MARK
from cloudspot.model import InstanceState

TESTS = Path(__file__).parents[2]
JOBS = TESTS / "e2e" / "jobs"
PLUGINS = TESTS / "plugins"
EXAMPLES = TESTS.parent / "examples"
COMMAND = (sys.executable, "-m", "cloudspot")


class User:
    """Someone at a terminal, with a state home of their own."""

    def __init__(self, home: Path) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self.environ = {
            **os.environ,
            "CLOUDSPOT_LOCAL_HOME": str(home),
            # Behind it what the tests themselves run from, where that is no installation.
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(PLUGINS / "drill"), str(TESTS), os.environ.get("PYTHONPATH")))
            ),
        }
        self.environ.pop("CLOUDSPOT_STORE", None)
        self.store = FileStore(f"file://{home}/store")
        self._started: list[subprocess.Popen[str]] = []

    def cloudspot(
        self, *args: str, status: int | None = 0, timeout: float = 180.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, and check its exit status unless ``status`` is None."""
        done = subprocess.run(
            [*COMMAND, *args],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if status is not None:
            assert done.returncode == status, f"{args}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        return done

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start a command in the background; it is ended with the test."""
        return self._start([*COMMAND, *args])

    def start_shell(self, script: str, directory: Path) -> subprocess.Popen[str]:
        """Start the only command of a shell script in the background; it is ended with the test."""
        return self._start(["bash", "-c", f"exec {script}"], directory)

    def _start(self, command: Sequence[str], directory: Path | None = None) -> subprocess.Popen[str]:
        with (self.home / f"cli-{len(self._started)}.out").open("w") as output:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._started.append(process)
        return process

    def output(self, process: subprocess.Popen[str]) -> str:
        """Return what a started command has printed so far."""
        return (self.home / f"cli-{self._started.index(process)}.out").read_text()

    def close(self) -> None:
        """End the commands that still run."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()

    def show(self, job_id: str, *args: str) -> dict[str, Any]:
        """Return ``cloudspot show --json``."""
        shown: dict[str, Any] = json.loads(self.cloudspot("show", job_id, "--json", *args).stdout)
        return shown

    def history(self, job_id: str) -> Any:
        """Return the fold of the job's records, straight from the bucket."""
        return HistoryReader(self.store, job_id).read()

    def machines(self) -> list[Path]:
        """Return the machines' directories, ended ones too, the newest last."""
        found = (self.home / "machines").glob("m-*")
        return sorted(found, key=lambda path: (path / "machine.json").stat().st_mtime_ns)

    def run_tiny(
        self,
        name: str,
        *args: str,
        status: int | None = 0,
        provider: str = "local",
        sets: Sequence[str] = (),
        timeout: float = 180.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run the smallest job, attached, to its end."""
        return self.cloudspot(*tiny(name, provider, sets), *args, status=status, timeout=timeout)

    def start_tiny(
        self, name: str, *args: str, provider: str = "local", sets: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start the smallest job, attached, in the background."""
        return self.start(*tiny(name, provider, sets), *args)


def tiny(name: str, provider: str, sets: Sequence[str]) -> list[str]:
    """Return the command that runs the smallest job."""
    words = ["run", str(JOBS / "tiny" / "job.toml"), "--provider", provider, "--name", name]
    for one in sets:
        words += ["--set", one]
    return words


def wait_for(what: str, condition: Callable[[], Any], *, seconds: float = 90.0) -> Any:
    """Return the condition's first true value, or fail naming what did not come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    return pytest.fail(f"{what} did not come within {seconds:.0f} s")


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that is gone is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def kill(pid: int) -> None:
    """SIGKILL a process; one that is gone is no error."""
    send(pid, signal.SIGKILL)


def supervisors_processes(machine: Path) -> list[int]:
    """Return the machine's processes without its supervisor, which stands for the provider."""
    return list(marked_processes(MARK, MachineDirectory(machine).mark))


def has_ended(machine: Path) -> bool:
    """Return whether the machine is off."""
    return MachineDirectory(machine).instance().state is InstanceState.ENDED


def copy_example(name: str, target: Path) -> Path:
    """Copy an example, so that a test may change it; returns its job file."""
    shutil.copytree(EXAMPLES / name, target)
    return target / "job.toml"
