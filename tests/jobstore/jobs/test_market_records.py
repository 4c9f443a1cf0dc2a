"""What jobs saw of the market, in the bucket: small, few, and never in the way."""

from datetime import datetime, timedelta, timezone

import msgspec
import pytest
from support.records.made_records import Records
from support.stores.faultstore import FaultPlan, FaultyStore
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import CorruptData
from cloudspot.jobstore.jobs import market_records
from cloudspot.jobstore.jobs.market_records import MAX_KEPT, MAX_READ, read_market_seen, write_market_seen
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import MarketSeen, PoolSeen

AT = datetime(2026, 11, 20, tzinfo=timezone.utc)
POOL = PoolSeen(losses=(1, 0, 0, 0), up_hours=(0.25, 0, 0, 0), gains=(0, 0, 0, 0), down_hours=(0, 0, 0, 0))


@pytest.fixture
def store():
    return InMemoryStore()


def submission(number):
    first = Records().history().first_submission
    return msgspec.structs.replace(first, at=AT + timedelta(minutes=number), writer=f"w{number}")


def seen(number):
    return MarketSeen(pools={"a/big": POOL}, at=AT + timedelta(days=number))


def write(store, number, provider="sim"):
    write_market_seen(store, submission(number), provider, seen(number))


def names(store, provider="sim"):
    return [meta.key.rpartition("-")[2] for meta in store.list_objects(keys.market_prefix(provider))]


def test_the_newest_records_of_a_provider_are_read(store):
    for number in range(MAX_READ + 5):
        write(store, number)
    write(store, 1000, provider="other")
    found = read_market_seen(store, "sim")
    assert found.unreadable == ()
    assert found.found == tuple(seen(number) for number in range(MAX_READ + 4, 4, -1))


def test_they_are_read_with_a_listing_and_a_request_each(store, tmp_path):
    for number in range(3):
        write(store, number)
    counted = FaultyStore(store, FaultPlan(), tmp_path / "faults")
    read_market_seen(counted, "sim")
    assert dict(counted.calls) == {"list_page": 1, "get": 3}


def test_a_job_that_was_resumed_replaces_its_record(store):
    write(store, 1)
    write_market_seen(store, submission(1), "sim", seen(7))
    assert read_market_seen(store, "sim").found == (seen(7),)


def test_the_oldest_are_deleted_by_who_adds_one(store):
    for number in range(MAX_KEPT + 3):
        store.put(keys.market_seen("sim", submission(number).milliseconds, f"w{number}"), b"{}")
    write(store, MAX_KEPT + 3)
    assert names(store) == [f"w{number}" for number in range(MAX_KEPT + 3, 3, -1)]


def test_nothing_names_the_job(store):
    write(store, 1)
    (meta,) = store.list_objects("")
    job_id = submission(1).job_id
    assert job_id not in meta.key
    assert job_id.encode() not in store.get(meta.key)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"pools": {"a/big": 1}, "at": "2026-11-20T00:00:00Z"}',
        codec.encode(seen(1)).replace(b"0.25", b"-0.25"),
        codec.encode(seen(1)).replace(b"0.25", b'"nan"'),
        codec.encode(seen(1)).replace(b"0.25", b'"inf"'),
        codec.encode(seen(1)).replace(b"0.25", b"1e300"),
        codec.encode(seen(1)).replace(b"[0.25,0,0,0]", b"[0.25,0,0]"),
        codec.encode(seen(1)).replace(b"2026-11-21T00:00:00Z", b"2026-11-21T00:00:00"),
    ],
)
def test_a_record_that_no_writer_of_ours_wrote_is_skipped_and_named(store, data):
    assert data != codec.encode(seen(1))
    write(store, 1)
    write(store, 2)
    key = keys.market_seen("sim", submission(2).milliseconds, "w2")
    store.put(key, data)
    found = read_market_seen(store, "sim")
    assert (found.found, found.unreadable) == ((seen(1),), (key,))


def test_a_record_of_any_size_is_not_read(store, monkeypatch, tmp_path):
    write(store, 1)
    monkeypatch.setattr(market_records, "MAX_BYTES", 10)
    counted = FaultyStore(store, FaultPlan(), tmp_path / "faults")
    assert len(read_market_seen(counted, "sim").unreadable) == 1
    assert dict(counted.calls) == {"list_page": 1}


def test_objects_under_other_names_are_ignored_and_kept(store):
    for name in ("note.txt", "1-w", "0000000000001-a/b"):
        store.put(keys.market_prefix("sim") + name, b"x")
    write(store, 1)
    assert read_market_seen(store, "sim").unreadable == ()
    assert len(list(store.list_objects(keys.market_prefix("sim")))) == 4


def test_one_that_is_deleted_meanwhile_is_passed_over(store):
    write(store, 1)
    write(store, 2)

    class Emptied(InMemoryStore):
        def list_page(self, prefix, **options):
            return store.list_page(prefix, **options)

        def get(self, key):
            if "w1" in key:
                return super().get(key)
            return store.get(key)

    found = read_market_seen(Emptied(), "sim")
    assert (found.found, found.unreadable) == ((seen(2),), ())


def test_the_largest_record_of_ours_is_read_back():
    edge = PoolSeen(**dict.fromkeys(POOL.__struct_fields__, (1e6,) * 4))
    record = MarketSeen(pools={"z" * 200 + str(one): edge for one in range(200)}, at=AT)
    assert len(codec.encode(record)) < market_records.MAX_BYTES
    assert codec.decode(codec.encode(record), MarketSeen) == record
    more = MarketSeen(pools={str(one): POOL for one in range(1001)}, at=AT)
    with pytest.raises(CorruptData):
        codec.decode(codec.encode(more), MarketSeen)
