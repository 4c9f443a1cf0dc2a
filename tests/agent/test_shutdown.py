"""What a machine's shutdown hook does: one notice with whoever else tells, and a word for a dead agent."""

import fcntl
import os
import subprocess
import sys
import time

import pytest

from cloudspot.agent import shutdown
from cloudspot.agent.node import NodeMemory
from cloudspot.agent.notices.notice_file import NoticeFile
from cloudspot.agent.training.launching.trainer import processes_of
from cloudspot.errors import ObjectMissing, TransientError
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.nodes import launches
from cloudspot.model import NodeIdentity
from cloudspot.train import handoff as files

JOB = "digits-1"


class Clock:
    """Time that passes while somebody sleeps, or hears of it."""

    def __init__(self):
        self.now = 1000.0
        self.on_sleep = lambda: None

    def sleep(self, seconds):
        self.now += seconds
        self.on_sleep()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def see_off(bench, clock, monkeypatch):
    monkeypatch.setattr(shutdown, "open_provider", lambda name, spec: bench.provider)

    def run(seconds=25.0):
        return shutdown.Shutdown(
            bench.node(), seconds=seconds, source="hook", monotonic=lambda: clock.now, sleep=clock.sleep
        ).run()

    return run


@pytest.fixture
def agent_lock(bench):
    """The lock that an agent holds while it lives."""
    with bench.node().lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def claim(bench, machine="m-1"):
    identity = NodeIdentity(instance_id=machine, rank=0, address="127.0.0.1")
    launches.claim_slot(bench.store, JOB, 1, 0, identity)


def test_it_waits_for_the_last_word_of_an_agent_that_lives(bench, see_off, agent_lock, clock, capsys):
    def leave():
        if clock.now > 1010.0:
            bench.node().agent_ended.touch()

    clock.on_sleep = leave
    assert see_off() == 0
    assert 1010.0 < clock.now < 1011.0
    standing = NoticeFile(bench.node().directory).read()
    assert (standing.deadline, standing.notice.source) == (1025.0, "hook")
    assert capsys.readouterr().out.splitlines() == [
        "cloudspot: this machine goes down in 25.0 s",
        "cloudspot: the agent has left",
    ]


def test_it_speaks_for_no_agent_that_lives(bench, see_off, agent_lock, clock):
    claim(bench)
    assert see_off() == 1
    assert clock.now >= 1025.0
    with pytest.raises(ObjectMissing):
        bench.exit_record()


def test_a_dead_agents_training_is_ended_before_its_exit_record_says_so(bench, see_off, clock, wait_until):
    claim(bench)
    node = bench.node()
    handoff = node.handoff(2)
    handoff.mkdir(parents=True)
    NodeMemory(generation=2, restored_step=20).save(node)
    files.progress_path(handoff, 0).write_bytes(files.PROGRESS.pack(57, 100, 58))
    words = processes_of(handoff).command(sys.executable, ["sleep", "1000"], ended=handoff / "trainer.ended")
    process = subprocess.Popen(words)
    wait_until(processes_of(handoff).pids)
    assert see_off() == 0
    assert process.wait(10) == 137
    record = bench.exit_record()
    assert (record.outcome, record.instance_id, record.committed) == ("drained", "m-1", None)
    assert (record.generation, record.restored_step, record.step, record.reached_step) == (2, 20, 57, 58)
    assert record.detail == "shut down (hook) while its agent was dead"
    # Not as soon as it was seen: the boot script may have been about to start another.
    assert 1000.0 + shutdown.DEAD_SECONDS <= clock.now < 1001.0 + shutdown.DEAD_SECONDS


def test_an_agent_that_is_started_again_meanwhile_speaks_for_itself(bench, see_off, clock):
    claim(bench)
    with bench.node().lock.open("a") as lock:

        def start():
            if clock.now > 1003.0:
                fcntl.flock(lock, fcntl.LOCK_EX)
            if clock.now > 1020.0:
                bench.node().agent_ended.touch()

        clock.on_sleep = start
        assert see_off() == 0
    with pytest.raises(ObjectMissing):
        bench.exit_record()


def test_in_a_short_time_it_keeps_back_what_the_record_needs(bench, see_off, clock):
    claim(bench)
    assert see_off(seconds=4.0) == 0
    assert 1003.0 <= clock.now < 1003.2
    assert bench.exit_record().outcome == "drained"


@pytest.mark.parametrize("owner", ["m-2", None])
def test_a_machine_whose_slot_is_not_its_own_says_nothing_of_it(bench, see_off, owner):
    if owner is not None:
        claim(bench, owner)
    assert see_off() == 0
    with pytest.raises(ObjectMissing):
        bench.exit_record()


@pytest.mark.full
def test_a_store_that_fails_is_asked_again_until_the_end(bench, see_off, clock, monkeypatch):
    claim(bench)
    real, num_failures = shutdown.write_exit_record, iter(range(3))

    def say(*arguments):
        if next(num_failures, None) is not None:
            raise TransientError("down")
        real(*arguments)

    monkeypatch.setattr(shutdown, "write_exit_record", say)
    assert see_off() == 0
    assert bench.exit_record().outcome == "drained"
    monkeypatch.setattr(shutdown, "write_exit_record", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        see_off()


@pytest.mark.full
def test_a_store_that_stays_down_is_given_up_at_the_end(bench, see_off, clock, monkeypatch):
    def fail(*_):
        raise TransientError("down")

    claim(bench)
    monkeypatch.setattr(shutdown, "write_exit_record", fail)
    assert see_off() == 1
    assert clock.now >= 1025.0


def test_a_second_run_of_the_hook_moves_no_deadline_back(bench, see_off, agent_lock, clock):
    see_off()
    see_off()
    assert NoticeFile(bench.node().directory).read().deadline == 1025.0


@pytest.mark.full
def test_the_command_reads_what_the_boot_script_exports(bench):
    node = bench.node()
    node.agent_ended.touch()
    environment = {
        **os.environ, "CLOUDSPOT_JOB": JOB, "CLOUDSPOT_LAUNCH": "1", "CLOUDSPOT_STORE": bench.store.url,
        "CLOUDSPOT_PROVIDER": "local", "CLOUDSPOT_SUBMISSION": "5" * 64, "CLOUDSPOT_NODE_DIR": str(node.directory), "CLOUDSPOT_TRAIN_PYTHON": "x",
        "CLOUDSPOT_ARENA": str(bench.root / "arena"),
    }  # fmt: skip
    command = [sys.executable, "-m", "cloudspot.agent.shutdown", "--seconds", "20", "--source", "hook"]
    before = time.monotonic()
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert before + 20.0 <= NoticeFile(node.directory).read().deadline <= time.monotonic() + 20.0
    with pytest.raises(ObjectMissing):
        bench.store.get(keys.exit_record(JOB, 1, 0))
