"""Jobs that name an image: whole ones, with real containers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.jobs.acting_user import COMMAND, JOBS, User, kill, send, supervisors_processes, wait_for
from support.jobs.real_registry import PASSWORD, USER, pushed, real_registry, registries_conf
from support.jobs.small_image import containers, kill_container, small_image, why_no_containers

from cloudspot.errors import JobNotFound

pytestmark = pytest.mark.full


TORCH = (
    *("torch", "torchgen", "functorch", "numpy", "sympy", "mpmath", "networkx", "jinja2", "markupsafe"),
    *("filelock", "fsspec", "typing_extensions"),
)
"""What the image of a training with torch holds."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if why := why_no_containers():
        pytest.skip(why)
    with small_image(tmp_path_factory.mktemp("image")) as name:
        yield name


def start(user: User, image: str, *sets: str):
    user.environ["COUNT_TOKEN"] = "hush, not in any list of processes"
    words = ["run", str(JOBS / "boxed" / "job.toml"), "--name", "boxed", "--set", f"run.image={image}"]
    return user.start(*words, *(word for one in sets for word in ("--set", one)))


def commits(user: User) -> Sequence[object]:
    try:
        return user.history("boxed").commits
    except JobNotFound:
        return ()


def processes(machine: Path, word: str) -> list[int]:
    found = []
    for pid in supervisors_processes(machine):
        try:
            words = Path("/proc", str(pid), "cmdline").read_text().split("\0")
        except OSError:
            continue
        if word in words:
            found.append(pid)
    return found


def starts(user: User) -> Sequence[str]:
    log = user.cloudspot("logs", "boxed", "--source", "train").stdout
    return re.findall(r"starts at (\d+): token of 34, hello, world, made by setup", log)


def test_a_job_in_a_container_outlives_its_agent_and_a_reclaim(user: User, image: str) -> None:
    run = start(user, image)
    before = wait_for("a checkpoint", lambda: commits(user))
    (container,), (machine,) = containers(user.home), user.machines()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert "hush, not in any list" not in path.read_text(errors="replace")
        except OSError:
            continue
    trainings = processes(machine, "count.py")
    agents = processes(machine, "cloudspot.agent")
    assert trainings
    assert agents
    for agent in agents:
        kill(agent)
    wait_for("another agent", lambda: set(processes(machine, "cloudspot.agent")) - set(agents))
    wait_for("a later checkpoint", lambda: len(commits(user)) > len(before))
    assert (containers(user.home), processes(machine, "count.py")) == ([container], trainings)

    user.cloudspot("preempt", "boxed", "--notice", "8s")
    assert run.wait(timeout=180) == 0, user.output(run)
    shown = user.show("boxed", "--verify")
    assert (shown["state"], len(shown["launches"])) == ("succeeded", 2)
    assert shown["last_commit"]["verified"] is True
    first, second = starts(user)
    log = user.cloudspot("logs", "boxed", "--source", "train").stdout
    assert (first, second) == ("0", re.search(r"leaves at (\d+)", log)[1])
    assert "has counted to 300" in log
    assert containers(user.home) == []
    assert not Path("/made-by-setup").exists()


def test_a_private_image_is_looked_up_and_pulled_with_the_jobs_log_in(
    user: User, image: str, tmp_path: Path
) -> None:
    with real_registry(tmp_path, is_private=True) as address, pushed(image, address, tmp_path) as name:
        tag = name.partition("@")[0]
        user.environ["CONTAINERS_REGISTRIES_CONF"] = str(registries_conf(address, tmp_path))
        sets = (
            f'run.image_login={{user="{USER}", secret="REGISTRY_KEY"}}',
            'run.secrets=["COUNT_TOKEN", "REGISTRY_KEY"]',
            'run.env.COUNT_TO="20"',
            'providers.local.pass_environment=["CONTAINERS_REGISTRIES_CONF"]',
        )
        user.environ["REGISTRY_KEY"] = "wrong"
        refused = start(user, tag, *sets)
        assert refused.wait(timeout=60) == 4
        assert f"the registry refuses the user {USER} of run.image_login\n" in user.output(refused)
        user.environ["REGISTRY_KEY"] = PASSWORD
        run = start(user, tag, *sets)
        assert run.wait(timeout=180) == 0, user.output(run)
        shown = name.replace(":7@", "@")[:-52]
        assert f"pulling {shown}\n" in user.cloudspot("logs", "boxed", "--source", "agent").stdout
        files = [path for path in user.home.rglob("*") if path.is_file()]
        assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_what_a_person_runs_on_a_node_runs_in_the_container(user: User, image: str) -> None:
    start(user, image)
    wait_for("a checkpoint", lambda: commits(user))
    script = "[ -e /run/.containerenv ] && echo inside; read line; echo $line; pwd; exit 5"
    done = subprocess.run(
        [*COMMAND, "exec", "boxed", "--", "sh", "-c", script],
        env=user.environ, input="hello\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    work = user.machines()[0] / "node" / "work"
    assert (done.returncode, done.stdout) == (5, f"inside\nhello\n{work}\n"), done.stderr
    user.cloudspot("stop", "boxed", status=None)


def test_a_machine_that_is_kept_after_a_failure_still_has_its_container(user: User, image: str) -> None:
    fails = 'run.command=["python3", "-c", "raise ValueError"]'
    start(user, image, fails, 'limits.keep_failed="30m"', "limits.max_restarts=1")

    def is_kept() -> bool:
        done = subprocess.run(
            [*COMMAND, "show", "boxed", "--json"], env=user.environ, capture_output=True, check=False
        )
        return done.returncode == 0 and (json.loads(done.stdout)["kept"] or {}).get("is_kept", False)

    wait_for("the machine that is kept", is_kept)
    script = "[ -e /run/.containerenv ] && cat /made-by-setup"
    assert user.cloudspot("exec", "boxed", "--", "sh", "-c", script).stdout == "made by setup\n"
    user.cloudspot("stop", "boxed", "--wait", status=1)
    assert user.show("boxed")["cost"]["purposes"]["kept"]["seconds"] > 0
    wait_for("the end of the container", lambda: containers(user.home) == [])


def test_a_container_that_ends_costs_the_machine_and_no_checkpoint(user: User, image: str) -> None:
    """What the setup has changed in it is gone, and nobody knows what of it the training needs."""
    run = start(user, image)
    wait_for("a checkpoint", lambda: commits(user))
    kill_container(*containers(user.home))
    for pid in processes(user.machines()[0], "count.py"):
        kill(pid)
    assert run.wait(timeout=180) == 0, user.output(run)
    shown = user.show("boxed")
    assert shown["state"] == "succeeded"
    assert [one["outcome"] for one in shown["nodes"]] == ["failed", "succeeded"]
    assert "the job's container has ended, so the changes that its setup made are lost" in user.output(run)
    assert int(starts(user)[-1]) >= 20
    assert containers(user.home) == []


def test_a_machine_that_is_killed_leaves_no_container(user: User, image: str) -> None:
    run = start(user, image, 'spot.policy="on-demand"')
    wait_for("a checkpoint", lambda: commits(user))
    send(run.pid, signal.SIGINT)
    run.wait(timeout=60)
    for pid in supervisors_processes(user.machines()[0]):
        kill(pid)
    wait_for("the end of the container", lambda: containers(user.home) == [])


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_nodes_with_torch_in_containers_make_the_weights_that_they_make_without(
    user: User, tmp_path_factory: pytest.TempPathFactory, undisturbed
) -> None:
    if why := why_no_containers():
        pytest.skip(why)
    sets = ("nodes=2", 'run.env.TINY_EPOCHS="20"', 'run.env.TINY_STEP_SECONDS="0.05"')
    calm = undisturbed(sets)
    reclaim = 'providers.local.reclaims=[{launch=1, rank=1, after_steps=100, notice="8s"}]'
    with small_image(tmp_path_factory.mktemp("image"), packages=TORCH) as image:
        user.run_tiny("boxed", sets=(*sets, reclaim, f"run.image={image}"))
    shown = user.show("boxed", "--verify")
    assert (shown["state"], shown["steps_lost"], len(shown["notices"])) == ("succeeded", 0, 1)
    assert len(shown["launches"]) == 2
    assert shown["final"]["weights_sha256"] == calm["final"]["weights_sha256"]
    said = user.cloudspot("logs", "boxed", "--source", "agent").stdout
    assert "Traceback" not in said
    assert "not forked" not in said
    assert containers(user.home) == []
