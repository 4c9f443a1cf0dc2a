"""Scripts that know nothing of cloudspot, told of a notice by ``checkpoint.on_notice``: what is saved, and what follows."""

import os
import signal
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest
from support.records import made_journal

from cloudspot.agent.reclaim import understand
from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.layout import keys
from cloudspot.model import PreemptionNotice

pytestmark = pytest.mark.full


JOB = "digits-1"
TABLE = {"directory": "out/checkpoint-*", "on_notice": "SIGTERM"}
SCRIPT = """
import os, signal, sys, time
from pathlib import Path

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))

def save(step, name="model"):
    path = Path(f"out/checkpoint-{step}")
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(f"weights {step}")

def wait():
    while not told and not Path("stop").exists():
        time.sleep(0.01)

if Path("out/checkpoint-107").exists():
    sys.exit(0)
save(100)
"""
LEAVES = SCRIPT + "Path('ready').touch()\nwait()\nsave(107)\nsys.exit(0)\n"


@pytest.fixture
def start(bench, wait_until):
    """Start a node, and return it with its thread once its script has said that it is ready."""

    def start_life(script=LEAVES, **tables):
        life = bench.life(script, **{"checkpoint": TABLE, **tables})
        thread = threading.Thread(target=life.run, daemon=True)
        thread.start()
        wait_until((life.context.node.work / "ready").exists)
        return life, thread

    return start_life


def reclaim(life, seconds):
    notice = PreemptionNotice(deadline=datetime.now(timezone.utc) + timedelta(seconds=seconds))
    now, wall = time.monotonic(), datetime.now(timezone.utc)
    life.notices.take(understand(notice, notice_seconds=seconds, now=now, wall=wall))


def end(thread):
    thread.join(60.0)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "run", [{}, {"launcher": "none"}, {"command": ["sh", "-c", "python -u train.py; exit $?"]}]
)
def test_what_it_saves_after_the_signal_is_committed_and_status_0_is_a_drain(bench, start, run):
    """It was at step 107, and the job went on from 100 or from nothing."""
    life, thread = start(run=run)
    reclaim(life, 30.0)
    end(thread)
    record = bench.exit_record()
    assert (record.outcome, record.detail, record.final) == ("drained", "reclaimed (terminate)", None)
    assert bench.commits() == (bench.id(1, 107),)
    assert record.committed == bench.id(1, 107)


def test_a_stop_saves_what_it_has(bench, start):
    _, thread = start()
    request_stop(bench.store, JOB, "user", resumption=0)
    end(thread)
    # The one from before the signal may have been committed meanwhile.
    earlier = (bench.id(1, 100),)
    assert bench.commits() in ((bench.id(1, 107),), (*earlier, bench.id(1, 107)))
    assert bench.exit_record().outcome == "stopped"


@pytest.mark.parametrize("status", [0, 1, 143])
def test_where_it_saves_nothing_the_newest_complete_one_stands_whatever_its_status(
    bench, start, wait_until, caplog, status
):
    script = SCRIPT + f"save(100, 'done')\nPath('ready').touch()\nwait()\nsys.exit({status})\n"
    life, thread = start(script, checkpoint={**TABLE, "complete_file": "done"})
    wait_until(bench.commits)
    reclaim(life, 30.0)
    end(thread)
    assert (bench.exit_record().outcome, bench.commits()) == ("drained", (bench.id(1, 100),))
    assert "the script has completed no checkpoint since it was asked to save" in caplog.messages


def test_what_it_was_in_the_middle_of_saving_is_no_answer_and_not_committed(bench, start):
    """Its handler left at once: what lay there was half of a checkpoint."""
    script = SCRIPT + "Path('ready').touch()\nwait()\nsave(100, 'more')\nsys.exit(0)\n"
    life, thread = start(script)
    reclaim(life, 30.0)
    end(thread)
    assert (bench.exit_record().outcome, bench.commits()) == ("drained", ())


def test_one_that_trains_on_after_its_save_is_ended_once_that_is_committed(bench, start, monkeypatch):
    monkeypatch.setattr("cloudspot.agent.training.watching.supervision.LEAVE_SECONDS", 0.1)
    script = SCRIPT + "Path('ready').touch()\nwait()\nsave(107)\nsave(107, 'done')\ntime.sleep(3600)\n"
    life, thread = start(script, checkpoint={**TABLE, "complete_file": "done", "on_notice": "stop"})
    reclaim(life, 300.0)
    end(thread)
    assert (bench.exit_record().outcome, bench.commits()) == ("drained", (bench.id(1, 107),))


def test_a_script_without_a_handler_is_not_killed_by_the_signal(bench, start, caplog):
    """It may still complete a checkpoint by itself before the machine goes."""
    script = (
        SCRIPT.replace("signal.signal(", "(lambda *_: None)(")
        + """
Path("ready").touch()
time.sleep(1.5)
save(107)
save(107, "done")
time.sleep(3600)
"""
    )
    life, thread = start(script, checkpoint={**TABLE, "complete_file": "done"})
    reclaim(life, 15.0)
    end(thread)
    assert (bench.exit_record().outcome, bench.commits()) == ("drained", (bench.id(1, 107),))
    assert (
        "the script was not asked to save: none of its processes was seen handling SIGTERM" in caplog.messages
    )


def test_the_file_is_gone_when_the_script_starts_again(bench, start, monkeypatch):
    monkeypatch.setattr("cloudspot.agent.training.generation_run.withdraw", lambda *_: withdrawn.append(1))
    withdrawn = []
    life, thread = start(checkpoint={**TABLE, "on_notice": "stop"})
    reclaim(life, 30.0)
    end(thread)
    assert (life.context.node.work / "stop").exists()
    assert withdrawn == [1]


@pytest.mark.parametrize(
    ("order", "complete_file", "outcome", "committed"),
    [
        ("notice", None, "succeeded", True),
        ("shutdown", None, "drained", False),  # its handler may have ended it in the middle of the save
        ("shutdown", "done", "drained", True),
    ],
)
def test_a_script_that_ends_by_itself_before_anybody_has_told_it_has_finished(
    bench, start, wait_until, order, complete_file, outcome, committed
):
    """It counted as drained, and a second machine trained the last half again.

    At a shutdown others than the agent send signals, too. A script that handles SIGTERM saves and returns 0
    then: the job was over at whatever step it was.
    """
    checkpoint = {"directory": TABLE["directory"], "complete_file": complete_file}
    life, thread = start(LEAVES.replace("save(107)", "save(107); save(107, 'done')"), checkpoint=checkpoint)
    if order == "notice":
        reclaim(life, 30.0)
    else:
        os.write(life.notices._pipe._writer, bytes([signal.SIGTERM]))
    wait_until(lambda: life.context.orders.pending)
    (life.context.node.work / "stop").touch()
    end(thread)
    assert bench.exit_record().outcome == outcome
    assert (bench.id(1, 107) in bench.commits()) == committed


class SlowStore(WrappedStore):
    """Takes its time for what is saved at step 107."""

    def put(self, key, data, *, if_absent=False):
        if "/chunks/" in key and "-000000000107-" in key:
            time.sleep(2.0)
        super().put(key, data, if_absent=if_absent)


@pytest.mark.parametrize("reclaimed", [0, 1])
def test_what_rank_0_saves_counts_whichever_node_has_to_go(bench, wait_until, monkeypatch, reclaimed):
    """Only rank 0 writes checkpoints. Its node heard nothing of another's notice, and its training ended by a
    broken connection; at its own, the survivor went on from an older checkpoint while it was uploading.
    """
    monkeypatch.setattr("cloudspot.agent.membership.peer_heartbeats.LISTEN_SECONDS", 0.04)
    monkeypatch.setattr("cloudspot.agent.membership.peer_heartbeats.REGROUP_SECONDS", 0.02)
    monkeypatch.setattr("cloudspot.agent.membership.heartbeat_writer.REGROUP_SECONDS", 0.03)
    script = """
if os.environ["RANK"] == "1":
    Path("ready").touch()
    wait()
    sys.exit(0)
"""
    script = LEAVES.replace("save(100)", script + "save(100)")
    nodes = {"min": 1, "max": 2}
    store = SlowStore(bench.store)
    lives = [
        bench.life(script, store=store, machine=f"machine-{rank}", rank=rank, nodes=nodes, checkpoint=TABLE)
        for rank in range(2)
    ]
    threads = [threading.Thread(target=life.run, daemon=True) for life in lives]
    for thread in threads:
        thread.start()
    for life in lives:
        wait_until((life.context.node.work / "ready").exists)
    reclaim(lives[reclaimed], 30.0)
    for thread in threads:
        end(thread)
    outcomes = {reclaimed: "drained", 1 - reclaimed: "succeeded"}
    assert {rank: bench.exit_record(rank=rank).outcome for rank in range(2)} == outcomes
    first, second = bench.generations()
    assert (len(first.members), len(second.members), second.why) == (2, 1, "regrouped")
    assert second.restore_from == bench.id(1, 107)
    assert bench.commits()[-1] == bench.id(1, 107)


def test_a_node_whose_script_leaves_with_the_others_before_it_is_told_has_not_finished(
    bench, wait_until, monkeypatch, caplog
):
    """The ranks agree among themselves. It had "succeeded", and its machine ended; here it trains on alone."""
    monkeypatch.setattr("cloudspot.agent.membership.peer_heartbeats.REGROUP_SECONDS", 0.02)
    monkeypatch.setattr("cloudspot.agent.membership.heartbeat_writer.REGROUP_SECONDS", 0.03)
    agreed = bench.root / "agreed"
    script = f"""
agreed = Path({str(agreed)!r})
Path("ready").touch()
if os.environ["RANK"] == "1":
    wait()
    agreed.touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
while not agreed.exists():
    time.sleep(0.01)
save(107)
sys.exit(0)
"""
    nodes = {"min": 1, "max": 2}
    lives = [
        bench.life(SCRIPT + script, machine=f"machine-{rank}", rank=rank, nodes=nodes, checkpoint=TABLE)
        for rank in range(2)
    ]
    threads = [threading.Thread(target=life.run, daemon=True) for life in lives]
    for thread in threads:
        thread.start()
    for life in lives:
        wait_until((life.context.node.work / "ready").exists)
    reclaim(lives[1], 30.0)
    for thread in threads:
        end(thread)
    first, second = bench.generations()
    assert (len(first.members), len(second.members)) == (2, 1)
    assert second.restore_from == bench.id(1, 107)
    assert bench.exit_record(rank=1).outcome == "drained"
    assert "the script was not asked to save" not in caplog.text


@pytest.mark.parametrize("is_told", [True, False])
def test_a_script_is_told_of_newcomers_and_left_alone_where_it_cannot_be(
    bench, wait_until, monkeypatch, is_told
):
    monkeypatch.setattr("cloudspot.agent.training.watching.drain_schedule.JOIN_AFTER_STARTS", 0.0)
    monkeypatch.setattr("cloudspot.agent.training.watching.supervision.SCRIPT_START_SECONDS", 0.0)
    monkeypatch.setattr("cloudspot.agent.membership.peer_heartbeats.LISTEN_SECONDS", 0.04)
    table = {**TABLE, "complete_file": "model"}
    if not is_told:
        del table["on_notice"]
    options = {"nodes": {"min": 1, "max": 2}, "checkpoint": table}
    life = bench.life(LEAVES, num_seats=1, **options)
    thread = threading.Thread(target=life.run, daemon=True)
    thread.start()
    wait_until(bench.commits, seconds=30)
    other = bench.life(LEAVES, num_seats=1, launch=2, machine="other", **options)
    second = threading.Thread(target=other.run, daemon=True)
    second.start()
    if not is_told:
        wait_until(lambda: other.context.status.state == "ready")
        time.sleep(1.0)
        assert len(bench.generations()) == 1
        (life.context.node.work / "stop").touch()
    end(thread)
    end(second)
    whys = [one.why for one in bench.generations()]
    assert whys == (["first", "joined"] if is_told else ["first"])
    assert bench.commits()[-1] == bench.id(1, 107)
    assert bench.exit_record(2).outcome == ("succeeded" if is_told else "superseded")


WRITES = """
log = Path(os.environ["CLOUDSPOT_ARTIFACTS"]) / "log.csv"

def note(line):
    with log.open("a") as file:
        print(line, file=file)

if Path("out/checkpoint-107").exists():
    note("the first line of the next one")
    sys.exit(0)
note("the first line")
save(100)
wait()
save(107)
note("the last line")
sys.exit(0)
"""


class SlowArtifacts(WrappedStore):
    def put(self, key, data, *, if_absent=False):
        if "/artifacts/" in key:
            time.sleep(1.0)
        super().put(key, data, if_absent=if_absent)


def test_the_next_node_goes_on_from_the_artifacts_that_this_one_has_last_written(
    bench, wait_until, monkeypatch
):
    """It had fetched them too early, and its own replaced what this one uploaded at its end."""
    may_join = threading.Event()
    monkeypatch.setattr(
        "cloudspot.agent.training.watching.supervision.join_is_due", lambda *_, **__: may_join.is_set()
    )
    script = SCRIPT.partition("if Path")[0] + WRITES
    store, tables = SlowArtifacts(bench.store), {"nodes": 1, "checkpoint": TABLE}
    lives = [bench.life(script, store=store, num_seats=1, **tables)]
    threads = [threading.Thread(target=lives[0].run, daemon=True)]
    threads[0].start()
    wait_until(bench.commits)
    made_journal.open_launch(bench.store, JOB, 2, num_nodes=1, stands_in_for=((1, 0),))
    lives.append(bench.life(script, store=store, num_seats=1, launch=2, machine="other", **tables))
    threads.append(threading.Thread(target=lives[1].run, daemon=True))
    threads[1].start()
    wait_until(lambda: lives[1].context.status.state == "ready")
    may_join.set()
    for thread in threads:
        end(thread)
    assert bench.store.get(keys.artifacts_prefix(JOB) + "log.csv").decode().splitlines() == [
        "the first line",
        "the last line",
        "the first line of the next one",
    ]
