"""Slots."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.stores.directorystore import directory_store
from support.stores.faultstore import FaultPlan, FaultyStore

from cloudspot.errors import CorruptData
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.nodes.launches import claim_seat, claim_slot, read_slots, void_slot
from cloudspot.model import NodeIdentity


@pytest.fixture
def store(tmp_path):
    return directory_store(tmp_path / "store")


def machine(name, rank=0):
    return NodeIdentity(instance_id=name, rank=rank, address=f"{name}.internal")


def test_the_first_machine_owns_the_slot_and_the_second_learns_it(store):
    own = claim_slot(store, "x", 1, 0, machine("i-1"))
    assert (own.instance_id, own.address) == ("i-1", "i-1.internal")
    assert claim_slot(store, "x", 1, 0, machine("i-2")) == own
    assert void_slot(store, "x", 1, 0, "too late") == own
    assert read_slots(store, "x", 1) == {0: own}


def test_a_machine_whose_agent_starts_again_still_owns_its_slot(store):
    first = claim_slot(store, "x", 1, 0, machine("i-1"))
    assert claim_slot(store, "x", 1, 0, machine("i-1")) == first


def test_machines_of_one_index_take_the_seats_that_are_open(store):
    void_slot(store, "x", 1, 2, "no machine came")
    names = ("i-a", "i-b", "i-c", "i-d")
    ranks = [claim_seat(store, "x", 1, machine(name), num_seats=lambda: 4) for name in names]
    assert [one and one.rank for one in ranks] == [0, 1, 3, None]
    # A later agent of a machine finds the seat that it has.
    assert [claim_seat(store, "x", 1, machine(name), num_seats=lambda: 4) for name in names] == ranks
    assert {rank: slot.instance_id for rank, slot in read_slots(store, "x", 1).items()} == {
        0: "i-a", 1: "i-b", 2: None, 3: "i-c",
    }  # fmt: skip


def test_a_machine_whose_seat_is_void_takes_no_other(store):
    void_slot(store, "x", 1, 0, "it did not come up")
    assert claim_seat(store, "x", 1, machine("i-1"), num_seats=lambda: 2) is None
    assert set(read_slots(store, "x", 1)) == {0}


def test_a_void_slot_is_denied_to_every_machine(store):
    void = void_slot(store, "x", 1, 0, "no machine came")
    assert (void.instance_id, void.detail) == (None, "no machine came")
    assert claim_slot(store, "x", 1, 0, machine("i-1")) == void
    assert claim_slot(store, "x", 2, 0, machine("i-1")).instance_id == "i-1"


def test_slots_are_read_by_rank_and_of_one_launch(store):
    slots = {rank: claim_slot(store, "x", 3, rank, machine(f"i-{rank}", rank)) for rank in (0, 2, 11)}
    claim_slot(store, "x", 33, 0, machine("other"))
    store.put(keys.slots_prefix("x", 3) + ".DS_Store", b"")
    assert read_slots(store, "x", 3) == slots
    assert read_slots(store, "x", 4) == {}


def test_a_malformed_slot_is_corrupt(store):
    store.put(keys.slot("x", 1, 0), b'{"instance_id":')
    with pytest.raises(CorruptData, match="nodes/0000"):
        read_slots(store, "x", 1)
    with pytest.raises(CorruptData, match="nodes/0000"):
        claim_slot(store, "x", 1, 0, machine("i-1"))


def test_claims_and_voids_that_race_over_a_faulty_store_agree(store, tmp_path):
    def act(number):
        plan = FaultPlan(fail_every=4, lose_every=2)
        faulty = with_retries(FaultyStore(store, plan, tmp_path), sleep=lambda seconds: None)
        if number % 2:
            return claim_slot(faulty, "x", 1, 0, machine(f"i-{number}"))
        return void_slot(faulty, "x", 1, 0, f"by {number}")

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(act, range(32)))
    assert seen == [read_slots(store, "x", 1)[0]] * 32


def test_a_foreign_object_among_the_slots_is_passed_over(store):
    claim_slot(store, "x", 1, 0, machine("i-a"))
    store.put(keys.slots_prefix("x", 1) + "0001.tmp", b"{")
    store.put(keys.slots_prefix("x", 1) + "1", b"{")
    assert set(read_slots(store, "x", 1)) == {0}
