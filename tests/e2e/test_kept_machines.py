"""A machine that is kept for inspection after its job has failed: the installed command, real machines."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.jobs.acting_user import JOBS, User, has_ended, kill, send, supervisors_processes, wait_for
from support.jobs.first_in_full import first_in_full

from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Finished, Kept
from cloudspot.local.machines import MachineDirectory

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

FAILS = 'run.env.TINY_FAIL_AT="3"'


def kept(user: User, name: str = "wrong") -> dict[str, Any] | None:
    """Return what ``show --json`` tells of the machine that is kept now."""
    try:
        shown = user.show(name)
    except AssertionError:  # it is not submitted yet
        return None
    found: dict[str, Any] | None = shown["kept"]
    return shown if found is not None and found["is_kept"] and shown["state"] == "failed" else None


def listed_as_kept(user: User) -> dict[str, Any] | None:
    """Return what ``ps --json`` tells of the only job once it tells of its kept machine."""
    listed: dict[str, Any]
    (listed,) = json.loads(user.cloudspot("ps", "--json").stdout)
    return listed if listed["kept"] else None


def fail(user: User, seconds: str, *args: str) -> dict[str, Any]:
    """Start a job that fails for good, and return what ``show --json`` tells once its machine is kept."""
    user.start_tiny("wrong", *args, sets=[FAILS, f'limits.keep_failed="{seconds}"'])
    shown: dict[str, Any] = wait_for("the machine that is kept", lambda: kept(user), seconds=240)
    return shown


def agents(machine: Path) -> list[int]:
    """Return the processes of the machine's agent."""
    found = []
    for pid in supervisors_processes(machine):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"cloudspot.agent" in words:
            found.append(pid)
    return found


def test_commands_run_on_it_until_it_is_stopped_and_the_job_has_failed_all_the_while(
    user: User, tmp_path: Path
) -> None:
    shown = fail(user, "30m")
    assert shown["kept"]["node"] == "1.0"
    assert [one["state"] for one in shown["nodes"]] == ["kept"]
    assert any("node 1.0 is kept for inspection until" in one for one in shown["warnings"])
    assert "cloudspot shell wrong" in user.cloudspot("show", "wrong").stdout.replace("\n", " ")
    # The list shows an unfinished job as its driver last summarised it.
    listed = wait_for("its place in the list", lambda: listed_as_kept(user))
    assert (listed["state"], listed["kept"]["node"]) == ("failed", "1.0")
    # The attached command tells of it at once, and stays.
    run = user._started[0]
    wait_for("its word", lambda: "look at the machine that is kept with" in user.output(run))
    assert run.poll() is None
    done = user.cloudspot("exec", "wrong", "--", "sh", "-c", "echo $CLOUDSPOT_JOB; ls; exit 3", status=3)
    assert done.stdout.splitlines()[0] == "wrong"
    assert "train.py" in done.stdout.splitlines()
    user.cloudspot("cp", "wrong:train.py", str(tmp_path / "train.py"))
    assert (tmp_path / "train.py").read_bytes() == (JOBS / "tiny" / "train.py").read_bytes()
    assert "no rank is running here" in user.cloudspot("stacks", "wrong").stdout
    # Nobody buys beside it, removes it, or takes it for left over.
    for words in (["resume", "wrong"], ["rm", "wrong", "--yes"]):
        refused = user.cloudspot(*words, status=1).stderr
        assert "cloudspot stop wrong" in " ".join(refused.split()), refused
    user.cloudspot("reconcile", status=None)
    assert kept(user) is not None
    said = user.cloudspot("stop", "wrong").stdout
    assert "asked node 1.0 of job wrong, which is kept for inspection, to end" in said
    wait_for("its end", lambda: has_ended(user.machines()[-1]))
    assert run.wait(60) == 1
    shown = user.show("wrong")
    assert shown["state"] == "failed"
    assert shown["kept"]["is_kept"] is False
    assert shown["kept"]["ended"] is not None
    assert shown["cost"]["purposes"]["kept"]["seconds"] > 0
    records = user.history("wrong")
    assert isinstance(records.finished, Finished)
    assert records.finished.outcome == "failed"
    assert not list(user.store.list_objects(keys.remote_prefix("wrong")))
    assert not list(user.store.list_objects(keys.live_marks_prefix("wrong")))
    log = user.cloudspot("logs", "wrong", "--source", "agent").stdout
    assert "this machine is kept for inspection" in log
    assert "runs a command on this node: sh -c" in log
    # The driver may end the machine before the agent's last line arrives; then the driver says it.
    by_agent = "this machine is not kept any longer: stop requested: user"
    by_driver = "stop requested (user): the machine of node 1.0, which is kept for inspection, ends"
    assert by_agent in log or by_driver in user.output(run)
    # Now it goes on as any job that has failed.
    user.cloudspot(
        "resume", "wrong", "--set", 'run.env.TINY_FAIL_AT="999999"', "--set", "limits.keep_failed='1s'"
    )
    assert user.show("wrong")["state"] == "succeeded"


def test_it_ends_in_time_with_nothing_attached_and_its_agent_killed_in_between(user: User) -> None:
    shown = fail(user, "25s", "--detach")
    (machine,) = user.machines()
    (agent,) = agents(machine)
    shell = user.start("exec", "wrong", "--", "sleep", "600")
    wait_for("the command", lambda: user.show("wrong")["commands"])
    kill(agent)
    wait_for("the next agent", lambda: agents(machine) not in ([], [agent]))
    wait_for("the end of the machine", lambda: has_ended(machine))
    ended = MachineDirectory(machine).instance().ended_at
    until = user.history("wrong").kept.until
    assert ended is not None
    assert abs((ended - until).total_seconds()) < 20
    shell.wait(120)
    # Whoever comes by writes down what is left to be written.
    user.cloudspot("reconcile", status=None)
    shown = user.show("wrong")
    assert (shown["state"], shown["kept"]["is_kept"]) == ("failed", False)
    assert not list(user.store.list_objects(keys.live_marks_prefix("wrong")))


def test_an_agent_that_hangs_keeps_it_no_longer(user: User) -> None:
    fail(user, "8s", "--detach")
    (machine,) = user.machines()
    (agent,) = agents(machine)
    send(agent, signal.SIGSTOP)
    # A driver ends it a minute late, a process beside the agent two minutes late; here nobody drives.
    wait_for("the end of the machine", lambda: has_ended(machine), seconds=200)


def test_a_setup_that_fails_twice_is_kept_by_the_driver_who_says_that_it_was_for_good(user: User) -> None:
    sets = ["run.setup=\"echo 'no such package' >&2; exit 3\"", 'limits.keep_failed="30m"']
    user.start_tiny("wrong", sets=sets)
    shown = wait_for("the machine that is kept", lambda: kept(user), seconds=240)
    assert shown["kept"]["node"] == "2.0"
    assert "failed twice in a row before the training began" in shown["detail"]
    first, second = user.machines()
    assert has_ended(first)
    assert not has_ended(second)
    assert "train.py" in user.cloudspot("exec", "wrong", "--", "ls").stdout
    user.cloudspot("stop", "wrong", "--wait", status=1)
    assert has_ended(second)


def test_of_two_nodes_the_one_whose_rank_failed_first_is_kept(user: User, tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "job.toml").write_text('name = "pair"\nnodes = 2\n\n[run]\nentrypoint = "train.py"\n')
    (job / "train.py").write_text(SECOND_FAILS)
    user.start("run", str(job / "job.toml"), "--name", "wrong", "--set", 'limits.keep_failed="30m"')
    shown = wait_for("the machine that is kept", lambda: kept(user), seconds=300)
    pairs = [one.seats for one in user.history("wrong").generations if len(one.seats) == 2]
    second = pairs[-1][1]
    assert shown["kept"]["node"] == str(second)
    assert [one["outcome"] for one in shown["nodes"]] == ["failed", "failed"]
    wait_for("the end of the other", lambda: sum(map(has_ended, user.machines())) == 1)
    user.cloudspot("stop", "wrong", "--wait", status=1)
    records = Journal(user.store, "wrong").read()
    assert sum(isinstance(record, Kept) for record in records) == 1


SECOND_FAILS = """
import torch

import cloudspot.train as spot

spot.init_process_group()
model = torch.nn.Linear(2, 2)
run = spot.session(model=model)
for step in run.steps(100):
    if step == 3 and torch.distributed.get_rank() == 1:
        raise ValueError("wrong on purpose")
    torch.distributed.all_reduce(torch.ones(4))
"""


CLOUD = """
import json, subprocess, sys, time

command, job, cloud = [sys.executable, "-m", "cloudspot"], sys.argv[1], sys.argv[2]
words = [one for set_ in sys.argv[3:] for one in ("--set", set_)]


def show():
    done = subprocess.run([*command, "show", "wrong", "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {"kept": None}


run = subprocess.Popen([*command, "run", job, "--name", "wrong", "--provider", cloud, *words],
                       stdout=subprocess.DEVNULL)
while not ((shown := show())["kept"] and shown["state"] == "failed"):
    assert run.poll() is None
    time.sleep(1)
said = subprocess.run([*command, "exec", "wrong", "--", "ls"], capture_output=True, text=True)
spent = shown["cost"]["spent"]
time.sleep(20)
end = time.monotonic() + 120  # a cloud bills the first minute whole
while not (dearer := show()["cost"]["spent"] > spent) and time.monotonic() < end:
    time.sleep(5)
subprocess.run([*command, "stop", "wrong"])
status = run.wait()
ended = show()
print(json.dumps({"said": said.stdout, "dearer": dearer, "status": status, "kept": ended["kept"],
                  "running": sum(one["ended"] is None for one in ended["ledger"]),
                  "purposes": ended["cost"]["purposes"]}))
"""


@pytest.mark.parametrize("cloud", first_in_full("aliyun", "aws", "gcp"))
def test_in_an_emulated_cloud_too(user: User, cloud: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CLOUD)
    inside = [
        "python",
        str(script),
        str(JOBS / "tiny" / "job.toml"),
        cloud,
        FAILS,
        'limits.keep_failed="30m"',
    ]
    done = user.cloudspot("sandbox", cloud, "--", *inside, timeout=800)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "train.py" in told["said"].splitlines()
    assert told["status"] == 1
    assert told["dearer"], told
    assert told["kept"]["ended"] is not None
    assert told["running"] == 0
    assert told["purposes"]["kept"]["seconds"] > 15
