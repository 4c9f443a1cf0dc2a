"""The heartbeat: what a node says of itself, and what it hears of others."""

import json
import threading
import time
from datetime import datetime, timezone

import pytest
from support.records.made_journal import append, open_launch
from support.stores.faultstore import FaultPlan, FaultyStore, Outage

from cloudspot.agent.leaving import Leaving
from cloudspot.errors import TransientError
from cloudspot.jobstore.access.store_clock import StoreClock
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Finished, Heartbeat, Resumed, Transfer, new_nonce
from cloudspot.train import handoff as files

JOB = "digits-1"


def finish(bench):
    """End the job."""
    now = datetime.now(timezone.utc)
    append(bench.store, JOB, Finished(outcome="failed", detail="", exit_code=1, at=now, writer=new_nonce()))


def resume(bench):
    """End the job, and take that back."""
    finish(bench)
    now = datetime.now(timezone.utc)
    append(bench.store, JOB, Resumed(resumption=1, submission_sha256="6" * 64, at=now, writer=new_nonce()))


def test_nothing_to_hear(bench):
    life = bench.life()
    life.context.status.generation = 1
    generation = bench.start()
    life.heartbeat.look()
    assert life.context.orders.newer_than(generation) is None
    assert not life.context.orders.pending


def test_a_request_to_stop_is_heard_once(bench):
    life = bench.life()
    request = request_stop(bench.store, JOB, "user", resumption=0)
    life.heartbeat.look()
    assert life.context.orders.stop == request
    assert life.context.ordered_leaving().outcome == "stopped"


@pytest.mark.parametrize("launch", [1, 2])
def test_a_newer_generation_is_heard_of_whatever_launch_its_nodes_are_of(bench, launch):
    life = bench.life()
    first, second = bench.start(), bench.start(2, launch=launch)
    life.heartbeat.look()
    assert life.context.orders.newer_than(first) == second
    assert not life.context.orders.pending


@pytest.mark.parametrize(
    ("happen", "why"),
    [
        (finish, "the job is over"),
        (resume, "the job had ended and was resumed with other machines"),
    ],
    ids=["finished", "resumed"],
)
def test_the_jobs_end_supersedes_this_node(bench, happen, why):
    life = bench.life()
    first = bench.start()
    happen(bench)
    life.heartbeat.look()
    assert life.context.orders.superseded == why
    assert life.context.ordered_leaving() == Leaving("superseded", why)
    assert life.context.orders.newer_than(first) is None


def test_a_further_launch_is_no_order_to_leave(bench):
    life = bench.life()
    bench.start()
    open_launch(bench.store, JOB, 2)
    life.heartbeat.look()
    assert not life.context.orders.pending


def test_an_outage_is_no_order(bench, tmp_path):
    down = FaultyStore(bench.store, FaultPlan(outages=(Outage(start=0.0, end=1e12),)), tmp_path / "state")
    life = bench.life(store=down)
    with pytest.raises(TransientError):
        life.heartbeat.look()
    assert not life.context.orders.pending


def test_a_beat_tells_step_and_metrics_and_survives_a_line_that_is_none(bench):
    life = bench.life()
    handoff = life.context.node.handoff(1)
    handoff.mkdir(parents=True)
    life.context.status.generation, life.context.status.handoff, life.context.status.ranks = 1, handoff, (0,)
    files.progress_path(handoff, 0).write_bytes(files.PROGRESS.pack(41, 100, 42))
    files.metrics_path(handoff, 0).write_text(
        '{"step": 40, "values": {"loss": NaN}}\nnonsense\n{"step": 41, "values": {"acc": 0.5}}\n{"st'
    )
    life.heartbeat.beat()
    beat = codec.decode(bench.store.get(keys.heartbeat(JOB, 1, 0)), Heartbeat)
    assert (beat.step, beat.steps_total) == (41, 100)
    assert beat.metrics["acc"] == 0.5
    assert beat.metrics["loss"] != beat.metrics["loss"]


def test_a_later_agents_beats_differ_from_the_dead_ones(bench):
    """Peers take any change of the counter for life: two agents that both count from 0 would look dead."""

    def counter() -> int:
        return codec.decode(bench.store.get(keys.heartbeat(JOB, 1, 0)), Heartbeat).counter

    first = bench.life()
    first.heartbeat.beat()
    seen = counter()
    time.sleep(0.002)
    bench.life().heartbeat.beat()
    assert counter() > seen


def newest(bench):
    return codec.decode(bench.store.get(keys.heartbeat(JOB, 1, 0)), Heartbeat)


def test_a_beat_tells_how_far_a_transfer_is_and_how_long_a_notice(bench):
    life = bench.life()
    with life.context.status.transferring("uploading", 100) as progress:
        progress(30)
        progress(12)
        life.heartbeat.beat()
        assert newest(bench).transfer == Transfer(what="uploading", done=42, total=100)
    life.heartbeat.beat()
    assert newest(bench).transfer is None
    assert newest(bench).notice_seconds == 120.0


def test_a_beat_tells_that_the_provider_may_take_the_machine(bench):
    life = bench.life()
    life.heartbeat.beat()
    assert not newest(bench).at_risk
    life.notices._heed()
    life.heartbeat.beat()
    assert newest(bench).at_risk


def test_of_two_transfers_the_newer_is_told_of_and_its_end_leaves_none(bench):
    status = bench.life().context.status
    with status.transferring("uploading", 100):
        with status.transferring("restoring", 50) as progress:
            progress(80)  # tried again in between: never more than there is
            assert status.transfer == Transfer(what="restoring", done=50, total=50)
        assert status.transfer is None


def test_a_beat_of_an_agent_that_does_not_tell_these_is_read(bench):
    life = bench.life()
    life.heartbeat.beat()
    key = keys.heartbeat(JOB, 1, 0)
    value = json.loads(bench.store.get(key))
    for name in ("transfer", "notice_seconds", "phases"):
        value.pop(name, None)
    bench.store.put(key, json.dumps(value).encode())
    assert (newest(bench).transfer, newest(bench).notice_seconds) == (None, None)


class _StoppedWhileCleared(threading.Event):
    """The heartbeat is told to end between its look at a change and its note of it."""

    def __init__(self, finish):
        super().__init__()
        self._finish = finish
        self.waits = []

    def clear(self):
        self._finish()
        super().clear()

    def wait(self, timeout=None):
        self.waits.append(timeout)
        return super().wait(0)


def test_an_end_that_meets_another_change_is_not_slept_over(bench):
    """The last beat would come after a whole wait, perhaps later than it is waited for."""
    life = bench.life()
    changed = life.context.status.state_changed = _StoppedWhileCleared(life.heartbeat.finish)
    life.context.status.state = "ending"
    life.heartbeat._run()
    assert changed.waits == []
    assert codec.decode(bench.store.get(keys.heartbeat(JOB, 1, 0)), Heartbeat).state == "ending"


def test_a_store_that_does_not_tell_its_time_holds_up_no_beat_and_is_not_asked_without_a_pause(
    bench, monkeypatch
):
    life = bench.life()
    changed = life.context.status.state_changed = _StopsAfterWaits(life.heartbeat.finish, 3)
    asked = []

    def refuse(_clock, _store):
        asked.append(1)
        raise TransientError("no answer")

    monkeypatch.setattr(StoreClock, "compare", refuse)
    life.heartbeat._run()
    assert bench.store.get(keys.heartbeat(JOB, 1, 0))
    assert (len(asked), min(changed.waits) > 0.1) == (3, True), changed.waits


class _StopsAfterWaits(threading.Event):
    """Is waited for a few times, without any time passing."""

    def __init__(self, stop, num):
        super().__init__()
        self._stop, self._num, self.waits = stop, num, []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        if len(self.waits) == self._num:
            self._stop()
        return False


def test_a_figure_that_no_reader_accepts_is_left_out_and_the_rest_is_read(bench, caplog):
    life = bench.life()
    life.context.status.stall_seconds = -0.2
    life.context.status.upload_seconds = 3.0
    life.context.status.generation = 2
    for _ in range(2):
        life.heartbeat.beat()
    key = keys.heartbeat(JOB, 1, 0)
    beat = codec.decode(bench.store.get(key), Heartbeat, key=key)
    assert (beat.generation, beat.stall_seconds, beat.upload_seconds) == (2, None, 3.0)
    said = "the heartbeat lacks values that are out of bounds: stall_seconds"
    assert caplog.messages.count(said) == 1
    life.context.status.stall_seconds = 0.2
    life.heartbeat.beat()
    assert codec.decode(bench.store.get(key), Heartbeat, key=key).stall_seconds == 0.2


def test_a_heartbeat_that_no_reader_accepts_is_reported_and_still_a_sign_of_life(bench, caplog):
    life = bench.life()
    life.context.status.generation = -1
    key = keys.heartbeat(JOB, 1, 0)
    sizes = []
    for _ in range(2):
        life.heartbeat.beat()
        sizes.append(len(bench.store.get(key)))
    assert sizes[0] != sizes[1]
    (said,) = [one for one in caplog.messages if "no reader accepts the heartbeat" in one]
    assert "generation" in said
