"""Machines and processes that die without a word: the others save what they hold, and no step is made again.

``CLOUDSPOT_SOAK_DEATHS`` says how many deaths the soak has, and ``CLOUDSPOT_SOAK_PAUSES`` how often pauses are timed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.jobs.acting_user import User, kill, send, supervisors_processes, wait_for
from support.jobs.cut_network import own_network
from support.jobs.deadly_training import Training, rescue_of

from cloudspot.local.machines import MachineDirectory

NUM_DEATHS = int(os.environ.get("CLOUDSPOT_SOAK_DEATHS", "1000"))
DEATHS_PER_SEED = 10
NUM_PAUSES = int(os.environ.get("CLOUDSPOT_SOAK_PAUSES", "5"))
STEPS = 96
"""Of two ranks; three epochs of 512 samples in batches of 8 each."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``undisturbed(**options)``: the hash of the weights of ranks, two by default, that nothing disturbs."""
    known: dict[Any, str] = {}

    def find(*, sets: tuple[str, ...] = (), **options: Any) -> str:
        key = (sets, *sorted(options.items()))
        if key not in known:
            user = User(tmp_path_factory.mktemp("calm"))
            calm = Training(user, "calm", sets=sets, SECONDS=0, **options)
            known[key] = calm.end()["final"]["weights_sha256"]
            user.close()
        return known[key]

    return find


@pytest.mark.costly
def test_survivors_save_the_last_step_that_they_hold(user: User) -> None:
    hit = Training(user, "hit", EPOCHS=1)
    hit.await_step(8)
    hit.kill_machine(1)
    hit.end()
    hit.check_no_step_twice()
    assert rescue_of(hit).lost == (1,)


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_a_machine_that_dies_without_a_word_costs_no_step(
    user: User, undisturbed: Callable[..., str], rank: int
) -> None:
    hit = Training(user, "hit")
    hit.await_step(20)
    hit.kill_machine(rank)
    shown = hit.end()
    hit.check_no_step_twice()
    rescue = rescue_of(hit)
    assert (rescue.cause, rescue.lost, rescue.is_exact) == ("lost", (rank,), True)
    assert (shown["steps_lost"], shown["steps_lost_is_exact"]) == (1, True)  # the one that was under way
    assert shown["final"]["weights_sha256"] == undisturbed()


@pytest.mark.full
@pytest.mark.parametrize("answer", ["save", "destroy", "cpu", "exit", "continue"])
def test_what_a_script_does_about_the_error_costs_no_step(
    user: User, undisturbed: Callable[..., str], answer: str
) -> None:
    hit = Training(user, "hit", CATCH=answer)
    hit.await_step(20)
    hit.kill_machine(1)
    shown = hit.end()
    hit.check_no_step_twice()
    assert rescue_of(hit).lost == (1,)
    assert shown["final"]["weights_sha256"] == undisturbed()


@pytest.mark.full
def test_a_machine_that_freezes_costs_no_step(user: User, undisturbed: Callable[..., str]) -> None:
    """Its peers hang in a collective: nothing raises."""
    hit = Training(user, "hit")
    hit.await_step(20)
    machine = hit.machine(1)
    for pid in supervisors_processes(machine):
        send(pid, signal.SIGSTOP)
    shown = hit.end()
    hit.check_no_step_twice()
    assert rescue_of(hit).lost == (1,)
    assert shown["final"]["weights_sha256"] == undisturbed()


@pytest.mark.full
def test_a_process_that_dies_alone_costs_no_step(user: User) -> None:
    """torchrun ends its sibling by SIGTERM, and 30 s later by SIGKILL."""
    hit = Training(user, "hit", sets=("nodes=1", "procs_per_node=2"))
    hit.await_step(20)
    kill(hit.pid_of(1))
    hit.end()
    hit.check_no_step_twice()
    assert (rescue_of(hit).cause, rescue_of(hit).lost) == ("failed", (1,))


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_the_script_on_one_rank_leaves_the_last_boundary(user: User, rank: int) -> None:
    hit = Training(user, "hit", FAIL_AT=20, FAIL_RANK=rank, FAIL_HOW="raise")
    shown = hit.end(status=1)
    assert shown["state"] == "failed"
    assert shown["last_commit"]["step"] == 20
    assert shown["last_commit"]["rescue"]["cause"] == "failed"
    assert [one.why for one in user.history("hit").generations] == ["first", "trainer-failed"]
    assert "this script is wrong" in json.dumps(shown)


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_lost_rank_alone_had_was_handed_over(
    user: User, undisturbed: Callable[..., str], rank: int
) -> None:
    hit = Training(user, "hit", MODEL="norm drop", PAUSE_AT=20)
    hit.await_pause(rank)
    hit.kill_machine(rank)
    shown = hit.end()
    hit.check_no_step_twice()
    rescue = rescue_of(hit)
    assert (rescue.lost, rescue.kept, rescue.is_exact) == ((rank,), (rank,), True)
    assert shown["final"]["weights_sha256"] == undisturbed(MODEL="norm drop")


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_a_sibling_keeps_what_a_process_alone_has(
    user: User, undisturbed: Callable[..., str], rank: int
) -> None:
    hit = Training(user, "hit", sets=("nodes=1", "procs_per_node=2"), MODEL="norm drop", PAUSE_AT=20)
    hit.await_pause(rank)
    kill(hit.pid_of(rank))
    shown = hit.end()
    hit.check_no_step_twice()
    assert (rescue_of(hit).kept, rescue_of(hit).is_exact) == ((rank,), True)
    assert shown["final"]["weights_sha256"] == undisturbed(MODEL="norm drop")


@pytest.mark.full
@pytest.mark.parametrize("model", ["norm", "drop"])
def test_state_that_only_a_lost_rank_had_is_said_to_be_missing(user: User, model: str) -> None:
    hit = Training(user, "hit", sets=("checkpoint.hand_over=false",), MODEL=model, PAUSE_AT=20)
    hit.await_pause(0)
    hit.kill_machine(0)
    shown = hit.end()
    hit.check_no_step_twice()
    assert not rescue_of(hit).is_exact
    assert shown["state"] == "succeeded"
    assert "the random generators of rank 0 are seeded anew" in user.output(hit.cli)


@pytest.mark.full
def test_a_network_that_is_cut_between_the_nodes_costs_no_step(user: User) -> None:
    """Both live and reach the store: each holds the last boundary, and one order has both save it."""
    with own_network() as network:
        hit = Training(
            user,
            "hit",
            sets=('limits.stuck_after="12s"',),
            prefix=network.prefix,
            INTERFACE=network.interface,
        )
        hit.await_step(20)
        lost = [MachineDirectory(hit.machine(1))]
        supervisor = lost[0].supervisor()
        assert supervisor is not None
        addresses = (network.address(0), network.address(1), lost[0].record().address)
        for address in addresses:
            network.cut(address, but_port=urlsplit(supervisor.metadata_url).port)
        wait_for("the last word of one", lambda: user.history("hit").launches[0].exits)
        for address in addresses:
            network.mend(address)
        hit.end()
    hit.check_no_step_twice()
    assert (rescue_of(hit).cause, rescue_of(hit).lost) == ("failed", ())


@pytest.mark.full
def test_one_line_turns_it_off(user: User) -> None:
    hit = Training(user, "hit", sets=("checkpoint.rescue=false",))
    hit.await_step(20)
    hit.kill_machine(1)
    hit.end()
    assert [one.step for one in user.history("hit").commits] == [STEPS]


@dataclass(frozen=True)
class Shape:
    """The job that a seed decides on."""

    num_nodes: int
    procs: int
    model: str
    interval: str
    """Of the job's other saves."""
    answer: str
    """Of the script to the error of a lost connection."""

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.procs

    @property
    def steps_per_epoch(self) -> int:
        return 512 // 8 // self.num_ranks


@dataclass(frozen=True)
class Death:
    """Machines or processes of a generation that die at the same moment."""

    how: str
    ranks: tuple[int, ...]
    """For machines, the first one of each."""
    num_steps: int
    """That the generation has made before; with none, it is about to start."""
    later_seconds: float


def shape_of(rng: random.Random) -> Shape:
    num_nodes, procs = rng.choice([(2, 1), (2, 2), (3, 1), (1, 2), (4, 1), (2, 4)])
    return Shape(
        num_nodes,
        procs,
        rng.choice(["", "norm", "drop", "norm drop", "transformer"]),
        rng.choice(["1h", "1s"]),
        rng.choice(["raise", "raise", "save", "destroy", "cpu", "exit", "continue"]),
    )


def death_of(rng: random.Random, shape: Shape) -> Death:
    """Return a death that leaves one machine at least, or one process of the only one."""
    how = rng.choice(["process", "machine", "frozen"]) if shape.num_nodes > 1 else "process"
    several = shape.num_ranks if how == "process" else shape.num_nodes
    struck = rng.sample(range(several), min(several - 1, rng.choice([1, 1, 2, 3])))
    is_early = rng.random() < 0.15
    return Death(
        how,
        tuple(struck if how == "process" else [node * shape.procs for node in struck]),
        0 if is_early else rng.randrange(1, 16),
        rng.uniform(0.0, 1.5 if is_early else 0.3),
    )


def run_with_deaths(user: User, undisturbed: Callable[..., str], seed: int, *, num_deaths: int) -> None:
    """Kill or freeze machines or processes at random moments of generation after generation of a job."""
    rng = random.Random(seed)
    shape = shape_of(rng)
    sets = (f"nodes={shape.num_nodes}", f"procs_per_node={shape.procs}")
    # At each death one step is under way, and after the last the training goes on for a while.
    options = {"MODEL": shape.model, "EPOCHS": 1 + 18 * num_deaths // shape.steps_per_epoch}
    hit = Training(
        user,
        "hit",
        sets=(*sets, f'checkpoint.interval="{shape.interval}"', f"limits.max_restarts={2 * num_deaths}"),
        CATCH=shape.answer,
        SPREAD=1,
        **options,
    )
    generation, deaths = 0, 0
    while deaths < num_deaths:
        death = death_of(rng, shape)
        if not (generation := hit.await_generation(generation, shape.num_ranks, death.num_steps)):
            break
        time.sleep(death.later_seconds)
        phases = [hit.phase(rank, generation) for rank in death.ranks]
        for rank in death.ranks:
            if death.how == "process":
                kill(hit.pid_of(rank, generation))
            elif death.how == "machine":
                hit.kill_machine(rank, generation)
            else:
                for pid in supervisors_processes(hit.machine(rank, generation)):
                    send(pid, signal.SIGSTOP)
        deaths += 1
        print(f"seed {seed}, death {deaths}: generation {generation}, {death} in {phases}")
    shown = hit.end()
    assert shown["state"] == "succeeded"
    assert deaths > 0
    rescues = [one.rescue for one in user.history("hit").commits if one.rescue is not None]
    # A promise has its conditions: what was not saved is told, with the reason.
    told = user.output(hit.cli)
    reasons = told.count("nothing was saved after the loss: ") + told.count("could not be saved in time")
    again = hit.steps_made_again()
    print(
        f"seed {seed}: {shape}, {deaths} deaths, {len(rescues)} rescues, of them exact "
        f"{sum(one.is_exact for one in rescues)}; steps made again {again}, reasons told {reasons}"
    )
    assert len(again) <= reasons
    if all(one.is_exact for one in rescues):
        assert shown["final"]["weights_sha256"] == undisturbed(sets=sets, **options)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_a_death_at_a_random_moment_costs_no_step(
    user: User, undisturbed: Callable[..., str], seed: int
) -> None:
    run_with_deaths(user, undisturbed, seed, num_deaths=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 100 + NUM_DEATHS // DEATHS_PER_SEED))
def test_soak_of_silent_deaths(user: User, undisturbed: Callable[..., str], seed: int) -> None:
    """Prints each death: what died, in which phase of its step."""
    run_with_deaths(user, undisturbed, seed, num_deaths=DEATHS_PER_SEED)


@pytest.mark.soak
@pytest.mark.parametrize("rescue", ["true", "false"])
@pytest.mark.parametrize("how", ["process", "machine", "frozen"])
@pytest.mark.parametrize("number", range(NUM_PAUSES))
def test_how_long_a_training_pauses_with_and_without_a_rescue(
    user: User, number: int, how: str, rescue: str
) -> None:
    """Prints the table of ``docs/failure-modes.md``: two machines of one rank each, a checkpoint a minute."""
    sets = ("nodes=2", 'checkpoint.interval="1m"', f"checkpoint.rescue={rescue}")
    hit = Training(user, "hit", sets=sets)
    hit.await_step(20)
    if how == "process":
        kill(hit.pid_of(1))
    elif how == "machine":
        hit.kill_machine(1)
    else:
        for pid in supervisors_processes(hit.machine(1)):
            send(pid, signal.SIGSTOP)
    shown = hit.end()
    if rescue == "true":
        hit.check_no_step_twice()
    print(f"{how}, rescue = {rescue}: paused {hit.pause():.1f} s, {shown['steps_lost']} steps begun again")
