"""One rank's saves: which plan they follow, and when they claim memory."""

import errno
import json

import pytest
import torch

from cloudspot.train import arena
from cloudspot.train.arena import Arena
from cloudspot.train.boundary_marks import Description
from cloudspot.train.checkpoint import take
from cloudspot.train.distributed import World
from cloudspot.train.partition import plan
from cloudspot.train.save_order import DRAIN, INTERVAL, SaveOrder
from cloudspot.train.saving import Saver

WORLD_SIZE = 4
PROCS_PER_NODE = 2


@pytest.fixture
def objects():
    torch.manual_seed(1)
    return {"model": torch.nn.ModuleList(torch.nn.Linear(64, 64 + index) for index in range(5))}


@pytest.fixture
def make_savers(tmp_path, objects):
    """``make_savers()``: those of two nodes' four ranks, prepared."""
    made = []

    def make():
        for rank in range(WORLD_SIZE):
            slots = Arena(
                directory=tmp_path / "memory",
                spill=tmp_path / "disk",
                handoff=tmp_path,
                generation=1,
                world=World(rank, WORLD_SIZE, rank % PROCS_PER_NODE, PROCS_PER_NODE),
            )
            made.append(Saver(slots))
            made[-1].prepare(take(objects).items)
            made[-1]._claiming.join()
        return made

    yield make
    for saver in made:
        saver.close()


@pytest.fixture
def no_more_room(monkeypatch):
    """``no_more_room()``: from now on every allocation fails."""

    def full(descriptor, start, nbytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    return lambda: monkeypatch.setattr(arena, "_allocate", full)


def save(savers, objects, step, *, kind=DRAIN, **options):
    """Save on every rank; return the seals by rank."""
    for saver in savers:
        order = SaveOrder(kind, step, **options)
        stall = saver.save(objects, order, step=step, describe=lambda: Description({}, {}), deadline=None)
        assert stall is not None
    directory = savers[0]._arena.seals
    return [json.loads((directory / f"seal-1-{step}-{rank}.json").read_text()) for rank in range(WORLD_SIZE)]


@pytest.mark.parametrize("leaving", [0, 1])
def test_slots_have_room_for_what_a_node_saves_when_it_alone_stays(
    make_savers, objects, no_more_room, leaving
):
    savers = make_savers()
    no_more_room()
    avoid = frozenset(range(leaving * PROCS_PER_NODE, (leaving + 1) * PROCS_PER_NODE))
    rooms = tuple(saver.room() for saver in savers)
    seals = save(savers, objects, 7, avoid=avoid, rooms=rooms)
    expected = plan(take(objects).items, world_size=WORLD_SIZE, avoid=avoid)
    assert {seal["plan"] for seal in seals} == {expected.digest}
    assert [seal["nbytes"] for seal in seals] == list(expected.part_bytes)
    assert all(expected.part_bytes[rank] == 0 for rank in avoid)


def test_without_that_room_every_rank_saves_its_even_share(make_savers, objects, no_more_room, monkeypatch):
    monkeypatch.setattr(arena, "free_memory_bytes", lambda: None)  # no slot is widened
    savers = make_savers()
    no_more_room()
    rooms = tuple(saver.room() for saver in savers)
    seals = save(savers, objects, 7, avoid=frozenset({2, 3}), rooms=rooms)
    expected = plan(take(objects).items, world_size=WORLD_SIZE)
    assert rooms == expected.part_bytes
    assert {seal["plan"] for seal in seals} == {expected.digest}


def test_one_rank_without_the_room_is_enough(make_savers, objects, no_more_room):
    savers = make_savers()
    no_more_room()
    rooms = [saver.room() for saver in savers]
    rooms[1] = plan(take(objects).items, world_size=WORLD_SIZE).part_bytes[1]
    seals = save(savers, objects, 7, avoid=frozenset({2, 3}), rooms=tuple(rooms))
    assert {seal["plan"] for seal in seals} == {plan(take(objects).items, world_size=WORLD_SIZE).digest}


def test_a_slot_has_no_room_until_it_is_claimed(tmp_path, objects):
    slots = Arena(
        directory=tmp_path / "memory",
        spill=tmp_path / "disk",
        handoff=tmp_path,
        generation=1,
        world=World(0, 1, 0, 1),
    )
    saver = Saver(slots)
    assert (saver.room(), saver.can_save()) == (0, False)
    saver.prepare(take(objects).items)
    saver._claiming.join()
    assert saver.room() == sum(item.nbytes for item in take(objects).items)
    assert saver.can_save()
    saver.close()


def test_a_state_that_has_grown_makes_the_other_slot_grow_beside_the_training(
    make_savers, objects, no_more_room
):
    savers = make_savers()
    objects["more"] = torch.nn.Linear(300, 300)
    save(savers, objects, 7, kind=INTERVAL)
    for saver in savers:
        saver._claiming.join()
    no_more_room()
    seals = save(savers, objects, 8, kind=DRAIN)
    assert {seal["plan"] for seal in seals} == {plan(take(objects).items, world_size=WORLD_SIZE).digest}
