"""Whether a training uses what is paid for: the clock, the measurement of real processes, and what follows."""

import os
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.jobs.process_portrait import left_open
from support.records.made_journal import append

from cloudspot.agent.membership.agreement import Membership
from cloudspot.agent.training.launching.trainer import processes_of
from cloudspot.agent.training.watching.idle_watch import IdleClock, IdleWatch, Meter
from cloudspot.errors import TransientError
from cloudspot.jobstore.access.stored_records import find_record
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Finished, Idle, StopRequest, new_nonce
from cloudspot.train import handoff as files

JOB = "digits-1"
SLEEPING = "sleep 600 & sleep 600 & wait"
BUSY = "(while :; do :; done) & wait"
ENDING = "while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done"
"""One child after the other: none of them lives for long."""


# --- the clock --------------------------------------------------------------------------------------


def test_idleness_is_counted_from_look_to_look_and_begins_anew_with_each_use():
    clock = IdleClock(30.0)
    looks = [(0, True), (30, False), (60, False), (90, True), (120, False), (150, False)]
    assert [clock.note(at, is_used=used) for at, used in looks] == [0, 30, 60, 0, 30, 60]


def test_the_time_before_the_first_look_is_not_counted():
    assert IdleClock(30.0).note(1e6, is_used=False) == 0


def test_a_machine_that_slept_was_not_idle_meanwhile():
    clock = IdleClock(30.0)
    clock.note(0, is_used=False)
    assert clock.note(3600, is_used=False) == 60


# --- the measurement --------------------------------------------------------------------------------


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """``nvidia_smi("echo 97")``: what comes first on PATH; without it, there is none."""
    programs = tmp_path / "programs"
    programs.mkdir()
    others = [one for one in os.environ["PATH"].split(os.pathsep) if not Path(one, "nvidia-smi").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), *others]))

    def make(script):
        path = programs / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


@pytest.fixture
def train(tmp_path, wait_until):
    """``train(SLEEPING)``: starts a training's processes; returns the hand-off directory that marks them."""
    started = []

    def start(script):
        handoff = tmp_path / f"handoff-{len(started)}"
        words = processes_of(handoff).command(sys.executable, ["sh", "-c", script], ended=handoff / "ended")
        started.append((handoff, subprocess.Popen(words)))
        wait_until(processes_of(handoff).is_running)
        return handoff

    yield start
    for handoff, process in started:
        processes_of(handoff).kill()
        process.wait()


def measure(meter, handoff, *, seconds=1.0, is_in_loop=True):
    """What shows that the training used nothing for a while."""
    meter.why_idle(handoff, time.monotonic(), is_in_loop=is_in_loop)
    time.sleep(seconds)
    return meter.why_idle(handoff, time.monotonic(), is_in_loop=is_in_loop)


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "is_idle"),
    [(SLEEPING, True), (BUSY, False), (ENDING, False)],
    ids=["sleeps", "busy", "ending"],
)
def test_without_gpus_the_time_of_the_trainings_own_processes_counts(train, nvidia_smi, script, is_idle):
    """Another process of this machine is busy all the time."""
    train(BUSY)
    cause = measure(Meter(1), train(script))
    assert cause == ("CPUs at 0 % of a core" if is_idle else None)


@pytest.mark.full
def test_each_training_process_may_take_a_little(train, nvidia_smi):
    """What a session's threads take at rest, eight times, must not look like work."""
    handoff = train("while :; do sleep 0.001; done")
    assert measure(Meter(1), handoff) is None
    assert measure(Meter(100), handoff).startswith("CPUs at ")


@pytest.mark.full
def test_what_the_fork_server_imports_for_a_training_that_waits_for_it_is_work(train, nvidia_smi, tmp_path):
    server, waiting = train(BUSY), train(SLEEPING)
    assert measure(Meter(1, fork_server=server / files.PROCESSES), waiting) is None
    assert measure(Meter(1), waiting) == "CPUs at 0 % of a core"


def test_the_first_look_at_a_generation_tells_nothing(train, nvidia_smi):
    meter = Meter(1)
    assert measure(meter, train(SLEEPING), seconds=0.1)
    assert meter.why_idle(train(SLEEPING), time.monotonic(), is_in_loop=True) is None


@pytest.mark.full
@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ("echo 0", "GPUs at 0 %"),
        (r"printf '0\n4\n'", "GPUs at 4 %"),
        (r"printf '0\n5\n'", None),
        ("echo 97", None),
    ],
)
def test_the_busiest_gpu_counts_and_no_cpu(train, nvidia_smi, answer, cause):
    """A loop that spins beside GPUs that do nothing does not use what is paid for."""
    nvidia_smi(answer)
    assert measure(Meter(1), train(BUSY), seconds=0.1) == cause


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows how a process was started")
def test_nvidia_smi_reads_nothing_and_what_it_complains_of_is_nowhere(train, nvidia_smi, tmp_path, capfd):
    nvidia_smi(f"readlink /proc/$$/fd/0 > {tmp_path}/stdin; echo 97; echo a warning >&2")
    with left_open(tmp_path / "of-the-agent"):
        assert measure(Meter(1), train(SLEEPING), seconds=0.0) is None
    assert (tmp_path / "stdin").read_text() == "/dev/null\n"
    assert capfd.readouterr().err == ""


@pytest.mark.full
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "is not there"),
        ("echo '[N/A]'", "gave no answer (invalid literal for int() with base 10: b'[N/A]'"),
        ("exit 0", "gave no answer ("),
        (r"printf '\377'", "gave no answer ("),
        ("echo 97; exit 9", "gave no answer (Command 'nvidia-smi' returned non-zero exit status 9."),
        ("exec sleep 3600", "gave no answer (Command '('nvidia-smi', "),
    ],
)
def test_without_an_answer_from_nvidia_smi_the_cpus_count_which_is_said_once(
    train, nvidia_smi, caplog, answer, problem
):
    if answer is not None:
        nvidia_smi(answer)
    caplog.set_level("INFO")
    meter = Meter(1, answer_seconds=0.3)
    assert measure(meter, train(SLEEPING)) == "CPUs at 0 % of a core"
    assert measure(meter, train(BUSY)) is None
    [told] = [one for one in caplog.records if one.name.endswith("idle_watch")]  # not of other tests' threads
    assert told.message.startswith(f"nvidia-smi {problem}")
    assert told.levelname == ("INFO" if answer is None else "WARNING")


@pytest.mark.full
def test_without_the_steps_of_a_session_work_of_the_cpus_is_use_too(train, nvidia_smi):
    """A script may prepare its data, and GPUs that work now and then rest at some looks."""
    busy, meter = train(BUSY), Meter(1)
    for percent in (0, 60, 0):
        nvidia_smi(f"echo {percent}")
        assert measure(meter, busy, is_in_loop=False) is None
    assert measure(meter, busy, is_in_loop=True) == "GPUs at 0 %"
    assert measure(meter, train(SLEEPING), is_in_loop=False) == "GPUs at 0 %"


# --- what counts as use besides ---------------------------------------------------------------------


class Watched:
    """A node that trains, or does something else, while nothing of its machine is used."""

    def __init__(self, bench, nodes=None, **limits):
        self.bench = bench
        self.life = bench.life(limits={"idle_after": 60.0, **limits}, nodes=nodes or {"min": 1, "max": 1})
        self.context = self.life.context
        self.status = self.context.status
        self.membership = Membership(self.context)
        self.membership.enter(bench.start())
        self.watch = IdleWatch(self.context, self.membership)
        self.watch._meter.why_idle = lambda handoff, now, *, is_in_loop: "GPUs at 0 %"
        self.status.generation, self.status.handoff = 1, self.context.node.handoff(1)
        self.status.handoff.mkdir(parents=True)
        self.status.ranks = (0,)
        self.status.state = "running"
        self.now = 0.0

    def look(self, seconds=0.0):
        """Look every 12 s for so many seconds; return how the node then stands."""
        for _ in range(int(seconds / 12.0)):
            self.now += 12.0
            self.watch._look(self.now)
        return self.status.idle

    def stop(self):
        return find_record(self.bench.store, keys.stop(JOB, 0), StopRequest)


@pytest.fixture
def watched(bench):
    return Watched(bench)


def idle(seconds):
    return Idle(seconds=seconds, cause="GPUs at 0 %")


def test_a_node_is_idle_once_it_has_used_nothing_for_as_long_as_the_job_says(watched, caplog):
    assert watched.look(12) is None  # the first look sees progress: it knows no earlier one
    assert watched.look(48) is None
    assert watched.look(12) == idle(60)
    assert watched.look(600) == idle(660)
    assert caplog.messages == ["idle for 60 s (GPUs at 0 %)"]
    assert watched.stop() is None


def step(watched):
    files.progress_path(watched.status.handoff, 0).write_bytes(files.PROGRESS.pack(41, 100, 42))


def commit(watched):
    watched.status.committed = watched.bench.id(1, 50)


def restart(watched):
    watched.status.generation = 2


@pytest.mark.parametrize("happen", [step, commit, restart])
def test_progress_is_use_however_little_is_measured(watched, happen):
    assert watched.look(120)
    happen(watched)
    assert watched.look(12) is None
    assert watched.look(60) == idle(60)


@pytest.mark.parametrize("state", ["setup", "restoring", "ready", "draining", "uploading", "ending"])
def test_a_node_that_does_not_train_is_not_idle(watched, state):
    assert watched.look(120)
    watched.status.state = state
    assert watched.status.idle is None  # at once, not only at the next look
    assert watched.look(600) is None
    watched.status.state = "running"
    assert watched.look(48) is None
    assert watched.look(12) == idle(60)


def test_an_upload_beside_the_training_is_use(watched):
    with watched.status.transferring("uploading", 100):
        assert watched.look(600) is None
    assert watched.look(60) == idle(60)


def test_the_heartbeat_tells_at_once_that_a_node_is_idle_and_that_it_is_not(watched):
    def told():
        changed = watched.status.state_changed.is_set()
        watched.status.state_changed.clear()
        return changed

    told()
    watched.look(60)
    assert not told()
    watched.look(12)
    assert told()
    watched.look(120)
    assert not told()
    step(watched)
    watched.look(12)
    assert told()


# --- the stop ---------------------------------------------------------------------------------------


def test_a_job_that_says_so_is_asked_to_stop_with_the_figures(bench):
    watched = Watched(bench, on_idle="stop")
    assert watched.look(60) is None
    assert watched.stop() is None
    watched.look(12)
    stop = watched.stop()
    assert (stop.reason, stop.detail) == ("idle_after", "idle for 60 s (GPUs at 0 %)")
    assert watched.context.orders.stop == stop
    watched.look(120)
    assert watched.stop() == stop


def test_a_job_of_several_nodes_is_asked_to_stop_only_once_all_are_idle(bench):
    watched = Watched(bench, on_idle="stop", nodes={"min": 1, "max": 2})
    watched.membership.others_are_idle = lambda: False
    assert watched.look(120)
    assert watched.stop() is None
    watched.membership.others_are_idle = lambda: True
    watched.look(12)
    assert watched.stop().detail == "idle for 2 min (GPUs at 0 %) on node 1.0, and all others too"


def test_a_store_that_does_not_answer_delays_the_stop_and_ends_no_watch(bench, monkeypatch, wait_until):
    watched = Watched(bench, on_idle="stop", idle_after=0.05)
    put, problems = bench.store.put, [TransientError("away")]

    def fails_once(*arguments, **options):
        if problems:
            raise problems.pop()
        put(*arguments, **options)

    monkeypatch.setattr(bench.store, "put", fails_once)
    watched.watch.start()
    wait_until(watched.stop)
    watched.watch.stop()
    assert not problems


def test_a_node_that_the_job_has_left_behind_asks_for_nothing(bench):
    watched = Watched(bench, on_idle="stop")
    bench.start(2, launch=2)
    assert watched.look(120)
    assert watched.stop() is None


def test_the_node_of_a_job_that_is_over_asks_for_nothing(bench):
    watched = Watched(bench, on_idle="stop")
    now = datetime.now(timezone.utc)
    append(bench.store, JOB, Finished(outcome="failed", detail="", exit_code=1, at=now, writer=new_nonce()))
    assert watched.look(120)
    assert watched.stop() is None


def test_without_the_limit_nothing_is_measured(bench):
    watch = IdleWatch(bench.life().context, None)
    watch.start()
    assert not watch._thread.is_alive()
    watch.stop()


@pytest.mark.full
def test_a_script_that_sleeps_is_ended_by_its_node_alone(bench, nvidia_smi):
    """No driver lives, and the script has no session: nothing else would end it for seven days."""
    nvidia_smi("echo 0")
    life = bench.life(
        "import time\nprint('begun', flush=True)\ntime.sleep(600)\n",
        limits={"idle_after": 1.0, "on_idle": "stop"},
        run={"command": [sys.executable, "-u", "train.py"]},
    )
    thread = threading.Thread(target=life.run, daemon=True)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive()
    record = bench.exit_record()
    assert (record.outcome, record.detail) == ("stopped", "stop requested: idle_after")
    stop = codec.decode(bench.store.get(keys.stop(JOB, 0)), StopRequest)
    assert stop.reason == "idle_after"
    assert stop.detail.endswith("(GPUs at 0 %)")
    assert "begun" in bench.log(life)
