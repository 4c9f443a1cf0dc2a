"""What the machines of a generation are told, and when nothing is."""

import pytest

from cloudspot.controller.announcing import announcement


def told(records, *instances, generations):
    history = records.history(
        records.launch(intent=records.intent(num_nodes=2)), records.launch(2), generations=generations
    )
    return announcement(history, records.observed(*instances))


@pytest.mark.parametrize("state", ["pending", "running"])
def test_the_nodes_of_the_newest_generation_are_told_where_they_meet_and_how_many_they_are(records, state):
    first, other = records.instance(state=state), records.instance("i-2-0", state, launch=2)
    generations = (records.generation(1, ranks=(0, 1)), records.generation(2, seats=[(2, 0), (1, 0)]))
    (one,) = told(records, first, records.instance("i-1-1", rank=1), other, generations=generations)
    assert one.instances == (other, first)
    assert one.facts == {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1", "NUM_NODES": "2"}


def test_nothing_is_told_before_the_first_generation_or_to_machines_that_go(records):
    assert told(records, records.instance(), generations=()) == ()
    generations = (records.generation(1, ranks=(0, 1)),)
    assert told(records, records.instance(state="shutting-down"), generations=generations) == ()
    (one,) = told(
        records, records.instance(state="ended"), records.instance("i-1-1", rank=1), generations=generations
    )
    assert [machine.id for machine in one.instances] == ["i-1-1"]
