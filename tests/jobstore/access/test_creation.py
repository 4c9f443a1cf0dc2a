"""Create-only puts with a known outcome."""

import threading

import pytest
from support.stores.directorystore import directory_store
from support.stores.faultstore import FaultPlan, FaultyStore, Hook, Outage

from cloudspot.errors import CorruptData, OverdueError, TransientError
from cloudspot.jobstore.access import creation
from cloudspot.jobstore.access.creation import create, read_large
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.local import filestore


@pytest.fixture
def inner(tmp_path):
    return directory_store(tmp_path / "store")


def test_the_first_writer_gets_none_and_the_second_the_winners_bytes(inner):
    assert create(inner, "k", b"one") is None
    assert create(inner, "k", b"two") == b"one"
    assert inner.get("k") == b"one"


def test_a_put_that_meets_itself_is_a_success(inner):
    inner.put("k", b"mine")
    assert create(inner, "k", b"mine") is None


def test_a_lost_answer_is_settled_by_reading_back(inner, tmp_path):
    store = FaultyStore(inner, FaultPlan(lose_every=1), tmp_path)
    assert create(store, "k", b"mine", sleep=pytest.fail) is None
    assert create(store, "k", b"other", sleep=pytest.fail) == b"mine"


def test_what_another_has_put_is_not_taken_for_our_own_where_our_answer_was_lost(inner, tmp_path):
    """Else two machines would own one rank."""

    class Overtaken(FaultyStore):
        def put(self, key, data, *, if_absent=False):
            inner.put(key, b"theirs")
            raise TransientError("the answer was lost")

    assert create(Overtaken(inner, FaultPlan(), tmp_path), "k", b"mine", sleep=pytest.fail) == b"theirs"


def test_a_failed_put_is_made_again_after_a_growing_delay(inner, tmp_path):
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    outage = FaultPlan(outages=(Outage(start=0, end=1.0),))
    store = FaultyStore(inner, outage, tmp_path, clock=lambda: now[0])
    assert create(store, "k", b"mine", sleep=sleep) is None
    assert slept == [0.2, 0.4, 0.8]
    assert inner.get("k") == b"mine"


def test_an_outage_that_lasts_leaves_the_outcome_unknown(inner, tmp_path):
    slept = []
    store = FaultyStore(inner, FaultPlan(outages=(Outage(start=0, end=1e18),)), tmp_path)
    with pytest.raises(TransientError, match="it is unknown whether k was created") as caught:
        create(store, "k", b"mine", sleep=slept.append)
    assert isinstance(caught.value.__cause__, TransientError)
    assert len(slept) == 4


def test_a_put_that_was_cut_off_is_not_made_again_at_once(inner, monkeypatch):
    def put(key, data, *, if_absent=False):
        raise OverdueError("it hangs")

    monkeypatch.setattr(inner, "put", put)
    slept = []
    with pytest.raises(OverdueError, match="it is unknown whether k was created: it hangs"):
        create(inner, "k", b"mine", sleep=slept.append)
    assert slept == []


def test_a_patient_store_tells_how_it_waits(inner, tmp_path):
    slept = []
    store = FaultyStore(inner, FaultPlan(outages=(Outage(start=0, end=1e18),)), tmp_path)
    with pytest.raises(TransientError):
        create(with_retries(store, sleep=slept.append), "k", b"mine")
    reads = [0.1, 0.2, 0.4, 0.8]
    assert slept == [*reads, 0.2, *reads, 0.4, *reads, 0.8, *reads, 1.6, *reads]


def test_an_object_deleted_between_put_and_read_back_is_created_anew(inner, tmp_path):
    hook = Hook(keys="k", when="after")
    plan = FaultPlan(lose_every=1, lose_keys="k", hooks=(hook,))
    store = FaultyStore(inner, plan, tmp_path, on_hook=lambda hook, key: inner.delete(key))
    assert create(store, "k", b"mine", sleep=lambda seconds: None) is None
    assert inner.get("k") == b"mine"


def test_under_faults_each_of_many_writers_learns_the_same_winner(inner, tmp_path):
    outcomes = {}

    def write(number):
        plan = FaultPlan(fail_every=3, lose_every=2)
        store = FaultyStore(inner, plan, tmp_path)
        data = b"writer %d" % number
        outcomes[number] = create(store, "k", data, waits=[0.0] * 19, sleep=lambda seconds: None) or data

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 16
    assert set(outcomes.values()) == {inner.get("k")}


def test_a_record_that_no_get_returns_whole_is_read_in_pieces(inner, monkeypatch):
    """The manifest of hundreds of ranks was committed, and could never be read."""
    data = bytes(range(256)) * 10
    monkeypatch.setattr(filestore, "MAX_GET_BYTES", 1000)
    monkeypatch.setattr(creation, "MAX_GET_BYTES", 1000)
    assert create(inner, "k", data) is None
    assert create(inner, "k", data) is None
    assert read_large(inner, "k") == data
    monkeypatch.setattr(creation, "MAX_LARGE_BYTES", 2000)
    with pytest.raises(CorruptData, match=r"k: it is longer than 1000 bytes$"):
        read_large(inner, "k")
