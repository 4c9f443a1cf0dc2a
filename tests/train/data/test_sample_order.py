"""Worlds of other sizes in the middle of an epoch: every sample is taken once, counted."""

import itertools
import json
import logging
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from cloudspot.train import CheckpointError
from cloudspot.train.data import sample_order
from cloudspot.train.data.resumable_batches import ResumableBatches
from cloudspot.train.data.sample_order import SampleOrder
from cloudspot.train.state import randomness

EPOCHS = 3
ALONE = ("distributed", "in order", "shuffle", "own generator", "sampler's generator")
"""The loaders whose order is known in a world of one rank; in others only the first's is."""


def make_loader(num_samples, world_size, rank, *, kind="distributed", batch_size=4, **options):
    data = range(num_samples)
    generator = torch.Generator().manual_seed(5)
    sampler_drops = options.pop("sampler_drops", False)
    if kind == "distributed" or world_size > 1:
        options["sampler"] = DistributedSampler(data, world_size, rank, seed=3, drop_last=sampler_drops)
    elif kind == "shuffle":
        options["shuffle"] = True
    elif kind == "own generator":
        options.update(shuffle=True, generator=generator)
    elif kind == "sampler's generator":
        options["sampler"] = RandomSampler(data, generator=generator)
    return DataLoader(data, batch_size=batch_size, **options)


class World:
    """All ranks of a world in one process, in lockstep as DistributedDataParallel keeps them."""

    def __init__(self, num_samples, world_size, position=None, old_size=None, own=None, **options):
        self.feeds = []
        for rank in range(world_size):
            loader = make_loader(num_samples, world_size, rank, **options)
            feed = ResumableBatches(loader, epochs=EPOCHS, world_size=world_size, rank=rank)
            if position is not None:
                feed.resume(position, None if own is None else own[rank], world_size=old_size)
            self.feeds.append(feed)

    def step(self):
        """Return what all ranks took, in the epoch's order; None after the last epoch."""
        (left,) = {feed.batches_left for feed in self.feeds}
        batches = [feed.fetch() for feed in self.feeds]
        if None in batches:
            assert batches == [None] * len(batches), "ranks of different numbers of steps wait for each other"
            assert left == 0
            return None
        (still_left,) = {feed.batches_left for feed in self.feeds}
        assert still_left == left - 1
        taken = [batch[0].tolist() for batch in batches]
        assert len({len(each) for each in taken}) == 1
        return list(itertools.chain(*zip(*taken, strict=True)))

    @property
    def epoch(self):
        (epoch,) = {feed.epoch for feed in self.feeds}
        return epoch

    def take(self):
        """Return the position as a checkpoint holds it."""
        positions = [json.loads(json.dumps(feed.take()[0])) for feed in self.feeds]
        assert all(each == positions[0] for each in positions)
        return positions[0]


def epoch_order(num_samples, epoch, *, seed=3):
    sampler = DistributedSampler(range(num_samples), 1, 0, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def undisturbed_order(num_samples, kind, epoch):
    """Return what a loader of one rank takes in an epoch, by iterating it."""
    loader = make_loader(num_samples, 1, 0, kind=kind, batch_size=1)
    order = []
    for number in range(epoch + 1):
        if kind == "distributed":
            loader.sampler.set_epoch(number)
        order = [int(batch) for batch in loader]
    return order


def run_epoch(num_samples, worlds, *, epoch, kind="distributed", chance, **options):
    """Go through an epoch in worlds of several sizes, and return all that was taken, in order.

    Args:
        worlds: The sizes, each with its batch size; each goes on for a part of what is left.
        epoch: Which one; those before are the first world's.
    """
    taken, position, old_size, world = [], None, None, None
    torch.manual_seed(8)
    for index, (world_size, batch_size) in enumerate(worlds):
        own, state = None, randomness.capture()
        if world_size == old_size:
            own = [feed.take()[1] for feed in world.feeds]
        else:
            options["batch_size"] = batch_size
        world = World(num_samples, world_size, position, old_size, own, kind=kind, **options)
        randomness.restore(state)
        if index == 0:
            while world.epoch < epoch or world.feeds[0]._batch == 0:
                step = world.step()
                if step is None:
                    return []  # an epoch without a single batch
            assert world.epoch == epoch
            taken += step
        (left,) = {feed.batches_left for feed in world.feeds}
        left -= (EPOCHS - 1 - epoch) * len(world.feeds[0]._loader)
        last = index == len(worlds) - 1
        for _ in range(left if last else chance.randrange(left + 1)):
            taken += world.step()
        position, old_size = world.take(), world_size
        if position["epoch"] > epoch:
            break
        assert position["samples"] == len(taken)
    assert position["epoch"] == epoch + 1
    assert (position["batch"], position["base"], position["samples"]) == (0, 0, 0)
    # The next epoch is the loader's own again.
    fresh = make_loader(num_samples, world_size, 0, kind=kind, **options)
    rank_0 = world.feeds[0]
    assert rank_0.batches_left == (EPOCHS - 1 - epoch) * len(fresh)
    if kind == "distributed" and len(fresh) > 0 and epoch + 1 < EPOCHS:
        fresh.sampler.set_epoch(epoch + 1)
        expected = [batch.tolist() for batch in fresh]
        assert [rank_0.fetch()[0].tolist() for _ in expected] == expected
    return taken


def check_counts(taken, order, worlds, **drops):
    """Every sample once, but for what the end of any epoch repeats or drops."""
    repeated = list(itertools.islice(itertools.cycle(order), len(taken)))
    assert sorted(taken) == sorted(repeated)
    # The end may have come in any of the worlds.
    ranks = max(world_size for world_size, _ in worlds)
    assert len(taken) < len(order) + ranks
    if not any(drops.values()):
        assert len(taken) >= len(order)
    else:
        assert len(taken) > len(order) - max(ranks * batch_size for ranks, batch_size in worlds)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (2, 3), (3, 1, 2), (1, 3, 1, 2)])
@pytest.mark.parametrize("num_samples", [96, 101])
def test_every_sample_of_the_epoch_is_taken_once(num_samples, sizes, epoch):
    order = epoch_order(num_samples, epoch)
    for seed in range(10):
        worlds = [(size, 4) for size in sizes]
        taken = run_epoch(num_samples, worlds, epoch=epoch, chance=random.Random(seed))
        check_counts(taken, order, worlds)
        assert taken[:num_samples] == order


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("sizes", [(1, 2), (1, 3, 1), (1, 1, 2)])
def test_one_rank_shares_with_more_what_its_own_sampler_began(kind, sizes, epoch):
    torch.manual_seed(8)
    order = undisturbed_order(37, kind, epoch)
    # The batch size counts: the generators are drawn from in between.
    for seed in range(5):
        worlds = [(size, 1 + seed) for size in sizes]
        taken = run_epoch(37, worlds, epoch=epoch, kind=kind, chance=random.Random(seed))
        assert taken[:37] == order
        check_counts(taken, order, worlds)


def test_a_change_in_each_epoch_counts_from_that_epochs_beginning():
    taken, position, old_size = {0: [], 1: [], 2: []}, None, None
    for world_size, num_steps in [(2, 3), (1, 16), (3, 4), (2, 100)]:
        world = World(50, world_size, position, old_size)
        for _ in range(num_steps):
            step = world.step()
            if step is None:
                break
            taken[world.epoch] += step
        position, old_size = world.take(), world_size
        if position["epoch"] < EPOCHS:
            assert position["samples"] == len(taken[position["epoch"]])
    assert {epoch: each[:50] for epoch, each in taken.items()} == {
        epoch: epoch_order(50, epoch) for epoch in range(EPOCHS)
    }
    assert all(50 <= len(each) < 53 for each in taken.values())


@pytest.mark.full
@given(
    num_samples=st.integers(1, 70),
    worlds=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=4),
    epoch=st.integers(0, EPOCHS - 1),
    drop_last=st.booleans(),
    sampler_drops=st.booleans(),
    chance=st.randoms(use_true_random=False),
)
def test_counts_hold_for_any_sizes(num_samples, worlds, epoch, drop_last, sampler_drops, chance):
    taken = run_epoch(
        num_samples, worlds, epoch=epoch, chance=chance, drop_last=drop_last, sampler_drops=sampler_drops
    )
    check_counts(
        taken, epoch_order(num_samples, epoch), worlds, drop_last=drop_last, sampler_drops=sampler_drops
    )


@pytest.mark.full
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_the_order_is_known_with_workers_too(persistent_workers, epoch):
    """Workers that stay draw no seed in later epochs; and the loader of the share has workers of its own."""
    options = {"num_workers": 1, "persistent_workers": persistent_workers}
    torch.manual_seed(8)
    loader = make_loader(23, 1, 0, kind="shuffle", **options)
    order = []
    for _ in range(epoch + 1):
        order = torch.cat(list(loader)).tolist()
    torch.manual_seed(8)
    world = World(23, 1, kind="shuffle", **options)
    for _ in range(6 * epoch):
        world.step()
    taken = world.step() + world.step() + world.step()
    assert world.epoch == epoch
    torch.rand(3)
    resumed = World(23, 2, world.take(), 1, **options)
    taken += resumed.step() + resumed.step()
    assert taken[:23] == order
    assert len(taken) == 24
    assert resumed.take()["epoch"] == epoch + 1
    for feed in (*world.feeds, *resumed.feeds):
        feed.close()


class Augmented(Dataset):
    def __init__(self, num_samples):
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        return index + torch.rand(1).item() / 2 + random.random() / 4


@pytest.mark.parametrize("num_taken", [0, 1, 3, 5])
def test_within_a_share_a_world_of_the_same_size_goes_on_bit_equal(num_taken):
    def make():
        data = Augmented(41)
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, 1, seed=3))
        return ResumableBatches(loader, epochs=2, world_size=2, rank=1)

    def rest(feed):
        seen = []
        while (batch := feed.fetch()) is not None:
            seen.append((feed.epoch, batch[0].tolist(), torch.rand(1).item(), random.random()))
        return seen

    saved = World(41, 1)
    saved.step()
    position = saved.take()
    feed = make()
    feed.resume(position, None, world_size=1)
    randomness.reseed(1, 2, 3)
    for _ in range(num_taken):
        feed.fetch()
        torch.rand(1)
    state = randomness.capture()
    position, rank_position = feed.take()
    undisturbed = rest(feed)
    # 37 samples are left: 19 for this rank, in 5 batches; then an epoch of 21 in 6.
    assert len(undisturbed) == 11 - num_taken
    other = make()
    other.resume(json.loads(json.dumps(position)), rank_position, world_size=2)
    randomness.restore(state)
    assert rest(other) == undisturbed


@pytest.mark.full
def test_the_loader_of_a_share_is_like_the_scripts_own():
    def collate(batch):
        return ("collated", batch)

    class Own(DataLoader):
        """Has arguments that nobody knows."""

        def __init__(self, data, color, **options):
            super().__init__(data, **options)
            self.color = color

    generator = torch.Generator()
    loader = Own(
        range(10),
        "red",
        batch_size=3,
        drop_last=True,
        collate_fn=collate,
        generator=generator,
        sampler=DistributedSampler(range(10), 1, 0),
        timeout=5,
        num_workers=2,
        prefetch_factor=3,
        persistent_workers=True,
        worker_init_fn=collate,
        multiprocessing_context="fork",
    )
    other = sample_order.loader_over(loader, [4, 2, 0, 6])
    assert isinstance(other, Own)
    for name, value in vars(loader).items():
        if name not in {"sampler", "batch_sampler", "persistent_workers", "_iterator"}:
            assert vars(other)[name] is value, name
    assert list(other) == [("collated", [4, 2, 0])]
    assert len(other) == 1
    assert not other.persistent_workers
    assert loader._iterator is None
    assert len(loader.batch_sampler) == 3


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(40)


def stateful(world_size):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(range(40), batch_size=4, sampler=DistributedSampler(range(40), world_size, 0))


UNKNOWN = {
    "the loader is a list": lambda size: [1, 2, 3, 4, 5, 6, 7],
    "its dataset is iterable": lambda size: DataLoader(Stream(), batch_size=4),
    "the loader does not make the batches itself": lambda size: DataLoader(
        range(40), batch_sampler=BatchSampler(DistributedSampler(range(40), size, 0), 4, drop_last=False)
    ),
    "the order of its WeightedRandomSampler is not known": lambda size: DataLoader(
        range(40), batch_size=4, sampler=WeightedRandomSampler([1.0] * 40, 40)
    ),
    "the order of its list is not known": lambda size: DataLoader(
        range(40), batch_size=4, sampler=list(range(40))
    ),
    "its SequentialSampler does not share among ranks": lambda size: DataLoader(range(40), batch_size=4),
    "its DistributedSampler shares among 7 ranks": lambda size: DataLoader(
        range(40), batch_size=1, sampler=DistributedSampler(range(40), 7, 0)
    ),
    "the loader is a StatefulDataLoader": stateful,
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("reason", UNKNOWN)
def test_where_the_order_is_not_known_it_goes_on_at_a_whole_batch_and_says_so(reason, caplog):
    saved = ResumableBatches(UNKNOWN[reason](3), epochs=1, world_size=3)
    saved.fetch()
    saved.fetch()
    position, _ = saved.take()
    assert position["order"] is None
    for rank in (1, 0):
        resumed = ResumableBatches(UNKNOWN[reason](2), epochs=1, world_size=2, rank=rank)
        assert caplog.messages == []
        resumed.resume(position, None, world_size=3)
        assert resumed.take()[0]["batch"] == 3
    message = f"a checkpoint of 3 ranks is resumed by 2 in the middle of epoch 0, but {reason}: "
    message += "some of the epoch's samples may be used twice"
    assert caplog.record_tuples == [("cloudspot", logging.WARNING, message)]


def test_an_order_that_the_saving_loader_did_not_tell_is_not_made_up(caplog):
    saved = ResumableBatches(
        DataLoader(range(40), batch_size=4, sampler=list(range(40))), epochs=1, world_size=1
    )
    saved.fetch()
    resumed = ResumableBatches(make_loader(40, 2, 0), epochs=1, world_size=2)
    resumed.resume(saved.take()[0], None, world_size=1)
    assert "the order of its samples was not known when it was saved" in caplog.text


def test_a_dataset_of_another_length_goes_on_at_a_whole_batch(caplog):
    saved = World(40, 2)
    saved.step()
    saved.step()
    resumed = World(44, 1, saved.take(), 2)
    assert resumed.take()["batch"] == 4
    assert "the dataset has 44 samples and had 40" in caplog.text


def test_a_random_sampler_that_repeats_or_leaves_out_has_no_order():
    for sampler in (RandomSampler(range(9), replacement=True), RandomSampler(range(9), num_samples=5)):
        reason = sample_order.obstacle(DataLoader(range(9), batch_size=2, sampler=sampler), world_size=1)
        assert reason == "its RandomSampler does not take every sample once"


def test_finding_an_order_draws_nothing():
    for kind in ALONE:
        loader = make_loader(20, 1, 0, kind=kind)
        torch.manual_seed(1)
        own = None if loader.sampler is None else getattr(loader.sampler, "generator", None)
        before = torch.get_rng_state(), None if own is None else own.get_state()
        first = sample_order.find_order(loader, world_size=1)
        second = sample_order.find_order(loader, world_size=1)
        assert first.indices().tolist() == second.indices().tolist()
        assert torch.equal(torch.get_rng_state(), before[0])
        assert own is None or torch.equal(own.get_state(), before[1])
        assert SampleOrder.from_json(json.loads(json.dumps(first.to_json()))).indices().tolist() == (
            first.indices().tolist()
        )


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"length": 5, "seed": 1},
        {"length": -1, "seed": None, "state": None},
        {"length": 5.0, "seed": None, "state": None},
        {"length": 2**62, "seed": None, "state": None},
        {"length": 5, "seed": "1", "state": None},
        {"length": 5, "seed": 2**70, "state": None},
        {"length": 5, "seed": None, "state": "x"},
        {"length": 5, "seed": None, "state": {"$tensor": {"dtype": "uint8", "shape": [3], "data": "AAAA"}}},
        {"length": 5, "seed": None, "state": {"$item": "x"}},
    ],
)
def test_a_malformed_order_is_named(value):
    with pytest.raises(CheckpointError, match="order of samples"):
        SampleOrder.from_json(value).indices()


def test_a_position_beyond_the_epoch_is_refused():
    position = {"epoch": 0, "batch": 1, "base": 0, "samples": 41, "order": SampleOrder(40).to_json()}
    with pytest.raises(CheckpointError, match="after 41 samples, but its epoch has only 40"):
        World(40, 2, position, 1)


class Reversed(SequentialSampler):
    def __iter__(self):
        return reversed(range(len(self.data_source)))


class Counted(list):
    """A dataset that keeps a state."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(range(8))


DATA = [*range(8)]


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (DataLoader(DATA, 2), None),
        (DataLoader(DATA, 2, sampler=DistributedSampler(DATA, 2, 1)), None),
        (DataLoader(DATA, batch_sampler=BatchSampler(DistributedSampler(DATA, 2, 1), 2, False)), None),
        ([[0, 1], [2, 3]], None),
        (iter([[0, 1], [2, 3]]), "the order of the list_iterator is not known"),
        (DataLoader(DATA, 2, shuffle=True), "its RandomSampler shuffles by a generator of this rank"),
        (DataLoader(DATA, 2, sampler=Reversed(DATA)), "the order of its Reversed is not known"),
        (DataLoader(DATA, batch_sampler=[[0, 1], [2, 3]]), "the order of its list is not known"),
        (DataLoader(Streamed()), "the dataset is iterable"),
        (DataLoader(Counted(DATA)), "its dataset or sampler has a state of its own"),
    ],
)
def test_why_other_ranks_cannot_tell_which_samples_come_next(loader, reason):
    assert sample_order.own_order(loader) == reason
