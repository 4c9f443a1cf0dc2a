"""``cloudspot resume`` with another store: the job moves there, and goes on nowhere else."""

from datetime import datetime, timezone

import pytest
from support.stores.directorystore import directory_store

from cloudspot.cli.commands import resume as resume_module
from cloudspot.cli.stored import moving
from cloudspot.controller.ownership import adopt
from cloudspot.errors import CorruptData
from cloudspot.interfaces import LogSink
from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.checkpoints.retention import standing_checkpoints
from cloudspot.jobstore.jobs.copying import plan_copy, reserve
from cloudspot.jobstore.jobs.job_lists import list_jobs, list_live, mark_live, resumed_writer
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, Moved, Resumed
from cloudspot.local.filestore import FileStore
from cloudspot.local.provider import LocalProvider

JOB = "digits-1"


@pytest.fixture(autouse=True)
def unfollowed(monkeypatch):
    monkeypatch.setattr(resume_module, "follow", lambda job, **options: 0)


@pytest.fixture
def other(tmp_path):
    return directory_store(tmp_path / "other-store")


def history(store):
    return HistoryReader(store, JOB).read()


def checkpoints(store):
    return standing_checkpoints(store, JOB, Journal(store, JOB).read())


def move(jobs, target, *arguments, status=0):
    return jobs.run("resume", JOB, "--store", target.url, "--yes", *arguments, status=status)


@pytest.mark.full
def test_a_job_moves_and_goes_on_with_one_bill_and_one_story(jobs, other):
    jobs.stopped()
    result = move(jobs, other, "--set", "limits.max_cost=40")
    assert f"copying job {JOB} to {other.url}: " in result.stderr
    assert "MiB, with checkpoint 1-40: about" in result.stderr
    assert f"resumed job {JOB} on local, at step 40" in result.stdout
    moved = history(other)
    assert (moved.finished, moved.moved_to, moved.submission.resumption) == (None, None, 1)
    assert checkpoints(other) == (CheckpointId(1, 40),)
    assert [type(turn).__name__ for _, turn in moved.turns] == ["Finished", "Moved", "Resumed"]
    shown = jobs.run_json("show", JOB, "--store", other.url)
    assert shown["cost"]["spent"] == pytest.approx(0.3)
    assert list(list_live(other)) == [JOB]
    assert JOB not in list_live(jobs.store)
    shown = jobs.run_json("show", JOB)
    assert (shown["state"], shown["detail"]) == ("stopped", f"moved to {other.url}")
    assert f"moved to {other.url}" in jobs.run("ps").stdout


def test_a_job_moves_to_a_directory_that_is_made_for_it_and_holds_its_machines_to_that(jobs, tmp_path):
    jobs.stopped()
    new = FileStore(f"file://{tmp_path}/new/store")
    move(jobs, new)
    assert history(new).submission.store_id == new.establish() != jobs.store.establish()


def test_a_store_whose_disk_is_missing_is_not_made_anew_by_a_resumption_or_a_fork(jobs, other, tmp_path):
    jobs.stopped()
    jobs.store.root.rename(tmp_path / "unmounted")
    for words in (["resume", JOB], ["resume", JOB, "--store", other.url, "--yes"], ["fork", JOB]):
        assert "its disk is not mounted" in jobs.run(*words, status=7).stderr
    assert not jobs.store.root.exists()


def test_what_it_takes_is_said_before_a_question(jobs, other, monkeypatch):
    """A job that waits for capacity goes on waiting where it is, and nothing is in the other store."""
    jobs.submit(JOB, minutes=0)
    before = {meta.key for meta in jobs.store.list_objects("")}
    words = ["resume", JOB, "--store", other.url]
    result = jobs.run(*words, status=2)
    assert (
        "error: there is no terminal on which to ask; give --yes to copy the job without asking"
        in result.stderr
    )
    monkeypatch.setattr("cloudspot.cli.screen.output.can_ask", lambda: True)
    refused = jobs.run(*words, typed="n\n", status=1).stderr
    assert refused.index(f"copying job {JOB} to {other.url}: ") < refused.index("Copy it? [y/N]")
    assert refused.splitlines()[-1] == "nothing was copied"
    assert "stopping" not in refused
    assert {meta.key for meta in jobs.store.list_objects("")} == before
    assert list_jobs(other) == ()
    jobs.run(*words, typed="y\n")
    assert history(other).submission.resumption == 1


@pytest.mark.full
def test_a_job_whose_checkpoints_are_all_damaged_is_not_copied_without_one(jobs, other):
    """Only the copy finds out, when the job has left. When the store has it whole again, the copy goes on."""
    jobs.stopped()
    (chunk,) = (meta.key for meta in jobs.store.list_objects("") if "/chunks/" in meta.key)
    whole = jobs.store.get(chunk)
    jobs.store.put(chunk, bytes(len(whole)))
    result = move(jobs, other, status=CorruptData.exit_code)
    assert f"no checkpoint of job {JOB} is complete, so the job cannot be resumed: 1-40: " in result.stderr
    assert keys.spec(JOB) not in {meta.key for meta in other.list_objects("")}
    jobs.store.put(chunk, whole)
    move(jobs, other)
    assert checkpoints(other) == (CheckpointId(1, 40),)


def test_where_it_was_it_is_resumed_no_more(jobs, other):
    jobs.stopped()
    move(jobs, other)
    result = jobs.run("resume", JOB, status=1)
    assert (
        f"was moved to {other.url}, and can only be resumed there: cloudspot resume {JOB} --store"
        in result.stderr
    )
    third = FileStore(other.url + "-3")
    result = move(jobs, third, status=1)
    assert f"was moved to {other.url}, and can only be resumed there" in result.stderr
    assert list_jobs(third) == ()


@pytest.mark.full
def test_a_store_that_it_left_long_ago_says_where_it_is(jobs, other):
    jobs.stopped()
    move(jobs, other)
    home, third = jobs.store, FileStore(other.url + "-3")
    jobs.run("stop", JOB, "--wait", "--store", other.url, status=10)
    move(jobs, third, "--from", other.url)
    refusal = move(jobs, home, status=1).stderr
    assert "copying" not in refusal
    assert (
        f"was moved to {other.canonical_url}. To bring it back, run `" in refusal
    )  # the record is not followed
    refusal = move(jobs, home, "--from", other.url, status=1).stderr
    assert f"was moved to {third.url}, and can only be resumed there" in refusal
    jobs.run("stop", JOB, "--wait", "--store", third.url, status=10)
    move(jobs, home, "--from", third.url)
    turns = [turn["what"] for turn in jobs.run_json("show", JOB)["turns"]]
    assert turns == ["stopped", "moved", "resumed"] * 3
    shown = jobs.run("show", JOB).stdout
    assert all(f"(moved to {store.url})" in shown for store in (other, third, home))


def test_a_move_that_was_cut_short_is_finished_before_it_comes_back(jobs, other):
    jobs.stopped()
    jobs.run("reconcile")
    reserve(plan_copy(jobs.store, JOB), jobs.store, other)
    moved = Moved(to=other.canonical_url, at=datetime.now(timezone.utc), writer="ab" * 8)
    assert Journal(jobs.store, JOB).append(moved, history(jobs.store).num_records + 1)
    refusal = move(jobs, jobs.store, status=1).stderr
    hint = f"cloudspot resume {JOB} --from {jobs.store.url} --store {other.canonical_url}"
    assert f"was moved to {other.canonical_url}. To bring it back, run `" in refusal
    assert f"If the copy was interrupted, run `{hint}`" in refusal
    jobs.run(*hint.split()[1:], "--yes")


def test_the_same_url_on_another_computer_is_another_store(jobs, other):
    """A directory's URL names one on each computer: both would let the job go on."""
    jobs.stopped()
    jobs.run("reconcile")
    moved = Moved(to=other.canonical_url, at=datetime.now(timezone.utc), writer="ab" * 8)
    assert Journal(jobs.store, JOB).append(moved, history(jobs.store).num_records + 1)
    assert "check that this is the same directory" in move(jobs, other, status=1).stderr
    assert list_jobs(other) == ()


def test_where_it_was_it_is_not_stopped_or_followed_either(jobs, other):
    jobs.stopped()
    move(jobs, other)
    for command in ("stop", "attach"):
        assert f"job {JOB} was moved; give --store {other.url}" in jobs.run(command, JOB, status=1).stderr


def test_a_job_that_has_succeeded_says_so_before_anything_is_copied(jobs, other):
    finished = jobs.reclaimed_and_finished()
    refusal = jobs.run("resume", finished, "--store", other.url, "--yes", status=1).stderr
    assert f"cloudspot fork {finished} --store {jobs.store.url}" in refusal
    assert "copying" not in refusal


def test_where_it_was_it_asks_for_no_secret(jobs, other, monkeypatch):
    jobs.stopped()
    move(jobs, other)
    asked = []
    monkeypatch.setattr(resume_module, "with_secrets", lambda *_: asked.append(1))
    assert "can only be resumed there" in jobs.run("resume", JOB, status=1).stderr
    assert asked == []


class BesideJobs(LogSink):
    """A log in the job's store, but not below the job's prefix, as Alibaba Cloud's is."""

    is_in_store = True
    home = ""

    def __init__(self, store):
        self.names = ["1-0"] if store.url == self.home else []

    def write(self, records):
        raise NotImplementedError

    def streams(self):
        return self.names

    def read(self, stream, *, after=-1):
        return iter(())


def test_a_log_that_is_not_copied_is_named(jobs, other, monkeypatch):
    jobs.stopped()
    monkeypatch.setattr(LocalProvider, "log_sink", lambda self, store, job_id: BesideJobs(store))
    monkeypatch.setattr(BesideJobs, "home", jobs.store.url)
    result = move(jobs, other)
    read = f"cloudspot logs {JOB} --store {jobs.store.url}"
    assert f"the earlier log is not copied; read it with: {read}" in result.stderr
    logs = jobs.run("logs", JOB, "--store", other.url)
    assert f"the log of node 1.0 is not here: it was left behind when job {JOB} moved" in logs.stderr
    assert jobs.run(*read.split()[1:]).stderr == ""


@pytest.mark.full
def test_it_comes_back_with_what_it_did_elsewhere(jobs, other):
    jobs.stopped()
    move(jobs, other)
    home, jobs.store = jobs.store, other
    jobs.add_intent(JOB, 2, minutes=100)
    jobs.claim(JOB, 2, minutes=101)
    jobs.add_generation(JOB, 2, minutes=102, restore_from=CheckpointId(1, 40))
    jobs.scratch = jobs.scratch / "again"
    jobs.scratch.mkdir()
    jobs.add_checkpoint(JOB, 2, 70)
    jobs.add_certificate(JOB, 2, started=100, ended=160)
    jobs.add_finished(JOB, "stopped", minutes=160)
    jobs.store = home
    result = move(jobs, home, "--from", other.url)
    assert "on local, at step 70" in result.stdout
    back = history(home)
    assert back.finished is None
    assert [type(turn).__name__ for _, turn in back.turns] == ["Finished", "Moved", "Resumed"] * 2
    assert jobs.run_json("show", JOB)["cost"]["spent"] == pytest.approx(0.6)
    jobs.store = other
    assert "can only be resumed there" in jobs.run("resume", JOB, status=1).stderr


def test_a_whole_id_means_that_job_and_no_other_that_begins_with_it(jobs, other):
    jobs.stopped()
    home, jobs.store = jobs.store, other
    jobs.submit(f"{JOB}-other", minutes=0)
    jobs.store = home
    assert f"copying job {JOB} to" in move(jobs, other).stderr
    assert history(other).submission.resumption == 1
    assert HistoryReader(other, f"{JOB}-other").read().submission.resumption == 0


def test_the_mark_of_a_resumption_that_was_given_up_holds_up_no_move(jobs, other):
    jobs.stopped()
    mark_live(jobs.store, JOB, resumed_writer(history(jobs.store).first_submission.writer, 1))
    move(jobs, other)
    assert history(other).finished is None


def test_a_suspended_job_is_ended_before_it_moves(jobs, other):
    jobs.submit(JOB, minutes=0)
    assert "it has no checkpoint" in move(jobs, other).stdout
    assert history(jobs.store).finished.outcome == "stopped"
    assert history(other).finished is None


def test_a_stranger_of_the_same_id_is_left_alone(jobs, other, tmp_path):
    jobs.stopped()
    other.put(keys.index(JOB), b"another job's")
    result = move(jobs, other, status=2)
    assert f"has another job '{JOB}'" in result.stderr
    assert other.get(keys.index(JOB)) == b"another job's"


class Killed(BaseException):
    pass


class Dying(WrappedStore):
    """A store of a process that is killed after so many requests to any of its stores."""

    left = 0

    def _call(self, method, key, request):
        if Dying.left == 0:
            raise Killed
        Dying.left -= 1
        return request()


@pytest.mark.full
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_at_any_request_nothing_is_lost_or_runs_twice_and_the_next_try_finishes_it(
    jobs, other, tmp_path, monkeypatch, step
):
    """It takes the whole command: some 150 requests, each of which is the last of some try."""
    jobs.stopped()
    source = jobs.store
    real = moving.open_named_store
    fates = set()
    for calls in range(0, 1000, step):
        jobs.store = copied(source, f"file://{tmp_path}/source-{calls}")
        target = FileStore(f"{other.url}-{calls}")
        adopt_here(jobs)
        Dying.left = calls
        monkeypatch.setattr(moving, "open_named_store", lambda url, **options: Dying(real(url, **options)))
        try:
            move(jobs, target)
        except Killed:
            monkeypatch.setattr(moving, "open_named_store", real)
        else:
            break
        is_resumed = JOB in list_jobs(target) and target_is_resumed(target)
        fates.add((history(jobs.store).moved_to is not None, is_resumed))
        if is_resumed:
            continue
        move(jobs, target)
        # However often: one end that was taken back, in one store.
        assert [type(r) for r in Journal(target, JOB).read()][-2:] == [Moved, Resumed]
        assert checkpoints(target) == (CheckpointId(1, 40),)
        assert "can only be resumed there" in jobs.run("resume", JOB, status=1).stderr
    assert fates >= {(False, False), (True, False)}


def target_is_resumed(target):
    return any(isinstance(record, Resumed) for record in Journal(target, JOB).read())


def copied(store, url):
    copy = directory_store(url.removeprefix("file://"))
    for meta in store.list_objects(""):
        copy.put(meta.key, store.get(meta.key))
    return copy


def adopt_here(jobs):
    found = history(jobs.store)
    adopt(jobs.store, found.submission, found.submission_sha256)
