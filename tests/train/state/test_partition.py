"""The plan is a pure function: every rank computes the same table alone."""

import dataclasses
import hashlib
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudspot.jobstore.checkpoints.parts import chunk_runs
from cloudspot.train.state import partition
from cloudspot.train.state.boxes import Box
from cloudspot.train.state.partition import Item, Shard, cuts, plan

WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "uint8": 1}


@st.composite
def tables(draw):
    names = draw(st.lists(st.text("abc/.", min_size=1, max_size=8), unique=True, max_size=30))
    items = []
    for name in names:
        dtype = draw(st.sampled_from(sorted(WIDTHS)))
        shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
        items.append(Item(name, dtype, shape, WIDTHS[dtype], pinned=draw(st.integers(0, 9)) == 0))
    return items


@pytest.mark.full
@given(items=tables(), world_size=st.integers(1, 9), avoid=st.sets(st.integers(0, 8)))
def test_each_item_lies_in_exactly_one_part_aligned_and_without_holes(items, world_size, avoid):
    made = plan(items, world_size=world_size, avoid=avoid)
    assert len(made.parts) == len(made.part_bytes) == world_size
    placed = [placement.item for part in made.parts for placement in part]
    assert sorted(placed, key=lambda i: i.name) == sorted(items, key=lambda i: i.name)
    for part, nbytes in zip(made.parts, made.part_bytes, strict=True):
        end = 0
        for placement in part:
            assert placement.offset == end
            assert placement.offset % placement.item.itemsize == 0
            end += placement.item.nbytes
        assert end == nbytes


@pytest.mark.full
@given(items=tables(), world_size=st.integers(1, 9), avoid=st.sets(st.integers(0, 8)))
def test_a_rank_that_is_about_to_go_gets_nothing_but_what_is_pinned(items, world_size, avoid):
    made = plan(items, world_size=world_size, avoid=avoid)
    if len(avoid & set(range(world_size))) == world_size:
        assert made == plan(items, world_size=world_size)
        return
    for rank in avoid & set(range(world_size)):
        assert all(placement.item.pinned and rank == 0 for placement in made.parts[rank])


@pytest.mark.full
@given(items=tables(), world_size=st.integers(1, 9), avoid=st.sets(st.integers(0, 8)), data=st.data())
def test_ranks_are_avoided_only_while_every_part_fits_its_slot(items, world_size, avoid, data):
    wanted = plan(items, world_size=world_size, avoid=avoid)
    spare = data.draw(st.lists(st.integers(-2, 3), min_size=world_size, max_size=world_size))
    rooms = [nbytes + extra for nbytes, extra in zip(wanted.part_bytes, spare, strict=True)]
    made = plan(items, world_size=world_size, avoid=avoid, rooms=rooms)
    assert made == (wanted if min(spare) >= 0 else plan(items, world_size=world_size))


@pytest.mark.full
@given(items=tables(), world_size=st.integers(1, 9))
def test_no_rank_carries_more_than_the_even_share_and_one_item(items, world_size):
    free = [Item(i.name, i.dtype, i.shape, i.itemsize) for i in items]
    made = plan(free, world_size=world_size)
    largest = max((item.nbytes for item in free), default=0)
    assert max(made.part_bytes) <= sum(made.part_bytes) / world_size + largest


@st.composite
def sharded(draw, world_size):
    """A tensor divided along its first dimension, each box held by some ranks."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=world_size))
    holders = st.sets(st.integers(0, world_size - 1), min_size=1).map(sorted).map(tuple)
    shards = [
        Shard(Box((sum(lengths[:number]), 0), (length, 2)), draw(holders))
        for number, length in enumerate(lengths)
    ]
    return Item(draw(st.text("xyz", min_size=1)), "float32", (sum(lengths), 2), 4, shards=tuple(shards))


@pytest.mark.full
@given(items=tables(), world_size=st.integers(1, 9), avoid=st.sets(st.integers(0, 8)), data=st.data())
def test_each_shard_goes_to_one_of_its_holders_and_to_a_doomed_one_only_if_no_other_has_it(
    items, world_size, avoid, data
):
    split = data.draw(st.lists(sharded(world_size), max_size=4, unique_by=lambda item: item.name))
    made = plan([*items, *split], world_size=world_size, avoid=avoid)
    lines = [(rank, placement) for rank, part in enumerate(made.parts) for placement in part]
    holders = {(item.name, shard.box): shard.holders for item in split for shard in item.shards}
    placed = {(each.item.name, each.box): rank for rank, each in lines if each.box is not None}
    assert placed.keys() == holders.keys()
    assert len(lines) == len(items) + len(placed)
    is_open = set(range(world_size)) - avoid or set(range(world_size))
    for which, rank in placed.items():
        assert rank in holders[which]
        assert rank in is_open or not is_open.intersection(holders[which])
    check_offsets(made)


def check_offsets(made):
    for part, nbytes in zip(made.parts, made.part_bytes, strict=True):
        ends = [0, *(each.offset + each.nbytes for each in part)]
        assert [each.offset for each in part] == ends[:-1]
        assert ends[-1] == nbytes
        assert all(each.offset % each.item.itemsize == 0 for each in part)


def test_what_all_hold_evens_out_what_few_do():
    shards = (Shard(Box((0,), (8,)), (0,)), Shard(Box((8,), (2,)), (1,)), Shard(Box((10,), (2,)), (0, 1, 2)))
    items = [
        Item("a", "float32", (12,), 4, shards=shards),
        Item("b", "float32", (6,), 4),
        Item("c", "int8", (4,), 1),
    ]
    made = plan(items, world_size=3)
    assert [[(p.item.name, p.box and p.box.offset) for p in part] for part in made.parts] == [
        [("a", (0,))],
        [("a", (8,)), ("b", None)],
        [("a", (10,)), ("c", None)],
    ]
    assert made.parts[1][0].to_json() == {
        "name": "a", "dtype": "float32", "shape": [2], "offset": 0, "nbytes": 8,
        "global_shape": [12], "global_offset": [8],
    }  # fmt: skip


@pytest.mark.full
@given(items=tables(), world_size=st.integers(1, 9), seed=st.integers())
def test_the_order_of_the_items_changes_nothing(items, world_size, seed):
    shuffled = list(items)
    random.Random(seed).shuffle(shuffled)
    assert plan(shuffled, world_size=world_size) == plan(items, world_size=world_size)


def test_buffers_are_rank_0s_even_when_its_machine_is_about_to_go():
    items = [Item("model/w", "float32", (8,), 4), Item("model/mean", "float32", (8,), 4, pinned=True)]
    made = plan(items, world_size=2, avoid={0})
    assert [[p.item.name for p in part] for part in made.parts] == [["model/mean"], ["model/w"]]


def test_ranks_that_are_lost_write_nothing_and_the_first_that_stays_writes_its_own_buffers():
    items = [Item("model/w", "float32", (8,), 4), Item("model/mean", "float32", (4,), 4, pinned=True)]
    made = plan(items, world_size=4, avoid={0, 2}, are_lost=True)
    written = [[(p.item.name, p.giver) for p in part] for part in made.parts]
    assert written == [[], [("model/mean", None)], [], [("model/w", None)]]
    assert made.takers.keys() == {0, 2}
    assert made.digest != plan(items, world_size=4, avoid={0}, are_lost=True).digest


def test_the_buffers_of_a_lost_rank_0_are_written_by_the_rank_that_keeps_them():
    items = [Item("model/w", "float32", (8,), 4), Item("model/mean", "float32", (4,), 4, pinned=True)]
    made = plan(items, world_size=4, avoid={0, 2}, are_lost=True, buffers_from=3)
    assert [[p.item.name for p in part] for part in made.parts] == [[], ["model/w"], [], ["model/mean"]]


def test_a_part_that_only_lost_ranks_held_cannot_be_planned():
    box = Box((0,), (8,))
    items = [Item("model/w", "float32", (8,), 4, shards=(Shard(box, (0, 1)),))]
    assert plan(items, world_size=3, avoid={0, 2}, are_lost=True).part_bytes == (0, 32, 0)
    with pytest.raises(LookupError, match="a part of model/w was held only by ranks that were lost"):
        plan(items, world_size=3, avoid={0, 1}, are_lost=True)


@pytest.mark.parametrize(
    "other",
    [
        Item("model/w", "float32", (4, 2), 4),
        Item("model/w", "int32", (8,), 4),
        Item("model/v", "float32", (8,), 4),
    ],
)
def test_the_digest_tells_tables_apart(other):
    one = plan([Item("model/w", "float32", (8,), 4)], world_size=1)
    assert one.digest != plan([other], world_size=1).digest
    assert one.digest != plan([Item("model/w", "float32", (8,), 4)], world_size=2).digest


def test_the_digest_can_be_computed_from_the_seals():
    made = plan([Item("a", "uint8", (3,), 1), Item("b", "float64", (2, 2), 8)], world_size=2)
    table = [[rank, [placement.to_json() for placement in part]] for rank, part in enumerate(made.parts)]
    text = json.dumps(json.loads(json.dumps(table)), sort_keys=True, separators=(",", ":"))
    assert made.digest == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.full
@given(
    items=tables(), world_size=st.integers(2, 9), avoid=st.sets(st.integers(0, 8), min_size=1), data=st.data()
)
def test_what_only_doomed_ranks_have_is_handed_to_those_who_stay(items, world_size, avoid, data):
    split = data.draw(st.lists(sharded(world_size), max_size=4, unique_by=lambda item: item.name))
    made = plan([*items, *split], world_size=world_size, avoid=avoid, handover_bytes=1 << 40)
    staying = set(range(world_size)) - avoid
    if not staying:
        assert made == plan([*items, *split], world_size=world_size)
        return
    assert set(made.takers) == avoid & set(range(world_size))
    assert set(made.takers.values()) <= staying
    check_offsets(made)
    holders = {(item.name, shard.box): set(shard.holders) for item in split for shard in item.shards}
    num_placed = 0
    for rank, part in enumerate(made.parts):
        assert rank in staying or part == ()
        for each in part:
            num_placed += 1
            able = holders.get((each.item.name, each.box), {0} if each.item.pinned else staying)
            assert each.giver in able - staying if each.giver is not None else rank in able
            assert each.giver is None or (not able & staying and made.takers[each.giver] == rank)
            assert each.giver is None or each in made.handed_over(each.giver)
    assert num_placed == len(items) + len(holders)


def test_what_is_too_large_to_be_handed_over_stays_with_the_doomed_rank():
    item = Item("w", "float32", (8,), 4, shards=(Shard(Box((0,), (4,)), (0,)), Shard(Box((4,), (4,)), (1,))))
    handed = plan([item], world_size=2, avoid={1}, handover_bytes=16)
    assert ([len(part) for part in handed.parts], handed.takers) == ([2, 0], {1: 0})
    for too_large in (
        plan([item], world_size=2, avoid={1}, handover_bytes=15),
        plan([item], world_size=2, avoid={1}, handover_bytes=16, rooms=(16, 16)),
    ):
        assert ([len(part) for part in too_large.parts], too_large.takers) == ([1, 1], {})
    assert handed.digest != too_large.digest


# --- what is not trained ----------------------------------------------------------------------------


def named_chunks(items, chunk_bytes):
    """Return the chunks of rank 0's part, each as the runs of items that it holds."""
    part = plan(items, world_size=1).parts[0]
    size = sum(placement.nbytes for placement in part)
    found = []
    for start, length in chunk_runs(size, cuts(part), chunk_bytes):
        held = []
        for placement in part:
            first = max(start, placement.offset) - placement.offset
            last = min(start + length, placement.offset + placement.nbytes) - placement.offset
            if first < last:
                held.append((placement.item.name, first, last))
        found.append(tuple(held))
    return found


@pytest.mark.full
@given(items=tables(), frozen=st.sets(st.integers(0, 29)), chunk_bytes=st.integers(1, 64))
def test_no_chunk_holds_both_what_is_trained_and_what_is_not(items, frozen, chunk_bytes):
    kinds = {}
    for number, item in enumerate(items):
        items[number] = dataclasses.replace(item, is_frozen=number in frozen)
        kinds[item.name] = number in frozen
    for chunk in named_chunks(items, chunk_bytes):
        assert len({kinds[name] for name, _, _ in chunk}) == 1


def test_a_large_frozen_item_makes_the_same_chunks_wherever_it_lies(monkeypatch):
    monkeypatch.setattr(partition, "OWN_CHUNK_BYTES", 400)
    large = Item("b", "float32", (100,), 4, is_frozen=True)
    small = Item("c", "float32", (3,), 4, is_frozen=True)
    alone = [chunk for chunk in named_chunks([large, small], 256) if chunk[0][0] == "b"]
    assert alone == [(("b", 0, 256),), (("b", 256, 400),)]
    for size in (1, 17, 300):
        before = Item("a", "float32", (size,), 4, is_frozen=True)
        wide = Item("w", "float64", (size,), 8)
        after = Item("z", "float32", (size,), 4)
        chunks = named_chunks([before, large, small, wide, after], 256)
        assert [chunk for chunk in chunks if chunk[0][0] == "b"] == alone


def test_items_that_all_train_are_not_cut_apart():
    items = [Item(name, "float32", (50,), 4) for name in "abc"]
    assert cuts(plan(items, world_size=1).parts[0]) == []
