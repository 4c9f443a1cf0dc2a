"""What the live view shows of a job's records."""

from datetime import timedelta

import pytest
from support.records.made_records import Records

from cloudspot.cli.following.livefeed import LiveFeed
from cloudspot.cli.following.liveview import SeenHeartbeat, Sights, look, newest_heartbeats
from cloudspot.cli.following.pace import Point
from cloudspot.controller.loop import Tick
from cloudspot.jobstore.access.store_clock import utc_now
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.layout.records import CheckpointId, Transfer
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.model import EndReason
from cloudspot.story.series import Curve


@pytest.fixture
def read(jobs):
    return lambda job_id: HistoryReader(jobs.store, job_id).read()


@pytest.fixture
def at(read, jobs):
    """``at(minutes)``: a moment of the jobs' life."""
    jobs.running("clock-1")
    start = read("clock-1").launches[0].intent.at - timedelta(minutes=100)
    return lambda minutes: start + timedelta(minutes=minutes)


def test_a_running_job(jobs, read, at):
    history = read(jobs.running())
    points = (Point(1, at(101), 0), Point(1, at(102), 17))
    view = look(history, at(106), sights=Sights(points=points))
    assert (view.job_id, view.state, view.provider, view.detail) == ("going-abcd", "running", "local", "")
    assert (view.step, view.steps_total, view.counts_steps) == (17, 100, True)
    assert view.steps_per_second == pytest.approx(17 / 60)
    assert view.seconds_left == pytest.approx(83 * 60 / 17)
    assert dict(view.metrics) == {"loss": 0.5}
    assert [(offer.key, count) for offer, count in view.offers] == [("spot/local-a/local", 1)]
    assert [(node.name, node.state, node.address) for node in view.nodes] == [("1.0", "running", "127.0.0.1")]
    assert (view.commit, view.commit_age_seconds) == (None, None)
    assert view.on_demand == pytest.approx(view.spent / 0.3)


def test_what_the_log_tells_is_newer_than_a_heartbeat(jobs, read, at):
    history = read(jobs.running())
    curve = Curve("loss", [17, 19], [0.0, 1.0], [0.5, 0.4])
    view = look(history, at(106), sights=Sights(), logged={"loss": 0.4, "lr": 0.1}, curve=curve)
    assert view.step == 19
    assert dict(view.metrics) == {"loss": 0.4, "lr": 0.1}


def test_of_an_ended_job_its_records_have_the_last_word(jobs, read, at):
    history = read(jobs.reclaimed_and_finished())
    curve = Curve("loss", [99, 101], [0.0, 1.0], [0.5, 0.4])
    view = look(history, at(500), sights=Sights(), logged={"loss": 0.4}, curve=curve)
    assert (view.state, view.step, dict(view.metrics)) == ("succeeded", 100, {"accuracy": 0.975})
    assert view.generation == 2
    assert view.nodes == ()
    assert [count for _, count in view.offers] == [0]


def test_a_machine_that_did_not_come_up_is_requested_and_one_that_did_not_speak_boots(jobs, read, at):
    jobs.submit("a-1")
    jobs.add_intent("a-1", 1, minutes=0)
    assert [node.state for node in look(read("a-1"), at(1), sights=Sights()).nodes] == ["requested"]
    jobs.claim("a-1", 1, minutes=1)
    assert [node.state for node in look(read("a-1"), at(1), sights=Sights()).nodes] == ["booting"]


def test_a_transfer_a_notice_and_what_uploads_take(jobs, read, at):
    job = jobs.running()
    transfer = Transfer(what="uploading", done=1, total=2)
    jobs.add_heartbeat(
        job, 1, step=17, minutes=102, transfer=transfer, upload_seconds=84.0, notice_seconds=120.0,
        warnings=("an upload takes 84 s of the 120 s that a notice leaves",),
    )  # fmt: skip
    view = look(read(job), at(103), sights=Sights())
    assert view.nodes[0].transfer == transfer
    assert (view.upload_seconds, view.notice_seconds) == (84.0, 120.0)
    assert view.warnings == ("an upload takes 84 s of the 120 s that a notice leaves",)


def test_before_the_first_launch_there_is_little_to_show(jobs, read, at):
    jobs.submit("a-1")
    view = look(read("a-1"), at(400), sights=Sights())
    assert (view.state, view.offers, view.nodes, view.spent, view.step) == ("queued", (), (), 0.0, 0)


def test_a_node_that_says_nothing_new_is_silent_by_the_readers_clock(jobs, read, at):
    history = read(jobs.running())
    first = newest_heartbeats({}, history, at(200))
    assert first == {(1, 0): SeenHeartbeat(counter=1, at=at(200))}
    assert newest_heartbeats(first, history, at(201)) == first

    def silent(minutes):
        return look(history, at(minutes), sights=Sights(heard=first)).nodes[0].silent_seconds

    assert silent(200.3) is None
    assert silent(201) == 60.0
    jobs.add_heartbeat("going-abcd", 1, step=18, minutes=102, counter=2)
    assert newest_heartbeats(first, read("going-abcd"), at(201)) == {
        (1, 0): SeenHeartbeat(counter=2, at=at(201))
    }


def test_the_age_of_the_newest_commit_is_told_by_its_own_time(jobs, read, at):
    job = jobs.running()
    jobs.add_checkpoint(job, 1, 10, committed=101.5)
    feed = LiveFeed()
    assert feed.view(utc_now()) is None
    feed.take(Tick(history=read(job), instances=()), at(103))
    view = feed.view(at(104))
    assert (view.commit, view.commit_age_seconds) == (CheckpointId(1, 10), 2.5 * 60)
    jobs.add_checkpoint(job, 1, 20, committed=103.5)
    feed.take(Tick(history=read(job), instances=()), at(105))
    feed.take(Tick(history=None, instances=None), at(106))
    view = feed.view(at(107))
    assert (view.commit, view.commit_age_seconds) == (CheckpointId(1, 20), 3.5 * 60)


def test_a_commit_of_a_clock_that_is_ahead_is_new(jobs, read, at):
    job = jobs.running()
    jobs.add_checkpoint(job, 1, 10, committed=104)
    assert look(read(job), at(103), sights=Sights()).commit_age_seconds == 0


def test_the_curve_is_that_of_the_loss(jobs, read, at):
    job = jobs.running()
    time = at(101.5).timestamp()
    texts = [
        f'{{"step": {n}, "time": {time + n}, "values": {{"accuracy": 0.1, "train/Loss": {n / 2}}}}}'
        for n in (3, 4)
    ]
    jobs.add_log(job, "1-0", texts, minutes=101, source="metrics")
    feed = LiveFeed()
    feed.take(Tick(history=read(job), instances=()), at(102))
    feed.add(list(ObjectStoreLogSink(jobs.store, job).read("1-0")))
    curve = feed.view(at(102)).curve
    assert (curve.name, list(curve.steps), list(curve.values)) == ("train/Loss", [3, 4], [1.5, 2.0])
    assert dict(feed.view(at(102)).metrics) == {"accuracy": 0.1, "loss": 0.5, "train/Loss": 2.0}


def test_streams_are_told_without_asking_and_those_of_the_long_dead_are_quiet(jobs, read, at):
    job = jobs.reclaimed_and_finished()
    feed = LiveFeed()
    assert feed.streams(live=False) == ()
    feed.take(Tick(history=read(job), instances=()), at(100))
    assert feed.streams(live=False) == ("2-0", "1-0"), "the nodes of the newest generation come first"
    assert feed.streams(live=True) == ()


def test_a_machine_that_was_just_given_up_may_still_deliver_lines(jobs, read, at):
    job = jobs.running()
    feed = LiveFeed()
    feed.take(Tick(history=read(job), instances=()), at(103))
    jobs.add_certificate(job, 1, started=100, ended=103, end_reason=EndReason.RECLAIMED)
    for minutes, streams in [(104, ("1-0",)), (104.9, ("1-0",)), (105.1, ())]:
        feed.take(Tick(history=read(job), instances=()), at(minutes))
        assert feed.streams(live=True) == streams


@pytest.fixture
def overlapping():
    """Of four nodes (two are needed) one has a notice, one is over, one was left out, one is on its way."""
    records = Records()
    first = records.launch(
        1,
        intent=records.intent(num_nodes=4),
        heartbeats={rank: records.heartbeat(instance_id=f"i-1-{rank}", state="ready") for rank in (0, 1)},
        notices={0: records.notice(at=50)},
        certificates={"i-1-2": records.certificate("i-1-2", rank=2, ended=55)},
    )
    second = records.launch(
        2,
        intent=records.intent(2, num_nodes=2, stands_in_for=[(1, 0), None]),
        slots={0: records.slot("i-2-0", at=60)},
    )
    spec = {"name": "digits", "run": {"entrypoint": "train.py"}, "nodes": {"min": 2, "max": 4}}
    return records, lambda *generations: records.history(
        first,
        second,
        submission=records.change(records.history().submission, spec=spec),
        generations=generations,
    )


def told(view):
    return [
        (one.name, one.state, one.is_newcomer, one.stands_in_for, one.leaves_seconds, one.is_excluded)
        for one in view.nodes
    ]


def test_nodes_are_told_by_name_through_all_changes(overlapping):
    records, history = overlapping
    both = (records.generation(1, ranks=(0, 1, 2, 3)), records.generation(2, ranks=(0, 1, 2), at=40))
    view = look(history(*both), records.at(70), sights=Sights())
    assert told(view) == [
        ("1.0", "ready", False, None, 10.0, False),
        ("1.1", "ready", False, None, None, False),
        ("1.2", "lost", False, None, None, False),
        ("2.0", "booting", True, "1.0", None, False),
        ("2.1", "requested", True, None, None, False),
        ("1.3", "booting", False, None, None, True),
    ]
    assert (view.generation, view.num_nodes, view.max_nodes, view.detail) == (2, 3, 4, "")
    assert [count for _, count in view.offers] == [5]
    assert view.warnings[0] == "node 1.0 will be reclaimed in 10 s (sim)"


def test_members_of_a_generation_of_too_few_nodes_hold(overlapping):
    records, history = overlapping
    generations = (records.generation(1, ranks=(0, 1, 2, 3)), records.generation(2, ranks=(1,), at=58))
    view = look(history(*generations), records.at(70), sights=Sights())
    assert (view.state, told(view)[0][:2]) == ("holding", ("1.1", "holding"))
    assert view.detail.startswith("1 of the 2 nodes that the training needs; ")
