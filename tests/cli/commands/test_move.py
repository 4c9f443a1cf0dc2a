"""``cloudspot move``: what it says before it buys, and what becomes of a job whose new machines cannot be had."""

import itertools
from types import SimpleNamespace

import pytest
from support.records.jobclock import at

from cloudspot.calls import CreateResult
from cloudspot.cli.commands import move as move_module
from cloudspot.cli.screen.output import clock_text
from cloudspot.controller.loop import Controller
from cloudspot.errors import CapacityError
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.local.provisioner import LocalProvisioner
from cloudspot.model import Market


@pytest.fixture
def sold_out(monkeypatch):
    """The local provider has no machine left; commands do not wait."""

    def refuse(*_args, **_options):
        raise CapacityError("no capacity today")

    monkeypatch.setattr(LocalProvisioner, "create", refuse)
    monkeypatch.setattr(move_module, "time", SimpleNamespace(sleep=lambda _seconds: None))


def launches(jobs, job_id):
    return [one.intent for one in HistoryReader(jobs.store, job_id).read().launches]


def test_without_a_target_it_asks_for_one(jobs):
    result = jobs.run("move", jobs.running(), status=2)
    assert "error: give at least one of --zone, --type and --market" in result.stderr


def test_it_says_what_moves_where_and_for_how_much_and_buys_nothing_unless_told_to(jobs):
    job_id = jobs.running()
    result = jobs.run("move", job_id, "--market", "on-demand", typed="n\n", status=130)
    assert "moving node 1.0 from spot/local-a/local to on-demand/local-a/local" in result.stdout
    assert "this adds 1.0000 USD an hour until the new machine trains" in result.stdout
    assert len(launches(jobs, job_id)) == 1


@pytest.mark.parametrize(("step", "warned"), [(17, False), (99, True)])
def test_it_warns_before_it_buys_that_the_job_ends_first(jobs, step, warned):
    job_id = jobs.running()
    phases = jobs.phases(1, restoring=100.6, running=101, training=101.5)
    jobs.add_heartbeat(job_id, 1, step=step, minutes=102, phases=phases)
    result = jobs.run("move", job_id, "--market", "on-demand", typed="n\n", status=130)
    said = "warning: the job will end by itself in about 0.3s, but new machines would train only in about 2m 00s: it will"
    assert (said in result.stderr) == warned
    assert ("it will probably end before it has moved" in result.stderr) == warned


def test_where_no_machine_can_be_had_each_offer_is_tried_and_the_job_trains_on(jobs, sold_out):
    job_id = jobs.running()
    result = jobs.run("move", job_id, "--market", "on-demand", "--yes", status=1)
    assert [(one.offer.zone, one.why) for one in launches(jobs, job_id)[1:]] == [
        ("local-a", "moved"),
        ("local-b", "moved"),
    ]
    assert "warning: launch 2 (on-demand/local-a/local): capacity: no capacity today" in result.stderr
    assert (
        f"error: job {job_id} was not moved and keeps training: local (on-demand) was refused"
        in result.stderr
    )


@pytest.mark.full
@pytest.mark.parametrize("num_commits", [1, 3])
def test_a_job_that_commits_while_its_move_is_recorded_is_moved_all_the_same(jobs, monkeypatch, num_commits):
    job_id = jobs.running()
    steps = iter(range(501, 501 + num_commits))
    open_launch = Controller.open_launch

    def commit_before(self, action, history):
        for step in itertools.islice(steps, 1):
            jobs.add_checkpoint(job_id, 1, step)
        return open_launch(self, action, history)

    monkeypatch.setattr(Controller, "open_launch", commit_before)
    jobs.run("move", job_id, "--market", "on-demand", "--yes", "--detach")
    assert [(one.offer.market, one.why) for one in launches(jobs, job_id)[1:]] == [
        (Market.ON_DEMAND, "moved")
    ]
    assert next(steps, None) is None


@pytest.mark.full
def test_a_plan_that_something_has_changed_meanwhile_is_not_carried_out(jobs, monkeypatch):
    job_id = jobs.running()
    open_launch = Controller.open_launch

    def move_too(self, action, history):
        monkeypatch.setattr(Controller, "open_launch", open_launch)
        jobs.run("move", job_id, "--market", "on-demand", "--yes", "--detach")
        return open_launch(self, action, history)

    monkeypatch.setattr(Controller, "open_launch", move_too)
    result = jobs.run("move", job_id, "--zone", "local-b", "--yes", "--detach", status=1)
    assert "is already being moved" in result.stderr
    assert [one.offer.zone for one in launches(jobs, job_id)] == ["local-a", "local-a"]


def moving(jobs, *, commits, began):
    """A job that trains since minute ``began``, with a new machine that is ready since minute 103."""
    job_id = jobs.running()
    phases = jobs.phases(1, restoring=100.6, running=101, **({} if began is None else {"training": began}))
    jobs.add_heartbeat(job_id, 1, step=17, minutes=103, phases=phases)
    if commits:
        jobs.add_checkpoint(job_id, 1, 17)
    jobs.add_intent(job_id, 2, minutes=102)
    jobs.claim(job_id, 2, minutes=102.5)
    return HistoryReader(jobs.store, job_id), job_id


@pytest.mark.parametrize(
    ("commits", "began", "minute", "said"),
    [
        (False, None, 104, "wait, while billed, until the training makes a checkpoint and begins"),
        (
            False,
            102,
            104,
            "wait, while billed, until the training makes a checkpoint and trains until {until}, ten times the duration of its start",
        ),
        (
            True,
            102,
            104,
            "wait, while billed, until the training trains until {until}, ten times the duration of its start",
        ),
        (True, 102, 115, "the new machines are ready and take over now"),
    ],
)
def test_it_says_what_the_new_machines_wait_for(jobs, commits, began, minute, said):
    """It waited for 76 to 101 s, billed twice, without a line."""
    reader, job_id = moving(jobs, commits=commits, began=began)
    jobs.add_heartbeat(job_id, 2, step=0, minutes=102.6, state="restoring")
    assert move_module.wait_text(reader.read(), 2, at(minute)) == ""
    jobs.add_heartbeat(job_id, 2, step=0, minutes=103, state="ready")
    text = said.format(until=clock_text(at(112)))
    assert text in move_module.wait_text(reader.read(), 2, at(minute))


def test_a_job_that_ends_before_it_has_moved_is_no_error(jobs, monkeypatch):
    job_id = jobs.running()
    monkeypatch.setattr(LocalProvisioner, "create", lambda *_: CreateResult(instances=()))
    monkeypatch.setattr(
        move_module,
        "time",
        SimpleNamespace(sleep=lambda _seconds: jobs.add_finished(job_id, "succeeded", minutes=150)),
    )
    result = jobs.run("move", job_id, "--market", "on-demand", "--yes")
    assert result.stdout.splitlines()[-1] == f"job {job_id} succeeded before it had moved"
