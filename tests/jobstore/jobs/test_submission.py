"""Submissions."""

import threading

import msgspec
import pytest
from support.records import made_journal
from support.records.made_records import Records
from support.stores.directorystore import directory_store
from support.stores.faultstore import FaultPlan, FaultyStore, Hook, Outage
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import (
    BundleError,
    CorruptData,
    JobExists,
    JobNotFound,
    SpecError,
    StoreRefused,
    TransientError,
)
from cloudspot.jobfile.spec import load_job, spec_from_json
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.code.extraction import extract_bundle
from cloudspot.jobstore.jobs.job_lists import list_jobs, list_live, list_recent
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.submission import (
    check_secrets,
    delete_secrets,
    hash_of,
    read_secrets,
    read_submission_of,
    request_stop,
    submit,
)
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import FORMAT
from cloudspot.local.filestore import FileStore
from cloudspot.registry import open_job_store

NAMES = ("TOKEN", "EMPTY")
ENVIRON = {"TOKEN": "hunter2-überse\ncret", "EMPTY": "", "OTHER": "not asked for"}


def nap(seconds):
    pass


@pytest.fixture
def store():
    return InMemoryStore()


@pytest.fixture
def work(tmp_path):
    root = tmp_path / "work"
    root.mkdir()
    (root / "train.py").write_text("print(1)\n")
    (root / ".env").write_text("TOKEN=hunter2-überse\n")
    return root


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "digits"\n[run]\nworkdir = "work"\nentrypoint = "train.py"\nsecrets = ["TOKEN", "EMPTY"]\n'
    )
    return load_job(path)


def do(store, spec, work, job_id="digits-1", environ=ENVIRON, **options):
    return submit(
        with_retries(store, sleep=nap),
        spec=spec,
        provider="local",
        workdir=work,
        environ=environ,
        job_id=job_id,
        **options,
    )


def keys_of(store):
    return [meta.key for meta in store.list_objects("")]


def test_a_submitted_job_is_all_that_a_controller_and_a_node_need(store, spec, work, tmp_path):
    submission = do(store, spec, work)
    assert list_jobs(store) == ("digits-1",)
    assert HistoryReader(store, "digits-1").read().submission == submission
    assert spec_from_json(submission.spec) == spec
    assert (submission.provider, submission.secret_names) == ("local", ("TOKEN", "EMPTY"))
    data = store.get(keys.code(submission.code_sha256))
    assert len(data) == submission.code_bytes
    extract_bundle(data, tmp_path / "out", sha256=submission.code_sha256)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train.py"]
    assert read_secrets(store, "digits-1", NAMES, resumption=0) == {"TOKEN": ENVIRON["TOKEN"], "EMPTY": ""}
    assert keys_of(store) == sorted(
        [
            keys.code(submission.code_sha256),
            keys.index("digits-1"),
            keys.live("digits-1", submission.writer),
            keys.recent(int(submission.at.timestamp() * 1000), "digits-1"),
            keys.secrets("digits-1", 0),
            keys.spec("digits-1"),
        ]
    )
    assert set(list_live(store)) == set(list_recent(store)[0]) == {"digits-1"}


def test_a_job_carries_the_id_of_the_directory_that_its_submission_makes(spec, work, tmp_path):
    store = FileStore(f"file://{tmp_path}/new/store")
    submission = do(store, spec, work)
    assert store.get(keys.STORE_ID) == str(submission.store_id).encode()
    assert HistoryReader(store, "digits-1").read().submission.store_id == submission.store_id
    assert do(store, spec, work, "digits-2").store_id == submission.store_id


def test_nodes_and_drivers_know_a_submission_wherever_it_is(store, spec, work, tmp_path):
    """A dry run tells the hash of what has no store yet."""
    here = do(store, spec, work)
    there = do(FileStore(f"file://{tmp_path}/store"), spec, work)
    assert (here.store_id is None, there.store_id is None) == (True, False)
    assert hash_of(codec.encode(here)) == hash_of(codec.encode(there))


@pytest.mark.full
def test_a_job_from_before_there_were_marks_is_refused_until_the_directory_has_one(spec, work, tmp_path):
    old = do(store := directory_store(tmp_path / "store"), spec, work)
    store.put(keys.spec("digits-1"), codec.encode(msgspec.structs.replace(old, store_id=None)))
    (store.root / keys.STORE_ID).unlink()
    before = sorted(store.root.rglob("*"))
    with pytest.raises(TransientError, match="store-id, which cloudspot run writes there"):
        HistoryReader(open_job_store(store.url), "digits-1").read()
    assert sorted(store.root.rglob("*")) == before
    do(FileStore(store.url), spec, work, "digits-2")
    assert HistoryReader(open_job_store(store.url), "digits-1").read().submission.store_id is None


def test_a_secret_is_in_its_own_object_and_in_no_other(store, spec, work):
    do(store, spec, work)
    written = msgspec.json.encode(ENVIRON["TOKEN"])[1:-1]
    for key in keys_of(store):
        holds = any(form in store.get(key) for form in (b"hunter2", written, ENVIRON["TOKEN"].encode()))
        assert holds == (key == keys.secrets("digits-1", 0))
        assert b"not asked for" not in store.get(key)
    delete_secrets(store, "digits-1", resumption=0)
    delete_secrets(store, "digits-1", resumption=0)
    assert read_secrets(store, "digits-1", NAMES, resumption=0) == {}
    assert not [key for key in keys_of(store) if b"hunter2" in store.get(key)]


def test_secrets_that_no_program_could_get_are_refused():
    check_secrets(["TOKEN"], {"TOKEN": "x" * (126 << 10)})
    with pytest.raises(SpecError, match=r"^secrets: TOKEN has 131078 bytes, but Linux allows no variable"):
        check_secrets(["TOKEN"], {"TOKEN": "x" * (128 << 10)})
    many = {f"S{number}": "x" * 100_000 for number in range(6)}
    with pytest.raises(SpecError, match=r"^secrets: they have 600018 bytes in total"):
        check_secrets(list(many), many)


def test_a_job_without_secrets_has_no_such_object(store, spec, work):
    bare = msgspec.structs.replace(spec, run=msgspec.structs.replace(spec.run, secrets=()))
    do(store, bare, work, environ={})
    assert keys.secrets("digits-1", 0) not in keys_of(store)
    assert read_secrets(store, "digits-1", NAMES, resumption=0) == {}


def test_a_secret_that_the_job_does_not_name_reaches_nobody(store, spec, work):
    do(store, spec, work)
    values = {"TOKEN": "changed", "LD_PRELOAD": "/tmp/evil.so"}
    store.put(keys.secrets("digits-1", 0), msgspec.json.encode({"values": values}))
    assert read_secrets(store, "digits-1", NAMES, resumption=0) == {"TOKEN": "changed"}


def test_malformed_secrets_are_not_quoted(store):
    store.put(keys.secrets("x", 0), b'{"values":{"A":"hunter2","B":{"hunter2":1}}}')
    with pytest.raises(CorruptData) as caught:
        read_secrets(store, "x", NAMES, resumption=0)
    assert "hunter2" not in str(caught.value)


def test_what_is_wrong_on_this_side_is_found_before_anything_is_stored(store, spec, work):
    with pytest.raises(SpecError, match=r"^secrets: EMPTY is not set"):
        do(store, spec, work, environ={"TOKEN": "x"})
    with pytest.raises(SpecError, match=r"^secrets: TOKEN, EMPTY is not set"):
        do(store, spec, work, environ={})
    for job_id in ("", "Digits", "-a", "a-", "a_b", "a/b", "a" * 64, "a\n"):
        with pytest.raises(SpecError, match="job id"):
            do(store, spec, work, job_id=job_id)
    (work / "train.py").unlink()
    with pytest.raises(BundleError, match=r"run\.entrypoint"):
        do(store, spec, work)
    assert keys_of(store) == []


def test_an_id_that_is_taken_is_refused_and_its_job_is_left_alone(store, spec, work):
    do(store, spec, work)
    before = {key: store.get(key) for key in keys_of(store)}
    with pytest.raises(JobExists, match="'digits-1' already exists"):
        do(store, spec, work, environ={"TOKEN": "other", "EMPTY": "other"})
    assert {key: store.get(key) for key in keys_of(store)} == before


def test_of_many_who_submit_one_id_at_once_exactly_one_succeeds(store, spec, work):
    outcomes = []

    def one(number):
        try:
            do(store, spec, work, environ={"TOKEN": str(number), "EMPTY": ""})
        except JobExists:
            outcomes.append(None)
        else:
            outcomes.append(number)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = [outcome for outcome in outcomes if outcome is not None]
    assert len(outcomes) == 12
    assert read_secrets(store, "digits-1", NAMES, resumption=0)["TOKEN"] == str(winner)


def test_a_store_that_would_let_two_controllers_win_gets_neither_code_nor_secrets(spec, work):
    class Overwriting(InMemoryStore):
        def put(self, key, data, *, if_absent=False):
            super().put(key, data)

    store = Overwriting()
    with pytest.raises(StoreRefused):
        do(store, spec, work)
    assert keys_of(store) == []


def test_the_spec_record_is_put_last(store, spec, work, tmp_path):
    seen = []
    plan = FaultPlan(hooks=(Hook(keys="jobs/*/spec", when="before"),))
    do(FaultyStore(store, plan, tmp_path, on_hook=lambda hook, key: seen.extend(keys_of(store))), spec, work)
    assert [key.split("/")[0] for key in seen] == ["code", "index", "jobs", "live", "recent"]
    assert keys.secrets("digits-1", 0) in seen


@pytest.mark.parametrize(
    "faults", [{"fail_every": 3}, {"fail_every": 5}, {"lose_every": 2}, {"lose_every": 3}]
)
def test_faults_in_passing_do_not_stop_a_submission(store, spec, work, tmp_path, faults):
    submission = do(FaultyStore(store, FaultPlan(**faults), tmp_path), spec, work)
    assert HistoryReader(store, "digits-1").read().submission == submission


@pytest.mark.parametrize("glob", ["code/*", "jobs/*/secrets"])
def test_a_submission_that_fails_before_its_record_gives_the_id_and_the_secrets_back(
    store, spec, work, tmp_path, glob
):
    now = [0.0]

    def fail(hook, key):
        raise KeyboardInterrupt

    plan = FaultPlan(hooks=(Hook(keys=glob, when="after"),), outages=(Outage(start=1, end=2),))
    with pytest.raises(KeyboardInterrupt):
        do(FaultyStore(store, plan, tmp_path, clock=lambda: now[0], on_hook=fail), spec, work)
    assert list_jobs(store) == ()
    assert not [key for key in keys_of(store) if b"hunter2" in store.get(key)]
    do(store, spec, work)


def test_where_the_outcome_of_the_record_is_unknown_nothing_is_taken_back(store, spec, work, tmp_path):
    now = [0.0]
    plan = FaultPlan(
        hooks=(Hook(keys="jobs/*/spec", when="after"),),
        outages=(Outage(start=1, end=2),),
        lose_every=1,
        lose_keys="jobs/*/spec",
    )

    def down(hook, key):
        now[0] = 1.0

    with pytest.raises(TransientError, match="unknown"):
        do(FaultyStore(store, plan, tmp_path, clock=lambda: now[0], on_hook=down), spec, work)
    assert HistoryReader(store, "digits-1").read().submission.job_id == "digits-1"
    assert read_secrets(store, "digits-1", NAMES, resumption=0)["TOKEN"] == ENVIRON["TOKEN"]


def test_a_submission_that_was_killed_reserves_its_id_and_is_no_job(store, spec, work, tmp_path):
    class Killed(BaseException):
        pass

    class Dead(FaultyStore):
        def _enter(self, method, key):
            if self.calls["put"] and key.startswith("code/") and method == "put":
                self.is_dead = True
            if getattr(self, "is_dead", False):
                raise Killed
            super()._enter(method, key)

    with pytest.raises(Killed):
        do(Dead(store, FaultPlan(), tmp_path), spec, work)
    assert list_jobs(store) == ("digits-1",)
    with pytest.raises(JobNotFound):
        HistoryReader(store, "digits-1").read()
    with pytest.raises(JobExists):
        do(store, spec, work)


REFUSED = "job 'digits-1' was submitted by {}, and this version cannot drive it; finish or remove it with cloudspot {}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        # Whatever else it lacks, or has in another shape.
        (
            {"format": None, "version": "0.9.1", "code_sha256": None},
            REFUSED.format("an older cloudspot (format 1)", "0.9.1"),
        ),
        (
            {"format": FORMAT + 1, "version": "4.0", "secret_names": {"another": "shape"}},
            REFUSED.format(f"a newer cloudspot (format {FORMAT + 1})", "4.0"),
        ),
    ],
)
def test_a_job_of_another_format_is_refused_in_one_sentence(store, spec, work, change, said):
    do(store, spec, work)
    held = msgspec.json.decode(store.get(keys.spec("digits-1")))
    assert held["format"] == FORMAT == 5
    changed = {name: value for name, value in {**held, **change}.items() if value is not None}
    store.put(keys.spec("digits-1"), msgspec.json.encode(changed))
    for read in (HistoryReader(store, "digits-1").read, HistoryReader(store, "digits-1").read_job):
        with pytest.raises(CorruptData) as error:
            read()
        assert str(error.value) == said


def test_a_submission_that_claims_resumptions_that_never_were_is_refused(store, spec, work):
    """Drivers went through all 286,928,919, to delete the secrets of each, and no other job was driven."""
    do(store, spec, work)
    held = msgspec.json.decode(store.get(keys.spec("digits-1")))
    odd = msgspec.json.encode({**held, "resumption": 286_928_919})
    store.put(keys.spec("digits-1"), odd)
    with pytest.raises(CorruptData, match="spec has an impossible resumption: 286928919"):
        HistoryReader(store, "digits-1").read()
    store.put(keys.spec("digits-1"), msgspec.json.encode(held))
    again = msgspec.json.encode({**held, "code_bytes": held["code_bytes"] + 1})
    store.put(keys.submission("digits-1", hash_of(again)), again)
    with pytest.raises(CorruptData, match="has an impossible resumption: 0"):
        read_submission_of(store, "digits-1", hash_of(again))


def test_a_job_that_a_newer_cloudspot_has_resumed_is_refused(store, spec, work):
    """By the format of the submission that counts, not of the job's first."""
    do(store, spec, work)
    held = msgspec.json.decode(store.get(keys.spec("digits-1")))
    data = msgspec.json.encode({**held, "resumption": 1, "format": FORMAT + 1, "version": "4.0"})
    store.put(keys.submission("digits-1", hash_of(data)), data)
    for record in (Records().finished("stopped"), Records().resumed(sha256=hash_of(data))):
        made_journal.append(store, "digits-1", record)
    with pytest.raises(CorruptData, match=rf"submitted by a newer cloudspot \(format {FORMAT + 1}\)"):
        HistoryReader(store, "digits-1").read()


def test_the_first_request_to_stop_stands(store):
    first = request_stop(store, "x", "user", resumption=0)
    assert request_stop(store, "x", "max_cost", resumption=0) == first
    assert first.reason == "user"
