"""Random faults on one to three nodes: whatever strikes, no committed step, bit or machine is lost.

A seed fixes the job's size and the faults with their order and pauses, so a failure is repeated by its seed as
far as real processes can be. ``CLOUDSPOT_SOAK_FAULTS`` says how many seeds the soak runs, and
``CLOUDSPOT_SOAK_FAULTS_LOAD`` how many more beside busy processes.
"""

from __future__ import annotations

import glob
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from e2e.test_kills import check_end, command_lines
from e2e.test_store_faults import step_lines
from support.jobs.acting_user import User, send, supervisors_processes, wait_for
from support.jobs.marks import fork_servers, is_marked

from cloudspot.cli.exit_codes import STOPPED
from cloudspot.errors import JobNotFound, TransientError
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Generation, Intent, Seat
from cloudspot.local.machines import MachineDirectory
from cloudspot.model import InstanceState

NUM_SEEDS = int(os.environ.get("CLOUDSPOT_SOAK_FAULTS", "200"))
NUM_LOADED_SEEDS = int(os.environ.get("CLOUDSPOT_SOAK_FAULTS_LOAD", "50"))
LOAD = 30
JOB = "storm"
KINDS = ("kill", "freeze", "outage", "full-disk", "clock", "notice", "stop", "rm")
BESIDES = ("clock-steps", "clock-steps", "fork-server")
"""What strikes among the drawn faults where clocks step."""
JUMPS = (-7200.0, -60.0, -3.0, 3.0, 60.0, 7200.0)
"""Of clocks, in seconds."""
DISK = "64m"
MAX_UPLOAD_SECONDS = 300.0
"""No upload of a few kilobytes takes longer, not even on a busy machine."""
OUTAGE_SECONDS = 10.0
"""No outage of the store is longer."""


@dataclass
class Run:
    """One job, the faults that strike it, and what was seen of it meanwhile."""

    user: User
    rng: random.Random
    num_nodes: int
    cli: subprocess.Popen[str]
    told_step: int = 0
    """The newest committed step that the records have told of."""
    was_stopped: bool = False
    was_removed: bool = False
    struck: list[str] = field(default_factory=list)
    others: list[subprocess.Popen[str]] = field(default_factory=list)
    """Who drives the job besides ``cli``."""

    def history(self) -> History:
        """Return the job's records after checking that no committed step has gone from them."""
        history: History = self.user.history(JOB)
        newest = max((commit.step for commit in history.commits), default=0)
        assert newest >= self.told_step, self.struck
        self.told_step = newest
        return history

    def is_over(self) -> bool:
        """Return whether the records say that the job has ended."""
        return self.history().finished is not None

    def alive(self) -> list[Path]:
        """Return the machines that have processes."""
        return [machine for machine in self.user.machines() if supervisors_processes(machine)]

    def some_alive(self) -> list[Path]:
        """Choose one machine that lives, or two."""
        alive = self.alive()
        return self.rng.sample(alive, min(len(alive), self.rng.choice((1, 1, 2))))


def busy_machines(run: Run) -> list[int]:
    """Return the processes of one or two machines, without their supervisors."""
    return [pid for machine in run.some_alive() for pid in supervisors_processes(machine)]


def strike_kill(run: Run) -> None:
    """Kill the command line, a trainer, an agent, or one or two machines with their hosts."""
    victim = run.rng.choice(("cli", "trainer", "agent", "machine", "machine"))
    if victim == "machine":
        for machine in run.some_alive():
            supervisor = MachineDirectory(machine).supervisor()
            for pid in (*([] if supervisor is None else [supervisor.pid]), *supervisors_processes(machine)):
                send(pid, signal.SIGKILL)
    elif victim == "cli":
        send(run.cli.pid, signal.SIGKILL)
    elif alive := run.alive():
        machine = run.rng.choice(alive)
        ranks = [str(rank) for rank in range(run.num_nodes)]
        for pid, line in command_lines(machine).items():
            is_trainer = "train.py" in line and any(is_marked(pid, "RANK", rank) for rank in ranks)
            if is_trainer if victim == "trainer" else "cloudspot.agent" in line:
                send(pid, signal.SIGKILL)


def strike_freeze(run: Run) -> None:
    """Stop the command line or whole machines, and let them go on some seconds later."""
    stopped = [run.cli.pid] if run.rng.random() < 0.3 else busy_machines(run)
    seconds = run.rng.choice((0.5, 3.0, 12.0))
    for pid in stopped:
        send(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in stopped:
        send(pid, signal.SIGCONT)


def strike_full_disk(run: Run) -> None:
    """Fill the file system that holds the store and the machines, and free it some seconds later."""
    if not run.user.home.parent.is_mount():
        pytest.skip("a file system that may be filled needs root on Linux")
    ballast = run.user.home / "ballast"
    seconds = run.rng.uniform(0.5, 5.0)
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    time.sleep(seconds)
    ballast.unlink()


def strike_clock(run: Run) -> None:
    """Let the clock of the command line or of a node jump."""
    node, shift = f"node-{run.rng.randrange(run.num_nodes)}", run.rng.choice(JUMPS)
    names = [("cli",), (node, f"{node}-ranks")][run.rng.randrange(2)]
    for name in names:
        (run.user.home / "clocks" / name).write_text(str(shift))


def strike_clock_steps(run: Run) -> None:
    """Let the clocks of the command line, an agent and its ranks jump by up to an hour, each by itself."""
    node = f"node-{run.rng.randrange(run.num_nodes)}"
    for name in run.rng.sample(("cli", node, f"{node}-ranks"), run.rng.randrange(1, 4)):
        (run.user.home / "clocks" / name).write_text(str(run.rng.uniform(-3600.0, 3600.0)))


def strike_fork_server(run: Run) -> None:
    """Kill the process of one machine from which torchrun and the ranks are forked."""
    if alive := run.alive():
        for pid in fork_servers(run.rng.choice(alive) / "node"):
            send(pid, signal.SIGKILL)


def strike_notice(run: Run) -> None:
    """Take one node or two with a notice of 0 to 8 s."""
    for machine in run.some_alive():
        record, notice = MachineDirectory(machine).record(), f"{run.rng.uniform(0.0, 8.0):.1f}s"
        node = f"{record.launch}.{record.rank}"
        run.user.cloudspot("preempt", JOB, "--node", node, "--notice", notice, *of(run.user), status=None)


def strike_move(run: Run) -> None:
    """Move what trains elsewhere to another zone or market, as far as that is possible now."""
    target = run.rng.choice((("--zone", "local-a"), ("--zone", "local-b"), ("--market", "on-demand")))
    run.user.cloudspot("move", JOB, *target, "--yes", "--detach", *of(run.user), status=None)


def strike_driver(run: Run) -> None:
    """Let one more command line drive the job from now on."""
    run.others.append(run.user.start("attach", JOB, *of(run.user)))


def strike_stop(run: Run) -> None:
    """Stop the job for good."""
    run.was_stopped = run.user.cloudspot("stop", JOB, *of(run.user), status=None).returncode == 0


def strike_rm(run: Run) -> None:
    """Try to delete the job in its middle, which is refused unless it has just ended."""
    removal = run.user.cloudspot("rm", "--yes", JOB, *of(run.user), status=None)
    run.was_removed = removal.returncode == 0
    assert not (run.was_removed and run.alive()), removal.stdout


def of(user: User) -> tuple[str, str]:
    """Return the option that names the store."""
    return ("--store", f"drill://{user.home}/store")


STRIKES: dict[str, Callable[[Run], None]] = {
    "kill": strike_kill,
    "freeze": strike_freeze,
    "full-disk": strike_full_disk,
    "clock": strike_clock,
    "clock-steps": strike_clock_steps,
    "fork-server": strike_fork_server,
    "notice": strike_notice,
    "move": strike_move,
    "driver": strike_driver,
    "stop": strike_stop,
    "rm": strike_rm,
}


def settings(num_nodes: int, *, step_seconds: float) -> tuple[str, ...]:
    """Return the overrides of a job with so many nodes, whose steps take so long at least."""
    # Three ranks or more are bit-equal only by request.
    exact = ('run.env.TINY_EXACT="1"',) if num_nodes > 2 else ()
    steps = ('run.env.TINY_EPOCHS="12"', f'run.env.TINY_STEP_SECONDS="{step_seconds}"')
    return (f"nodes={num_nodes}", *steps, *exact)


def write_plan(user: User, rng: random.Random, num_outages: int, within: float) -> None:
    """Lose some of the store's answers, and let it go away for some seconds as often as asked for."""
    plan: dict[str, Any] = {}
    if num_outages:
        begins = [time.time() + rng.uniform(2.0, within) for _ in range(num_outages)]
        plan["outages"] = [
            {"start": begin, "end": begin + rng.uniform(1.0, OUTAGE_SECONDS)} for begin in begins
        ]
        plan["lose_every"] = rng.choice((2, 3, 5))
    (user.home / "plan.json").write_text(json.dumps(plan))


def begin(
    user: User,
    rng: random.Random,
    num_nodes: int,
    sets: Sequence[str],
    *,
    num_outages: int,
    within: float = 15.0,
) -> Run:
    """Start the job, whose outages begin within so many seconds, and return when it trains."""
    clocks = user.home / "clocks"
    clocks.mkdir()
    user.environ["DRILL_CLOCKS"] = str(clocks)
    write_plan(user, rng, num_outages, within)
    sets = (
        *sets,
        "limits.max_restarts=30",
        'providers.drill.pass_environment=["DRILL_CLOCKS"]',
    )
    cli = user.start_tiny(JOB, *of(user), provider="drill", sets=sets)
    submission = user.home / "store" / keys.spec(JOB)
    wait_for("the submission", lambda: submission.exists() or cli.poll() is not None, seconds=120)
    if cli.poll() == TransientError.exit_code and not submission.exists():
        # On a busy machine an outage may begin before the job is submitted: then nothing of it is there.
        time.sleep(OUTAGE_SECONDS)
        cli = user.start_tiny(JOB, *of(user), provider="drill", sets=sets)
    progress = "machines/*/node/generations/*/progress-*"
    wait_for("the first step", lambda: list(user.home.glob(progress)) or cli.poll() is not None, seconds=600)
    assert cli.poll() is None, user.output(cli)[-6000:]
    return Run(user, rng, num_nodes, cli)


def go_through(run: Run, kinds: Sequence[str], *, longest_pause: float = 3.0) -> None:
    """Strike with each fault in its order; half of the moments lie inside a save."""
    for kind in kinds:
        pause, inside_save = run.rng.uniform(0.0, longest_pause), run.rng.random() < 0.5
        time.sleep(pause)
        if run.is_over():
            return
        seals = str(run.user.home / "machines/*/node/generations/*/seals/*.json")
        end = time.monotonic() + 3.0
        # Unlike Path.glob, glob.glob takes a machine's directory that vanishes meanwhile for an empty one.
        while inside_save and not glob.glob(seals) and time.monotonic() < end:  # noqa: PTH207
            time.sleep(0.005)
        run.struck.append(kind)
        STRIKES[kind](run)
        if run.was_removed:
            return
        keep_driving(run)


def keep_driving(run: Run) -> None:
    """Attach anew where whoever drove the job has ended, as the next pass from cron would."""
    if run.cli.poll() is not None and not run.is_over():
        run.cli = run.user.start("attach", JOB, *of(run.user))


def wait_for_end(run: Run, *, seconds: float = 1200.0) -> None:
    """Return when the job has ended and its driver with it."""

    def has_ended() -> bool:
        time.sleep(0.3)
        keep_driving(run)
        return run.is_over() and run.cli.poll() is not None

    wait_for(f"the end after {run.struck}", has_ended, seconds=seconds)


def check_machines(user: User, num_nodes: int) -> None:
    """Check by the kernel's clock how many machines there were whenever one was created.

    No more than the job may have are there to stay, and no more than twice as many in all.
    """
    machines = [MachineDirectory(path) for path in user.machines()]
    history: History = user.history(JOB)
    for machine in machines:
        wait_for(f"the end of {machine.id}", lambda m=machine: m.state().state is InstanceState.ENDED)
    created = {machine.id: written(machine.path / "machine.json") for machine in machines}
    ended = {machine.id: ended_at(user, history, machine) for machine in machines}
    leaves = {machine.id: min(ended[machine.id], leaves_at(user, history, machine)) for machine in machines}
    replaced = {machine.id: stand_ins(user, history, machine, leaves) for machine in machines}
    for moment in created.values():
        there = [one for one, since in created.items() if since <= moment]
        staying = [
            one
            for one in there
            if leaves[one] > moment and not any(since <= moment < until for since, until in replaced[one])
        ]
        assert len(staying) <= num_nodes, (created, leaves, replaced)
        assert sum(ended[one] > moment for one in there) <= 2 * num_nodes, (created, ended)


def written(path: Path) -> float:
    """Return when the file was written, in nanoseconds; never, if it is not there."""
    return path.stat().st_mtime_ns if path.exists() else math.inf


def ended_at(user: User, history: History, machine: MachineDirectory) -> float:
    """Return when the machine ran nothing of the job any more: by its last word, or as its seat is not its own."""
    launch, rank = machine.record().launch, machine.record().rank
    found = [written(machine.path / "state.json")]
    left, slot = (
        history.launches[launch - 1].own_exits.get(rank),
        history.launches[launch - 1].slots.get(rank),
    )
    if left is not None and left.instance_id == machine.id:
        found.append(written(user.home / "store" / keys.exit_record(JOB, launch, rank)))
    if slot is not None and slot.instance_id != machine.id:
        found.append(written(user.home / "store" / keys.slot(JOB, launch, rank)))
    return min(found)


def seat_of(machine: MachineDirectory) -> Seat:
    """Return the seat that the machine was bought for."""
    return Seat(machine.record().launch, machine.record().rank)


def stand_ins(
    user: User, history: History, machine: MachineDirectory, leaves: Mapping[str, float]
) -> list[tuple[float, float]]:
    """Return from when until when others were to take the place of the machine."""
    machines = {seat_of(one): one for one in map(MachineDirectory, user.machines())}
    found = []
    for number, record in enumerate(Journal(user.store, JOB).read(), 1):
        if isinstance(record, Intent) and seat_of(machine) in record.stands_in_for:
            seat = Seat(record.launch, record.stands_in_for.index(seat_of(machine)))
            void = written(user.home / "store" / keys.slot(JOB, seat.launch, seat.rank))
            until = leaves[machines[seat].id] if seat in machines else void
            found.append((written(user.home / "store" / keys.journal(JOB, number)), until))
    return found


def leaves_at(user: User, history: History, machine: MachineDirectory) -> float:
    """Return when it was known that the machine goes: by its notice, or as the training went on without it."""
    seat = seat_of(machine)
    found = written(user.home / "store" / keys.notice(JOB, seat.launch, seat.rank))
    was_member = False
    for number, record in enumerate(Journal(user.store, JOB).read(), 1):
        if isinstance(record, Generation):
            if was_member and seat not in record.seats:
                return min(found, written(user.home / "store" / keys.journal(JOB, number)))
            was_member = seat in record.seats
    return found


def check(run: Run, weights: Callable[[], str]) -> None:
    """Check all that must hold after whatever has struck."""
    user = run.user
    shown = user.show(JOB, "--verify")
    assert run.told_step <= max((one.step for one in run.history().commits), default=0)
    check_machines(user, run.num_nodes)
    if shown["state"] == "succeeded":
        check_end(user, JOB)
        check_records(user)
        assert shown["final"]["weights_sha256"] == weights()
    else:
        assert (shown["state"], run.was_stopped) == ("stopped", True), (run.struck, shown["state"])
        assert run.cli.returncode == STOPPED
        if run.told_step:
            checkpoints = json.loads(user.cloudspot("checkpoints", "verify", JOB, "--json").stdout)
            assert all(checkpoint["verified"] for checkpoint in checkpoints)
            assert shown["last_commit"]["step"] >= run.told_step
    check_durations(run)
    lines = step_lines(user, JOB)
    num_lost, num_ends = len(lines) - len(set(lines)), len(shown["generations"]) - 1
    if shown["state"] == "stopped":  # what is in no checkpoint is lost, too
        newest = shown["last_commit"]["step"] if shown["last_commit"] else 0
        num_lost, num_ends = num_lost + sum(step >= newest for step in set(lines)), num_ends + 1
    if shown["steps_lost_is_exact"]:
        # An end may find rank 0 in a step that has not printed its line, and another rank in the next.
        assert num_lost <= shown["steps_lost"] <= num_lost + 2 * num_ends, run.struck


def check_durations(run: Run) -> None:
    """Check that no clock has reached what the nodes have measured, or when they say that they left."""
    for launch in run.history().launches:
        for rank, beat in launch.heartbeats.items():
            assert (beat.upload_seconds or 0.0) < MAX_UPLOAD_SECONDS, (run.struck, beat.upload_seconds)
            put = written(run.user.home / "store" / keys.heartbeat(JOB, launch.number, rank)) / 1e9
            assert abs(put - beat.at.timestamp()) < MAX_UPLOAD_SECONDS, (run.struck, beat.at)


def check_records(user: User) -> None:
    """Check over journal and records that no two generations went on from one point."""
    history = user.history(JOB)
    for older, newer in zip(history.generations, history.generations[1:], strict=False):
        # What the older one had committed after the newer chose where to go on from would be a split.
        chosen = newer.restore_from
        late = [c.id for c in history.commits if c.generation == older.number and chosen and c.id > chosen]
        assert late == []
    # By the last generation, or by the one before if that came to the end of the loop, but not of the script.
    shown = user.show(JOB)
    assert shown["last_commit"]["step"] == shown["steps_total"]


def check_removal(run: Run) -> None:
    """Kill ``rm`` at a random moment, run it again, and check that nothing of the job is left."""
    user = run.user
    first = user.start("rm", "--yes", JOB, *of(user))
    time.sleep(run.rng.uniform(0.2, 1.5))
    first.kill()
    first.wait()
    ends = {0, JobNotFound.exit_code}

    def is_removed() -> bool:
        return user.cloudspot("rm", "--yes", JOB, *of(user), status=None).returncode in ends

    # An outage may still go on.
    wait_for("the removal", is_removed)
    left = [path for path in (user.home / "store").rglob("*") if path.is_file() and JOB in str(path)]
    assert left == []


def outlive_faults(
    user: User, seed: int, undisturbed: Callable[..., dict[str, Any]], *, besides: Sequence[str] = ()
) -> None:
    """Draw a job and its faults from the seed, run them, and check all that must hold.

    ``besides``: faults that strike at drawn places among the others.
    """
    rng = random.Random(seed)
    num_nodes = rng.choice((1, 1, 2, 3))
    kinds = [rng.choice(KINDS[:-2]) for _ in range(rng.randrange(1, 4))]
    for kind in besides:
        kinds.insert(rng.randrange(len(kinds) + 1), kind)
    kinds += rng.choice(((), (), (), ("rm",), ("stop",)))
    print(f"seed {seed}: {num_nodes} nodes, {kinds}")
    sets = (*settings(num_nodes, step_seconds=0.03), 'checkpoint.interval="400ms"')
    run = begin(user, rng, num_nodes, sets, num_outages=kinds.count("outage"))
    calm = partial(undisturbed, settings(num_nodes, step_seconds=0.0))
    try:
        go_through(run, [kind for kind in kinds if kind != "outage"])
        if not run.was_removed:
            wait_for_end(run)
            check(run, lambda: calm()["final"]["weights_sha256"])
        check_removal(run)
    except BaseException:
        # The disk goes with the test, and what was said on it.
        for path in sorted(user.home.glob("cli-*.out")):
            print(f"{path.name}:\n{path.read_text()[-6000:]}")
        raise


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[None]:
    """Put the test's directory on a file system of its own, if this user may; ask for it before ``user``."""
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(tmp_path)]
    is_ours = sys.platform == "linux" and os.geteuid() == 0
    is_ours = is_ours and subprocess.run(mounting, check=False).returncode == 0
    yield
    if is_ours:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.fixture
def load() -> Iterator[None]:
    """Keep the machine busy with processes of the test's own."""
    # They end with whoever started them, also if a killed worker cannot end them.
    loop = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
    busy = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(LOAD)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.full
@pytest.mark.parametrize("seed", [1025, 1048])
def test_random_faults_on_one_node_and_on_two(user: User, seed: int, undisturbed) -> None:
    # A trainer is killed inside a save; nodes are frozen twice. Neither costs another launch.
    outlive_faults(user, seed, undisturbed)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("seed", range(10000, 10000 + NUM_SEEDS))
def test_soak_of_random_faults_while_clocks_step(user: User, seed: int, undisturbed) -> None:
    outlive_faults(user, seed, undisturbed, besides=BESIDES)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("small_disk", "load")
@pytest.mark.parametrize("seed", range(15000, 15000 + NUM_LOADED_SEEDS))
def test_soak_of_random_faults_while_clocks_step_under_load(user: User, seed: int, undisturbed) -> None:
    outlive_faults(user, seed, undisturbed, besides=BESIDES)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("seed", range(1000, 1000 + NUM_SEEDS))
def test_soak_of_random_faults(user: User, seed: int, undisturbed) -> None:
    outlive_faults(user, seed, undisturbed)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("small_disk", "load")
@pytest.mark.parametrize("seed", range(5000, 5000 + NUM_LOADED_SEEDS))
def test_soak_of_random_faults_under_load(user: User, seed: int, undisturbed) -> None:
    outlive_faults(user, seed, undisturbed)
