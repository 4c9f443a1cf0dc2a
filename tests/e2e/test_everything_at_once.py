"""Everything that a job can have at once, through reclaims, a silent death and a move: what it costs a node.

``pytest -m soak -s tests/e2e/test_everything_at_once.py`` prints a table. A feature with a cost of its own joins
``FEATURES``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.jobs.acting_user import JOBS, User, has_ended, kill, supervisors_processes, wait_for
from support.stores.meteredstore import Asked, asked_by

from cloudspot.jobstore.layout import keys
from cloudspot.local.machines import MachineDirectory

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

PATIENCE = 1200.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Feature:
    """Something that a user may switch on."""

    name: str
    sets: tuple[str, ...] = ()
    """What the job file says for it."""
    beside: tuple[tuple[str, ...], ...] = ()
    """Commands that run beside the job while it trains."""


FEATURES = (
    Feature("watching", ('limits.idle_after="30m"',), (("attach", "all"), ("logs", "all", "--follow"))),
    Feature("outputs", ('run.outputs=["out"]',)),
    Feature("utilization"),  # which every job has
    Feature("handing over"),  # which every session has
    Feature("a session", (), (("exec", "all", "--", "sh", "-c", "while echo tick; do sleep 5; done"),)),
    Feature("keep_failed", ('limits.keep_failed="30m"',)),
)
KINDS = {
    "session": ("run.entrypoint='session.py'",),
    "script": (
        "run.entrypoint='script.py'",
        "checkpoint.directory='checkpoints'",
        "checkpoint.on_notice='SIGTERM'",
    ),
}


@dataclass
class Used:
    """What the processes of one machine have used, apart from those of the training."""

    seconds: dict[int, float] = field(default_factory=dict)
    """Of the processor, by process."""
    kib: dict[int, int] = field(default_factory=dict)
    """The most memory that each had."""


class Sampler:
    """Looks at the processes of all machines twice a second."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._is_over = threading.Event()
        self.used: dict[str, Used] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._is_over.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._is_over.wait(0.5):
            for machine in self._user.machines():
                used = self.used.setdefault(machine.name, Used())
                for pid in supervisors_processes(machine):
                    self._look(pid, used)

    def _look(self, pid: int, used: Used) -> None:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        # The agent, what it starts to make a pass, the relays of commands, and the keepers.
        if any(each in words for each in (b"cloudspot.agent", b"relay.py", b"process_keeper")):
            used.seconds[pid] = (int(stat[11]) + int(stat[12])) / TICKS
            most = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0")
            used.kib[pid] = int(most.split()[1])


@contextmanager
def looking(user: User) -> Iterator[Sampler]:
    """Look at the machines until the block ends."""
    sampler = Sampler(user)
    try:
        yield sampler
    finally:
        sampler.stop()


@dataclass(frozen=True)
class Row:
    """What one node used in an hour."""

    title: str
    asked: Asked
    hours: float
    cpu_seconds: float
    mib: float

    def __str__(self) -> str:
        num = (self.asked.reads + self.asked.writes) / self.hours
        mib = (self.asked.bytes_read + self.asked.bytes_written) / self.hours / (1 << 20)
        usd = self.asked.usd / self.hours
        return (
            f"| {self.title} | {num:,.0f} | {mib:,.0f} MiB | {self.cpu_seconds / self.hours:,.0f} s "
            f"| {self.mib:,.0f} MiB | {usd:.3f} |"
        )


def live(user: User, name: str) -> dict[str, Any]:
    """Return what ``show`` tells, once there is a job."""
    try:
        return user.show(name)
    except AssertionError:
        return {"step": 0, "state": "", "generations": [], "nodes": [], "kept": None}


def trains_on(user: User, number: int) -> Callable[[], bool]:
    """Return whether a generation of that number or a later one trains on both nodes."""

    def look() -> bool:
        shown = live(user, "all")
        newest = shown["generations"][-1] if shown["generations"] else {"generation": 0, "nodes": []}
        states = {node["name"]: node["state"] for node in shown["nodes"]}
        is_whole = len(newest["nodes"]) == 2 and all(states[one] == "running" for one in newest["nodes"])
        return shown["state"] == "running" and newest["generation"] >= number and is_whole

    return look


def kill_silently(user: User, instance_id: str) -> None:
    """Kill a machine at once, as a cloud does that gives no notice."""
    machine = next(path for path in user.machines() if MachineDirectory(path).instance().id == instance_id)
    supervisor = MachineDirectory(machine).supervisor()
    assert supervisor is not None
    kill(supervisor.pid)
    for pid in supervisors_processes(machine):
        kill(pid)


def disturb(user: User) -> None:
    """Take a machine with a notice, kill one without, and move the job."""

    def goes_on(what: str, act: Callable[[dict[str, Any]], object]) -> None:
        before = user.show("all")
        time.sleep(20)  # a while in which nothing happens
        act(before)
        wait_for(what, trains_on(user, before["generations"][-1]["generation"] + 1), seconds=PATIENCE)

    def last(shown: dict[str, Any]) -> str:
        return str(shown["generations"][-1]["nodes"][-1])

    def machine_of(shown: dict[str, Any]) -> str:
        return next(str(one["instance_id"]) for one in shown["nodes"] if one["name"] == last(shown))

    goes_on(
        "the training after the reclaim",
        lambda shown: user.cloudspot("preempt", "all", "--node", last(shown), "--notice", "20s"),
    )
    goes_on("the training after the death", lambda shown: kill_silently(user, machine_of(shown)))
    # It comes when the training has lasted ten times as long as its start took.
    goes_on("the training after the move", lambda _: user.start("move", "all", "--zone", "local-b", "--yes"))


def measure(user: User, kind: str, features: tuple[Feature, ...]) -> list[Row]:
    """Run a job of a kind through all of it, and return what its nodes and its user's commands have used."""
    (user.home / "meter").mkdir()
    tell = user.home / "fail"
    user.environ["CLOUDSPOT_STORE"] = store = f"drill://{user.home}/store"
    sets = [*KINDS[kind], f"run.env.TELL='{tell}'", *(one for each in features for one in each.sets)]
    words = [word for one in sets for word in ("--set", one)]
    with looking(user) as sampler:
        path = str(JOBS / "everything" / "job.toml")
        run = user.start("run", path, "--provider", "drill", "--store", store, "--name", "all", *words)
        wait_for("the training", trains_on(user, 1), seconds=PATIENCE)
        beside = [user.start(*one) for each in features for one in each.beside]
        disturb(user)
        time.sleep(60)
        tell.touch()
        if any(each.name == "keep_failed" for each in features):
            wait_for(
                "the kept machine", lambda: (live(user, "all")["kept"] or {}).get("is_kept"), seconds=PATIENCE
            )
            assert "samples.txt" in user.cloudspot("exec", "all", "--", "ls", "out").stdout
            user.cloudspot("stop", "all")
        assert run.wait(PATIENCE) == 1
    shown = user.show("all")
    assert shown["state"] == "failed"
    assert "told to fail" in user.cloudspot("logs", "all", "--source", "train").stdout
    assert [one["why"] for one in shown["launches"]].count("moved") == 1
    assert all(map(has_ended, user.machines()))
    assert not list(user.store.list_objects(keys.remote_prefix("all")))
    for process in beside:
        wait_for(
            "the end of a command beside the job", lambda each=process: each.poll() is not None, seconds=120
        )
    asked = asked_by(user.home / "meter")
    hours = sum(line["seconds"] for line in shown["ledger"]) / 3600
    nodes = sum((each for name, each in asked.items() if name != "-"), Asked())
    cpu = sum(sum(one.seconds.values()) for one in sampler.used.values())
    most = max(sum(one.kib.values()) for one in sampler.used.values()) / 1024
    wall = max(line["seconds"] for line in shown["ledger"]) / 3600
    title = f"{kind}, {'everything' if features else 'defaults'}"
    return [Row(title, nodes, hours, cpu, most), Row(f"{title}: commands", asked["-"], wall, 0.0, 0.0)]


@pytest.mark.parametrize("kind", KINDS)
def test_everything_at_once_goes_on_through_all_of_it_and_costs_little_more(
    user: User, kind: str, tmp_path: Path
) -> None:
    rows = measure(user, kind, ())
    other = User(tmp_path / "everything")
    try:
        rows += measure(other, kind, FEATURES)
    finally:
        other.close()
    print()
    print("| job | requests an hour | bytes an hour | processor time an hour | memory | USD an hour |")
    for row in rows:
        print(row)
    plain, full = rows[0], rows[2]
    # A shell that is open costs requests; nothing else may.
    assert full.asked.usd / full.hours < plain.asked.usd / plain.hours + 0.5
