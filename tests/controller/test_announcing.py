"""What is announced, to whom, and when nothing is."""

import pytest

from cloudspot.controller.actions import Announce, VoidSlot
from cloudspot.controller.decide import decide
from cloudspot.controller.observed import CreateFailure

FACTS = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500", "NUM_NODES": "2"}


def machines(records, *ranks, **changes):
    return [
        records.instance(f"i-1-{rank}", rank=rank, address=f"10.0.0.{7 + rank}", **changes) for rank in ranks
    ]


def told(records, *instances, **changes):
    launch = records.launch(intent=records.intent(num_nodes=2), **{"claimed": False, **changes})
    actions = decide(
        records.spec(nodes=2), records.history(launch), records.observed(*instances), records.at(100)
    )
    return [one for one in actions if isinstance(one, Announce)]


@pytest.mark.parametrize("state", ["pending", "running"])
def test_once_all_machines_are_listed_each_is_told_of_the_first(records, state):
    first, second = machines(records, 0, 1, state=state)
    assert told(records, second, first) == [Announce(1, (first, second), FACTS)]


def test_nothing_is_told_while_a_machine_is_missing_ends_or_has_no_address_yet(records):
    first, second = machines(records, 0, 1)
    assert told(records, first) == []
    assert told(records, second) == []
    assert told(records, first, *machines(records, 1, state="shutting-down")) == []
    assert told(records, records.change(first, address=None), second) == []
    assert told(records, first, records.change(second, launch=2)) == []


def test_the_claim_says_who_is_first_and_where(records):
    first, second = machines(records, 0, 1)
    surplus = records.change(first, id="i-9", address="10.0.0.99")
    assert told(records, first, surplus, second) == []  # nobody knows yet whose the rank is
    slots = {0: records.change(records.slot("i-1-0"), address="10.0.0.70")}
    (one,) = told(records, surplus, first, second, slots=slots)
    assert one.instances == (first, second)
    assert one.facts["MASTER_ADDR"] == "10.0.0.70"
    taken = {0: records.slot("i-9")}
    (one,) = told(records, surplus, first, second, slots=taken)
    assert one.instances == (surplus, second)


def test_a_launch_that_is_given_up_or_over_is_told_nothing(records):
    first, second = machines(records, 0, 1)
    void = {0: records.slot(None, detail="capacity: none")}
    assert told(records, first, second, slots=void) == []
    assert told(records, first, second, claimed=True, outcome="failed") == []


def test_a_launch_that_is_being_given_up_is_told_nothing(records):
    history = records.history(records.launch(intent=records.intent(num_nodes=2), claimed=False))
    observed = records.observed(
        *machines(records, 0, 1), create_failure=CreateFailure(1, "capacity", "no big in a")
    )
    actions = decide(records.spec(nodes=2), history, observed, records.at(100))
    assert [type(one) for one in actions] == [VoidSlot]
