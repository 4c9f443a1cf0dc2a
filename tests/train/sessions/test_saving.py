"""One rank's saves: which plan they follow, and when they claim memory."""

import errno
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

from cloudspot.train.distributed import World
from cloudspot.train.errors import SessionError
from cloudspot.train.rounds.save_order import DRAIN, INTERVAL, RESCUE, SaveOrder
from cloudspot.train.sessions.save_way import Way
from cloudspot.train.sessions.saving import Saver
from cloudspot.train.state import arena
from cloudspot.train.state.arena import Arena
from cloudspot.train.state.boundary_marks import Description
from cloudspot.train.state.checkpoint import take
from cloudspot.train.state.overlapped_copy import OverlappedCopy
from cloudspot.train.state.partition import plan

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
    """Save on every rank, and hand over; return the seals by rank."""
    order, store = SaveOrder(kind, step, **options), HashStore()
    copies = []
    for rank, saver in enumerate(savers):
        told = Description({"told": rank}, {"random": rank})
        copies.append(saver.copy(objects, order, step=step, describe=lambda told=told: told, deadline=None))
    for copied in [*copies, *copies]:
        copied.handover.advance(store)
    for saver, copied in zip(savers, copies, strict=True):
        saver.seal(copied)
    paths = savers[0]._arena.seals.glob(f"seal-1-{step}-{order.number}-*.json")
    seals = [json.loads(path.read_text()) for path in paths]
    return {seal["rank"]: seal for seal in seals}


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
    assert {seal["plan"] for seal in seals.values()} == {expected.digest}
    staying = set(range(WORLD_SIZE)) - avoid
    assert {rank: seal["nbytes"] for rank, seal in seals.items()} == {
        rank: expected.part_bytes[rank] for rank in staying
    }
    assert all(seal["relieved"] == sorted(avoid) for seal in seals.values())


def test_what_a_rank_trains_for_the_moment_does_not_change_the_plan(make_savers, objects):
    saver = make_savers()[1]
    expected = saver._plan_for(take(objects).items).digest
    objects["model"][-1].requires_grad_(False)  # as in an evaluation by one rank
    assert saver._plan_for(take(objects).items).digest == expected


def test_without_that_room_every_rank_saves_its_even_share(make_savers, objects, no_more_room, monkeypatch):
    monkeypatch.setattr(arena, "free_memory_bytes", lambda: None)  # no slot is widened
    savers = make_savers()
    no_more_room()
    rooms = tuple(saver.room() for saver in savers)
    seals = save(savers, objects, 7, avoid=frozenset({2, 3}), rooms=rooms)
    expected = plan(take(objects).items, world_size=WORLD_SIZE)
    assert rooms == expected.part_bytes
    assert {seal["plan"] for seal in seals.values()} == {expected.digest}


def test_one_rank_without_the_room_is_enough(make_savers, objects, no_more_room):
    savers = make_savers()
    no_more_room()
    rooms = [saver.room() for saver in savers]
    rooms[1] = plan(take(objects).items, world_size=WORLD_SIZE).part_bytes[1]
    seals = save(savers, objects, 7, avoid=frozenset({2, 3}), rooms=tuple(rooms))
    assert {seal["plan"] for seal in seals.values()} == {
        plan(take(objects).items, world_size=WORLD_SIZE).digest
    }


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
    assert {seal["plan"] for seal in seals.values()} == {
        plan(take(objects).items, world_size=WORLD_SIZE).digest
    }


def test_a_copy_that_is_not_sealed_yet_keeps_its_bytes_while_the_arena_grows(make_savers, objects):
    """It was overwritten with zeros if its slot got more room in that moment, and then sealed."""
    saver = make_savers()[0]
    objects["more"] = torch.nn.ModuleList(torch.nn.Linear(200, 200) for _ in range(20))
    told = Description({}, {"random": 0})
    order = SaveOrder(INTERVAL, 7)
    copied = saver.copy(objects, order, step=7, describe=lambda: told, deadline=None)
    saver._claiming.join()
    held, tensors = copied.slot.path.read_bytes(), take(objects).tensors
    assert copied.content["items"]
    for item in copied.content["items"]:
        expected = tensors[item["name"]].detach().numpy().tobytes()
        assert held[item["offset"] : item["offset"] + item["nbytes"]] == expected


def test_a_save_of_what_survivors_hold_takes_the_place_of_one_that_is_still_copied(
    make_savers, objects, monkeypatch, tmp_path
):
    """As where the main thread hangs in the step after the boundary; nothing more is written to its slot."""
    goes_on, copy_piece = threading.Event(), OverlappedCopy._copy_piece

    def wait(self, *, with_threads):
        goes_on.wait(60)
        return copy_piece(self, with_threads=with_threads)

    monkeypatch.setattr(OverlappedCopy, "_copy_piece", wait)
    monkeypatch.setattr(arena, "_MIN_LATER_BYTES", 1)
    saver, told = make_savers()[0], Description({}, {"random": 0})
    options = {"step": 7, "describe": lambda: told, "deadline": None}
    saver.copy(objects, SaveOrder(INTERVAL, 7, number=1), **options, way=Way.OVERLAPPED)
    assert sum(slot.is_being_written for slot in saver._arena._slots) == 1
    threading.Timer(0.05, goes_on.set).start()
    order = SaveOrder(RESCUE, 7, number=900_001, avoid=frozenset({1, 2, 3}))
    with ThreadPoolExecutor(1) as rescue:
        copied = rescue.submit(saver.copy, objects, order, **options).result(60)
    assert saver.overlapped.is_cancelled
    saver.overlapped.before_write()
    saver.seal(copied)
    (path,) = saver._arena.seals.iterdir()
    seal = json.loads(path.read_text())
    assert (seal["kind"], seal["way"]) == ("rescue", "boundary")
    data, tensors = Path(seal["slot"]).read_bytes(), take(objects).tensors
    assert {item["name"] for item in seal["items"]} == set(tensors)
    for item in seal["items"]:
        expected = tensors[item["name"]].detach().numpy().tobytes()
        assert data[item["offset"] : item["offset"] + item["nbytes"]] == expected
    assert len(list(tmp_path.glob("*/slot-1-0-*"))) == 2


@pytest.mark.parametrize("leaving", [0, 1])
def test_what_only_ranks_of_a_leaving_node_have_is_in_the_others_parts(make_savers, leaving):
    """Buffers of the model are rank 0's, and so is what ranks share where they differ."""
    objects = {"model": torch.nn.BatchNorm1d(1000)}
    savers = make_savers()
    avoid = frozenset(range(leaving * PROCS_PER_NODE, (leaving + 1) * PROCS_PER_NODE))
    seals = save(savers, objects, 7, avoid=avoid, number=3, handover_bytes=10_000)
    assert set(seals) == set(range(WORLD_SIZE)) - avoid
    states = {rank: state for seal in seals.values() for rank, state in seal["rank_states"].items()}
    assert states == {str(rank): {"random": rank} for rank in range(WORLD_SIZE)}
    (told,) = (seal["objects"]["told"] for seal in seals.values() if "0" in seal["rank_states"])
    assert told == 0
    found = {}
    for seal in seals.values():
        data = Path(seal["slot"]).read_bytes()
        for item in seal["items"]:
            found[item["name"]] = data[item["offset"] : item["offset"] + item["nbytes"]]
    state = objects["model"].state_dict()
    assert found == {f"model/{name}": tensor.numpy().tobytes() for name, tensor in state.items()}


def test_ranks_that_have_planned_apart_hand_over_nothing(make_savers, objects):
    order, store = SaveOrder(DRAIN, 7, avoid=frozenset({1}), rooms=(), handover_bytes=0), HashStore()
    zero, one, *_ = make_savers()
    describe = lambda: Description({}, {})  # noqa: E731 - it is called
    given = one.copy({"model": objects["model"][0]}, order, step=7, describe=describe, deadline=None)
    taking = zero.copy(objects, order, step=7, describe=describe, deadline=None)
    given.handover.advance(store)
    assert taking.handover.advance(store)
    with pytest.raises(SessionError, match="hands over a state with plan"):
        zero.seal(taking)


def test_rank_0_is_relieved_only_when_all_that_stay_have_sealed(make_savers, objects):
    """Its process hosts the store that they hear of the round by."""
    order, store = SaveOrder(DRAIN, 7, avoid=frozenset({0, 1})), HashStore()
    zero, one, *_ = (
        saver.copy(objects, order, step=7, describe=lambda: Description({}, {}), deadline=None).handover
        for saver in make_savers()
    )
    assert not zero.advance(store)
    assert not one.advance(store)
    store.set("parted/2", "1")
    assert not zero.advance(store)
    store.set("parted/3", "1")
    assert zero.advance(store)
    assert one.advance(store)
