"""A node that ends drives its job once more."""

import os
import signal
import sys
import threading
import time
from datetime import datetime, timezone

import pytest
from support.jobs.process_portrait import left_open, portrait_of
from support.records import made_journal

from cloudspot.agent import last_pass
from cloudspot.agent.last_pass import LastPass
from cloudspot.agent.reclaim import understand
from cloudspot.errors import AuthError
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.nodes.launches import void_slot
from cloudspot.model import Capability, PreemptionNotice

DRIVE = {"min": 1, "max": 1, "drive": True}


@pytest.fixture
def program(bench, monkeypatch):
    """Stands in for the agent's Python: notes how it was called, and does what the test has chosen."""

    def choose(body):
        path = bench.root / "program"
        path.write_text(f'#!/bin/sh\necho "$@" >> {bench.root}/calls\n{body}\n')
        path.chmod(0o755)
        monkeypatch.setattr(last_pass.sys, "executable", str(path))

    # What the stand-in torchrun of other tests runs is not what is replaced here.
    monkeypatch.setattr(last_pass, "sys", type("sys", (), {"executable": sys.executable}))
    choose("echo drove")
    return choose


def submitted(bench):
    """A node of a job whose submission is in the store."""
    life = bench.life(nodes=DRIVE)
    bench.store.put(keys.spec("digits-1"), codec.encode(life.context.job.submission))
    return life


def calls(bench):
    path = bench.root / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_it_reconciles_its_own_job_by_its_name(bench, program):
    LastPass(bench.life(nodes=DRIVE).context).run()
    store = f"file://{bench.root}/store"
    assert calls(bench) == [f"-m cloudspot reconcile --job digits-1 --store {store} --as node 1.0"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows how a process was started")
def test_a_pass_yields_to_what_the_training_still_has_to_save_and_reads_nothing(bench, program, wait_until):
    pid, go = bench.root / "pid", bench.root / "go"
    program(f"echo $$ > {pid}.new; mv {pid}.new {pid}; until [ -e {go} ]; do sleep 0.01; done")
    thread = threading.Thread(target=LastPass(bench.life(nodes=DRIVE).context).run)
    try:
        with left_open(bench.root / "of-the-agent"):
            thread.start()
            wait_until(pid.exists)
        wait_until(lambda: portrait_of(int(pid.read_text())).niceness == 10)
        assert portrait_of(int(pid.read_text())).streams[0] == "/dev/null"
    finally:
        go.touch()
        thread.join()


def test_a_job_that_does_not_ask_for_it_is_not_driven(bench, program):
    driver = LastPass(bench.life().context)
    driver.run()
    driver.run_until_replaced()
    assert calls(bench) == []


def test_a_machine_that_is_this_computer_drives_nothing(bench, program, monkeypatch):
    monkeypatch.setattr(type(bench.provider), "capabilities", frozenset({Capability.THIS_COMPUTER}))
    LastPass(bench.life(nodes=DRIVE).context).run_until_replaced()
    assert calls(bench) == []


def test_without_the_right_it_says_so_once(bench, program, caplog):
    program(f"echo 'not allowed to launch'; exit {AuthError.exit_code}")
    driver = LastPass(bench.life(nodes=DRIVE).context)
    for _ in range(3):
        driver.run()
    assert len(calls(bench)) == 1
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert told == [
        "nodes.drive: this node lacks the permissions of a driver and stops driving: not allowed to launch"
    ]


def launches_at(monkeypatch, number, act):
    """``act`` before the given pass."""
    popen, passes = last_pass.subprocess.Popen, []

    def counted(command, **options):
        passes.append(command)
        if len(passes) == number:
            act()
        return popen(command, **options)

    monkeypatch.setattr(last_pass.subprocess, "Popen", counted)
    monkeypatch.setattr(last_pass, "PAUSE_SECONDS", 0.05)


def test_it_drives_until_a_newer_launch_lives(bench, program, monkeypatch):
    life = submitted(bench)
    launches_at(monkeypatch, 3, lambda: made_journal.open_launch(bench.store, "digits-1", 2, num_nodes=1))
    LastPass(life.context).run_until_replaced()
    assert len(calls(bench)) == 3


def test_a_launch_that_was_refused_is_no_replacement(bench, program, monkeypatch):
    life = submitted(bench)
    made_journal.open_launch(bench.store, "digits-1", 2, num_nodes=1)
    void_slot(bench.store, "digits-1", 2, 0, "capacity")
    launches_at(monkeypatch, 4, lambda: made_journal.open_launch(bench.store, "digits-1", 3, num_nodes=1))
    LastPass(life.context).run_until_replaced()
    assert len(calls(bench)) == 4


def test_it_ends_a_pass_at_the_machines_deadline(bench, program):
    program("exec sleep 3600")
    life = bench.life(nodes=DRIVE)
    notice = PreemptionNotice(deadline=None)
    now = time.monotonic()
    life.context.orders.give(
        reclaim=understand(notice, notice_seconds=0.5, now=now, wall=datetime.now(timezone.utc))
    )
    LastPass(life.context).run_until_replaced()
    assert time.monotonic() > now + 0.4


def test_a_pass_that_is_ended_is_not_waited_for_until_what_it_has_started_ends(bench, program, caplog):
    """As a program that gives it its credentials: it held the output open, and the node waited at its end."""
    caplog.set_level("INFO")
    program(f"echo begun; sleep 3600 & echo $! > {bench.root}/helper; exec sleep 3600")
    life = bench.life(nodes=DRIVE)
    life.context.orders.give(
        reclaim=understand(
            PreemptionNotice(deadline=None),
            notice_seconds=0.5,
            now=time.monotonic(),
            wall=datetime.now(timezone.utc),
        )
    )
    try:
        LastPass(life.context).run()
    finally:
        os.kill(int((bench.root / "helper").read_text()), signal.SIGKILL)
    assert "driving: begun" in caplog.messages


def test_a_pass_whose_priority_cannot_be_lowered_is_made_all_the_same(bench, program, caplog, monkeypatch):
    """As where the agent itself yields more: without privileges there is no way back."""

    def refuse(*_arguments):
        raise PermissionError

    caplog.set_level("INFO")
    monkeypatch.setattr(last_pass.os, "setpriority", refuse)
    LastPass(bench.life(nodes=DRIVE).context).run()
    assert "driving: drove" in caplog.messages


def test_a_program_that_cannot_start_is_only_logged(bench, program, caplog):
    (bench.root / "program").unlink()
    LastPass(bench.life(nodes=DRIVE).context).run()
    assert "this node could not drive its job" in caplog.text
