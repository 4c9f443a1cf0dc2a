"""The probe of a store."""

import pytest
from support.stores.faultstore import FaultPlan, FaultyStore, Outage
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import AuthError, SpecError, StoreRefused, TransientError
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.store_probe import probe
from cloudspot.local.filestore import FileStore


def nap(seconds):
    pass


class Overwriting(InMemoryStore):
    """As s3rver and rclone do: the condition is ignored."""

    def put(self, key, data, *, if_absent=False):
        super().put(key, data)


class Lying(InMemoryStore):
    """Refuses, and overwrites nevertheless."""

    def put(self, key, data, *, if_absent=False):
        try:
            super().put(key, data, if_absent=if_absent)
        except Exception:
            super().put(key, data)
            raise


class Losing(InMemoryStore):
    """A refused create takes the object away."""

    def put(self, key, data, *, if_absent=False):
        try:
            super().put(key, data, if_absent=if_absent)
        except Exception:
            self.delete(key)
            raise


class ReadOnly(InMemoryStore):
    def put(self, key, data, *, if_absent=False):
        raise AuthError("s3:PutObject is denied")


class Undeletable(InMemoryStore):
    def delete(self, key):
        raise AuthError("s3:DeleteObject is denied")


@pytest.mark.parametrize("make", [InMemoryStore, None])
def test_a_store_that_keeps_its_promise_passes_and_is_left_empty(make, store):
    store = make() if make else store
    probe(with_retries(store, sleep=nap))
    probe(with_retries(store, sleep=nap))
    assert list(store.list_objects("")) == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Overwriting, "a second create of the same key was accepted"),
        (Lying, "was overwritten although"),
        (Losing, "is gone"),
    ],
)
def test_a_store_that_does_not_refuse_a_second_create_is_refused_by_name(kind, message):
    store = kind("s3://my-bucket/prefix")
    with pytest.raises(StoreRefused, match=message) as caught:
        probe(with_retries(store, sleep=nap))
    assert "s3://my-bucket/prefix" in str(caught.value)
    assert list(store.list_objects("")) == []


def test_a_store_that_may_not_be_written_says_so_plainly():
    with pytest.raises(AuthError, match="s3://b cannot be written to: s3:PutObject is denied"):
        probe(with_retries(ReadOnly("s3://b"), sleep=nap))


def test_a_store_whose_objects_cannot_be_deleted_keeps_secrets_and_is_refused():
    with pytest.raises(AuthError, match="DeleteObject"):
        probe(with_retries(Undeletable("s3://b"), sleep=nap))


def test_a_directory_that_cannot_be_made_is_said_to_be_so(tmp_path):
    (tmp_path / "file").write_text("")
    for path in ("file", "file/store"):
        with pytest.raises(SpecError, match="a file is in the way"):
            probe(with_retries(FileStore(f"file://{tmp_path}/{path}"), sleep=pytest.fail))


@pytest.mark.parametrize(
    "faults", [{"fail_every": 3}, {"fail_every": 5}, {"lose_every": 1}, {"lose_every": 2}]
)
def test_faults_in_passing_do_not_make_a_good_store_look_bad(store, tmp_path, faults):
    probe(with_retries(FaultyStore(store, FaultPlan(**faults), tmp_path / "state"), sleep=nap))
    assert list(store.list_objects("")) == []


def test_a_lost_answer_does_not_make_a_bad_store_look_good(tmp_path):
    faulty = FaultyStore(Overwriting("s3://b"), FaultPlan(lose_every=2), tmp_path / "state")
    with pytest.raises(StoreRefused):
        probe(with_retries(faulty, sleep=nap))


def test_of_a_store_that_does_not_answer_nothing_is_known(store, tmp_path):
    down = FaultyStore(store, FaultPlan(outages=(Outage(start=0, end=9e18),)), tmp_path / "state")
    with pytest.raises(TransientError):
        probe(with_retries(down, sleep=nap))
