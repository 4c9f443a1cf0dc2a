"""The attached loop, on jobs that end at once; the rest is shown end to end."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support.records.jobclock import at

from cloudspot.calls.retrying import until
from cloudspot.cli import jobs as jobs_module
from cloudspot.cli.commands import attach as attach_module
from cloudspot.cli.commands import resume as resume_module
from cloudspot.cli.following import follow as follow_module
from cloudspot.cli.following.follow import FOLDED, follow
from cloudspot.cli.following.livefeed import LiveFeed
from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import jobsummary as story_module
from cloudspot.cli.screen.lines import in_order_of_time
from cloudspot.controller import loop
from cloudspot.controller.loop import Controller
from cloudspot.errors import AuthError, TransientError
from cloudspot.jobstore.access.store_clock import utc_now
from cloudspot.jobstore.jobs.reader import HistoryReader, read_summary
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId
from cloudspot.story.events import diff


def test_attaching_to_an_ended_job_tells_its_story_and_ends_like_it(jobs):
    lines = jobs.run("attach", jobs.reclaimed_and_finished()).stdout.splitlines()
    assert lines[0] == f"attached to job digits-7k3f in {jobs.store.url}"
    told = [line[21:] for line in lines if line[10:11] == "T"]
    assert told[0].startswith("cloudspot launch 1 (first): 1 x local in local-a, spot at 0.3 USD an hour")
    assert "cloudspot training resumes at step 40 (generation 2, relaunched) on node 2.0" in told
    assert "cloudspot job succeeded" in told
    assert told[-4:] == [
        "train[1.0] step 1",
        "train[1.0] step 40",
        "train[2.0] step 41",
        "train[2.0] step 100",
    ]
    block = lines[lines.index("job digits-7k3f succeeded") :]
    assert [line.split()[0] for line in block[1:5]] == ["steps", "cost", "duration", "next"]
    where = f"digits-7k3f --store {jobs.store.url}"
    assert (
        block[4]
        == f"  next         get its weights: cloudspot checkpoints export {where} --to weights.safetensors"
    )
    assert block[5:8] == ["  starts       2", "  nodes        2 in all", "  notices      1"]


def test_whoever_leaves_an_ended_job_is_told_which_machines_may_still_be_billed(jobs, monkeypatch):
    monkeypatch.setattr(loop, "END_LIMIT_SECONDS", -1e9)
    job_id = jobs.running()
    jobs.add_finished(job_id, "succeeded", minutes=103)
    (machine,) = HistoryReader(jobs.store, job_id).read().launches[0].unproven
    said = jobs.run("attach", job_id).stderr.splitlines()
    assert said[-2:] == [
        f"warning: it is not proven yet that {machine} has ended, so the bill still counts it",
        f"warning: check again with: cloudspot attach {job_id} --store {jobs.store.url}",
    ]
    assert not any("proven" in line for line in jobs.run("attach", jobs.reclaimed_and_finished()).stderr)


def test_whoever_waits_for_the_proof_of_the_last_ends_is_told_so(jobs, monkeypatch):
    monkeypatch.setattr(loop, "END_LIMIT_SECONDS", -1e9)
    job_id = jobs.reclaimed_and_finished()
    newest = HistoryReader(jobs.store, job_id).read().launches[-1]
    (machine,) = newest.certificates
    jobs.store.delete(keys.certificate(job_id, newest.number, machine))
    lines = jobs.run("attach", job_id).stdout.splitlines()
    told = f"checking that {machine} has ended, which usually takes half a minute"
    assert (
        [line for line in lines if told in line] == [line for line in lines if "checking that" in line] != []
    )


@pytest.mark.parametrize(("outcome", "status"), [("succeeded", 0), ("failed", 1), ("stopped", 10)])
def test_the_exit_status_is_the_jobs(jobs, outcome, status):
    jobs.submit("new-1")
    jobs.add_finished("new-1", outcome, minutes=0)
    jobs.run("attach", "new-1", status=status)


def test_a_failed_job_ends_with_its_traceback(jobs):
    result = jobs.run("attach", jobs.failed(), status=1)
    assert result.stdout.splitlines()[-1] == "  ValueError: no data"


def test_what_the_nodes_have_ended_is_finished_by_whoever_comes(jobs):
    jobs.reclaimed_and_finished("done-1")
    jobs.delete_end("done-1")
    assert HistoryReader(jobs.store, "done-1").read().finished is None
    jobs.run("attach", "done-1")
    history = HistoryReader(jobs.store, "done-1").read()
    assert history.finished.outcome == "succeeded"
    # ps reads no more than this of an ended job, so its last version must be there.
    assert read_summary(jobs.store, "done-1").detail == ""


class Screen:
    """Keeps what is printed."""

    def __init__(self):
        self.lines = []

    def print(self, lines):
        self.lines += lines

    def check(self):
        pass


def resumed_and_finished(jobs, monkeypatch, before, after, source="train"):
    """Write a job that was stopped, was resumed and has succeeded; return how `resume` follows it."""
    jobs.add_log(jobs.stopped(), "1-0", before, minutes=1, source=source)
    followed = {}
    monkeypatch.setattr(resume_module, "follow", lambda job, **options: followed.update(options) or 0)
    jobs.run("resume", "digits-1")
    jobs.add_intent("digits-1", 2, minutes=100)
    jobs.claim("digits-1", 2, minutes=101)
    jobs.add_generation("digits-1", 2, minutes=102, restore_from=CheckpointId(1, 40))
    jobs.add_log("digits-1", "2-0", after, minutes=103, source=source)
    jobs.add_exit("digits-1", 2, "succeeded", step=100, minutes=160)
    jobs.add_certificate("digits-1", 2, started=100, ended=160)
    jobs.add_finished("digits-1", "succeeded", minutes=160)
    return followed


def test_a_job_that_is_resumed_is_shown_from_then_on(jobs, monkeypatch, capsys):
    """The clocks of the nodes and of whoever resumes differ, here by months."""
    followed = resumed_and_finished(jobs, monkeypatch, ["step 1", "step 40"], ["step 41", "step 100"])
    capsys.readouterr()
    assert follow(Job(jobs.store, "digits-1"), **followed) == 0
    lines = capsys.readouterr().out.splitlines()
    where = f"digits-1 --store {jobs.store.url}"
    assert lines[0] == f"see the earlier history with: cloudspot show {where}, or cloudspot logs {where}"
    told = [line[21:] for line in lines if line[10:11] == "T"]
    assert sorted(told) == sorted(
        [
            "cloudspot job resumed",
            "cloudspot launch 2 (reclaimed): 1 x local in local-a, spot at 0.3 USD an hour",
            "cloudspot node 2.0 is up: m-2",
            "cloudspot training resumes at step 40 (generation 2, relaunched) on node 2.0",
            "cloudspot node 2.0 succeeded at step 100",
            "cloudspot launch 2 is over, succeeded",
            "cloudspot job succeeded",
            "train[2.0] step 41",
            "train[2.0] step 100",
        ]
    )


def test_a_c_plus_plus_stack_of_torch_is_one_line_on_the_screen_and_whole_in_the_log(
    jobs, monkeypatch, capsys
):
    frames = [
        f"frame #{number}: c10d::TCPStore::wait() + 0x{number}f (0x7f in libtorch.so)" for number in range(15)
    ]
    raised = "Exception raised from recvBytes at /pytorch/Utils.hpp:671 (most recent call first):"
    after = [
        "[W1123 TCPStore.cpp:106] recvValue failed",
        raised,
        *frames,
        "[rank0]:frame #15: main",
        "step 41",
    ]
    followed = resumed_and_finished(jobs, monkeypatch, ["step 40"], after)
    capsys.readouterr()
    follow(Job(jobs.store, "digits-1"), **followed)
    lines = [
        line.split("train[2.0] ", 1)[1] for line in capsys.readouterr().out.splitlines() if "train[" in line
    ]
    assert lines == [*after[:2], FOLDED, "step 41"]
    log = jobs.run("logs", "digits-1").stdout.splitlines()
    assert [line.split("train[2.0] ", 1)[1] for line in log if "[2.0]" in line] == after


def test_the_curve_of_the_live_view_begins_before_the_resumption(jobs, monkeypatch):
    before, after = (
        json.dumps({"step": step, "time": at(minutes).timestamp(), "values": {"loss": loss}})
        for step, minutes, loss in ((3, 2, 2.0), (41, 103, 1.0))
    )
    followed = resumed_and_finished(jobs, monkeypatch, [before], [after], source="metrics")
    screen, feed = Screen(), LiveFeed()
    job = Job(jobs.store, "digits-1")
    follower = follow_module._Follower(
        job,
        SimpleNamespace(check=lambda: None),
        screen,
        feed,
        is_new=False,
        since=followed["since"],
        is_live=True,
    )
    follower.on_tick(job.controller(known=followed["since"]).tick())
    assert list(feed.view(utc_now()).curve.values) == [2.0, 1.0]
    assert "launch 1 is over, stopped" not in [line.text for line in screen.lines]


def test_only_the_end_of_an_old_log_is_shown(jobs, monkeypatch):
    monkeypatch.setattr(follow_module, "PAST_LINES", 2)
    result = jobs.run("attach", jobs.reclaimed_and_finished())
    shown = [line[21:] for line in result.stdout.splitlines() if line[21:26] == "train"]
    assert shown == ["train[2.0] step 41", "train[2.0] step 100"]


def test_an_error_of_the_loop_says_how_to_come_back(jobs, monkeypatch, capsys):
    def refuse(self):
        raise AuthError("the token has expired")

    monkeypatch.setattr(Controller, "tick", refuse)
    jobs.submit("new-1")
    with pytest.raises(AuthError):
        follow(Job(jobs.store, "new-1"))
    assert (
        "job new-1 is no longer followed; follow it again with: cloudspot attach new-1"
        in capsys.readouterr().err
    )


class Flaky:
    """A store whose listings of artifacts fail a number of times."""

    def __init__(self, store, num_failures):
        self._store = store
        self.num_failures = num_failures

    def __getattr__(self, name):
        return getattr(self._store, name)

    def list_page(self, prefix, **rest):
        if "/artifacts/" in prefix and self.num_failures:
            self.num_failures -= 1
            raise TransientError("no answer")
        return self._store.list_page(prefix, **rest)


def test_a_store_that_does_not_answer_at_first_is_waited_for(jobs, monkeypatch, capsys):
    """``run`` ended with 7 if the store went away right after the submission: nobody launched the job."""
    job, slept = Job(jobs.store, jobs.reclaimed_and_finished()), []
    read_job = job.reader.read_job
    monkeypatch.setattr(follow_module.time, "sleep", slept.append)

    def fail():
        if len(slept) < 7:
            raise TransientError("no answer")
        return read_job()

    monkeypatch.setattr(job.reader, "read_job", fail)
    assert follow(job, is_plain=True) == 0
    assert slept[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert capsys.readouterr().err.count("warning: no answer; trying again") == 1


def test_attach_waits_for_a_store_that_does_not_answer_at_first(jobs, monkeypatch, capsys):
    """A driver that began within an outage of seconds gave up, and left the job to nobody."""
    job_id, slept = jobs.reclaimed_and_finished(), []

    def open_store(url):
        if len(slept) < 3:
            raise TransientError("no answer")
        return jobs.store

    monkeypatch.setattr(jobs_module, "open_named_store", open_store)
    monkeypatch.setattr(attach_module.time, "sleep", slept.append)
    done = CliRunner().invoke(attach_module.attach, [job_id], standalone_mode=False)
    assert slept[:3] == [1.0, 2.0, 4.0]
    assert done.output.count("warning: no answer; trying again") == 1
    assert done.return_value == 0


def test_attach_gives_up_on_a_store_that_does_not_answer_for_a_minute(jobs, monkeypatch):
    now = [0.0]

    def open_store(url):
        raise TransientError("no answer")

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(jobs_module, "open_named_store", open_store)
    monkeypatch.setattr(attach_module, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    monkeypatch.setattr(attach_module, "until", partial(until, clock=lambda: now[0]))
    done = CliRunner().invoke(attach_module.attach, ["new-1"], standalone_mode=False)
    assert isinstance(done.exception, TransientError)
    assert now == [attach_module.WAIT_SECONDS]


def test_an_ended_job_is_summed_up_where_the_store_answers_the_second_time(jobs, monkeypatch, capsys):
    monkeypatch.setattr(story_module.time, "sleep", lambda seconds: None)
    job_id = jobs.reclaimed_and_finished()
    assert follow(Job(Flaky(jobs.store, 2), job_id)) == 0
    assert "  starts       2" in capsys.readouterr().out.splitlines()


def test_a_job_ends_as_it_ended_also_where_it_cannot_be_summed_up(jobs, monkeypatch, capsys):
    monkeypatch.setattr(story_module.time, "sleep", lambda seconds: None)
    jobs.submit("new-1")
    jobs.add_finished("new-1", "stopped", minutes=0)
    assert follow(Job(Flaky(jobs.store, 1000), "new-1")) == 10
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == [
        "warning: job new-1 stopped, but its summary cannot be read now: no answer",
        f"warning: see it with: cloudspot show new-1 --store {jobs.store.url}",
    ]


def test_events_are_told_by_their_own_times(jobs):
    jobs.reclaimed_and_finished("done-1")
    history = HistoryReader(jobs.store, "done-1").read()
    texts = [event.text for event in in_order_of_time(diff(None, history))]
    assert [text.split()[0] for text in texts if text.startswith(("launch", "job"))] == [
        "launch",
        "launch",
        "launch",
        "launch",
        "job",
    ]
    assert texts.index("checkpoint at step 40 committed") < texts.index("node 1.0 drained at step 40")


def test_the_lines_and_events_of_one_look_are_shown_in_the_order_of_their_times(jobs):
    job_id = jobs.running()
    jobs.add_log(job_id, "1-0", ["a line"], minutes=100.75)
    job, screen = Job(jobs.store, job_id), Screen()
    interrupts = SimpleNamespace(check=lambda: None)
    follower = follow_module._Follower(job, interrupts, screen, LiveFeed(), is_new=True)
    history = job.history()
    follower.on_tick(loop.Tick(history=history, instances=(), events=diff(None, history)))
    shown = [line for line in screen.lines if not line.text.startswith("step ")]
    assert [line.at for line in shown] == sorted(line.at for line in shown)
    assert 0 < [line.text for line in shown].index("a line") < len(shown) - 1


def test_of_many_nodes_the_first_is_read_at_each_look_and_the_others_in_turn(jobs, monkeypatch):
    """An attached terminal listed 64 streams a second."""
    follower = follow_module._Follower(Job(jobs.store, jobs.running()), None, None, LiveFeed(), is_new=True)
    streams = [f"3-{rank}" for rank in range(10)]
    monkeypatch.setattr(follower._feed, "streams", lambda *, live: tuple(streams))
    looks = [follower._streams_to_read() for _ in range(3)]
    assert [look[0] for look in looks] == ["3-0"] * 3
    assert [len(look) for look in looks] == [follow_module.STREAMS_A_LOOK] * 3
    assert sorted(one for look in looks for one in look[1:]) == streams[1:]
    follower._read_all = True
    assert list(follower._streams_to_read()) == streams
    follower._read_all = False
    del streams[4:]
    assert list(follower._streams_to_read()) == streams
