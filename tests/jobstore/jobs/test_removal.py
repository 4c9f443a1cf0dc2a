"""A job's data goes, whatever interrupts it, and nothing else does."""

import hashlib
from datetime import datetime, timezone

import pytest
from support.stores.faultstore import FaultPlan, FaultyStore, Hook, Outage
from support.stores.memorystore import InMemoryStore

from cloudspot.boot.agentarchive import AgentArchive
from cloudspot.errors import JobNotFound, TransientError
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.jobs import submission
from cloudspot.jobstore.jobs.index_entry import read_entry
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.removal import measure, remove_job
from cloudspot.jobstore.jobs.submission import read_first_submission
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import CheckpointId, Removal, StagedAgent, Submission, new_nonce

AT = datetime(2026, 11, 20, tzinfo=timezone.utc)


class Killed(Exception):
    pass


@pytest.fixture
def store():
    return InMemoryStore()


def submit(store, job_id, sha256="ab" * 32, agent=None):
    """Submit as ``submission.submit`` does, but for the contents."""
    submission = Submission(
        job_id=job_id,
        provider="local",
        spec={},
        code_sha256=sha256,
        code_bytes=4,
        secret_names=(),
        version="1",
        at=AT,
        writer=new_nonce(),
        agent=None if agent is None else StagedAgent(sha256=agent, digest="d", requirements=("cloudspot",)),
    )
    store.put(keys.index(job_id), submission.writer.encode())
    store.put(keys.code(sha256), b"code")
    if agent is not None:
        store.put(keys.agent(agent), b"wheels")
    store.put(keys.spec(job_id), codec.encode(submission))


def write_job(store, job_id, checkpoints, **options):
    submit(store, job_id, **options)
    checkpoints.session(store, CheckpointId(1, 10), [b"a" * 4000], job_id=job_id)
    for number in (1, 2, 3):
        store.put(keys.journal(job_id, number), b"{}")
    for key in (
        keys.summary(job_id),
        keys.secrets(job_id, 0),
        keys.stop(job_id, 0),
        keys.slot(job_id, 1, 0),
        keys.heartbeat(job_id, 1, 0),
        keys.log_segment(job_id, "1-0", "2026-11-20", 0),
        keys.artifacts_prefix(job_id) + "a.txt",
    ):
        store.put(key, b"12345")


def sha256_of(data):
    return hashlib.sha256(data).hexdigest()


def all_keys(store):
    return {meta.key for meta in store.list_objects("")}


def test_everything_of_the_job_goes_and_nothing_of_others(store, checkpoints):
    write_job(store, "x", checkpoints)
    submit(store, "xy", sha256="cd" * 32)
    others = {keys.index("xy"), keys.spec("xy"), keys.code("cd" * 32)}
    count, num_bytes = measure(store, "x")
    told = []
    remove_job(store, "x", progress=told.append)
    assert all_keys(store) == others
    # All but the summary and the submission, which go first.
    assert len(told) == count - 2
    assert 4000 < sum(told) < num_bytes
    with pytest.raises(JobNotFound):
        remove_job(store, "x")


@pytest.mark.full
@pytest.mark.parametrize("num_threads", [1, 8])
def test_after_an_interruption_at_any_delete_the_next_call_finishes(checkpoints, tmp_path, num_threads):
    whole = InMemoryStore()
    write_job(whole, "x", checkpoints)
    counted = FaultyStore(whole, FaultPlan(), tmp_path / "none")
    remove_job(counted, "x")
    num_deletes = counted.calls["delete"]
    assert num_deletes == 19
    for number in range(num_deletes):
        for when in ("before", "after"):
            store = InMemoryStore()
            write_job(store, "x", checkpoints)
            submit(store, "other", sha256="cd" * 32)
            plan = FaultPlan(hooks=(Hook(keys="*", when=when, skip=number, method="delete"),))

            def kill(hook, key):
                raise Killed

            faulty = FaultyStore(store, plan, tmp_path / f"{number}-{when}", on_hook=kill)
            with pytest.raises(Killed):
                remove_job(faulty, "x", num_threads=num_threads)
            left = all_keys(store)
            if keys.index("x") in left:
                # The id is taken to the end, what is left can be found, and is known to go.
                assert read_entry(store, "x").removal == Removal(shared=(keys.code("ab" * 32),))
                remove_job(store, "x", num_threads=num_threads)
            assert all_keys(store) == {keys.index("other"), keys.spec("other"), keys.code("cd" * 32)}


def test_no_reader_ever_sees_a_job_that_lacks_a_part_of_its_history(checkpoints, tmp_path):
    """What a controller could take for a job that has not begun, and launch."""
    seen = []

    class Watched(InMemoryStore):
        def delete(self, key):
            super().delete(key)
            if any(name in key for name in ("/journal/", "/stop", "/launches/", "/manifests/")):
                seen.append(key)
                with pytest.raises(JobNotFound):
                    HistoryReader(self, "x").read()

    store = Watched()
    write_job(store, "x", checkpoints)
    remove_job(store, "x", num_threads=1)
    assert len(seen) == 6
    # The journal goes last, when whoever has just read the submission has long read it too.
    assert [key.split("/")[2] for key in seen[-3:]] == ["journal"] * 3


def test_code_stays_while_another_job_has_it_and_goes_with_the_last(store, checkpoints):
    for job_id in ("a", "b", "c"):
        submit(store, job_id)
    remove_job(store, "b")
    assert store.get(keys.code("ab" * 32)) == b"code"
    remove_job(store, "a")
    assert store.get(keys.code("ab" * 32)) == b"code"
    remove_job(store, "c")
    assert all_keys(store) == set()


def test_a_staged_agent_stays_while_another_job_has_it_and_goes_with_the_last(store):
    submit(store, "a", "aa" * 32, agent="11" * 32)
    submit(store, "b", "aa" * 32, agent="22" * 32)
    submit(store, "c", "cc" * 32, agent="11" * 32)
    remove_job(store, "a")
    assert {keys.code("aa" * 32), keys.agent("11" * 32), keys.agent("22" * 32)} < all_keys(store)
    remove_job(store, "b")
    assert not {keys.code("aa" * 32), keys.agent("22" * 32)} & all_keys(store)
    assert keys.agent("11" * 32) in all_keys(store)
    remove_job(store, "c")
    assert all_keys(store) == set()


def test_a_staged_agent_goes_though_the_removal_was_cut_short_when_the_submission_had_gone(store, tmp_path):
    submit(store, "a", agent="11" * 32)

    def kill(hook, key):
        raise Killed

    plan = FaultPlan(hooks=(Hook(keys="jobs/a/spec", when="after", method="delete"),))
    with pytest.raises(Killed):
        remove_job(FaultyStore(store, plan, tmp_path, on_hook=kill), "a")
    remove_job(store, "a")
    assert all_keys(store) == set()


def test_code_stays_for_a_submission_under_way_but_not_for_a_job_half_removed(store, tmp_path):
    submit(store, "a")
    submit(store, "b")
    store.put(keys.index("under-way"), b"0123456789abcdef")

    def kill(hook, key):
        raise Killed

    plan = FaultPlan(hooks=(Hook(keys="jobs/b/spec", when="after", method="delete"),))
    with pytest.raises(Killed):
        remove_job(FaultyStore(store, plan, tmp_path, on_hook=kill), "b")
    remove_job(store, "a")
    assert keys.code("ab" * 32) in all_keys(store)
    store.delete(keys.index("under-way"))
    remove_job(store, "b")
    assert all_keys(store) == set()


def test_a_job_that_is_submitted_while_others_are_asked_keeps_its_code(store):
    submit(store, "a")
    submit(store, "b", sha256="cd" * 32)

    class Meanwhile(FaultyStore):
        def get(self, key):
            if key == keys.spec("b"):
                submit(store, "c")
            return super().get(key)

    remove_job(Meanwhile(store, FaultPlan(), None), "a")
    assert keys.code("ab" * 32) in all_keys(store)


def test_what_a_controller_writes_in_the_middle_does_not_stay(store, checkpoints):
    write_job(store, "x", checkpoints)

    class Meanwhile(FaultyStore):
        def delete(self, key):
            if key.startswith(keys.code_prefix()):
                store.put(keys.summary("x"), b"{}")
            super().delete(key)

    remove_job(Meanwhile(store, FaultPlan(), None), "x")
    assert all_keys(store) == set()


def test_a_submission_that_was_cut_short_goes_too(store):
    store.put(keys.index("x"), b"0123456789abcdef")
    store.put(keys.secrets("x", 0), b"{}")
    assert read_entry(store, "x").removal is None
    remove_job(store, "x")
    assert all_keys(store) == set()


def test_a_hiccup_is_got_over_and_an_outage_is_not(store, checkpoints, tmp_path):
    write_job(store, "x", checkpoints)
    down = FaultPlan(outages=(Outage(start=0, end=4e9),))
    with pytest.raises(TransientError):
        remove_job(with_retries(FaultyStore(store, down, tmp_path / "a"), sleep=lambda seconds: None), "x")
    unwell = FaultyStore(store, FaultPlan(fail_every=3), tmp_path / "b")
    remove_job(with_retries(unwell, sleep=lambda seconds: None), "x")
    assert all_keys(store) == set()


# --- a submission in the same moment --------------------------------------------------------------


@pytest.fixture
def submit_for_real(tmp_path):
    """Return a function that submits a job, always with the same code and agent; it returns its record."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("print(1)\n")
    spec = spec_from_json({"name": "digits", "run": {"entrypoint": "train.py"}})
    agent = AgentArchive(data=b"wheels", sha256="11" * 32, digest="d", requirements=("cloudspot",))

    def submit(store, job_id):
        return submission.submit(
            with_retries(store, sleep=lambda seconds: None),
            spec=spec,
            provider="local",
            workdir=work,
            environ={},
            job_id=job_id,
            agent=agent,
        )

    return submit


class Interleaved(FaultyStore):
    """Calls a function before or after its n-th request of any kind."""

    def __init__(self, inner, number, when, meanwhile):
        super().__init__(inner, FaultPlan(), None)
        self.number, self.when, self.meanwhile = number, when, meanwhile
        self.num_requests = 0

    def _between(self, when):
        if (self.num_requests, when) == (self.number, self.when):
            self.meanwhile()

    def _do(self, call):
        self.num_requests += 1
        self._between("before")
        try:
            return call()
        finally:
            self._between("after")

    def put(self, key, data, **options):
        return self._do(lambda: super(Interleaved, self).put(key, data, **options))

    def get(self, key):
        return self._do(lambda: super(Interleaved, self).get(key))

    def head(self, key):
        return self._do(lambda: super(Interleaved, self).head(key))

    def list_page(self, prefix, **options):
        return self._do(lambda: super(Interleaved, self).list_page(prefix, **options))

    def delete(self, key):
        return self._do(lambda: super(Interleaved, self).delete(key))


def check_whole(store, found):
    """The job's machines get their code and their agent."""
    assert sha256_of(store.get(submission.code_key(found))) == found.code_sha256
    assert store.get(submission.agent_key(found, found.agent)) == b"wheels"


def num_requests(store, do):
    counted = Interleaved(store, 0, "", None)
    do(counted)
    return counted.num_requests


def removed_but_for(store, job_id):
    left = all_keys(store)
    return {key for key in left if job_id not in key and not key.startswith(("code/", "agents/"))} == set()


@pytest.mark.full
def test_a_submission_within_any_moment_of_a_removal_keeps_its_code(submit_for_real):
    def fresh():
        store = InMemoryStore()
        submit_for_real(store, "old")
        return store

    total = num_requests(fresh(), lambda store: remove_job(store, "old", num_threads=1))
    kept = 0
    for number in range(1, total + 1):
        for when in ("before", "after"):
            store, found = fresh(), []

            def meanwhile(store=store, found=found):
                found.append(submit_for_real(store, "new"))

            remove_job(Interleaved(store, number, when, meanwhile), "old", num_threads=1)
            (made,) = found
            check_whole(store, made)
            assert removed_but_for(store, "new")
            kept += keys.code(made.code_sha256) in all_keys(store)
            remove_job(store, "new")
            assert all_keys(store) == set()
    assert 0 < kept < 2 * total


def test_a_removal_within_any_moment_of_a_submission_leaves_it_its_code(submit_for_real):
    def fresh():
        store = InMemoryStore()
        submit_for_real(store, "old")
        return store

    total = num_requests(fresh(), lambda store: submit_for_real(store, "new"))
    for number in range(1, total + 1):
        for when in ("before", "after"):
            store = fresh()

            def meanwhile(store=store):
                remove_job(store, "old", num_threads=1)

            made = submit_for_real(Interleaved(store, number, when, meanwhile), "new")
            check_whole(store, made)
            assert removed_but_for(store, "new")
            remove_job(store, "new")
            assert all_keys(store) == set()


def test_a_removal_that_was_suspended_before_it_deletes_the_code_deletes_nobodys(submit_for_real, tmp_path):
    """Meanwhile another removal of the same code spares it for a submission under way, and ends."""
    store, found = InMemoryStore(), []
    for job_id in ("a", "b"):
        submit_for_real(store, job_id)
    code = keys.code(read_first_submission(store, "a")[0].code_sha256)

    def kill(hook, key):
        raise Killed

    plan = FaultPlan(hooks=(Hook(keys="jobs/b/spec", when="after", method="delete"),))
    with pytest.raises(Killed):
        remove_job(FaultyStore(store, plan, tmp_path, on_hook=kill), "b")

    class Suspended(FaultyStore):
        def delete(self, key):
            if key == code:
                store.put(keys.index("under-way"), b"0123456789abcdef")
                remove_job(store, "b")
                assert code in all_keys(store)
                found.append(submit_for_real(store, "new"))
            super().delete(key)

    remove_job(Suspended(store, FaultPlan(), None), "a")
    assert code not in all_keys(store)
    (made,) = found
    check_whole(store, made)


def test_a_removal_that_was_killed_costs_others_a_copy_of_their_own_and_nothing_else(submit_for_real):
    store = InMemoryStore()
    submit_for_real(store, "old")
    code = keys.code(read_first_submission(store, "old")[0].code_sha256)

    class Dead(FaultyStore):
        def delete(self, key):
            if key == code:
                raise Killed
            super().delete(key)

    with pytest.raises(Killed):
        remove_job(Dead(store, FaultPlan(), None), "old")
    first, second = submit_for_real(store, "first"), submit_for_real(store, "second")
    assert (first.has_own_code, second.has_own_code) == (True, True)
    remove_job(store, "old")
    assert not [key for key in all_keys(store) if key.startswith(("code/", "agents/"))]
    check_whole(store, first)
    assert submit_for_real(store, "third").has_own_code is False
    for job_id in ("first", "second", "third"):
        remove_job(store, job_id)
    assert all_keys(store) == set()
