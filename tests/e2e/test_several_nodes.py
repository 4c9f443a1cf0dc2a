"""Several nodes: who is lost is replaced, the others save, wait or go on, and it ends with the same bits."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.jobs.acting_user import COMMAND, JOBS, User, send, supervisors_processes, tiny, wait_for
from support.jobs.cut_network import own_network

from cloudspot.host.process_marks import marked_processes
from cloudspot.local.machines import MachineDirectory
from cloudspot.local.processes import MARK

pytestmark = pytest.mark.full


SETS = ("nodes=2", 'run.env.TINY_EPOCHS="10"', 'run.env.TINY_STEP_SECONDS="0.03"')
NUM_STEPS = 10 * 10


def reclaims(ranks: tuple[int, ...], after_steps: int, notice: str) -> str:
    """Return the override that reclaims nodes of the first launch at a step."""
    tables = (f'{{launch=1, rank={rank}, after_steps={after_steps}, notice="{notice}"}}' for rank in ranks)
    return f"providers.local.reclaims=[{', '.join(tables)}]"


@pytest.fixture
def weights(undisturbed) -> str:
    """The weights' hash of two nodes that nothing disturbs."""
    shown = undisturbed(SETS)
    assert shown["steps_total"] == NUM_STEPS
    assert [one["name"] for one in shown["nodes"]] == ["1.0", "1.1"]
    return shown["final"]["weights_sha256"]


def check(user: User, weights: str, ranks: tuple[int, ...], notice: str, seed: int) -> None:
    """Reclaim nodes at a random step and compare the end with the undisturbed one's."""
    step = random.Random(seed).randrange(2, NUM_STEPS - 40)
    user.run_tiny("hit", sets=(*SETS, reclaims(ranks, step, notice)))
    shown = user.show("hit", "--verify")
    assert shown["state"] == "succeeded"
    check_replaced(shown, num_nodes=2, ranks=ranks)
    assert shown["last_commit"]["verified"] is True
    saved = [one.rescue for one in user.history("hit").commits if one.rescue is not None]
    if all(one.is_exact for one in saved):  # a death between an all-reduce and the end of its step is not
        assert shown["final"]["weights_sha256"] == weights
    if notice != "0s":
        assert shown["steps_lost"] == 0
        assert len(shown["notices"]) == len(ranks)


def check_replaced(shown: dict[str, Any], *, num_nodes: int, ranks: tuple[int, ...]) -> None:
    """One machine was bought for each that was lost, and the others are those from before."""
    names = [f"1.{rank}" for rank in range(num_nodes)]
    kept = [name for name in names if int(name[2:]) not in ranks]
    bought = [one["name"] for one in shown["nodes"] if one["launch"] > 1]
    assert len(bought) == len(ranks)
    assert [one["name"] for one in shown["nodes"]] == [*names, *bought]
    assert len({one["instance_id"] for one in shown["nodes"]}) == num_nodes + len(ranks)
    assert shown["generations"][-1]["nodes"] == [*kept, *bought]
    assert {one["name"]: one["outcome"] for one in shown["nodes"] if one["outcome"] == "succeeded"} == (
        dict.fromkeys([*kept, *bought], "succeeded")
    )


WHO = [(0,), (1,), (0, 1)]


@pytest.mark.parametrize(
    ("notice", "ranks"),
    [("8s", (1,)), *(pytest.param("0s", ranks, marks=pytest.mark.full) for ranks in ((1,), (0, 1)))],
    ids=str,
)
def test_losing_a_node_or_all_changes_no_bit(
    user: User, weights: str, ranks: tuple[int, ...], notice: str
) -> None:
    check(user, weights, ranks, notice, seed=len(ranks))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("ranks", WHO, ids=str)
@pytest.mark.parametrize("notice", ["8s", "0s"])
def test_soak_of_lost_nodes(user: User, weights: str, ranks: tuple[int, ...], notice: str, seed: int) -> None:
    check(user, weights, ranks, notice, seed)


def test_survivors_go_on_as_a_smaller_generation(user: User) -> None:
    # Without notice. On a slow computer another machine may come before the end, and join.
    sets = ("nodes={min=1, max=2}", 'run.env.TINY_EPOCHS="40"', SETS[2], reclaims((0,), 300, "0s"))
    user.run_tiny("smaller", sets=sets)
    shown = user.show("smaller", "--verify")
    assert (shown["state"], shown["last_commit"]["verified"]) == ("succeeded", True)
    history = user.history("smaller")
    assert [one["nodes"] for one in shown["generations"]][:2] == [["1.0", "1.1"], ["1.1"]]
    assert history.generations[1].restore_from is not None
    assert "waits" not in user.cloudspot("logs", "smaller", "--source", "agent").stdout
    both = user.cloudspot("logs", "smaller").stdout
    names = [node["name"] for node in shown["nodes"]]
    first, second, *others = (user.cloudspot("logs", "smaller", "--node", name).stdout for name in names)
    assert "loss" in first
    assert "generation 1" in second
    assert sorted(both.splitlines()) == sorted((first + second + "".join(others)).splitlines())


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["torchrun", "none"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_command_on_two_nodes_is_told_of_the_notice_to_one(user: User, launcher: str, rank: int) -> None:
    """It has no session. Rank 0 saves, and asks all to leave, wherever the notice came.

    Every rank writes a file of its own to the directory of that name on its node.
    """
    num_steps = 2000
    complete = {"none": ("checkpoint.complete_file=done",), "torchrun": ()}[launcher]

    def run(name: str, *sets: str) -> list[str]:
        words = [
            word
            for one in (
                f'run.command=["python", "ddp_alone.py", "{num_steps}"]',
                f"run.launcher={launcher}",
                "nodes=2",
                'checkpoint.directory="output/checkpoint-*"',
                *complete,
                *sets,
            )
            for word in ("--set", one)
        ]
        file = str(JOBS / "unchanged" / "job.toml")
        user.cloudspot("run", "--provider", "local", file, "--name", name, *words)
        assert user.show(name)["state"] == "succeeded"
        log = user.cloudspot("logs", name, "--source", "train").stdout
        steps = [int(step) for step in re.findall(r"(?m) step (\d+)$", log)]
        assert steps == list(range(1, num_steps + 1)), "steps were made twice, or left out"
        return sorted(re.findall(r"rank \d trained .*", log))

    calm = run("calm")
    assert len(calm) == 2
    reclaim = f'{{launch=1, rank={rank}, after_seconds="12s", notice="20s"}}'
    hit = run("hit", 'run.env.STEP_SECONDS="0.01"', f"providers.local.reclaims=[{reclaim}]")
    assert hit == calm
    shown = user.show("hit", "--verify")
    assert (len(shown["nodes"]), len(shown["notices"])) == (3, 1)
    assert shown["last_commit"]["verified"] is True
    restored = user.history("hit").generations[-1].restore_from
    assert restored is not None
    assert restored.step % 500 != 0, "it was not saved because of the notice"
    for node in {0, rank}:  # node 1 may have left with rank 0 before it hears of that one's notice
        words = ("--node", f"1.{node}", "--source", "agent")
        agent = user.cloudspot("logs", "hit", *words).stdout
        assert agent.count("asked the script to save, by SIGTERM to 1 process(es)") == 1
    outcomes = {number: word.outcome for number, word in user.history("hit").launches[0].exits.items()}
    assert outcomes == {rank: "drained", 1 - rank: "succeeded"}


def test_a_machine_that_stood_still_finds_that_it_is_out(user: User) -> None:
    """Its processes are stopped for 40 s, as those of a machine that is moved or cut off, and go on then."""
    sets = ("nodes={min=1, max=2}", 'run.env.TINY_EPOCHS="22"', 'run.env.TINY_STEP_SECONDS="0.08"')
    cli = user.start_tiny("cut", sets=sets)
    progress = "machines/*/node/generations/000001/progress-*"
    wait_for("the first steps", lambda: len(list(user.home.glob(progress))) == 2, seconds=120)
    late = next(one for one in user.machines() if MachineDirectory(one).record().rank == 1)
    stopped = supervisors_processes(late)
    for pid in stopped:
        send(pid, signal.SIGSTOP)
    until = time.monotonic() + 40.0
    wait_for("the smaller generation", lambda: len(user.history("cut").generations) == 2)
    wait_for("40 s", lambda: time.monotonic() >= until)
    num_before = len(user.history("cut").commits)
    for pid in stopped:
        send(pid, signal.SIGCONT)
    word = wait_for("the late one's last word", lambda: user.history("cut").launches[0].exits.get(1))
    assert (word.outcome, word.generation) == ("superseded", 1)
    # A replacement may have joined meanwhile, in a generation of its own.
    assert re.fullmatch(r"generation [2-9] goes on without this node", word.detail)
    wait_for("its end", lambda: not marked_processes(MARK, MachineDirectory(late).mark))
    wait_for("the end of the run", lambda: cli.poll() is not None, seconds=180)
    assert cli.returncode == 0, user.output(cli)[-6000:]
    history = user.history("cut")
    first, second, *later = [[str(seat) for seat in one.seats] for one in history.generations]
    assert (first, second) == (["1.0", "1.1"], ["1.0"])
    assert not any("1.1" in nodes for nodes in later)  # a machine of its own may have come in its place
    assert 1 not in {one.generation for one in history.commits[num_before:]}


@pytest.mark.soak
def test_a_network_that_is_cut_between_the_nodes_ends_no_job(user: User, weights: str) -> None:
    """Both nodes live and reach the store, and neither reaches the other."""
    with own_network() as network:
        sets = (
            *SETS[:2],
            'run.env.TINY_STEP_SECONDS="0.2"',
            f'run.env.TINY_INTERFACE="{network.interface}"',
            'limits.stuck_after="12s"',
        )
        with (user.home / "split.out").open("w") as output:
            cli = subprocess.Popen(
                [*network.prefix, *COMMAND, *tiny("split", "local", sets)],
                env=user.environ,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_for(
                "the first checkpoint",
                lambda: list(user.home.glob("store/jobs/split/manifests/*")),
                seconds=120,
            )
            machine = next(one for one in map(MachineDirectory, user.machines()) if one.record().rank == 1)
            supervisor = machine.supervisor()
            assert supervisor is not None
            # Which of the two has asked the other for their connection is not known.
            lost = (network.address(0), network.address(1), machine.record().address)
            metadata = urlsplit(supervisor.metadata_url).port
            for address in lost:
                network.cut(address, but_port=metadata)
            wait_for("the last word of one", lambda: user.history("split").launches[0].exits)
            for address in lost:
                # Before the new machine comes, which has the same part of the interface.
                network.mend(address)
            wait_for("the end of the run", lambda: cli.poll() is not None, seconds=180)
        finally:
            cli.kill()
            cli.wait()
    assert cli.returncode == 0, (user.home / "split.out").read_text()[-6000:]
    history = user.history("split")
    # One of them stays, and waits for another machine.
    left, stayed = sorted(history.launches[0].exits.items(), key=lambda one: one[1].at)
    assert [word.outcome for _, word in (left, stayed)] == ["superseded", "succeeded"]
    assert not any(word.permanent for _, word in (left, stayed))
    names = [f"1.{rank}" for rank, _ in (left, stayed)]
    cut = f"node {names[1]} does not reach node {names[0]}: the network between the machines is cut"
    assert cut in (user.home / "split.out").read_text()
    assert [([str(seat) for seat in one.seats], one.why) for one in history.generations] == [
        (["1.0", "1.1"], "first"),
        ([names[1]], "regrouped"),
        ([names[1], "2.0"], "joined"),
    ]
    chosen = history.generations[2].restore_from
    assert chosen is not None
    assert max(commit.id for commit in history.commits if commit.generation == 1) <= chosen
    assert user.show("split")["final"]["weights_sha256"] == weights
