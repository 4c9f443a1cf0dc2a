"""``cloudspot resume`` with another store: the job moves there, and goes on nowhere else."""

import pytest

from cloudspot.cli.commands import resume as resume_module
from cloudspot.jobstore import keys
from cloudspot.jobstore.job_lists import list_jobs, list_live
from cloudspot.jobstore.journal import Journal
from cloudspot.jobstore.reader import HistoryReader
from cloudspot.jobstore.records import CheckpointId, Moved, Resumed
from cloudspot.jobstore.retention import read_commits
from cloudspot.jobstore.wrapped_store import WrappedStore
from cloudspot.local.filestore import FileStore

JOB = "digits-1"


@pytest.fixture(autouse=True)
def unfollowed(monkeypatch):
    monkeypatch.setattr(resume_module, "follow", lambda job, **options: 0)


@pytest.fixture
def other(tmp_path):
    return FileStore(f"file://{tmp_path}/other-store")


def history(store):
    return HistoryReader(store, JOB).read()


def move(jobs, target, *arguments, status=0):
    return jobs.run("resume", JOB, "--store", target.url, *arguments, status=status)


def test_a_job_moves_and_goes_on_with_one_bill_and_one_story(jobs, other):
    jobs.stopped()
    result = move(jobs, other, "--set", "limits.max_cost=40")
    assert f"copying job {JOB} to {other.url}: " in result.stderr
    assert "MiB, with checkpoint 1-40: about" in result.stderr
    assert f"resumed job {JOB} on local; it goes on at step 40" in result.stdout
    moved = history(other)
    assert (moved.finished, moved.moved_to, moved.submission.resumption) == (None, None, 1)
    assert read_commits(other, JOB) == (CheckpointId(1, 40),)
    assert [type(turn).__name__ for _, turn in moved.turns] == ["Finished", "Moved", "Resumed"]
    shown = jobs.run_json("show", JOB, "--store", other.url)
    assert shown["cost"]["spent"] == pytest.approx(0.3)
    assert list(list_live(other)) == [JOB]
    assert JOB not in list_live(jobs.store)
    shown = jobs.run_json("show", JOB)
    assert (shown["state"], shown["detail"]) == ("stopped", f"moved to {other.url}")
    assert f"moved to {other.url}" in jobs.run("ps").stdout


def test_where_it_was_it_is_resumed_no_more(jobs, other):
    jobs.stopped()
    move(jobs, other)
    result = jobs.run("resume", JOB, status=1)
    assert (
        f"was moved to {other.url}, and goes on there only: cloudspot resume {JOB} --store" in result.stderr
    )
    third = FileStore(other.url + "-3")
    result = move(jobs, third, status=1)
    assert f"was moved to {other.url}, and goes on there only" in result.stderr
    assert list_jobs(third) == ()


def test_it_comes_back_with_what_it_did_elsewhere(jobs, other):
    jobs.stopped()
    move(jobs, other)
    number = history(other).num_records
    home, jobs.store = jobs.store, other
    jobs.add_intent(JOB, 2, number=number + 1, minutes=100)
    jobs.claim(JOB, 2, minutes=101)
    jobs.add_generation(JOB, 2, minutes=102, restore_from=CheckpointId(1, 40))
    jobs.scratch = jobs.scratch / "again"
    jobs.scratch.mkdir()
    jobs.add_checkpoint(JOB, 2, 70)
    jobs.add_closed(JOB, 2, "stopped", number=number + 2, started=100, ended=160)
    jobs.add_finished(JOB, "stopped", number=number + 3, minutes=160)
    jobs.store = home
    result = move(jobs, home, "--from", other.url)
    assert "it goes on at step 70" in result.stdout
    back = history(home)
    assert back.finished is None
    assert [type(turn).__name__ for _, turn in back.turns] == ["Finished", "Moved", "Resumed"] * 2
    assert jobs.run_json("show", JOB)["cost"]["spent"] == pytest.approx(0.6)
    jobs.store = other
    assert "goes on there only" in jobs.run("resume", JOB, status=1).stderr


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


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_at_any_request_nothing_is_lost_or_runs_twice_and_the_next_try_finishes_it(
    jobs, other, tmp_path, monkeypatch, step
):
    """It takes the whole command: some 150 requests, each of which is the last of some try."""
    jobs.stopped()
    source = jobs.store
    real = resume_module.open_named_store
    fates = set()
    for calls in range(0, 1000, step):
        jobs.store = copied(source, f"file://{tmp_path}/source-{calls}")
        target = FileStore(f"{other.url}-{calls}")
        adopt_here(jobs)
        Dying.left = calls
        monkeypatch.setattr(resume_module, "open_named_store", lambda url: Dying(real(url)))
        try:
            move(jobs, target)
        except Killed:
            monkeypatch.setattr(resume_module, "open_named_store", real)
        else:
            break
        is_resumed = JOB in list_jobs(target) and target_is_resumed(target)
        fates.add((history(jobs.store).moved_to is not None, is_resumed))
        if is_resumed:
            continue
        move(jobs, target)
        # However often: one end that was taken back, in one store.
        assert [type(r) for r in Journal(target, JOB).read()][-2:] == [Moved, Resumed]
        assert read_commits(target, JOB) == (CheckpointId(1, 40),)
        assert "goes on there only" in jobs.run("resume", JOB, status=1).stderr
    assert fates >= {(False, False), (True, False)}


def target_is_resumed(target):
    return any(isinstance(record, Resumed) for record in Journal(target, JOB).read())


def copied(store, url):
    copy = FileStore(url)
    for meta in store.list_objects(""):
        copy.put(meta.key, store.get(meta.key))
    return copy


def adopt_here(jobs):
    resume_module.adopt(
        jobs.store, resume_module.Job(jobs.store, JOB).provider, JOB, history(jobs.store).submission_sha256
    )
