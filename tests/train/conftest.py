"""What the trainer's tests share: an agent's side of the hand-off, without an agent."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

import cloudspot.train as spot
from cloudspot.train import handoff

ROOT = Path(__file__).parents[2]


class Courier:
    """Stands in for the agent: makes generations, takes seals, builds restore directories."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.generation = 0

    def begin(self, restore: Path | None = None) -> dict[str, str]:
        """Start a generation and return its environment."""
        (environment,) = self.begin_nodes(1, restore)
        return environment

    def begin_nodes(self, num_nodes: int, restore: Path | None = None) -> list[dict[str, str]]:
        """Start a generation of several nodes and return their environments; ``handoff`` is the first's."""
        self.generation += 1
        nodes = [self.directory / f"node-{node}" for node in range(1, num_nodes)]
        self.handoffs = [each / f"generation-{self.generation}" for each in (self.directory, *nodes)]
        self.handoff = self.handoffs[0]
        environments = []
        for directory in self.handoffs:
            handoff.seals_directory(directory).mkdir(parents=True)
            environment = {
                handoff.HANDOFF: str(directory),
                handoff.GENERATION: str(self.generation),
                handoff.ARENA: str(directory.parent / "arena"),
                handoff.ARENA_SPILL: str(directory.parent / "spill"),
                handoff.ARTIFACTS: str(directory.parent / "artifacts"),
            }
            if restore is not None:
                environment[handoff.RESTORE] = str(restore)
            environments.append(environment)
        return environments

    def drain(self, *, seconds: float = 60.0, kind: str = "notice") -> None:
        handoff.write_drain(self.handoff, handoff.Drain(kind=kind, guard=time.monotonic() + seconds))

    def tune(self, interval_seconds: float | None) -> None:
        handoff.write_tuning(self.handoff, handoff.Tuning(interval_seconds, 0.0, 0.0))

    def seals(self) -> dict[int, dict[int, Path]]:
        """Return the seals of each step's newest save in this generation, by step and rank."""
        found: dict[int, dict[int, Path]] = {}
        paths = [path for each in self.handoffs for path in handoff.seals_directory(each).iterdir()]
        names = {path: name for path in paths if (name := handoff.parse_seal_name(path.name)) is not None}
        newest = {name.step: name.round for name in sorted(names.values(), key=lambda name: name.number)}
        for path, name in names.items():
            if name.round == newest[name.step]:
                found.setdefault(name.step, {})[name.rank] = path
        return found

    def carry(self, step: int | None = None) -> Path:
        """Take a complete checkpoint (the newest unless told) and return a restore directory of it."""
        seals = self.seals()
        if step is None:
            step = max(seals)
        parts = []
        target = self.directory / f"restore-{self.generation}-{step}"
        target.mkdir()
        for rank, path in sorted(seals[step].items()):
            name = handoff.parse_seal_name(path.name)
            taken = path.with_name(name.taken_name)
            path.rename(taken)
            seal = json.loads(taken.read_text())
            with Path(seal["slot"]).open("rb") as slot:
                (target / f"part-{rank}.bin").write_bytes(slot.read(seal["nbytes"]))
            parts.append({"rank": rank, "file": f"part-{rank}.bin", "seal": seal})
            taken.unlink()
        world_size = parts[0]["seal"]["world_size"]
        assert len(parts) == world_size - len(parts[0]["seal"]["relieved"])
        assert len({part["seal"]["plan"] for part in parts}) == 1
        handoff.write_json(
            target / handoff.RESTORE_MANIFEST,
            {"generation": self.generation, "step": step, "world_size": world_size, "parts": parts},
        )
        return target

    def drained(self, rank: int = 0) -> dict | None:
        directory = self.handoff if len(self.handoffs) == 1 else self.handoffs[rank]
        return handoff.read_json(handoff.drained_path(directory, rank))

    def final(self) -> dict | None:
        """Return how the loop has ended, but for whether that start had anything to save."""
        final = handoff.read_json(handoff.final_path(self.handoff))
        self.is_saved = None if final is None else final.pop("is_saved")
        return final

    def run_ranks(self, script: Path, *args: str, num_ranks: int, environment: dict[str, str]) -> str:
        """Run a script to its end in ranks that are forked with torch imported; return what they printed."""
        output = self.directory / f"output-{self.generation}"
        statuses = _rank_server().run(script, args, num_ranks, environment, output)
        text = output.read_text()
        assert statuses == [0] * num_ranks, text
        return text

    def run_nodes(self, script: Path, *args: str, num_nodes: int, restore: Path | None = None) -> list[int]:
        """Start a generation of nodes with a rank each, and run a script; return the ranks' exit statuses."""
        environments = self.begin_nodes(num_nodes, restore)
        output = self.directory / f"output-{self.generation}"
        return _rank_server().run(script, args, num_nodes, environments, output)

    def run_torchrun(self, script: Path, *args: str, num_ranks: int, environment: dict[str, str]) -> str:
        """Run a script to its end under torchrun and return what it printed."""
        process = self.start_torchrun(script, *args, num_ranks=num_ranks, environment=environment)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
        return output

    def start_torchrun(
        self, script: Path, *args: str, num_ranks: int, environment: dict[str, str]
    ) -> subprocess.Popen:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0"]
        command += [f"--nproc-per-node={num_ranks}", "--monitor-interval=0.05", str(script), *args]
        return subprocess.Popen(
            command,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


class RankServer:
    """A process of ``jobs/rank_server.py``, one for all tests."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "jobs" / "rank_server.py")],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, script: Path, args: Sequence[str], num_ranks: int, environment: object, output: Path
    ) -> list[int]:
        """Return the exit statuses of the ranks."""
        order = {"script": str(script), "args": args, "num_ranks": num_ranks, "output": str(output)}
        self._process.stdin.write(json.dumps({**order, "environment": environment}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@cache
def _rank_server() -> RankServer:
    server = RankServer()
    atexit.register(server.close)
    return server


@pytest.fixture(autouse=True, scope="session")
def nobody_leaves_at_once():
    """A session whose main thread is slow to leave ends its process; here that is all tests', on a busy machine.

    For as long as there are tests: the session's thread may outlive its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloudspot.train.rounds.link.leave_at_once", lambda: None)
        yield


@pytest.fixture
def courier(tmp_path):
    made = Courier(tmp_path)
    yield made
    shutil.rmtree(tmp_path, ignore_errors=True)
    tmp_path.mkdir(exist_ok=True)  # no other test gets its name: a process has one session in a directory


@pytest.fixture
def script():
    """A small training, to be run under torchrun."""
    return Path(__file__).parent / "jobs" / "small.py"


@pytest.fixture
def open_session(monkeypatch, courier):
    """``open_session(environment, model=..., ...)``: a session in this process, closed with the test."""
    opened = []

    def open_one(environment, **tracked):
        for name in (handoff.HANDOFF, handoff.RESTORE, handoff.GENERATION, handoff.ARTIFACTS):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        opened.append(spot.session(**tracked))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def until_held():
    """``until_held(run)``: wait until a round is open, in which this rank has promised a boundary."""

    def wait(run):
        end = time.monotonic() + 60
        while run._service._link.rounds._hold is None:
            assert time.monotonic() < end, "no round was opened"
            time.sleep(0.001)

    return wait


class FrameworkTraining:
    """Another framework's training in this process, generation after generation."""

    def __init__(self, courier, monkeypatch, hooks):
        self.result = None
        """What ``main`` has returned."""
        self.num_moments = 0
        """How many moments the last generation had: how often hooks were called."""
        self._courier = courier
        self._monkeypatch = monkeypatch
        self._sessions = []
        self._drain_at = None
        open_session = spot.session

        def session(**tracked):
            self._sessions.append(open_session(**tracked))
            return self._sessions[-1]

        monkeypatch.setattr(spot, "session", session)
        for owner, names in hooks.items():
            for name in names:
                monkeypatch.setattr(owner, name, self._ticking(getattr(owner, name)))

    def run(self, main, *, restore=None, drain_at=None):
        """Run a generation, drained at a moment; return whether it has come to its end."""
        self.num_moments, self._drain_at = 0, drain_at
        for name in (handoff.HANDOFF, handoff.RESTORE, handoff.GENERATION, handoff.ARTIFACTS):
            self._monkeypatch.delenv(name, raising=False)
        for name, value in self._courier.begin(restore).items():
            self._monkeypatch.setenv(name, value)
        try:
            self.result = main()
        except SystemExit:
            return False
        finally:
            while self._sessions:
                self._sessions.pop().close()
        return True

    def _ticking(self, function):
        def ticking(*args, **kwargs):
            self._tick()
            return function(*args, **kwargs)

        return ticking

    def _tick(self):
        if not self._sessions:
            return
        self.num_moments += 1
        if self.num_moments == self._drain_at:
            self._courier.drain()
            rounds, end = self._sessions[-1]._service._link.rounds, time.monotonic() + 60
            # Until this rank has promised a boundary, or the loop has ended before.
            while rounds._hold is None and self._courier.final() is None:
                assert time.monotonic() < end, "no round was opened"
                time.sleep(0.001)


@pytest.fixture
def framework_training(courier, monkeypatch):
    """``framework_training({class: methods})``: a FrameworkTraining; a call of these methods is a moment."""
    import torch

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, they wait for one another where others compute
    yield lambda hooks: FrameworkTraining(courier, monkeypatch, hooks)
    torch.set_num_threads(num_threads)


@pytest.fixture
def compare(open_session, courier, until_held):
    """``compare(training, drain_at)``: drain at that call of ``tick``, resume, and compare with an undisturbed run.

    ``training(open, tick)`` returns what it has made. The drained part returns where it was saved.
    """

    def run_one(training, restore, drain_at=None):
        calls = 0
        opened = []

        def open_one(**objects):
            opened.append(open_session(courier.begin(restore), **objects))
            return opened[0]

        def tick():
            nonlocal calls
            calls += 1
            if calls == drain_at:
                courier.drain()
                until_held(opened[0])

        torch.manual_seed(5)
        return training(open_one, tick)

    def run(training, drain_at):
        expected, final = run_one(training, None), courier.final()
        with pytest.raises(SystemExit):
            run_one(training, None, drain_at)
        step = courier.drained()["step"]
        restored = None if step is None else courier.carry(step)  # before the first step nothing is saved
        assert run_one(training, restored) == expected
        assert courier.final() == final
        return step

    return run
