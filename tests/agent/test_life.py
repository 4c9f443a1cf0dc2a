"""A node's life without torch: a plain Python plays torchrun, and writes what a session would write."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.records.made_journal import open_launch
from support.stores.faultstore import DenyingStore, FaultPlan, FaultyStore, Outage

from cloudspot.agent import life as life_module
from cloudspot.agent import store_retry
from cloudspot.agent.delivery import checkpoint_restore, early_restore
from cloudspot.agent.ending import final_delivery
from cloudspot.agent.ending.exit_record import write_exit_record
from cloudspot.agent.last_pass import LastPass
from cloudspot.agent.leaving import Leaving
from cloudspot.agent.membership import agreement
from cloudspot.agent.notices.notice_file import NoticeFile
from cloudspot.agent.notices.notice_pipe import wake_agent
from cloudspot.agent.reclaim import understand
from cloudspot.agent.training.launching import trainer
from cloudspot.agent.training.launching.trainer import processes_of
from cloudspot.agent.training.launching.variables import INTERNAL, PROMISED
from cloudspot.agent.training.programs import container
from cloudspot.errors import AuthError, ObjectMissing
from cloudspot.host.kept_processes import KeptProcesses
from cloudspot.host.process_marks import marked_processes
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import head
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Heartbeat, Notice
from cloudspot.jobstore.nodes import launches
from cloudspot.model import Capability, PreemptionNotice, RegistryLogin
from cloudspot.train import handoff as files

JOB = "digits-1"

# What a session does, in little: it counts steps, heeds the drain file and says how it ended.
SESSION = """
import hashlib, json, os, sys, time
from pathlib import Path
from cloudspot.host.boot_clock import this_boot
from cloudspot.train import handoff as files

handoff = Path(os.environ[files.HANDOFF])
rank = int(os.environ["RANK"])
generation = int(os.environ[files.GENERATION])
restore = os.environ.get(files.RESTORE)
start = json.loads((Path(restore) / "restore.json").read_text())["step"] if restore else 0

def begin(step, total=100):
    files.begun_loop_path(handoff, rank).touch()
    files.progress_path(handoff, rank).write_bytes(files.PROGRESS.pack(step, total, step))

def seal(step, kind="interval", data=b"weights"):
    slot = Path(os.environ[files.ARENA]) / f"slot-{generation}-0-{step % 2}"
    slot.write_bytes(data)
    items = [{"name": "m", "dtype": "uint8", "shape": [len(data)], "offset": 0, "nbytes": len(data)}]
    table = json.dumps([[0, items]], sort_keys=True, separators=(",", ":"))
    files.write_json(files.seals_directory(handoff) / f"seal-{generation}-{step}-0-0.json", {
        "format": 1, "generation": generation, "step": step, "round": 0, "rank": 0, "world_size": 1,
        "kind": kind,
        "slot": str(slot), "nbytes": len(data), "plan": hashlib.sha256(table.encode()).hexdigest(),
        "items": items, "objects": {}, "rank_states": {"0": {}}, "stall_seconds": 0.0,
        "boot": this_boot(),
        "sealed_monotonic": time.monotonic(),
    })

def drain(step):
    if step is not None:
        seal(step, "drain")
    files.write_json(files.drained_path(handoff, 0), {"step": step})
    sys.exit(0)

def end_loop():
    begin(100, 100)
    files.ended_loop_path(handoff, rank).touch()

def finish(step, *, save=True):
    begin(step, step)
    if save:
        seal(step, "final")
    end_at(step)

def end_at(step, **left):
    final = {"step": step, "is_saved": True, "weights_sha256": "abc", "left_early": False, "planned": None, **left}
    files.write_json(files.final_path(handoff), final)
    files.ended_loop_path(handoff, rank).touch()

def leave(step, *, is_held=False):
    seal(step, "final")
    if is_held:
        name = f"seal-{generation}-{step}-0-0.json"
        (files.seals_directory(handoff) / name).rename(files.seals_directory(handoff) / f"held-{name[5:]}")
    end_at(step, left_early=True, planned=100)

def until(condition):
    while not condition():
        time.sleep(0.005)

print("resumed at", start, flush=True)
files.progress_path(handoff, rank).write_bytes(files.PROGRESS.pack(start, -1, start))
begin(start)
"""

WAIT_FOR_DRAIN = (
    SESSION
    + """
begin(40)
until(lambda: files.read_drain(handoff))
drain(40)
"""
)


def notice(bench, seconds):
    bench.provider.notices.notice = PreemptionNotice(
        deadline=datetime.now(timezone.utc) + timedelta(seconds=seconds)
    )


def run(life):
    def run():
        with suppress(SystemExit):  # it hung until the end of the test
            life.run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def end(thread):
    thread.join(60.0)
    assert not thread.is_alive()


def wait_for_step(life, step, wait_until):
    wait_until(lambda: life.context.status.has_session and life.context.status.progress()[0] >= step)


def down_for_ever(bench):
    return FaultPlan(outages=(Outage(start=0.0, end=1e12),))


def end_machine(bench):
    """Let node 1.0 end, as after a notice."""
    life = bench.life(machine="elsewhere")
    context = life.context
    write_exit_record(bench.store, context.node, context.job.identity, Leaving("drained", "reclaimed"))


# --- the ways a training ends ---------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("launcher", ["torchrun", "none"])
def test_a_training_finds_the_variables_that_the_docs_promise_and_no_unknown_ones_of_ours(bench, launcher):
    data = bench.root / "corpus"
    data.mkdir()
    (data / "a.txt").write_text("a")
    script = (
        "import json, os\nfrom pathlib import Path\n"
        "Path(os.environ['CLOUDSPOT_ARTIFACTS'], 'env.json').write_text(json.dumps(dict(os.environ)))\n"
    )
    (bench.root / "env.py").write_text(script)
    run = {"command": [sys.executable, str(bench.root / "env.py")]} if launcher == "none" else {}
    life = bench.life(
        script, run=run, nodes={"min": 1, "max": 2}, data={"corpus": {"url": data.as_uri() + "/"}}
    )
    life.run()
    found = json.loads((life.context.node.artifacts / "env.json").read_text())
    ours = {name for name in found if name.startswith("CLOUDSPOT_")}
    promised = {name for names in PROMISED for name in names.split(", ") if name.startswith("CLOUDSPOT_")}
    promised = promised - {"CLOUDSPOT_DATA_NAME"} | {"CLOUDSPOT_DATA_CORPUS"}
    assert promised <= ours
    inherited = {name for name in os.environ if name.startswith("CLOUDSPOT_")}
    assert ours - promised - INTERNAL - inherited == set()
    assert (found["CLOUDSPOT_JOB"], found["CLOUDSPOT_GENERATION"]) == (JOB, "1")
    assert (Path(found["CLOUDSPOT_DATA_CORPUS"]) / "a.txt").read_text() == "a"
    if launcher == "none":
        of_command = {
            name for names, (when, _) in PROMISED.items() if "none" in when for name in names.split(", ")
        }
        assert of_command <= found.keys()
        assert (found["NODES"], found["NODE_RANK"], found["WORLD_SIZE"]) == ("1", "0", "1")


@pytest.mark.full
def test_a_training_that_finishes(bench):
    life = bench.life(SESSION + "print('hello')\nfinish(100)\n", run={"setup": "echo set up"})
    life.run()
    record = bench.exit_record()
    assert (record.outcome, record.step, record.committed) == ("succeeded", 100, bench.id(1, 100))
    assert (record.final.step, record.final.weights_sha256) == (100, "abc")
    assert {"set up", "resumed at 0", "hello"} <= set(bench.log(life))
    assert launches.read_slots(bench.store, JOB, 1)[0].instance_id == "m-1"


@pytest.mark.full
def test_the_last_heartbeat_tells_what_the_node_did_and_when(bench):
    first = bench.commit(bench.id(1, 40))
    end_machine(bench)
    life = bench.life(SESSION + "begin(41)\ntime.sleep(0.3)\nfinish(100)\n", launch=2)
    life.run()
    beat = codec.decode(bench.store.get(keys.heartbeat(JOB, 2, 0)), Heartbeat)
    phases = [(one.state, one.generation) for one in beat.phases]
    # On a busy machine the node may be seen ready before it trains.
    is_seen_ready = phases[1:2] == [("ready", 0)]
    assert phases == [
        ("restoring", 0),
        *([("ready", 0)] if is_seen_ready else []),
        ("running", 2),
        ("training", 2),
        ("uploading", 2),
        ("ending", 2),
    ]
    times = [one.at for one in beat.phases]
    assert times == sorted(times)
    second = bench.generations()[1]
    assert (second.ranks(2), second.restore_from) == ((0,), first.id)


@pytest.mark.full
@pytest.mark.parametrize("is_held", [False, True])
def test_a_script_that_leaves_its_loop_by_itself_has_finished_there(bench, is_held):
    """It succeeded without a checkpoint of what it had made."""
    bench.life(SESSION + f"begin(7)\nleave(7, is_held={is_held})\n").run()
    record = bench.exit_record()
    assert (record.outcome, record.step, record.committed) == ("succeeded", 7, bench.id(1, 7))
    assert (record.final.step, record.final.left_early, record.final.planned) == (7, True, 100)


@pytest.mark.full
def test_ranks_that_come_to_the_end_after_different_numbers_of_steps_are_no_success(bench):
    other = "files.progress_path(handoff, 1).write_bytes(files.PROGRESS.pack({0}, {0}, {0}))\n"
    other += "files.ended_loop_path(handoff, 1).touch()\n"
    bench.life(SESSION + other.format(101) + "finish(100)\n", procs_per_node=2).run()
    record = bench.exit_record()
    assert (record.outcome, record.exit_code, record.permanent) == ("failed", 1, True)
    assert record.detail == "its ranks made 100 to 101 steps: the last state is in no checkpoint"


@pytest.mark.full
def test_a_script_that_leaves_its_loop_to_end_with_another_status_has_failed(bench):
    script = SESSION + "if start == 0:\n    seal(4)\nbegin(7)\nleave(7, is_held=True)\nsys.exit(3)\n"
    bench.life(script).run()
    record = bench.exit_record()
    assert (record.outcome, record.exit_code, record.committed) == ("failed", 3, bench.id(1, 4))
    assert bench.commits() == (bench.id(1, 4),)


@pytest.mark.full
def test_a_script_that_exits_0_in_the_middle_of_its_loop_has_failed(bench):
    """It was a success, whatever step it had come to."""
    bench.life(SESSION + "begin(7)\n").run()
    record = bench.exit_record()
    assert (record.outcome, record.exit_code, record.permanent, record.final) == ("failed", 1, True, None)
    assert record.detail == "the training exited 0 before the end of its loop twice at step 7"
    assert whys(bench) == ["first", "trainer-failed"]


@pytest.mark.full
def test_a_script_that_exits_0_in_the_middle_of_its_last_save_has_failed(bench):
    """Its last steps are in no checkpoint, though it made them all."""
    bench.life(SESSION + "if start == 0:\n    seal(40)\nbegin(100, 100)\n").run()
    record = bench.exit_record()
    assert (record.outcome, record.final, record.committed) == ("failed", None, bench.id(1, 40))


@pytest.mark.full
def test_a_script_that_never_begins_its_loop_has_finished(bench):
    bench.life(SESSION.replace("\nbegin(start)", "")).run()
    assert bench.exit_record().outcome == "succeeded"


@pytest.mark.full
def test_a_script_that_exits_0_in_the_first_step_of_a_loop_of_unknown_length_has_failed(bench):
    """It was a success: the progress is the same as before the loop."""
    bench.life(SESSION.replace("begin(start)", "begin(start, -1)")).run()
    record = bench.exit_record()
    assert (record.outcome, record.permanent, record.final) == ("failed", True, None)
    assert record.detail == "the training exited 0 before the end of its loop twice at step 0"


LEAVE_ON_SIGTERM = """
Path("begun").touch()
until(Path("go").exists)
"""


@pytest.mark.full
@pytest.mark.parametrize("begin", ["begin(7)\n", "begin(100, 100)\n"])  # the second is in its last save
def test_a_trainer_that_exits_0_in_its_loop_under_an_order_to_leave_has_not_finished(
    bench, wait_until, begin
):
    """One that handles SIGTERM by itself saves and returns 0: the job was over at whatever step it was."""
    life = bench.life(SESSION + begin + LEAVE_ON_SIGTERM)
    thread = run(life)
    wait_until((life.context.node.work / "begun").exists)
    notice(bench, 20.0)
    wait_until(lambda: life.context.orders.reclaim is not None)
    (life.context.node.work / "go").touch()
    end(thread)
    record = bench.exit_record()
    assert (record.outcome, record.detail, record.final) == ("drained", "reclaimed (terminate)", None)
    assert bench.commits() == ()


@pytest.mark.full
def test_a_node_that_another_ones_stop_has_drained_hears_of_the_stop_itself(bench, monkeypatch, wait_until):
    """It looks for a stop only now and then; it would have gone on, and drained once more."""
    monkeypatch.setattr("cloudspot.agent.membership.heartbeat_writer.LOOK_SECONDS", 3600.0)
    life = bench.life(SESSION + "begin(40)\nuntil(Path('go').exists)\ndrain(40)\n")
    thread = run(life)
    wait_for_step(life, 40, wait_until)
    request_stop(bench.store, JOB, "user", resumption=0)
    (life.context.node.work / "go").touch()
    end(thread)
    record = bench.exit_record()
    assert (record.outcome, record.step, record.committed) == ("stopped", 40, bench.id(1, 40))
    assert whys(bench) == ["first"]


@pytest.mark.full
@pytest.mark.parametrize("seconds", [2.0, 5.0, 10.0])
def test_a_notice_however_short_drains_commits_and_is_reported(bench, wait_until, seconds):
    life = bench.life(WAIT_FOR_DRAIN)
    thread = run(life)
    wait_for_step(life, 40, wait_until)
    told = time.monotonic()
    notice(bench, seconds)
    end(thread)
    assert time.monotonic() < told + seconds
    record = bench.exit_record()
    assert (record.outcome, record.step, record.committed) == ("drained", 40, bench.id(1, 40))
    assert bench.store.get(keys.notice(JOB, 1, 0))


@pytest.mark.full
def test_an_ordered_stop_of_the_agent_drains_commits_and_is_reported(bench, wait_until):
    life = bench.life(WAIT_FOR_DRAIN)
    thread = run(life)
    wait_for_step(life, 40, wait_until)
    os.write(life.notices._pipe._writer, bytes([signal.SIGTERM]))
    end(thread)
    record = bench.exit_record()
    assert (record.outcome, record.step, record.committed) == ("drained", 40, bench.id(1, 40))
    told = codec.decode(bench.store.get(keys.notice(JOB, 1, 0)), Notice)
    assert (told.source, told.step) == ("SIGTERM", 40)


@pytest.mark.full
def test_a_requested_stop_drains_and_the_next_machine_would_resume(bench, wait_until):
    life = bench.life(WAIT_FOR_DRAIN)
    thread = run(life)
    wait_for_step(life, 40, wait_until)
    request_stop(bench.store, JOB, "user", resumption=0)
    end(thread)
    record = bench.exit_record()
    assert (record.outcome, record.step, record.committed) == ("stopped", 40, bench.id(1, 40))
    other = bench.life(SESSION + "finish(100)\n", launch=2, machine="other")
    bench.store.delete(keys.stop(JOB, 0))
    other.run()
    assert bench.exit_record(2).restored_step == 40
    assert "resumed at 40" in bench.log(other)


@pytest.mark.full
def test_a_trainer_that_ignores_the_notice_is_ended_at_the_guard(bench, wait_until):
    life = bench.life(SESSION + "begin(41)\ntime.sleep(60)\n")
    thread = run(life)
    wait_for_step(life, 41, wait_until)
    notice(bench, 3.0)
    end(thread)
    record = bench.exit_record()
    assert (record.outcome, record.step, record.committed) == ("drained", 41, None)


@pytest.mark.full
def test_a_drain_is_not_taken_for_being_stuck(bench, wait_until):
    script = """
step = iter(range(1, 10**6))
until(lambda: begin(next(step), 10**6) or files.read_drain(handoff))
time.sleep(0.8)
drain(40)
"""
    life = bench.life(SESSION + script, limits={"stuck_after": 0.4})
    thread = run(life)
    wait_for_step(life, 1, wait_until)
    notice(bench, 8.0)
    end(thread)
    assert (bench.exit_record().outcome, bench.exit_record().committed) == ("drained", bench.id(1, 40))


@pytest.mark.full
def test_what_comes_before_the_session_is_not_taken_for_being_stuck(bench):
    """As soon as there was one, the time since torchrun's start counted as without a step."""
    script = "time.sleep(1.2)\n" + SESSION + "time.sleep(0.3)\nfinish(100)\n"
    bench.life("import time\n" + script, limits={"stuck_after": 1.0, "max_restarts": 0}).run()
    assert bench.exit_record().outcome == "succeeded"


@pytest.mark.full
def test_the_end_of_the_loop_wins_against_a_drain(bench, wait_until):
    life = bench.life(SESSION + "begin(99)\nuntil(lambda: files.read_drain(handoff))\nfinish(100)\n")
    thread = run(life)
    wait_for_step(life, 99, wait_until)
    notice(bench, 10.0)
    end(thread)
    assert (bench.exit_record().outcome, bench.exit_record().step) == ("succeeded", 100)


@pytest.mark.full
def test_a_notice_while_setting_up_ends_the_setup_and_all_its_children(bench, wait_until):
    life = bench.life(SESSION, run={"setup": "sleep 60 & sleep 60"})
    thread = run(life)
    setup = KeptProcesses(life.context.node.directory / "setup.processes")
    wait_until(lambda: len(setup.pids()) >= 3)
    notice(bench, 10.0)
    end(thread)
    assert setup.pids() == set()
    assert (bench.exit_record().outcome, bench.exit_record().generation) == ("drained", 0)


def test_a_setup_that_fails_says_so_with_its_last_lines(bench):
    bench.life(SESSION, run={"setup": "echo no such package; kill -9 $$"}).run()
    record = bench.exit_record()
    assert (record.outcome, record.exit_code, record.permanent) == ("failed", 137, False)
    assert record.detail == "setup failed with exit status 137: no such package"


@pytest.mark.full
def test_secrets_reach_the_script_and_no_record_or_log(bench):
    bench.store.put(keys.secrets(JOB, 0), b'{"values": {"TOKEN": "hunter2secret"}}')
    script = SESSION + "assert os.environ['TOKEN'] == 'hunter2secret'\nfinish(100)\n"
    bench.life(script, run={"setup": 'test "$TOKEN" = hunter2secret', "secrets": ["TOKEN"]}).run()
    assert bench.exit_record().outcome == "succeeded"
    for meta in bench.store.list_objects("jobs/"):
        assert meta.key == keys.secrets(JOB, 0) or b"hunter2secret" not in bench.store.get(meta.key)
    for path in (bench.root / "machine").rglob("*"):
        assert not path.is_file() or b"hunter2secret" not in path.read_bytes() or path.name == "train.py"


@pytest.mark.full
@pytest.mark.parametrize("is_named", [True, False])
def test_the_jobs_log_in_for_its_image_goes_before_the_providers_and_its_refusal_ends_the_job(
    bench, monkeypatch, tmp_path, is_named
):
    monkeypatch.setattr(container, "PULL_WAIT_SECONDS", 0.01)
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(
        f"#!/bin/sh\n[ $1 != info ] || exit 0\n[ $1 != --config ] || cat $2/config.json > {tmp_path}/given\n"
        "echo unauthorized >&2; exit 1\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:/usr/bin:/bin")
    bench.provider.capabilities = frozenset({*bench.provider.capabilities, Capability.REGISTRY})
    bench.provider.registry_login = lambda _: RegistryLogin(user="cloud", password="p", origin="the cloud")
    bench.store.put(keys.secrets(JOB, 0), b'{"values": {"KEY": "hush"}}')
    run = {"image": f"registry.example.com/it@sha256:{'0' * 64}", "secrets": ["KEY"]}
    if is_named:
        run["image_login"] = {"user": "me", "secret": "KEY"}
    whose = "the user me of run.image_login" if is_named else "the cloud"
    with pytest.raises(AuthError, match=f"registry.example.com refuses {whose}: unauthorized$"):
        bench.life(SESSION, run=run).run()
    record = bench.exit_record()
    assert (record.outcome, record.exit_code, record.permanent) == ("failed", 4, True)
    assert f"refuses {whose}" in record.detail
    (given,) = json.loads((tmp_path / "given").read_text())["auths"].values()
    assert base64.b64decode(given["auth"]) == (b"me:hush" if is_named else b"cloud:p")


@pytest.mark.full
def test_failing_twice_at_a_step_ends_the_job_with_the_scripts_words(bench):
    bench.life(SESSION + "begin(7)\nraise ValueError('no such layer')\n").run()
    record = bench.exit_record()
    assert (record.outcome, record.exit_code, record.permanent) == ("failed", 1, True)
    assert record.detail == "the training failed with exit status 1 twice at step 7"
    assert record.log_tail[-1] == "ValueError: no such layer"
    assert [one.why for one in bench.generations()] == ["first", "trainer-failed"]


FULL = {"type": "builtins.RuntimeError", "message": "no archive", "causes": ["No space left on device"]}


@pytest.mark.full
@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), 9)",
        "os.kill(os.getppid(), 9)\nsys.exit(1)",  # as where the disk is full: nobody notes the status
        f"files.write_json(files.failed_path(handoff, 0), {FULL})\nsys.exit(1)",
    ],
)
def test_what_may_come_from_outside_ends_no_job_by_striking_twice_at_a_step(bench, end):
    """A killed trainer and a full disk at the same step ended the job."""
    life = bench.life(
        SESSION + f"begin(7)\nif generation < 4:\n    {end.replace(chr(10), chr(10) + '    ')}\nend_loop()\n"
    )
    life.run()
    assert bench.exit_record().outcome == "succeeded"
    assert whys(bench) == ["first", *["trainer-failed"] * 3]


@pytest.mark.full
def test_what_may_come_from_outside_is_tried_no_more_than_max_restarts_times(bench):
    bench.life(SESSION + "begin(7)\nos.kill(os.getpid(), 9)\n", limits={"max_restarts": 2}).run()
    record = bench.exit_record()
    assert (record.exit_code, record.permanent) == (137, True)
    assert record.detail == "the training failed with exit status 137 at step 7, after 2 restarts"


@pytest.mark.full
def test_torchruns_own_end_is_not_waited_for_when_a_rank_has_failed(bench):
    script = SESSION + "if generation == 1: sys.exit(3)\nfinish(100)\n"
    life = bench.life(script, run={"env": {"LINGER": "3600"}})
    life.run()
    assert bench.exit_record().outcome == "succeeded"
    assert [one.why for one in bench.generations()] == ["first", "trainer-failed"]


COUNT_STARTS = """
import os, sys
from pathlib import Path
names = ("NODES", "NODE_RANK", "MASTER_ADDR", "WORLD_SIZE")
print(*(f"{name}={os.environ.get(name)}" for name in names), "RANK" in os.environ, sys.argv[1:], flush=True)
if not Path("again").exists():
    Path("again").touch()
    sys.exit(5)
"""


@pytest.mark.full
def test_a_command_without_a_launcher_is_run_and_run_again_like_a_script(bench, caplog):
    run_table = {
        "command": ["python", "-u", "train.py", "a b"],
        "args": ["$HOME"],
        "env": {"WORLD_SIZE": "16"},
    }
    life = bench.life(COUNT_STARTS, run=run_table, procs_per_node=2)
    life.run()
    assert bench.exit_record().outcome == "succeeded"
    assert whys(bench) == ["first", "trainer-failed"]
    said = "NODES=1 NODE_RANK=0 MASTER_ADDR=127.0.0.1 WORLD_SIZE=16 False ['a b', '$HOME']"
    assert bench.log(life).count(said) == 2
    assert "the training failed with exit status 5 at step 0; starting again in 0 s" in caplog.messages


@pytest.mark.full
def test_a_command_that_is_not_there_ends_the_job_at_once(bench):
    bench.life("", run={"command": ["no-such-swift", "sft"]}).run()
    record = bench.exit_record()
    assert (record.outcome, record.permanent) == ("failed", True)
    assert record.detail == "run.command: 'no-such-swift' is not on PATH; install it in run.setup"


@pytest.mark.full
def test_the_jobs_exit_code_is_the_scripts_own(bench):
    """torchrun says 1, whatever the script has said."""
    bench.life(SESSION + "begin(7)\nsys.exit(3)\n").run()
    assert (bench.exit_record().exit_code, bench.exit_record().permanent) == (3, True)


@pytest.mark.full
def test_a_rank_that_fails_while_another_drains_is_left_to_torchrun(bench, wait_until):
    """What the other one saves is worth waiting for."""
    script = """
begin(40)
files.write_json(files.drained_path(handoff, 1), {"step": None})
until(Path("go").exists)
sys.exit(3)
"""
    life = bench.life(SESSION + script, procs_per_node=2, run={"env": {"LINGER": "0.5"}})
    thread = run(life)
    wait_for_step(life, 40, wait_until)
    (life.context.node.work / "go").touch()
    wait_until(files.exited_path(life.context.node.handoff(1), 0).exists)
    assert len(marked_processes(files.HANDOFF, str(life.context.node.handoff(1)))) > 0
    request_stop(bench.store, JOB, "user", resumption=0)
    end(thread)


@pytest.fixture
def two_nodes(bench, monkeypatch):
    """``two_nodes(script)``: the lives of two nodes, in a hurry."""
    monkeypatch.setattr("cloudspot.agent.membership.peer_heartbeats.LISTEN_SECONDS", 0.04)
    monkeypatch.setattr("cloudspot.agent.membership.peer_heartbeats.REGROUP_SECONDS", 0.02)
    monkeypatch.setattr("cloudspot.agent.membership.heartbeat_writer.REGROUP_SECONDS", 0.03)
    monkeypatch.setattr("cloudspot.agent.membership.heartbeat_writer.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("cloudspot.agent.training.watching.supervision.DUMP_SECONDS", 0.2)

    def make(script, **tables):
        return [
            bench.life(SESSION + script, machine=f"machine-{rank}", rank=rank, **{"nodes": 2, **tables})
            for rank in range(2)
        ]

    return make


HOLD = {"min": 2, "max": 2, "hold": 0.3}


def end_both(lives):
    threads = [run(life) for life in lives]
    for thread in threads:
        end(thread)


def whys(bench):
    return [one.why for one in bench.generations()]


@pytest.mark.full
def test_a_failure_on_one_node_ends_the_training_on_the_other_at_once(bench, two_nodes):
    """That one waits in a collective, perhaps for half an hour."""
    script = "if generation == 1: begin(7); sys.exit(3) if rank == 1 else time.sleep(3600)\nend_loop()\n"
    lives = two_nodes(script)
    end_both(lives)
    assert [bench.exit_record(rank=rank).outcome for rank in range(2)] == ["succeeded", "succeeded"]
    assert whys(bench) == ["first", "trainer-failed"]
    assert [life.context.memory.failed_with for life in lives] == ["exit status 3"] * 2


@pytest.mark.full
def test_a_failure_for_good_has_the_same_exit_code_on_every_node(bench, two_nodes):
    end_both(two_nodes("begin(7)\nsys.exit(3) if rank == 1 else time.sleep(3600)\n"))
    records = [bench.exit_record(rank=rank) for rank in range(2)]
    assert [(one.outcome, one.permanent, one.exit_code) for one in records] == [("failed", True, 3)] * 2


@pytest.mark.full
def test_a_node_that_loses_its_stuck_peer_judges_it_stuck_as_well(bench, two_nodes):
    """It saw that the connection was gone, called that a failure, and at the second one gave the job up."""
    script = """
mark = Path(os.environ["MARK"])
if generation < 3 and rank == 1:
    begin(7)
    mark.write_text(str(os.getpid()))
    time.sleep(3600)
if generation < 3:
    until(mark.exists)
    step = iter(range(8, 10**6))
    until(lambda: begin(next(step), 10**6) or not Path(f"/proc/{mark.read_text()}").exists())
    mark.unlink()
    begin(7, 10**6)
    sys.exit(1)
end_loop()
"""
    env = {"MARK": str(bench.root / "mark")}
    end_both(two_nodes(script, run={"env": env}, limits={"stuck_after": 1.0, "max_restarts": 5}))
    assert [bench.exit_record(rank=rank).outcome for rank in range(2)] == ["succeeded", "succeeded"]
    assert whys(bench) == ["first", "trainer-stuck", "trainer-stuck"]


@pytest.mark.full
def test_a_network_that_is_cut_is_the_machines_fault_and_not_the_scripts(bench, two_nodes, monkeypatch):
    """The nodes failed again and again to connect, and the job was given up for good."""
    monkeypatch.setattr(
        "cloudspot.agent.membership.failure_votes.unreachable", frozenset
    )  # nobody answers anybody
    limits = {"stuck_after": 0.5, "max_restarts": 0}
    end_both(two_nodes("begin(7)\ntime.sleep(3600)\n", limits=limits, nodes=HOLD))
    records = [bench.exit_record(rank=rank) for rank in range(2)]
    assert not any(one.permanent for one in records)
    # Each may hear of the other's end, or of its generation, before it has tried to reach it itself.
    assert records[0].outcome == "left"
    assert records[1].outcome in {"failed", "superseded"}
    if records[1].outcome == "failed":
        cut = "node 1.1 does not reach node 1.0: the network between the machines is cut"
        assert records[1].detail == cut
    assert [one.ranks(1) for one in bench.generations()] == [(0, 1), (0,)]


@pytest.mark.full
def test_a_network_that_is_cut_in_one_direction_ends_no_job_for_good_either(
    bench, two_nodes, monkeypatch, caplog
):
    """Node 1 reached node 0, and took the training's end for the script's error."""
    monkeypatch.setattr(
        "cloudspot.agent.membership.failure_votes.unreachable",
        lambda endpoints: time.sleep(0.5) or frozenset({(1, 1)} & set(endpoints)),
    )
    limits = {"stuck_after": 0.5, "max_restarts": 0}
    end_both(two_nodes("begin(7)\ntime.sleep(3600)\n", limits=limits, nodes=HOLD))
    records = [bench.exit_record(rank=rank) for rank in range(2)]
    assert not any(one.permanent for one in records)
    assert [one.ranks(1) for one in bench.generations()] == [(0, 1), (0,)]
    assert "node 1.0 does not reach node 1.1: the network between the machines is cut" in caplog.messages


@pytest.mark.full
def test_a_torchrun_that_finds_no_peers_within_reach_is_ended(bench, two_nodes, monkeypatch):
    """It tries for ten minutes, and of a script without a session nobody would say that it is stuck."""
    monkeypatch.setattr("cloudspot.agent.training.watching.supervision.CONNECT_SECONDS", 0.3)
    monkeypatch.setattr("cloudspot.agent.membership.failure_votes.unreachable", frozenset)
    end_both(two_nodes("", run={"env": {"WITHOUT_PEERS": "1"}}, nodes=HOLD))
    records = [bench.exit_record(rank=rank) for rank in range(2)]
    assert not any(one.permanent for one in records)
    assert records[0].outcome == "left"
    assert records[1].outcome in {"failed", "superseded"}


@pytest.mark.full
def test_the_side_of_the_first_node_goes_on_where_that_is_enough(bench, two_nodes, monkeypatch):
    monkeypatch.setattr("cloudspot.agent.membership.failure_votes.unreachable", frozenset)
    script = "begin(7)\nif generation == 1: time.sleep(3600)\nend_loop()\n"
    end_both(two_nodes(script, nodes={"min": 1, "max": 2}, limits={"stuck_after": 0.5}))
    assert bench.exit_record(rank=0).outcome == "succeeded"
    assert bench.exit_record(rank=1).outcome in {"failed", "superseded"}
    members = [one.members for one in bench.generations()]
    assert [[member.rank for member in each] for each in members] == [[0, 1], [0]]


JOIN = """
if generation == 1:
    begin(40)
    seal(21)
    until(lambda: files.read_drain(handoff))
    print("asked to", files.read_drain(handoff).kind, flush=True)
    drain(40)
end_loop()
"""


@pytest.mark.full
@pytest.mark.parametrize("is_stand_in", [False, True])
def test_a_ready_newcomer_joins_by_a_drain(bench, two_nodes, monkeypatch, wait_until, is_stand_in):
    """All go on from where the members were: nothing is repeated, and nobody is lost."""
    monkeypatch.setattr("cloudspot.agent.training.watching.drain_schedule.JOIN_AFTER_STARTS", 0.0)
    nodes = {"min": 1, "max": 1 if is_stand_in else 2}
    first = bench.life(SESSION + JOIN, nodes=nodes, num_seats=1)
    thread = run(first)
    wait_until(bench.generations)
    open_launch(bench.store, JOB, 2, stands_in_for=((1, 0),) if is_stand_in else ())
    second = bench.life(SESSION + JOIN, nodes=nodes, num_seats=1, launch=2, machine="other")
    end(run(second))
    end(thread)
    joined = bench.generations()[1]
    assert (joined.number, joined.restore_from) == (2, bench.id(1, 40))
    assert whys(bench) == ["first", "handed-over" if is_stand_in else "joined"]
    assert joined.seats == (((2, 0),) if is_stand_in else ((1, 0), (2, 0)))
    outcomes = [bench.exit_record(launch).outcome for launch in (1, 2)]
    assert outcomes == ["superseded" if is_stand_in else "succeeded", "succeeded"]
    assert "asked to join" in bench.log(first)


@pytest.mark.full
def test_a_drain_for_newcomers_that_takes_too_long_is_no_failure(bench, two_nodes, monkeypatch, wait_until):
    monkeypatch.setattr("cloudspot.agent.training.watching.drain_schedule.JOIN_AFTER_STARTS", 0.0)
    monkeypatch.setattr("cloudspot.agent.training.watching.drain_schedule.STOP_GUARD_SECONDS", 0.5)
    nodes, limits = {"min": 1, "max": 2}, {"max_restarts": 0}
    script = SESSION + JOIN.replace("drain(40)", "time.sleep(3600)")
    first = bench.life(script, nodes=nodes, limits=limits, num_seats=1)
    thread = run(first)
    wait_until(bench.generations)
    second = bench.life(script, nodes=nodes, limits=limits, num_seats=1, launch=2, machine="other")
    end(run(second))
    end(thread)
    assert [bench.exit_record(launch).outcome for launch in (1, 2)] == ["succeeded", "succeeded"]
    assert whys(bench) == ["first", "joined"]
    assert bench.generations()[1].restore_from == bench.id(1, 21)


@pytest.mark.full
def test_a_port_that_is_taken_costs_no_restart_and_ends_no_job(bench, monkeypatch):
    """Twice at the same step, and the job was over."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = iter([other.getsockname()[1]] * 3)
        real = agreement.free_port
        monkeypatch.setattr(agreement, "free_port", lambda: next(ports, None) or real())
        bench.life(SESSION + "finish(100)\n", limits={"max_restarts": 3}).run()
    assert bench.exit_record().outcome == "succeeded"
    assert whys(bench) == ["first", *["not-connected"] * 3]


@pytest.mark.full
def test_a_torchrun_that_cannot_be_run_fails_for_good(bench):
    life = bench.life(SESSION, run={"env": {"BROKEN": "1"}})
    life.run()
    assert (bench.exit_record().outcome, bench.exit_record().permanent) == ("failed", True)


@pytest.mark.full
def test_the_last_checkpoint_of_a_script_without_a_session_is_delivered(bench):
    script = "import os\nos.makedirs('out/step-600')\nopen('out/step-600/model', 'w').write('weights')\n"
    life = bench.life(script, checkpoint={"directory": "out/step-*"})
    life.run()
    record = bench.exit_record()
    assert (record.outcome, bench.commits()) == ("succeeded", (bench.id(1, 600),))
    # Nobody has counted: what is shown is the newest checkpoint's step.
    assert (record.has_session, record.final.step) == (False, None)


TEAR_THE_SECOND = """
import os, sys, time
from pathlib import Path

found = sorted(Path("out").glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
if found:
    print("resumed from", found[-1].name, flush=True)
    sys.exit(0 if (found[-1] / "done").exists() else 1)
for step in (100, 200):
    path = Path(f"out/checkpoint-{step}")
    path.mkdir(parents=True)
    (path / "model").write_text("weights"[: 7 if step == 100 else 3])
    if step == 200:
        os.kill(os.getpid(), 9)
    (path / "done").touch()
    while not Path("go").exists():
        time.sleep(0.01)
"""
DONE = {"directory": "out/checkpoint-*", "complete_file": "done"}


@pytest.mark.full
def test_a_script_is_not_left_to_resume_from_what_it_had_half_written(bench, wait_until, caplog):
    """It resumed from the torn directory, failed twice, and the job was over, with a good checkpoint committed."""
    life = bench.life(TEAR_THE_SECOND, checkpoint=DONE)
    thread = run(life)
    wait_until(lambda: bench.commits() == (bench.id(1, 100),))
    (life.context.node.work / "go").touch()
    end(thread)
    assert bench.exit_record().outcome == "succeeded"
    assert "resumed from checkpoint-100" in bench.log(life)
    torn = life.context.node.torn / "out" / "checkpoint-200"
    assert (torn / "model").read_text() == "wei"
    said = f"out/checkpoint-200 was not complete when the script ended; it is set aside as {torn}"
    assert said in caplog.messages
    assert bench.commits() == (bench.id(1, 100),)


# --- what cannot go on --------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["flipped", "gone"])
def test_corrupt_code_ends_the_job_and_is_not_tried_for_ever(bench, harm):
    life = bench.life(SESSION)
    key = keys.code(life.context.job.submission.code_sha256)
    if harm == "gone":
        bench.store.delete(key)
    else:
        bench.store.put(key, bench.store.get(key)[:-1] + b"x")
    life.run()
    record = bench.exit_record()
    assert (record.outcome, record.permanent, record.exit_code) == ("failed", True, 1)
    assert record.detail.startswith("the code cannot be fetched: ")


@pytest.mark.full
def test_a_checkpoint_is_restored_beside_the_setup_and_leaves_memory_once_it_is_read(bench):
    """It came after the setup, and all of it was waited for."""
    bench.commit(bench.id(1, 40))
    end_machine(bench)
    restored = bench.node(launch=2, machine="other").restore_in_memory
    setup = f"until test -e {restored}/restore.json; do sleep 0.01; done; touch done"
    script = SESSION + f"until(lambda: not Path({str(restored)!r}).exists())\nbegin(99)\nfinish(100)\n"
    counted = FaultyStore(bench.store, FaultPlan(), bench.root)
    life = bench.life(script, store=counted, launch=2, machine="other", run={"setup": setup})
    life.run()
    assert (bench.exit_record(2).outcome, bench.exit_record(2).restored_step) == ("succeeded", 40)
    assert counted.calls["get_range"] == 1
    assert (life.context.node.work / "done").exists()


@pytest.mark.full
def test_no_checkpoint_that_verifies_ends_the_node_when_it_has_been_set_up(bench):
    bench.commit(bench.id(1, 40))
    bench.spoil(bench.id(1, 40))
    end_machine(bench)
    bench.life(SESSION, launch=2, machine="other", run={"setup": "true"}).run()
    record = bench.exit_record(2)
    assert (record.outcome, record.permanent) == ("failed", True)
    assert record.detail.startswith("none of the 1 checkpoints verifies")


@pytest.mark.full
def test_what_was_committed_during_the_setup_is_what_a_node_resumes_from(bench, wait_until):
    """A replacement is bought at the notice, and the drain's commit comes while it sets itself up."""
    bench.commit(bench.id(1, 40))
    go = bench.root / "go"
    setup = f"until test -e {go}; do sleep 0.01; done"
    life = bench.life(SESSION + "finish(100)\n", launch=2, machine="other", run={"setup": setup})
    thread = run(life)
    wait_until((life.context.node.restore_in_memory / "restore.json").exists)
    bench.commit(bench.id(1, 50), b"of the drain")
    end_machine(bench)
    go.touch()
    end(thread)
    assert (bench.exit_record(2).outcome, bench.exit_record(2).restored_step) == ("succeeded", 50)


@pytest.mark.full
def test_a_setup_that_fails_ends_the_restore_beside_it(bench, monkeypatch):
    """It would have gone on beside the last uploads."""
    monkeypatch.setattr(early_restore, "LEAVE_SECONDS", 60.0)
    bench.commit(bench.id(1, 40))
    end_machine(bench)
    read, enter, is_awaited = (
        bench.store.get_range_into,
        early_restore.EarlyRestore.__enter__,
        threading.Event(),
    )
    reads = bench.root / "reads"

    def begin(restore):
        join = restore._thread.join

        def joined(seconds=None):
            is_awaited.set()
            join(seconds)

        restore._thread.join = joined
        return enter(restore)

    def held(*arguments):
        reads.touch()
        assert is_awaited.wait(100.0)
        return read(*arguments)

    monkeypatch.setattr(early_restore.EarlyRestore, "__enter__", begin)
    monkeypatch.setattr(bench.store, "get_range_into", held)
    setup = f"until test -e {reads}; do sleep 0.01; done; false"
    life = bench.life(SESSION, launch=2, machine="other", run={"setup": setup})
    life.run()
    assert bench.exit_record(2).detail.startswith("setup failed")
    assert "early restore" not in {thread.name for thread in threading.enumerate()}
    assert not (life.context.node.restore_in_memory / "restore.json").exists()


@pytest.mark.full
@pytest.mark.parametrize("have_ended", [True, False])
def test_after_a_failure_the_checkpoint_is_read_where_the_training_has_left_it(
    bench, monkeypatch, have_ended
):
    """Each restart fetched all of it. Where a process could not be ended, it may still write there."""
    kill = trainer.Trainer.kill
    monkeypatch.setattr(trainer.Trainer, "kill", lambda self: kill(self) and have_ended)
    script = SESSION + (
        "if start == 0:\n"
        "    begin(41)\n    seal(41)\n"
        "    until(lambda: not list(files.seals_directory(handoff).iterdir()))\n    sys.exit(1)\n"
        "print((Path(restore) / 'part-0.bin').read_bytes(), flush=True)\nfinish(100)\n"
    )
    counted = FaultyStore(bench.store, FaultPlan(), bench.root)
    life = bench.life(script, store=counted)
    life.run()
    assert bench.exit_record().outcome == "succeeded"
    assert "b'weights'" in bench.log(life)
    assert counted.calls["get_range"] == (0 if have_ended else 1)


@pytest.mark.full
def test_a_disk_that_takes_no_checkpoint_is_said_and_not_tried_for_ever(bench, monkeypatch):
    """A restore of more than 30 s would have been repeated as long as the machine lives."""
    monkeypatch.setattr(checkpoint_restore, "free_memory_bytes", lambda: 0)
    bench.commit(bench.id(1, 40))
    end_machine(bench)
    life = bench.life(SESSION, launch=2, machine="other")
    (life.context.node.directory / "restore").write_text("no directory can be made here")
    life.context.node.directory.joinpath("restore").chmod(0o444)
    life.run()
    record = bench.exit_record(2)
    assert (record.outcome, record.permanent) == ("failed", False)
    assert "cannot write a checkpoint to" in record.detail


@pytest.mark.full
def test_a_record_that_is_malformed_is_said(bench):
    life = bench.life(SESSION)
    bench.store.put(keys.journal(JOB, 2), b"{}")
    life.run()
    assert bench.exit_record().outcome == "failed"
    assert "is malformed" in bench.exit_record().detail


# --- nothing is called a success before it is in the bucket -----------------------------------------


@pytest.mark.full
def test_a_final_state_that_missed_the_deadline_is_no_success(bench, wait_until, tmp_path):
    store = FaultyStore(bench.store, FaultPlan(), tmp_path / "state")
    life = bench.life(SESSION + "begin(99)\nuntil(Path('go').exists)\nfinish(100)\n", store=store)
    thread = run(life)
    wait_for_step(life, 99, wait_until)
    put = store.put

    def refuse_chunks(key, data, *, if_absent=False):
        if "/chunks/" in key:
            store.plan = FaultPlan(fail_every=2)
            store._enter("put", key)
            store._enter("put", key)
        put(key, data, if_absent=if_absent)

    store.put = refuse_chunks
    (life.context.node.work / "go").touch()
    wait_until(lambda: life.context.status.state == "ending")
    notice(bench, 3.0)  # after the training has ended
    end(thread)
    record = bench.exit_record()
    assert (record.outcome, record.final, record.step) == ("drained", None, 100)
    assert (
        record.detail
        == "reclaimed after the training finished, before its last checkpoint could be delivered"
    )


@pytest.mark.full
def test_a_noticed_node_that_has_finished_waits_for_the_others_last_part(bench, wait_until):
    """It called it a drain, as its own state was in no checkpoint yet: another launch, for nothing."""
    life = bench.life(SESSION + "begin(99)\nuntil(Path('go').exists)\nfinish(100, save=False)\n")
    thread = run(life)
    wait_for_step(life, 99, wait_until)
    bench.put_part(0, 100)
    (life.context.node.work / "go").touch()
    notice(bench, 20.0)
    wait_until(lambda: life.context.status.state == "ending")
    bench.put_part(1, 100)
    end(thread)
    record = bench.exit_record()
    assert (record.outcome, record.committed, record.final.step) == ("succeeded", bench.id(1, 100), 100)


@pytest.mark.full
def test_a_healthy_job_of_several_nodes_says_nothing_of_a_lost_step(bench, caplog):
    """Rank 0 had an ERROR in its log whenever it was the first to upload."""
    caplog.set_level("INFO", "cloudspot")
    life = bench.life(SESSION + "finish(100, save=False)\n")
    bench.put_part(0, 100)
    life.run()
    assert bench.exit_record().outcome == "succeeded"
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
    assert "the last checkpoint is uploaded here; the other nodes complete it" in caplog.messages


@pytest.mark.full
def test_without_a_deadline_it_is_a_failure_that_another_machine_mends(bench, monkeypatch, wait_until):
    monkeypatch.setattr(final_delivery, "UPLOAD_SECONDS", 0.3)
    life = bench.life(SESSION + "finish(100)\n")
    monkeypatch.setattr(life.courier, "_carry_seals", lambda: None)  # a store slower than the limit
    life.run()
    record = bench.exit_record()
    assert (record.outcome, record.permanent, record.final) == ("failed", False, None)
    assert record.detail == "the training finished, but its last checkpoint could not be delivered"


@pytest.mark.full
def test_a_last_save_that_was_given_up_is_a_success_while_nobody_takes_the_machine(bench, caplog):
    bench.life(SESSION + "finish(100, save=False)\n").run()
    assert (bench.exit_record().outcome, bench.commits()) == ("succeeded", ())
    assert "the state of the last step is in no checkpoint" in caplog.messages


SKIP_THE_LAST_SAVE = (
    SESSION
    + """
if start == 0:
    seal(40)
    begin(100, 100)
    until(Path("go").exists)
    files.write_json(files.drained_path(handoff, 0), {"step": None})
    # Another rank may have saved its state.
    end_at(100)
    sys.exit(0)
finish(100)
"""
)


@pytest.mark.full
def test_a_last_save_that_was_skipped_for_a_reclaim_is_a_drain(bench, wait_until):
    life = bench.life(SKIP_THE_LAST_SAVE)
    thread = run(life)
    wait_for_step(life, 100, wait_until)
    notice(bench, 5.0)
    wait_until(lambda: files.read_drain(life.context.node.handoff(1)))
    (life.context.node.work / "go").touch()
    end(thread)
    record = bench.exit_record()
    assert (record.outcome, record.final, record.committed) == ("drained", None, bench.id(1, 40))


@pytest.mark.full
@pytest.mark.parametrize("save", [True, False])
def test_a_state_that_only_the_end_of_the_loop_has_changed_is_the_last_checkpoint(bench, save):
    """It has as many steps as what was restored. With nothing to save, that stands."""
    bench.commit(bench.id(1, 40))
    end_machine(bench)
    script = (
        SESSION
        + f"begin(40, 40)\nif {save}:\n    seal(40, 'final', b'averaged')\nend_at(40, is_saved={save})\n"
    )
    bench.life(script, launch=2, machine="other").run()
    record = bench.exit_record(2)
    last = bench.id(2, 40) if save else bench.id(1, 40)
    assert (record.outcome, record.restored_step, record.committed) == (
        "succeeded",
        40,
        last,
    )
    assert head(Journal(bench.store, JOB).read()) == last


@pytest.mark.full
def test_a_last_save_that_was_skipped_is_made_up_for_from_the_newest_checkpoint(bench):
    bench.life(SKIP_THE_LAST_SAVE, run={"setup": "touch go"}).run()
    record = bench.exit_record()
    assert (record.outcome, record.restored_step, record.committed) == ("succeeded", 40, bench.id(2, 100))


# --- a notice by several ways -----------------------------------------------------------------------


def by_hook(seconds):
    """What a machine's shutdown hook writes."""
    told = PreemptionNotice(deadline=None, action="stop", source="hook")
    return understand(told, notice_seconds=seconds, now=time.monotonic(), wall=datetime.now(timezone.utc))


def give(hook, life, seconds):
    """What the hook does while there is an agent."""
    hook.give(by_hook(seconds))
    wake_agent(life.context.node.directory)


def recorded_notice(bench):
    return codec.decode(bench.store.get(keys.notice(JOB, 1, 0)), Notice)


@pytest.mark.full
@pytest.mark.parametrize("is_first", [True, False])
def test_the_hook_and_the_provider_in_either_order_make_one_notice_and_one_drain(
    bench, wait_until, caplog, is_first
):
    life = bench.life(WAIT_FOR_DRAIN)
    thread = run(life)
    wait_for_step(life, 40, wait_until)
    hook = NoticeFile(life.context.node.directory)
    if is_first:
        give(hook, life, 20.0)
        wait_until(lambda: life.context.orders.reclaim is not None)
        notice(bench, 30.0)
    else:
        notice(bench, 20.0)
        wait_until(lambda: hook.read() is not None)
        give(hook, life, 30.0)
    end(thread)
    assert (bench.exit_record().outcome, bench.exit_record().step) == ("drained", 40)
    assert list(bench.commits()) == [bench.id(1, 40)]
    source = "hook" if is_first else ""
    assert recorded_notice(bench).source == hook.read().notice.source == source
    assert len([line for line in caplog.messages if line.startswith("notice: this machine will")]) == 1


@pytest.mark.full
def test_an_earlier_end_by_the_second_way_is_news_but_no_second_record(bench, wait_until):
    life = bench.life(WAIT_FOR_DRAIN)
    hook = NoticeFile(life.context.node.directory)
    thread = run(life)
    wait_for_step(life, 40, wait_until)
    notice(bench, 120.0)  # trained through for a while
    wait_until(lambda: hook.read() is not None)
    give(hook, life, 10.0)
    end(thread)
    assert (bench.exit_record().outcome, bench.exit_record().step) == ("drained", 40)
    assert recorded_notice(bench).source == ""
    assert hook.read().notice.source == "hook"


def test_a_notice_that_came_while_there_was_no_agent_is_obeyed_and_recorded(bench):
    life = bench.life(WAIT_FOR_DRAIN)
    NoticeFile(life.context.node.directory).give(by_hook(20.0))
    life.run()
    assert bench.exit_record().outcome == "drained"
    assert (recorded_notice(bench).source, recorded_notice(bench).action) == ("hook", "stop")


# --- an agent that was killed, and the one after it -------------------------------------------------


def killed_agent(bench, life, *, status, drained=None, drain=None, progress=40):
    """What an agent leaves that is killed right after its trainer of generation 1 has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    handoff = life.context.node.handoff(1)
    files.seals_directory(handoff).mkdir(parents=True)
    files.progress_path(handoff, 0).write_bytes(files.PROGRESS.pack(progress, 100, progress + 1))
    (handoff / "trainer.status").write_text(f"{status}\n")
    if drained is not None:
        files.write_json(files.drained_path(handoff, 0), {"step": drained})
    if drain is not None:
        files.write_drain(handoff, drain)
    memory = life.context.memory
    memory.code_ready = memory.setup_done = True
    memory.generation, memory.trainer_pid, memory.trainer_started_at = 1, process.pid, time.monotonic()
    memory.save(life.context.node)
    (life.context.node.work / "train.py").write_text((bench.root / "code" / "train.py").read_text())
    bench.start()


@pytest.mark.full
def test_ranks_that_had_drained_have_not_finished(bench):
    """The agent after the killed one knew of no drain, saw exit status 0, and called it a success."""
    life = bench.life(SESSION + "finish(100)\n")
    killed_agent(bench, life, status=0, drained=40, drain=files.Drain("notice", time.monotonic() + 5.0))
    bench.seal(life.context.node, bench.id(1, 40))
    NoticeFile(life.context.node.directory).give(by_hook(8.0))
    bench.life(SESSION + "finish(100)\n").run()
    record = bench.exit_record()
    assert (record.outcome, record.step, record.committed) == ("drained", 40, bench.id(1, 40))


@pytest.mark.full
def test_ranks_that_had_drained_go_on_where_no_order_stands(bench):
    life = bench.life(SESSION + "finish(100)\n")
    killed_agent(bench, life, status=0, drained=40)
    bench.seal(life.context.node, bench.id(1, 40))
    life = bench.life(SESSION + "finish(100)\n")
    life.run()
    assert (bench.exit_record().outcome, bench.exit_record().restored_step) == ("succeeded", 40)
    assert [one.why for one in bench.generations()] == ["first", "drained"]


@pytest.mark.full
def test_a_generation_whose_end_was_dealt_with_is_not_started_again(bench):
    """The agent after the killed one adopted it from its own record, met its old exit status at once, and
    gave the job up for having failed twice at one step."""
    life = bench.life(SESSION + "finish(100)\n")
    killed_agent(bench, life, status=1)
    memory = life.context.memory
    memory.trainer_pid, memory.next_why = 0, "trainer-failed"
    memory.failed_at_step, memory.failed_with = 40, "exit status 1"
    memory.save(life.context.node)
    bench.life(SESSION + "finish(100)\n").run()
    assert bench.exit_record().outcome == "succeeded"
    assert [one.why for one in bench.generations()] == ["first", "trainer-failed"]


@pytest.mark.full
def test_an_agent_that_is_killed_while_it_leaves_comes_to_the_same_end(bench, monkeypatch):
    """Were the end taken for dealt with before the exit record, the script would be run again."""
    life = bench.life("open('runs', 'a').write('x')\n")
    with monkeypatch.context() as patch:
        patch.setattr(life_module.Life, "_leave", lambda *_: None)
        life.run()  # killed before its exit record
    for thread in (life.logs, life.courier, life.heartbeat, life.notices, life.remote):
        thread._stopped.set()
    life = bench.life("open('runs', 'a').write('x')\n")
    life.run()
    assert (bench.exit_record().outcome, (life.context.node.work / "runs").read_text()) == ("succeeded", "x")


@pytest.mark.full
def test_ranks_that_have_drained_count_as_such_though_their_store_was_gone(bench):
    """Where rank 0's process left first, another's could fail after its save; nobody waited for the commit."""
    life = bench.life(SESSION + "finish(100)\n")
    killed_agent(bench, life, status=1, drained=40)
    bench.seal(life.context.node, bench.id(1, 40))
    bench.life(SESSION + "finish(100)\n").run()
    assert [one.why for one in bench.generations()] == ["first", "drained"]


@pytest.mark.full
def test_lines_of_a_generation_that_ended_before_the_agent_died_are_delivered(bench):
    life = bench.life(SESSION + "finish(100)\n")
    killed_agent(bench, life, status=1)
    (life.context.node.logs / "train-000001.log").write_text("Traceback: the reason\n")
    life.context.memory.trainer_pid = 0
    life.context.memory.save(life.context.node)
    life = bench.life(SESSION + "finish(100)\n")
    life.run()
    assert "Traceback: the reason" in bench.log(life)


@pytest.mark.full
def test_a_trainer_that_lives_is_gone_on_with(bench, wait_until):
    life = bench.life(SESSION + "begin(5)\nuntil(Path('go').exists)\nfinish(100)\n")
    run(life)  # this agent is left behind: its threads stop, as those of a killed one
    wait_for_step(life, 5, wait_until)
    life.logs._stopped.set()
    life.courier._stopped.set()
    life.notices.stop()
    object.__setattr__(life.context, "retry_until", bench.hang)  # its main thread never speaks again
    after = bench.life(SESSION)
    thread = run(after)
    wait_until(lambda: after.context.status.state == "running")
    (after.context.node.work / "go").touch()
    end(thread)
    assert (bench.exit_record().outcome, bench.exit_record().generation) == ("succeeded", 1)
    assert bench.log(after).count("resumed at 0") == 1
    assert len(bench.generations()) == 1


@pytest.mark.full
def test_a_trainer_nobody_remembers_is_ended_before_another_starts(bench, wait_until):
    life = bench.life(SESSION + "finish(100)\n")
    handoff = life.context.node.handoff(1)
    handoff.mkdir(parents=True)
    words = processes_of(handoff).command(sys.executable, ["sleep", "60"], ended=handoff / "trainer.ended")
    stray = subprocess.Popen(words)
    wait_until(processes_of(handoff).pids)
    life.run()
    assert stray.wait(10) == 137
    assert bench.exit_record().outcome == "succeeded"


@pytest.mark.full
def test_a_node_that_has_said_its_last_word_does_nothing_more_than_to_see_that_the_job_goes_on(
    bench, monkeypatch
):
    passes = []
    monkeypatch.setattr(LastPass, "run_until_replaced", lambda self: passes.append(bench.exit_record()))
    bench.life(SESSION + "finish(100)\n").run()
    before = bench.exit_record()
    bench.life(SESSION + "raise SystemExit(3)\n").run()
    assert bench.exit_record() == before
    assert passes == [before, before]


def test_a_slot_of_another_machine_runs_nothing(bench):
    launches.void_slot(bench.store, JOB, 1, 0, "voided: too late")
    life = bench.life(SESSION, run={"setup": "touch ran"})
    life.run()
    assert not (life.context.node.work / "ran").exists()
    with pytest.raises(ObjectMissing):
        bench.exit_record()


@pytest.mark.parametrize("has_trained", [False, True])
def test_a_right_that_is_missing_ends_the_node_and_a_job_that_has_never_trained(
    bench, monkeypatch, has_trained
):
    """The agent was started ten times, and then two more machines were bought."""
    monkeypatch.setattr(store_retry, "DENIED_SECONDS", 0.0)
    if has_trained:
        bench.start(launch=2)
    denied = DenyingStore(bench.store, lambda method, key: (method, key[:5]) == ("get", "code/"))
    life = bench.life(SESSION, store=denied)
    life.context.journal.read()
    with pytest.raises(AuthError, match="lack store:get"):
        life.run()
    record = bench.exit_record()
    assert (record.outcome, record.exit_code, record.permanent) == ("failed", 4, not has_trained)
    assert record.detail == "access denied: the credentials lack store:get"


def test_where_not_even_the_exit_record_may_be_written_the_agent_leaves_all_the_same(bench, monkeypatch):
    monkeypatch.setattr(store_retry, "DENIED_SECONDS", 0.0)
    denied = DenyingStore(bench.store, lambda method, key: method == "put" and "/launches/" not in key)
    with pytest.raises(AuthError, match="lack store:put"):
        bench.life(SESSION, store=denied).run()
    with pytest.raises(ObjectMissing):
        bench.exit_record()


@pytest.mark.parametrize("ending", ["finish(3)", "files.progress_path(handoff, 0).unlink()"])
def test_imports_that_take_long_are_named_with_the_line_that_saves_them(bench, ending):
    """Also of a script that makes no step: once the training has begun, or else when it ends."""
    seconds = {"transformers.Trainer": 2.52, "transformers.LlamaConfig": 0.0}
    told = f'files.write_json(files.imports_path(handoff, rank), {{"seconds": {seconds}}})'
    life = bench.life(f"{SESSION}{told}\n{ending}\n")
    end(run(life))
    (warning,) = [one for one in life.context.status.warnings if "preload" in one]
    assert warning == (
        'run.preload = ["transformers.Trainer", "transformers.LlamaConfig"] in the job file would save 2.5 s of '
        "each later start on a machine"
    )
