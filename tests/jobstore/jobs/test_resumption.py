"""Resuming a job: one of several wins, whoever is interrupted harms nothing, and a first reader sees the same."""

import msgspec
import pytest
from support.records.made_records import Records
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import CloudspotError, CorruptData, JobNotFound, SpecError
from cloudspot.jobfile.spec import change_job, load_job
from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.jobs import own_jobs
from cloudspot.jobstore.jobs.job_lists import list_live
from cloudspot.jobstore.jobs.reader import HistoryReader, job_file_of
from cloudspot.jobstore.jobs.removal import remove_job
from cloudspot.jobstore.jobs.resumption import resume
from cloudspot.jobstore.jobs.state_home import HOME
from cloudspot.jobstore.jobs.submission import (
    delete_secrets,
    read_secrets,
    read_submission_of,
    request_stop,
    submit,
)
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.nodes.launches import void_slot
from cloudspot.jobstore.nodes.settled_launches import write_settled

JOB = "digits-1"
MADE = Records()
ENVIRON = {"TOKEN": "hunter2"}


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('name = "digits"\n[run]\nentrypoint = "train.py"\nsecrets = ["TOKEN"]\n')
    (tmp_path / "train.py").write_text("print(1)\n")
    return load_job(path)


@pytest.fixture
def stopped(spec, tmp_path):
    """Return a store with a job that was launched once, stopped, and has ended."""
    store = InMemoryStore()
    submit(store, spec=spec, provider="sim", workdir=tmp_path, environ=ENVIRON, job_id=JOB)
    journal = Journal(store, JOB)
    for number, record in enumerate([MADE.intent(1), MADE.finished("stopped")], start=1):
        assert journal.append(record, number)
    void_slot(store, JOB, 1, 0, "voided: stopped")
    request_stop(store, JOB, "user", resumption=0)
    delete_secrets(store, JOB, resumption=0)
    return store


class Killed(BaseException):
    pass


class Dying(WrappedStore):
    """A store whose client is killed after so many requests."""

    def __init__(self, inner, *, calls):
        super().__init__(inner)
        self._left = calls

    def _call(self, method, key, request):
        if self._left == 0:
            raise Killed
        self._left -= 1
        return request()


def keys_of(store, prefix=""):
    return [meta.key for meta in store.list_objects(prefix)]


def history_of(store):
    return HistoryReader(store, JOB).read()


def do(store, history=None, spec=None, provider="sim", **options):
    history = history or history_of(store)
    spec = spec or job_file_of(history.submission)
    return resume(store, history, spec=spec, provider=provider, environ=ENVIRON, **options)


def test_a_resumed_job_has_a_submission_a_stop_and_secrets_of_its_own(stopped, spec):
    before = history_of(stopped)
    assert (before.finished.outcome, before.stop.reason) == ("stopped", "user")
    submission = do(stopped, spec=change_job(spec, ["limits.max_cost=40 USD"]), provider="other")
    after = history_of(stopped)
    assert (after.finished, after.stop, after.current_launches) == (None, None, ())
    assert [launch.number for launch in after.launches] == [1]
    assert after.submission == submission
    assert (submission.provider, submission.spec["limits"]["max_cost"]) == ("other", 40)
    assert after.first_submission == before.submission
    assert read_secrets(stopped, JOB, ["TOKEN"], resumption=1) == ENVIRON
    assert list(list_live(stopped)) == [JOB]
    # A node finds what its launch was requested for by the hash alone, before and after.
    for history in (before, after):
        assert read_submission_of(stopped, JOB, history.submission_sha256) == history.submission
    request_stop(stopped, JOB, "max_cost", resumption=1)
    assert history_of(stopped).stop.reason == "max_cost"


def test_a_driver_that_is_late_deletes_no_secrets_of_the_resumed_job(stopped):
    do(stopped)
    delete_secrets(stopped, JOB, resumption=0)
    assert read_secrets(stopped, JOB, ["TOKEN"], resumption=1) == ENVIRON


def test_a_driver_that_is_late_does_not_note_the_end_of_the_resumed_job(stopped, tmp_path, monkeypatch):
    """It found the job's end in the journal, and released what the job used, while it was being resumed."""
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    label = stopped.canonical_url

    def adopt(submission, sha256):
        own_jobs.note_job(submission, store_url=label, sha256=sha256)
        if HistoryReader(stopped, JOB).read().finished is not None:
            own_jobs.end_job(JOB, store_url=label)

    do(stopped, adopt=adopt)
    assert not own_jobs.find_note(JOB, store_url=label).has_ended


def test_a_job_is_resumed_again_and_again(stopped):
    for number in (1, 2, 3):
        assert do(stopped).resumption == number
        history = history_of(stopped)
        assert Journal(stopped, JOB).append(MADE.finished("failed"), history.num_records + 1)
    assert [type(turn).__name__ for _, turn in history_of(stopped).turns] == ["Finished", "Resumed"] * 3 + [
        "Finished"
    ]


def test_a_waiting_job_is_resumed_with_the_secrets_that_it_has(stopped):
    do(stopped)
    second = do(stopped)
    assert second.resumption == 2
    assert read_secrets(stopped, JOB, ["TOKEN"], resumption=2) == ENVIRON
    delete_secrets(stopped, JOB, resumption=2)
    assert read_secrets(stopped, JOB, ["TOKEN"], resumption=1) == {}
    first = history_of(stopped).first_submission.writer
    assert second.writer == f"{first}-2"


@pytest.mark.parametrize(
    ("records", "is_over", "said"),
    [
        ([MADE.intent(1), MADE.finished()], True, "has succeeded, so there is nothing"),
        ([MADE.intent(1)], False, "node 1.0 of job 'digits-1' may still run: stop the job first"),
        (
            [MADE.intent(1), MADE.finished("stopped")],
            False,
            "'digits-1' has ended, but its node 1.0 may still run; let `cloudspot reconcile` end it first",
        ),
        ([MADE.intent(1), MADE.suspended()], False, "node 1.0 of job 'digits-1' may still run: stop the job"),
    ],
)
@pytest.mark.parametrize("is_claimed", [True, False])
def test_what_cannot_be_resumed_is_refused(spec, tmp_path, records, is_over, said, is_claimed):
    store = InMemoryStore()
    submit(store, spec=spec, provider="sim", workdir=tmp_path, environ=ENVIRON, job_id=JOB)
    for number, record in enumerate(records, start=1):
        assert Journal(store, JOB).append(record, number)
    if is_claimed:
        store.put(keys.slot(JOB, 1, 0), codec.encode(MADE.slot("i-1-0")))
    if is_over:
        store.put(keys.slot(JOB, 1, 0), codec.encode(MADE.slot("i-1-0")))
        store.put(keys.certificate(JOB, 1, "i-1-0"), codec.encode(MADE.certificate()))
    held = keys_of(store)
    with pytest.raises(CloudspotError, match=said):
        do(store)
    assert keys_of(store) == held


def test_a_missing_secret_or_code_is_found_before_anything_is_put(stopped, spec):
    held = keys_of(stopped)
    with pytest.raises(SpecError, match="TOKEN is not set"):
        resume(stopped, history_of(stopped), spec=spec, provider="sim", environ={})
    code = keys.code(history_of(stopped).submission.code_sha256)
    stopped.delete(code)
    with pytest.raises(CloudspotError, match="the code of job 'digits-1' is no longer in memory://"):
        do(stopped)
    assert keys_of(stopped) == [key for key in held if key != code]


def test_of_two_who_resume_at_once_one_does(stopped, spec):
    seen = history_of(stopped)
    do(stopped, seen, spec=change_job(spec, ["limits.max_cost=1"]))
    with pytest.raises(CloudspotError, match="job 'digits-1' has changed in the meantime"):
        do(stopped, seen, spec=change_job(spec, ["limits.max_cost=2"]))
    assert history_of(stopped).submission.spec["limits"]["max_cost"] == 1


def test_whoever_loses_or_gives_up_takes_secrets_and_mark_back(stopped, spec):
    seen = history_of(stopped)
    held = keys_of(stopped, keys.live_prefix())

    def interrupt(_submission, _sha256):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        do(stopped, seen, adopt=interrupt)
    assert keys_of(stopped, keys.live_prefix()) == held
    assert read_secrets(stopped, JOB, ["TOKEN"], resumption=1) == {}
    Journal(stopped, JOB).append(MADE.moved(), seen.num_records + 1)
    with pytest.raises(CloudspotError, match="has changed in the meantime"):
        do(stopped, seen)
    assert keys_of(stopped, keys.live_prefix()) == held
    assert read_secrets(stopped, JOB, ["TOKEN"], resumption=1) == {}


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_a_job_that_is_removed_meanwhile_is_not_brought_back(stopped, spec, moment):
    seen = history_of(stopped)
    if moment == "before":
        remove_job(stopped, JOB)
    with pytest.raises(JobNotFound, match="is no longer in"):
        do(
            stopped,
            seen,
            spec=spec,
            adopt=lambda _submission, _sha256: moment == "before" or remove_job(stopped, JOB),
        )
    assert keys_of(stopped, keys.job_prefix(JOB)) == []
    assert keys_of(stopped, keys.live_prefix()) == []


def test_killed_at_any_request_the_job_is_as_it_was_or_resumed_and_the_next_try_finishes_it(stopped):
    outcomes = set()
    for calls in range(40):
        copy = InMemoryStore()
        for meta in stopped.list_objects(""):
            copy.put(meta.key, stopped.get(meta.key))
        seen = history_of(copy)
        try:
            do(Dying(copy, calls=calls), seen)
        except Killed:
            outcomes.add(resumed := history_of(copy).finished is None)
            # Whoever runs the command again: it goes on, or finds that it already does.
            last = do(copy) if not resumed else history_of(copy).submission
            after = history_of(copy)
            assert (after.finished, after.submission) == (None, last)
            assert read_secrets(copy, JOB, ["TOKEN"], resumption=last.resumption) == ENVIRON
            assert JOB in list_live(copy)
        else:
            break
    assert outcomes == {True, False}


def test_a_reader_that_begins_with_the_copy_of_settled_launches_sees_the_same(stopped):
    do(stopped)
    for number, record in enumerate([MADE.suspended(), MADE.intent(2), MADE.finished("failed")], start=4):
        assert Journal(stopped, JOB).append(record, number)
    void_slot(stopped, JOB, 2, 0, "capacity: none")
    do(stopped)
    fresh = history_of(stopped)
    write_settled(stopped, fresh, fresh.launches)
    reader = HistoryReader(stopped, JOB)
    assert msgspec.structs.asdict(reader.read().submission) == msgspec.structs.asdict(fresh.submission)
    assert (reader.read().turns, reader.read().num_records) == (fresh.turns, fresh.num_records)
    assert reader.num_copied == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: None, "is the requested submission"),
        (lambda data: data.replace(b'"sim"', b'"moon"'), "does not match the hash in its name"),
        (lambda data: data.replace(b"digits-1", b"digits-2"), "does not match the hash in its name"),
    ],
)
def test_a_submission_that_was_tampered_with_is_refused(stopped, change, said):
    do(stopped)
    key = keys.submission(JOB, history_of(stopped).submission_sha256)
    data = change(stopped.get(key))
    stopped.delete(key) if data is None else stopped.put(key, data)
    with pytest.raises(CorruptData, match=said):
        history_of(stopped)


def test_a_submission_of_another_resumption_is_refused(stopped):
    submission = do(stopped)
    again = codec.encode(MADE.resumed(2, sha256=history_of(stopped).submission_sha256))
    stopped.put(keys.journal(JOB, 4), again)
    assert submission.resumption == 1
    with pytest.raises(CorruptData, match="belongs to another resumption than 2"):
        history_of(stopped)
