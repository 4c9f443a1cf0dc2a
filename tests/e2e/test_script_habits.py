"""Whole jobs of scripts without a session, which save by their own habits, under random kills and notices.

A seed fixes the habit and the faults with their pauses, so a failure is repeated by its seed as far as real processes
can be. ``CLOUDSPOT_SOAK_HABITS`` says how many seeds the soak runs, and ``CLOUDSPOT_SOAK_HABITS_SEED`` which is the first.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from e2e.jobs.habits.train import DIRECTORY, NUMBERED, SINGLE, found_save
from e2e.test_kills import command_lines
from support.jobs.acting_user import JOBS, User, send, supervisors_processes, wait_for

from cloudspot.agent.delivery.checkpoint_states import Memory
from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.jobstore.checkpoints.fetching import fetch
from cloudspot.jobstore.checkpoints.manifests import exists, read_manifest
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout.records import CheckpointId, Commit
from cloudspot.local.machine_records import ReclaimRequest
from cloudspot.local.machines import MachineDirectory

NUM_SEEDS = int(os.environ.get("CLOUDSPOT_SOAK_HABITS", "40"))
FIRST_SEED = int(os.environ.get("CLOUDSPOT_SOAK_HABITS_SEED", "0"))
KINDS = (*NUMBERED, *SINGLE)
STRIKES = ("machine", "machine", "trainer", "agent", "notice", "notice")
COMMIT_SECONDS = 5.0
"""The least time between two commits."""
SLACK_SECONDS = 5.0
WORK_SECONDS = 0.5
"""Processor time that the agent may use for two uploads and its looks: a busy machine takes a multiple of it."""
AGENT_SECONDS = 15.0
"""How long a new agent may take to go on where a killed one was."""
JOB = "habits"


@dataclass(frozen=True)
class Strike:
    """A fault to come."""

    kind: str
    pause_seconds: float
    """From a start of the script."""
    is_in_save: bool
    """Whether it then waits for a save to begin."""
    notice_seconds: float


@dataclass(frozen=True)
class Plan:
    """What a seed decides."""

    habit: dict[str, Any]
    keep: int
    strikes: tuple[Strike, ...]


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed; nine seeds in a row have all habits."""
    rng = random.Random(seed)
    habit = {
        "kind": KINDS[seed % len(KINDS)],
        "num_saves": rng.randint(8, 14),
        "interval_seconds": rng.choice((1.0, 3.0, 6.0)),
        "write_seconds": rng.choice((0.0, 0.2, 1.0)),
        "pause_seconds": rng.choice((0.0, 0.3, 3.0)),
        "has_log": rng.random() < 0.3,
        "answers": rng.random() < 0.4,
    }
    strikes = tuple(
        Strike(rng.choice(STRIKES), rng.uniform(0.0, 20.0), rng.random() < 0.5, rng.choice((2.0, 6.0, 15.0)))
        for _ in range(rng.randint(2, 3))
    )
    return Plan(habit, rng.choice((1, 1, 2, 3)), strikes)


@dataclass
class Committed:
    """A commit, and what it was found to hold."""

    commit: Commit
    save: int | None
    """None: it is torn, or was deleted before it was read."""
    was_read: bool

    @property
    def is_proven(self) -> bool:
        """Return whether the agent says that it was proven."""
        return (self.commit.evidence or "").startswith("proven")


@dataclass(frozen=True)
class Recognized:
    """A save that an agent knows to be complete."""

    save: int
    at: float
    evidence: str


@dataclass
class Loss:
    """A fault that has struck."""

    kind: str
    at: float
    num_starts: int
    """How many there were before it."""


@dataclass
class Observed:
    """What is seen of a job from outside, as it happens."""

    user: User
    habit: dict[str, Any]
    told: list[dict[str, Any]] = field(default_factory=list)
    """What the script has told."""
    recognized: dict[str, Recognized] = field(default_factory=dict)
    """By the stamps of the files, as a save may be made again."""
    commits: dict[CheckpointId, Committed] = field(default_factory=dict)
    standing: list[frozenset[CheckpointId]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    _memories: dict[Path, int] = field(default_factory=dict)
    _journal: Journal | None = None

    @property
    def told_path(self) -> Path:
        """Return the file to which the script tells."""
        return self.user.home / "told.jsonl"

    def of(self, what: str) -> list[dict[str, Any]]:
        """Return what the script has told of one kind."""
        return [one for one in self.told if one["what"] == what]

    def look(self) -> None:
        """Take in what there is now."""
        if self.told_path.exists():
            lines = self.told_path.read_text().splitlines()
            self.told += [json.loads(line) for line in lines[len(self.told) :]]
        self._look_at_memories()
        self._look_at_store()

    def _look_at_memories(self) -> None:
        """Note which saves the agents know to be complete, by the stamps that the script has told."""
        saved = [(one["save"], one["stamps"]) for one in self.of("saved")]
        for path in (self.user.home / "machines").glob("m-*/node/checkpoint-watch.json"):
            try:
                if self._memories.get(path) == (written := path.stat().st_mtime_ns):
                    continue
                memory = msgspec.convert(json.loads(path.read_bytes()), Memory)
            except FileNotFoundError:
                continue
            self._memories[path] = written
            for settled in memory.settled.values():
                there = {path: [stamp.size, stamp.written_at] for path, stamp in settled.version}
                for save, stamps in saved:
                    if all(there.get(path) == stamp for path, stamp in stamps.items()):
                        found = Recognized(save, time.time(), settled.evidence)
                        self.recognized.setdefault(json.dumps(stamps), found)

    def _look_at_store(self) -> None:
        """Read each new commit before the next one takes its place, and note which checkpoints there are."""
        store = self.user.store
        if self._journal is None:
            self._journal = Journal(store, JOB)
        known = [one for one in self._journal.read() if isinstance(one, Commit)]
        for commit in known:
            if commit.id not in self.commits:
                self.commits[commit.id] = self._read(commit)
        there = frozenset(one for one in self.commits if exists(store, JOB, one))
        if known == [one for one in self._journal.read() if isinstance(one, Commit)]:
            self.standing.append(there)

    def _read(self, commit: Commit) -> Committed:
        target = self.user.home / f"commit-{commit.id.generation}-{commit.id.step}"
        try:
            fetch(self.user.store, JOB, read_manifest(self.user.store, JOB, commit.id), target)
            return Committed(commit, found_save(self.habit["kind"], target) or None, was_read=True)
        except (ObjectMissing, CorruptData):
            return Committed(commit, None, was_read=False)  # a newer one has taken its place
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def until(self, what: str, condition: Callable[[], object], *, seconds: float = 600.0) -> None:
        """Look until something has come, or the job is over."""

        def has_come() -> bool:
            self.look()
            return bool(condition())

        wait_for(what, has_come, seconds=seconds)


def start(user: User, plan: Plan, told: Path) -> subprocess.Popen[str]:
    """Start the job."""
    kind = plan.habit["kind"]
    environment = {"HABIT": json.dumps(plan.habit), "TOLD": str(told)}
    sets = [f"run.env.{name}={json.dumps(value)}" for name, value in environment.items()]
    sets += [f'checkpoint.directory="{DIRECTORY[kind]}"', f"checkpoint.keep={plan.keep}"]
    if kind == "marker":
        sets.append('checkpoint.complete_file="done"')
    if plan.habit["answers"]:
        sets.append('checkpoint.on_notice="SIGTERM"')
    words = ["run", str(JOBS / "habits" / "job.toml"), "--provider", "local", "--name", JOB, "--plain"]
    return user.start(*words, *(word for one in sets for word in ("--set", one)))


def come_to_moment(seen: Observed, cli: subprocess.Popen[str], coming: Strike) -> bool:
    """Wait for the moment of a fault; return whether the script is still there."""
    before = seen.losses[-1] if seen.losses else None
    num_starts = 1 if before is None else before.num_starts + (before.kind != "agent")

    def is_over() -> bool:
        return bool(seen.of("end")) or cli.poll() is not None

    seen.until("a start", lambda: len(seen.of("start")) >= num_starts or is_over())
    end = time.monotonic() + coming.pause_seconds
    seen.until("the moment", lambda: time.monotonic() >= end or is_over())
    if coming.is_in_save:
        num_begun = len(seen.of("begin"))
        seen.until("a save", lambda: len(seen.of("begin")) > num_begun or is_over())
    return not is_over()


def strike(seen: Observed, kind: str, notice_seconds: float) -> None:
    """Let a fault happen on the newest machine."""
    machine = seen.user.machines()[-1]
    lines = command_lines(machine)
    at = time.time()
    if kind == "machine":
        supervisor = MachineDirectory(machine).supervisor()
        pids = [*([] if supervisor is None else [supervisor.pid]), *supervisors_processes(machine)]
    elif kind == "notice":
        MachineDirectory(machine).request_reclaim(ReclaimRequest(notice_seconds=notice_seconds))
        at, pids = at + notice_seconds, []
    else:
        word = "train.py" if kind == "trainer" else "cloudspot.agent"
        pids = [pid for pid, line in lines.items() if word in line]
    for pid in pids:
        send(pid, signal.SIGKILL)
    seen.losses.append(Loss(kind, at, len(seen.of("start"))))


def outlive(user: User, seed: int) -> Observed:
    """Run a seed's job to its end, and check all that must hold."""
    plan = plan_of(seed)
    print(f"seed {seed}: {plan}")
    seen = Observed(user, plan.habit)
    cli = start(user, plan, seen.told_path)
    try:
        for each in plan.strikes:
            if not come_to_moment(seen, cli, each):
                break
            strike(seen, each.kind, each.notice_seconds)
        seen.until("the end of the job", lambda: cli.poll() is not None, seconds=1200.0)
        seen.look()
        check(seen, plan, cli.returncode)
    except BaseException:
        print(user.output(cli)[-12000:])
        for one in seen.told:
            print({name: value for name, value in one.items() if name != "stamps"})
        for found in seen.commits.values():
            print(found.commit.id, found.commit.at, found.save, found.was_read, found.commit.evidence)
        print(seen.recognized, seen.losses, sep="\n")
        raise
    return seen


def check(seen: Observed, plan: Plan, status: int) -> None:
    """Check what must hold whatever has struck."""
    assert status == 0
    shown = seen.user.show(JOB)
    assert shown["state"] == "succeeded"
    commits = list(seen.commits.values())
    newest = max(commits, key=lambda one: (one.commit.id.generation, one.commit.id.step))
    assert newest.save == plan.habit["num_saves"], "the last save is kept"
    check_proven(commits)
    check_none_gone(seen)
    check_age(seen)
    check_reported(seen, shown)


def check_proven(commits: list[Committed]) -> None:
    """With proven evidence, nothing torn is committed."""
    torn = [one.commit for one in commits if one.was_read and one.save is None]
    assert not [one for one in commits if one.commit in torn and one.is_proven], "torn, and called proven"


def check_none_gone(seen: Observed) -> None:
    """No good checkpoint is deleted for a torn one."""
    has_good = False
    for there in seen.standing:
        held = [seen.commits[one] for one in there]
        is_good = any(one.save is not None or not one.was_read for one in held)
        assert is_good or not has_good, ("only torn ones are left", there)
        has_good = has_good or any(one.save is not None for one in held)


def check_age(seen: Observed) -> None:
    """After a loss, nothing older is gone on from than what was known for long enough before it."""
    moments = [(one.commit.at, one.commit.sealed_at) for one in seen.commits.values()]
    upload = max(((at - sealed).total_seconds() for at, sealed in moments), default=0.0)
    starts = seen.of("start")
    for loss in seen.losses:
        if loss.kind == "agent" or loss.num_starts >= len(starts):
            continue
        since, after = starts[loss.num_starts - 1]["at"], starts[loss.num_starts]
        slowness = max(
            (one["slowness"] for one in seen.of("begin") if since <= one["at"] <= after["at"]), default=1.0
        )
        allowed = 2 * upload + COMMIT_SECONDS + SLACK_SECONDS + WORK_SECONDS * (slowness - 1)
        for one in seen.recognized.values():
            killed = [each for each in seen.losses if each.kind == "agent" and one.at <= each.at <= loss.at]
            if since <= one.at <= loss.at - allowed - AGENT_SECONDS * len(killed):
                is_torn = after["found"] is None and not commit_before(seen, after["at"]).is_proven
                assert is_torn or (after["found"] or 0) >= one.save, ("old", loss, one, after, allowed)


def commit_before(seen: Observed, at: float) -> Committed:
    """Return the newest commit at a moment."""
    found = [one for one in seen.commits.values() if one.commit.at.timestamp() <= at]
    return max(found, key=lambda one: (one.commit.id.generation, one.commit.id.step))


def check_reported(seen: Observed, shown: dict[str, Any]) -> None:
    """Each loss is a start of its own with its reason, and nobody is told that nothing was lost."""
    starts = seen.of("start")
    assert len(shown["generations"]) >= len(starts)
    assert len(shown["generations"]) - 1 >= sum(
        loss.kind != "agent" for loss in seen.losses if loss.num_starts < len(starts)
    )
    assert all(one["why"] for one in shown["generations"])
    made = 0
    for one in seen.told:
        if one["what"] == "start" and (one["found"] or 0) < made:
            assert shown["steps_lost"] is None, "nobody has counted what was lost"
        made = max(made, one.get("save", 0))
    if any(one["restored"] is None for one in shown["generations"][1:]):
        log = seen.user.cloudspot("logs", JOB).stdout
        assert "starts at step 0, as no checkpoint was committed before" in log


def delays(seen: Observed) -> Iterator[tuple[str, float]]:
    """Yield for each save by what it was known to be complete, and how long after it was."""
    saved = {json.dumps(one["stamps"]): one["at"] for one in seen.of("saved")}
    for stamps, one in seen.recognized.items():
        yield one.evidence, one.at - saved[stamps]


def report(seen: Observed, seed: int) -> None:
    """Print a line for the record of the soak."""
    found = ", ".join(f"{evidence} {seconds:.1f} s" for evidence, seconds in sorted(delays(seen)))
    torn = [one.commit.evidence for one in seen.commits.values() if one.was_read and one.save is None]
    unread = sum(not one.was_read for one in seen.commits.values())
    struck = [loss.kind for loss in seen.losses]
    now = datetime.now().astimezone()
    slowest = max(one["slowness"] for one in seen.of("begin"))
    line = f"{now:%H:%M:%S} seed {seed} {seen.habit['kind']}: {struck}, {len(seen.commits)} commits, torn {torn}, unread {unread}, slowness {slowest:.0f}; {found}"
    print(line)
    if path := os.environ.get("CLOUDSPOT_SOAK_HABITS_REPORT"):
        with Path(path).open("a") as file:
            file.write(f"{line}\n")


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 14])
def test_a_script_that_saves_by_its_own_habit_loses_nothing_that_was_recognized(
    user: User, seed: int
) -> None:
    report(outlive(user, seed), seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + NUM_SEEDS))
def test_soak_of_scripts_that_save_by_their_own_habits(user: User, seed: int) -> None:
    report(outlive(user, seed), seed)
