"""A training whose machines and processes a test kills, and which notes each step that it makes."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

from support.jobs.acting_user import COMMAND, JOBS, User, kill, supervisors_processes, wait_for

from cloudspot.local.machines import MachineDirectory


class Training:
    """A job of a script, and the steps that its ranks have made."""

    job = "survivors"
    patience = 90.0
    """How many seconds a test waits for a step; for the end, 200 at least."""

    def __init__(
        self,
        user: User,
        name: str,
        *,
        sets: tuple[str, ...] = (),
        prefix: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        self.user = user
        self.name = name
        self.trace = user.home / f"trace-{name}"
        self.trace.mkdir()
        words = ["run", str(JOBS / self.job / "job.toml"), "--provider", "local", "--name", name]
        given = {"TRACE": self.trace, **options}
        for each in (*sets, *(f'run.env.SURVIVORS_{key}="{value}"' for key, value in given.items())):
            words += ["--set", each]
        self.cli = user._start([*prefix, *COMMAND, *words])

    def phase(self, rank: int, generation: int = 1) -> str:
        """Return what a rank of a generation does."""
        path = self.trace / f"{generation}-{rank}.phase"
        return (path.read_text().strip() if path.exists() else "") or "starting"

    def generation(self) -> int:
        """Return the newest generation of which a rank has started, or 0."""
        return max((int(path.parent.name) for path in self._pids("*")), default=0)

    def _pids(self, generation: str) -> list[Path]:
        """Return the files of the ranks' processes; their directories may go while this looks."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                return [*(self.user.home / "machines").glob(f"*/node/generations/{generation}/worker-*.pid")]

    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.cli.poll() is not None

    def steps(self, generation: int) -> dict[int, list[int]]:
        """Return the steps that each rank of a generation has made."""
        found = self.trace.glob(f"{generation}-*.txt")
        return {int(path.stem.partition("-")[2]): [*map(int, path.read_text().split())] for path in found}

    def pause(self) -> float:
        """Return the longest time between a generation's last step and the first one of the next, in seconds."""
        times = dict[int, list[float]]()
        for path in self.trace.glob("*.times"):
            times.setdefault(int(path.stem.partition("-")[0]), []).extend(
                map(float, path.read_text().split())
            )
        known = [times[generation] for generation in sorted(times) if times[generation]]
        return max((min(after) - max(before) for before, after in itertools.pairwise(known)), default=0.0)

    def await_step(self, step: int) -> None:
        """Wait until a rank of the first generation has made a step."""
        wait_for(
            f"step {step}",
            lambda: any(step in made for made in self.steps(1).values()),
            seconds=self.patience,
        )

    def await_generation(self, after: int, num_ranks: int, num_steps: int) -> int:
        """Wait for a generation of so many ranks that is newer than ``after``, and until a rank has made so many steps.

        With no steps, wait until all of its ranks have started. Return the generation, or 0 if the job has ended.
        """

        def has_come() -> bool:
            if self.is_over():
                return True
            newest = self.generation()
            pids = self._pids(f"{newest:06}")
            made = max(map(len, self.steps(newest).values()), default=0)
            return newest > after and len(pids) == num_ranks and made >= num_steps

        wait_for(f"generation {after + 1} or later", has_come, seconds=2 * self.patience)
        return 0 if self.is_over() else self.generation()

    def machine(self, rank: int, generation: int = 1) -> Path:
        """Return the machine of a rank of a generation."""
        paths = (self.user.home / "machines").glob(f"*/node/generations/{generation:06}/worker-{rank}.pid")
        return next(iter(paths)).parents[3]

    def kill_machine(self, rank: int, generation: int = 1) -> None:
        """Kill a machine at once, as a cloud does that gives no notice."""
        machine = self.machine(rank, generation)
        supervisor = MachineDirectory(machine).supervisor()
        assert supervisor is not None
        kill(supervisor.pid)
        for pid in supervisors_processes(machine):
            kill(pid)

    def await_pause(self, rank: int) -> None:
        """Wait until a rank of the first generation sleeps in the step PAUSE_AT, before its forward pass."""
        path = self.trace / f"1-{rank}.phase"
        wait_for("the pause", lambda: path.exists() and self.phase(rank) == "pause", seconds=200)

    def pid_of(self, rank: int, generation: int = 1) -> int:
        """Return the process of a rank of a generation."""
        directory = self.machine(rank, generation) / f"node/generations/{generation:06}"
        return int((directory / f"worker-{rank}.pid").read_text())

    def end(self, *, status: int = 0) -> dict[str, Any]:
        """Wait for the end of the job; return what ``show`` says."""
        wait_for("the end of the job", lambda: self.cli.poll() is not None, seconds=max(200.0, self.patience))
        assert self.cli.returncode == status, self.user.output(self.cli)[-6000:]
        return self.user.show(self.name, "--verify")

    def steps_made_again(self) -> dict[int, int]:
        """Return, by generation, how many steps it made that the one before had made, where there are any.

        No generation leaves out a step.
        """
        again = dict[int, int]()
        newest = -1
        for generation in range(1, len(self.user.history(self.name).generations) + 1):
            made = [step for steps in self.steps(generation).values() for step in steps]
            if not made:
                continue
            assert min(made) <= newest + 1, (generation, newest)
            if min(made) <= newest:
                again[generation] = newest + 1 - min(made)
            newest = max(made)
        return again

    def check_no_step_twice(self) -> None:
        """Check that each generation goes on with the step after the last one that any rank has made."""
        assert self.steps_made_again() == {}


def rescue_of(job: Training) -> Any:
    """Return what the first commit of the job says of its rescue."""
    return job.user.history(job.name).commits[0].rescue
