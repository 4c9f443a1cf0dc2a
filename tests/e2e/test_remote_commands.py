"""What a person runs on a job's nodes: the installed command on a real terminal, real machines."""

from __future__ import annotations

import hashlib
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.acting_user import COMMAND, JOBS, User, kill, wait_for
from support.jobs.first_in_full import first_in_full
from support.jobs.pseudo_terminal import Terminal

from cloudspot.jobstore.layout import keys

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

LONG = ('run.env.TINY_EPOCHS="1000"', 'run.env.TINY_STEP_SECONDS="0.2"')
PROMPT = "ready> "


@pytest.fixture
def terminal(user: User) -> Iterator[Callable[..., Terminal]]:
    """``terminal(*args)``: a command of the user's on a terminal."""
    opened: list[Terminal] = []

    def start(*args: str, columns: int = 100, lines: int = 30) -> Terminal:
        environ = {name: user.environ[name] for name in ("CLOUDSPOT_LOCAL_HOME", "PYTHONPATH")}
        opened.append(Terminal([*COMMAND, *args], columns=columns, lines=lines, environ=environ))
        return opened[-1]

    yield start
    for one in opened:
        one.__exit__(None, None, None)


def running(user: User, *sets: str, nodes: int = 1) -> None:
    """Start a long job, and return when it trains."""
    user.start_tiny("long", sets=(*LONG, f"nodes={nodes}", *sets))
    wait_for("the training", lambda: is_training(user))


def is_training(user: User) -> bool:
    try:
        return user.show("long")["step"] > 0
    except AssertionError:  # it is not submitted yet
        return False


def relayed(user: User) -> list[str]:
    return [meta.key for meta in user.store.list_objects(keys.remote_prefix("long"))]


def ask(screen: Terminal, words: str, answer: str) -> float:
    """Type a line, and return how long its answer took."""
    began = time.monotonic()
    screen.press(words + "\n")
    screen.wait_for(lambda: answer in screen.text())
    return time.monotonic() - began


def test_a_shell_is_quick_knows_its_terminal_and_ends_with_its_machine(
    user: User, terminal: Callable[..., Terminal]
) -> None:
    running(user)
    screen = terminal("shell", "long")
    screen.wait_for("$" if os.getuid() else "#")
    screen.press(f"PS1='{PROMPT}'\n")
    screen.wait_for(lambda: screen.text().endswith(PROMPT.rstrip()))
    ask(screen, "stty size", "30 100")
    screen.resize(70, 20)
    time.sleep(1)
    ask(screen, "stty size", "20 70")
    took = [ask(screen, f"echo $(({number} * 1001))", str(number * 1001)) for number in range(11, 32)]
    print(f"median round trip {statistics.median(took):.3f} s, longest {max(took):.3f} s")
    assert statistics.median(took) < 1.0
    user.cloudspot("preempt", "long", "--notice", "6s")
    assert screen.finish() == 1
    assert "the machine is being taken: the command was ended" in " ".join(screen.text().split()), (
        screen.text()
    )
    screen.assert_sane()
    wait_for("the deletion of what was relayed", lambda: not relayed(user))
    wait_for("the next machine", lambda: len(user.show("long")["generations"]) > 1)
    wait_for("its training", lambda: user.show("long")["state"] == "running")
    assert user.cloudspot("exec", "long", "--", "echo", "again").stdout == "again\n"
    assert "runs a command on this node" in user.cloudspot("logs", "long", "--source", "agent").stdout
    user.cloudspot("stop", "long", "--wait", status=None)


def test_a_copy_is_whole_and_goes_on_where_it_was_cut_off(user: User, tmp_path: Path) -> None:
    running(user)
    there, back = tmp_path / "big", tmp_path / "back"
    there.write_bytes(os.urandom(100_000_000))
    began = time.monotonic()
    cut = user.start("cp", str(there), "long:big")
    (work,) = [machine / "node" / "work" for machine in user.machines()]
    partial = work / ".big.cloudspot-partial"
    wait_for("a part of the file", lambda: partial.exists() and partial.stat().st_size > 20_000_000)
    kill(cut.pid)

    def copied() -> str:
        done = user.cloudspot("cp", str(there), "long:big", status=None)
        assert done.returncode == 0 or "another copy is writing it; if that was interrupted" in done.stderr
        return done.stdout

    said = wait_for("the node to end the copy that was cut off", copied, seconds=120)
    print(f"{said.strip()}; {time.monotonic() - began:.1f} s with the cut")
    found = re.fullmatch(r"copied big: 95\.4 MiB, ([\d.]+) MiB of them were there already\n", said)
    assert found is not None, said
    assert float(found[1]) > 10
    assert hashlib.sha256((work / "big").read_bytes()).digest() == hashlib.sha256(there.read_bytes()).digest()
    began = time.monotonic()
    assert user.cloudspot("cp", "long:big", str(back)).stdout == f"copied {back}: 95.4 MiB\n"
    print(f"back in {time.monotonic() - began:.1f} s")
    assert back.read_bytes() == there.read_bytes()
    refused = user.cloudspot("cp", "long:missing", str(back), status=1)
    assert "missing: No such file or directory" in refused.stderr
    user.cloudspot("stop", "long", "--wait", status=None)


def test_a_training_that_hangs_in_a_collective_is_diagnosed(user: User, tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "job.toml").write_text('name = "hanging"\nnodes = 2\n\n[run]\nentrypoint = "train.py"\n')
    (job / "train.py").write_text(HANGS)
    user.start("run", str(job / "job.toml"), "--name", "long")
    wait_for("the training", lambda: "step 3" in user.cloudspot("logs", "long", status=None).stdout)
    time.sleep(2)
    shown = user.cloudspot("stacks", "long").stdout
    ranks = dict(
        re.findall(
            r"^--- rank (\d) \(process \d+\)\n(.*?)(?=^--- rank|^node|\Z)", shown, re.DOTALL | re.MULTILINE
        )
    )
    assert "in all_reduce" in ranks["0"], shown
    assert "in forget_to_take_part" in ranks["1"], shown
    assert "in all_reduce" not in ranks["1"]
    user.cloudspot("stop", "long", status=None)


HANGS = """
import time

import torch

import cloudspot.train as spot


def forget_to_take_part():
    time.sleep(3600)


spot.init_process_group()
model = torch.nn.Linear(2, 2)
run = spot.session(model=model)
for step in run.steps(100):
    print("step", step, flush=True)
    if step == 3 and torch.distributed.get_rank() == 1:
        forget_to_take_part()
    torch.distributed.all_reduce(torch.ones(4))
"""


def test_a_job_that_forbids_it_runs_nothing(user: User) -> None:
    running(user, "run.exec=false")
    for words in (["exec", "long", "--", "true"], ["stacks", "long"]):
        refused = user.cloudspot(*words, status=1)
        assert "job long runs no commands: its job file has run.exec = false" in refused.stderr
    user.cloudspot("stop", "long", "--wait", status=None)


CLOUD = """
import json, statistics, subprocess, sys, threading, time

command, job, cloud = [sys.executable, "-m", "cloudspot"], sys.argv[1], sys.argv[2]
words = [one for set_ in sys.argv[3:] for one in ("--set", set_)]
run = subprocess.Popen([*command, "run", job, "--name", "long", "--provider", cloud, *words],
                       stdout=subprocess.DEVNULL)
while True:
    done = subprocess.run([*command, "show", "long", "--json"], capture_output=True, text=True)
    if done.returncode == 0 and json.loads(done.stdout)["step"] > 0:
        break
    time.sleep(1)
shell = subprocess.Popen([*command, "exec", "long", "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
took = []
for number in range(20):
    began = time.monotonic()
    shell.stdin.write(b"%d\\n" % number)
    shell.stdin.flush()
    assert shell.stdout.readline() == b"%d\\n" % number
    took.append(time.monotonic() - began)
shell.stdin.close()
status = shell.wait()
stop = subprocess.run([*command, "stop", "long"])
print(json.dumps({"status": status, "median": statistics.median(took), "run": run.wait()}))
"""


@pytest.mark.parametrize("cloud", first_in_full("aws", "gcp", "aliyun"))
def test_in_an_emulated_cloud_too_with_the_rights_of_its_machines(
    user: User, cloud: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(CLOUD)
    inside = ["python", str(script), str(JOBS / "tiny" / "job.toml"), cloud, *LONG]
    done = user.cloudspot("sandbox", cloud, "--", *inside, timeout=500)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{cloud}: median round trip {told['median']:.3f} s")
    assert told["status"] == 0
    assert told["median"] < 2.0
