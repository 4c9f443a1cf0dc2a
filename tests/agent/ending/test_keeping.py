"""A node whose machine is kept after a failure: a whole life, with real processes, in this process."""

import threading
import time
from datetime import timedelta

import pytest
from support.records import made_journal
from support.records.made_records import Records

from cloudspot.agent.ending import keeping
from cloudspot.agent.remote import remote_commands
from cloudspot.host.boot_clock import boot_seconds
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Finished, Intent, Kept, Resumed, Seat
from cloudspot.jobstore.remote.calling import call_node
from cloudspot.jobstore.remote.relay import Kind

JOB, SEAT = "digits-1", Seat(1, 0)
BROKEN = "import sys; print('wrong on purpose'); sys.exit(3)"
KEEPS = {"limits": {"keep_failed": 600, "max_restarts": 0}}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(keeping, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(remote_commands, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr("cloudspot.agent.membership.heartbeat_writer.LONE_LOOK_SECONDS", 0.1)


@pytest.fixture
def run(bench):
    """``run(life)``: lives it, in a thread that ends with the test."""
    threads = []

    def start(life):
        thread = threading.Thread(target=life.run, daemon=True)
        thread.start()
        threads.append((life, thread))
        return thread

    yield start
    for life, thread in threads:
        life.context.orders.give(superseded="the test is over")
        thread.join(30)
        for command in life.remote._running:  # it ends once it has read that the person is gone
            command._thread.join(30)


@pytest.fixture
def submitted(bench):
    """``submitted(script, **tables)``: a life whose job is in the store, as a node reads all of its records."""

    def make(script, **tables):
        life = bench.life(script, **tables)
        bench.store.put(keys.spec(JOB), codec.encode(life.context.job.submission))
        return life

    return make


def kept_in(bench):
    return [record for record in bench.journal() if isinstance(record, Kept)]


def say(bench, *words):
    """Run a command on the node, and return its output."""
    process, output = call_node(bench.store, JOB, SEAT, words), b""
    while process.status is None:
        frame = process.frames()
        if frame is not None and frame.kind is Kind.OUTPUT:
            output += frame.data
    process.close()
    return output


def append(bench, record):
    journal = Journal(bench.store, JOB)
    assert journal.append(record, len(journal.read()) + 1)


def test_the_job_has_failed_at_once_and_commands_run_until_it_is_stopped(
    bench, submitted, run, caplog, wait_until
):
    life = submitted(BROKEN, **KEEPS)
    thread = run(life)
    wait_until(lambda: life.context.status.state == "kept")
    said, (kept,) = bench.exit_record(), kept_in(bench)
    assert (said.outcome, said.permanent, said.exit_code) == ("failed", True, 3)
    assert (kept.seat, kept.instance_id, kept.detail, kept.exit_code) == (SEAT, "m-1", said.detail, 3)
    assert 590 < (kept.until - kept.at).total_seconds() <= 600
    # A driver writes down the end; that is no order to go.
    append(bench, Finished(outcome="failed", detail="x", exit_code=3, at=kept.at, writer="driver"))
    assert b"train.py" in say(bench, "ls")
    time.sleep(0.5)
    assert thread.is_alive()
    request_stop(bench.store, JOB, "user", resumption=0)
    thread.join(30)
    assert not thread.is_alive()
    assert any("is kept for inspection for" in line for line in caplog.messages)
    assert any("not kept any longer: stop requested: user" in line for line in caplog.messages)


def test_it_ends_when_its_time_is_over(bench, submitted, run, caplog, wait_until):
    life = submitted(BROKEN, limits={"keep_failed": 1.5, "max_restarts": 0})
    thread = run(life)
    wait_until(lambda: kept_in(bench))
    thread.join(60)
    assert not thread.is_alive()
    assert any("its time is over" in line for line in caplog.messages)


def test_the_process_that_ends_the_machine_runs_before_others_can_read_that_it_is_kept(
    bench, submitted, run, monkeypatch, wait_until
):
    """An agent that hangs while it writes the record would otherwise leave the machine without an end."""
    monkeypatch.setenv("CLOUDSPOT_SHUTDOWN", "true")
    life = submitted(BROKEN, **KEEPS)
    guards, write = [], Journal.append

    def note(journal, record, number):
        if isinstance(record, Kept):
            guards.append(life.keeping._guard.poll())
        return write(journal, record, number)

    monkeypatch.setattr(Journal, "append", note)
    run(life)
    wait_until(lambda: kept_in(bench))
    assert guards == [None]
    wait_until(lambda: life.context.status.state == "kept")
    process = life.keeping._guard
    life.context.orders.give(superseded="the test is over")
    wait_until(lambda: process.poll() is not None)


def test_it_ends_when_the_job_goes_on(bench, submitted, run, wait_until):
    life = submitted(BROKEN, **KEEPS)
    thread = run(life)
    wait_until(lambda: life.context.status.state == "kept")
    at = kept_in(bench)[0].at
    append(bench, Finished(outcome="failed", detail="x", exit_code=3, at=at, writer="driver"))
    append(bench, Resumed(resumption=1, submission_sha256="6" * 64, at=at, writer="w"))
    thread.join(30)
    assert not thread.is_alive()


def test_the_next_agent_of_the_machine_goes_on_with_the_same_deadline(bench, submitted, run, wait_until):
    first = submitted(BROKEN, **KEEPS)
    is_over = threading.Event()
    first.keeping.wait = lambda _seconds: is_over.wait(60)  # it is killed, as it were
    killed = run(first)
    wait_until(lambda: first.keeping.is_kept and first._find_exit_record() is not None)
    first.logs._stopped.set()
    first.heartbeat.stop()
    until = first.context.memory.kept_until
    second = submitted(BROKEN, **KEEPS)
    thread = run(second)
    wait_until(lambda: second.context.status.state == "kept")
    assert second.context.memory.kept_until == until > boot_seconds() + 500
    assert b"train.py" in say(bench, "ls")
    assert len(kept_in(bench)) == 1
    second.context.memory.kept_until = boot_seconds()
    thread.join(30)
    is_over.set()
    killed.join(30)
    assert (thread.is_alive(), killed.is_alive()) == (False, False)


def test_another_node_that_is_kept_leaves_this_one_to_end(bench, submitted, run):
    life = submitted(BROKEN, **KEEPS)
    real = life.keeping.settle

    def settle(leaving):
        made_journal.open_launch(bench.store, JOB, 2)
        append(bench, Records().kept(launch=2))
        return real(leaving)

    life.keeping.settle = settle
    run(life).join(60)
    assert bench.exit_record().outcome == "failed"
    assert not life.keeping.is_kept
    assert len(kept_in(bench)) == 1


def test_a_limit_on_cost_without_room_keeps_none(bench, submitted, run, caplog):
    life = submitted(BROKEN, limits={"keep_failed": 600, "max_restarts": 0, "max_cost": 0.01})
    run(life).join(60)
    assert bench.exit_record().permanent
    assert kept_in(bench) == []
    assert any("leaves no room to keep this machine" in line for line in caplog.messages)


def test_a_failure_that_another_machine_may_mend_waits_for_a_driver_and_no_longer(
    bench, submitted, run, wait_until, monkeypatch
):
    monkeypatch.setattr("cloudspot.agent.life.VERDICT_SECONDS", 1.0)
    fails = {"run": {"setup": "exit 3"}, "limits": {"keep_failed": 600}}
    life = submitted("", **fails)
    run(life).join(60)
    said = bench.exit_record()
    assert (said.permanent, said.waits_until is not None) == (False, True)
    assert kept_in(bench) == []


@pytest.mark.parametrize("word", ["kept", "launched"])
def test_such_a_node_does_as_the_driver_says(bench, submitted, run, wait_until, word):
    fails = {"run": {"setup": "exit 3"}, "limits": {"keep_failed": 600}}
    life = submitted("", **fails)
    thread = run(life)
    wait_until(lambda: life._find_exit_record() is not None)
    now = life.context.now()
    if word == "launched":
        made_journal.open_launch(bench.store, JOB, 2)
    else:
        append(bench, Kept(launch=1, rank=0, instance_id="m-1", until=now + timedelta(hours=1), detail="twice",
                           exit_code=3, at=now, writer="driver"))  # fmt: skip
        wait_until(lambda: life.context.status.state == "kept")
        assert b"train.py" in say(bench, "ls")
        request_stop(bench.store, JOB, "user", resumption=0)
    thread.join(30)
    assert not thread.is_alive()
    assert life.keeping.is_kept is (word == "kept")
    assert sum(isinstance(record, Intent) for record in bench.journal()) == (2 if word == "launched" else 1)
