"""Loops over batches: resumed in the middle of an epoch, the same data comes in the same order."""

# ruff: noqa: NPY002 - NumPy's global generator is what must come back

import contextlib
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

import cloudspot.train as spot
from cloudspot.train import handoff
from cloudspot.train.data.resumable_batches import ResumableBatches
from cloudspot.train.distributed import World
from cloudspot.train.sessions import opening
from cloudspot.train.state import randomness

NUM_SAMPLES = 22


class Augmented(Dataset):
    """Draws from all three generators for each sample, in the process that loads it."""

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return index + torch.rand(1).item() / 4 + random.random() / 4 + float(np.random.rand()) / 4


class Plain(Dataset):
    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return float(index)


class Buckets(BatchSampler):
    def __init__(self):
        super().__init__(range(NUM_SAMPLES), 5, drop_last=False)

    def set_epoch(self, epoch):
        self.batch_size = 5 - epoch


class Stream(IterableDataset):
    def __iter__(self):
        yield from (float(each) for each in range(NUM_SAMPLES))


class StatefulStream(IterableDataset):
    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < NUM_SAMPLES:
            self.position += 1
            yield float(self.position)
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Counting(IterableDataset):
    """Is in another order each time that it is iterated."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        yield from np.random.default_rng(self.epoch).permutation(NUM_SAMPLES).astype(float).tolist()


class KeepsCount(Counting):
    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


class IsTold(KeepsCount):
    def set_epoch(self, epoch):
        self.epoch = epoch


class CountingSampler(Sampler):
    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return NUM_SAMPLES

    def __iter__(self):
        self.epoch += 1
        yield from np.random.default_rng(self.epoch).permutation(NUM_SAMPLES).tolist()


class SamplerThatKeepsCount(CountingSampler):
    state_dict, load_state_dict = KeepsCount.state_dict, KeepsCount.load_state_dict


class OwnLoader:
    """Counts its epochs, and knows its position."""

    def __init__(self):
        self.epoch, self.used, self.resumed = 0, 0, False

    def __iter__(self):
        if not self.resumed:
            self.epoch, self.used = self.epoch + 1, 0
        self.resumed = False
        order = np.random.default_rng(self.epoch).permutation(NUM_SAMPLES).astype(float)
        while self.used < 6:
            self.used += 1
            yield torch.tensor(order[4 * self.used - 4 : 4 * self.used])

    def state_dict(self):
        return {"epoch": self.epoch, "used": self.used}

    def load_state_dict(self, state):
        self.epoch, self.used, self.resumed = state["epoch"], state["used"], True


def stateful(dataset, **options):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, **options)


LOADERS = {
    "buckets": lambda: DataLoader(Plain(), batch_sampler=Buckets()),
    "plain": lambda: DataLoader(Augmented(), batch_size=4, shuffle=True),
    "drop last": lambda: DataLoader(Augmented(), batch_size=4, shuffle=True, drop_last=True),
    "in order": lambda: DataLoader(Augmented(), batch_size=4),
    "own generator": lambda: DataLoader(
        Augmented(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(9)
    ),
    "sampler's generator": lambda: DataLoader(
        Augmented(), batch_size=4, sampler=RandomSampler(range(NUM_SAMPLES), generator=torch.Generator())
    ),
    "with replacement": lambda: DataLoader(
        Augmented(), batch_size=4, sampler=WeightedRandomSampler([1.0] * NUM_SAMPLES, NUM_SAMPLES)
    ),
    "batch sampler": lambda: DataLoader(
        Augmented(), batch_sampler=BatchSampler(RandomSampler(range(NUM_SAMPLES)), 5, drop_last=False)
    ),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "list": lambda: [torch.tensor([float(each)]) for each in range(6)],
    "stateful": lambda: stateful(Augmented(), batch_size=4, shuffle=True),
    "stateful with its own generator": lambda: stateful(
        Augmented(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(9)
    ),
    "keeps count": lambda: DataLoader(KeepsCount(), batch_size=4),
    "is told": lambda: DataLoader(IsTold(), batch_size=4),
    "sampler that keeps count": lambda: DataLoader(Plain(), batch_size=4, sampler=SamplerThatKeepsCount()),
    "own loader": OwnLoader,
    "stateful stream": lambda: stateful(StatefulStream(), batch_size=4),
}
# Worker processes draw from generators of their own, so only datasets that draw nothing are told apart here.
WORKER_LOADERS = {
    "plain, 2 workers": lambda: DataLoader(Plain(), batch_size=4, shuffle=True, num_workers=2),
    "persistent workers": lambda: DataLoader(
        Plain(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "stateful, 2 workers": lambda: stateful(Plain(), batch_size=4, shuffle=True, num_workers=2),
    "stateful stream, 1 worker": lambda: stateful(StatefulStream(), batch_size=4, num_workers=1),
}


def consume(run, loader, *, epochs, stop=None):
    """Return what each step saw: its step, epoch, data, and a draw as a dropout would make it."""
    seen = []
    for batch in run.batches(loader, epochs=epochs):
        draw = (torch.rand(1).item(), random.random(), float(np.random.rand()))
        seen.append((run.step, run.epoch, batch.tolist(), draw))
        if stop is not None and run.step == stop:
            return seen
    return seen


def seed():
    torch.manual_seed(11)
    random.seed(12)
    np.random.seed(13)


def interrupted(open_session, courier, make_loader, *, stop, epochs):
    """Return what is seen by a run that is saved at ``stop`` and by the one that goes on from it."""
    seed()
    run = open_session(courier.begin(), model=torch.nn.Linear(1, 1))
    first = []
    with pytest.raises(SystemExit):
        for batch in run.batches(make_loader(), epochs=epochs):
            draw = (torch.rand(1).item(), random.random(), float(np.random.rand()))
            first.append((run.step, run.epoch, batch.tolist(), draw))
            if run.step == stop - 1:
                courier.drain()
                while run._service._link.rounds._hold is None:
                    pass
    assert len(first) == stop
    random.seed(99)  # whatever a fresh process draws before the loop
    run = open_session(courier.begin(courier.carry(stop)), model=torch.nn.Linear(1, 1))
    rest = []
    for batch in run.batches(make_loader(), epochs=epochs):
        draw = (torch.rand(1).item(), random.random(), float(np.random.rand()))
        rest.append((run.step, run.epoch, batch.tolist(), draw))
    return first, rest


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("stop", [1, 5, 6, 8, 11])
@pytest.mark.parametrize("name", LOADERS)
def test_a_resumed_loop_sees_what_an_undisturbed_one_sees(open_session, courier, name, stop):
    seed()
    undisturbed = consume(open_session({}, model=torch.nn.Linear(1, 1)), LOADERS[name](), epochs=3)
    first, rest = interrupted(open_session, courier, LOADERS[name], stop=stop, epochs=3)
    assert first == undisturbed[:stop]
    assert rest == undisturbed[stop:]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("stop", [6, *(pytest.param(stop, marks=pytest.mark.full) for stop in (3, 9))])
@pytest.mark.parametrize("name", WORKER_LOADERS)
def test_with_worker_processes_too(open_session, courier, name, stop):
    seed()
    undisturbed = consume(open_session({}, model=torch.nn.Linear(1, 1)), WORKER_LOADERS[name](), epochs=2)
    first, rest = interrupted(open_session, courier, WORKER_LOADERS[name], stop=stop, epochs=2)
    assert first == undisturbed[:stop]
    assert rest == undisturbed[stop:]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("owns", [True, False])
def test_a_tracked_loader_in_a_loop_over_steps_goes_on_where_it_was(
    open_session, courier, until_held, num_workers, early, owns
):
    def loop(restore, stop=None, agent=True):
        torch.manual_seed(11)
        generator = torch.Generator().manual_seed(14) if owns else None
        loader = stateful(Plain(), batch_size=4, shuffle=True, num_workers=num_workers, generator=generator)
        environment = courier.begin(restore) if agent else {}
        run = open_session(environment, model=torch.nn.Linear(1, 1), dataloader=loader)
        seen = []
        batches = iter(run.dataloader) if early else None
        for step in run.steps(14):
            if batches is None:
                batches = iter(run.dataloader)
            batch = next(batches, None)
            if batch is None:
                batches = iter(run.dataloader)
                batch = next(batches)
            seen.append((step, batch.tolist(), torch.rand(1).item()))
            if step == stop:
                courier.drain()
                until_held(run)
            results[:] = seen
        return seen

    results = []
    undisturbed = loop(None, agent=False)
    with pytest.raises(SystemExit):
        loop(None, stop=7)
    first = list(results)
    assert first == undisturbed[: len(first)]
    assert loop(courier.carry()) == undisturbed[len(first) :]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_another_number_of_ranks_is_told_that_a_loop_over_steps_begins_its_data_again(
    open_session, courier, until_held, monkeypatch, caplog
):
    def session(environment):
        loader = stateful(Plain(), batch_size=4)
        return open_session(environment, model=torch.nn.Linear(1, 1), dataloader=loader)

    run = session(courier.begin())
    batches = iter(run.dataloader)
    with pytest.raises(SystemExit):
        for step in run.steps(5):
            next(batches)
            if step == 2:
                courier.drain()
                until_held(run)
    monkeypatch.setattr(opening, "current_world", lambda: World(0, 2, 0, 2))
    resumed = session({handoff.RESTORE: str(courier.carry())})
    assert resumed.resumed
    assert "the dataloader begins again with its first sample" in caplog.text


def test_epochs_may_have_different_numbers_of_batches(open_session):
    """As where batches have equal numbers of tokens; the last ones of longer epochs never came."""
    run = open_session({}, model=torch.nn.Linear(1, 1))
    seen = consume(run, LOADERS["buckets"](), epochs=3)
    assert [epoch for _, epoch, *_ in seen] == 5 * [0] + 6 * [1] + 8 * [2]
    run = open_session({}, model=torch.nn.Linear(1, 1))
    loader = LOADERS["buckets"]()
    assert [len(list(run.batches(loader))) for _ in run.epochs(3)] == [5, 6, 8]


def test_epochs_are_told_to_the_sampler(open_session):
    epochs = []

    class Sampler(RandomSampler):
        def set_epoch(self, epoch):
            epochs.append(epoch)

    loader = DataLoader(Plain(), batch_size=11, sampler=Sampler(range(NUM_SAMPLES)))
    run = open_session({})
    assert [step for step, *_ in consume(run, loader, epochs=3)] == list(range(6))
    assert epochs == [0, 1, 2]
    assert run.step == 6


def test_a_plain_loader_cannot_be_tracked_by_a_loop_over_steps(open_session):
    run = open_session({}, dataloader=DataLoader(Plain()))
    with pytest.raises(spot.SessionError, match=r"or loop over run.batches\(loader\)"):
        next(run.steps(3))


def test_another_loader_than_the_tracked_one_is_refused(open_session):
    run = open_session({}, dataloader=DataLoader(Plain()))
    with pytest.raises(spot.SessionError, match="got different loaders"):
        next(run.batches(DataLoader(Plain())))


def test_the_kind_of_loop_must_stay_the_same(open_session, courier, until_held):
    run = open_session(courier.begin(), model=torch.nn.Linear(1, 1))
    for _ in run.steps(3):
        pass
    restore = courier.carry(3)
    run = open_session(courier.begin(restore), model=torch.nn.Linear(1, 1))
    with pytest.raises(spot.SessionError, match=r"a loop over run\.steps\(\): use run\.steps\(\) again"):
        next(run.batches([1, 2, 3]))


def test_a_shrunken_dataset_is_noticed(open_session, courier):
    feed = ResumableBatches([1, 2], epochs=1, world_size=1)
    with pytest.raises(spot.SessionError, match="ended after 2 batches of epoch 0, but 5 were consumed"):
        feed.resume({"epoch": 0, "batch": 5, "samples": None}, None, world_size=1)


@pytest.mark.parametrize(
    ("old", "new", "batch", "expected"),
    [(2, 1, 3, 6), (1, 2, 3, 1), (1, 2, 4, 2), (4, 3, 3, 4), (2, 2, 3, 3)],
)
def test_without_a_sampler_that_shares_another_world_goes_on_at_a_whole_batch(old, new, batch, expected):
    saved = ResumableBatches(DataLoader(range(100), batch_size=5), epochs=2, world_size=old)
    for _ in range(batch):
        saved.fetch()
    position, _ = saved.take()
    assert [position[key] for key in ("epoch", "batch", "base", "samples")] == [0, batch, 0, batch * 5 * old]
    resumed = ResumableBatches(DataLoader(range(100), batch_size=5), epochs=2, world_size=new)
    resumed.resume(position, None, world_size=old)
    assert resumed.take()[0]["batch"] == expected
    assert resumed.batches_left == 40 - expected


class LiveLoader(OwnLoader):
    """Gives away the state that it goes on changing."""

    def state_dict(self):
        return vars(self)


def test_a_state_that_a_loader_goes_on_changing_is_that_of_the_boundary():
    feed = ResumableBatches(LiveLoader(), epochs=2, world_size=1)
    feed.fetch()
    _, taken = feed.take()
    feed.fetch()
    assert taken["loader"]["used"] == 1


class DataLoaderAdapter(DataLoader):
    """Bears the name of Accelerate's, whose epochs are loaded once more."""


def test_the_random_state_at_the_start_of_an_epoch_is_not_copied_at_each_boundary():
    feed = ResumableBatches(DataLoaderAdapter(range(40)), epochs=1, world_size=1)
    taken = []
    for _ in range(2):
        feed.fetch()
        taken.append(feed.take()[1]["loader"])
    assert [each["used"] for each in taken] == [1, 2]
    assert taken[0]["random"] is taken[1]["random"]


def test_reseeding_depends_on_seed_step_and_rank_alone():
    def draw():
        return (torch.rand(1).item(), random.random(), float(np.random.rand()))

    draws = set()
    for case in [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3), (1, 2, 3)]:
        randomness.reseed(*case)
        draws.add(draw())
    assert len(draws) == 4


# --- what cannot be as it would have been, and is said --------------------------------------------


class MixedStream(IterableDataset):
    """Chooses by NumPy's global generator which of two sources the next sample comes from."""

    def __iter__(self):
        sources = iter(range(100)), iter(range(1000, 1100))
        for _ in range(32):
            yield float(next(sources[int(np.random.rand() < 0.5)]))


class LazySampler(Sampler):
    """Draws each index when it is asked for."""

    def __iter__(self):
        for _ in range(32):
            yield int(np.random.randint(NUM_SAMPLES))

    def __len__(self):
        return 32


class OwnGenerator(MixedStream):
    def __iter__(self):
        own = np.random.default_rng(0)
        sources = iter(range(100)), iter(range(1000, 1100))
        for _ in range(32):
            yield float(next(sources[int(own.random() < 0.5)]))


@pytest.fixture
def resumed(open_session, courier, until_held, caplog):
    """``resumed(make_loader, train)``: drain after ``at`` batches and resume; return what came then, and warnings."""

    def resume(make_loader, draw=lambda: None, *, at=5, epochs=2):
        def training(restore, drain_at=None):
            random.seed(1)
            np.random.seed(1)
            torch.manual_seed(1)
            model = torch.nn.Linear(1, 1)
            loader, seen = make_loader(), []
            run = open_session(courier.begin(restore), model=model)
            with contextlib.suppress(SystemExit):
                for batch in run.batches(loader, epochs=epochs):
                    seen.append(batch.tolist())
                    draw()
                    if len(seen) == drain_at:
                        courier.drain()
                        until_held(run)
            return seen

        expected = training(None)[at:]
        training(None, at)
        caplog.clear()
        found = training(courier.carry())
        return found == expected, [record.getMessage() for record in caplog.records]

    return resume


CHOOSING = "loading the data and the training both draw from NumPy's generator"


@pytest.mark.parametrize(
    ("make_loader", "says"),
    [
        (lambda: DataLoader(MixedStream(), batch_size=4), CHOOSING),
        (lambda: DataLoader(Plain(), batch_size=4, sampler=LazySampler()), CHOOSING),
        (lambda: DataLoader(OwnGenerator(), batch_size=4), ""),
        (lambda: DataLoader(Plain(), batch_size=4, shuffle=True), ""),
        (lambda: DataLoader(Augmented(), batch_size=4, shuffle=True), ""),
    ],
)
@pytest.mark.parametrize("training_draws", [True, False])
def test_samples_that_are_chosen_by_what_the_training_draws_from_are_warned_of(
    resumed, make_loader, says, training_draws
):
    is_exact, said = resumed(make_loader, np.random.rand if training_draws else lambda: None)
    warned = [line for line in said if "resumed batches" in line]
    if says and training_draws:
        assert says in "".join(warned)
    else:
        assert (is_exact, warned) == (True, [])


UNTOLD = "the first epoch of this process is epoch 1, but {} has no set_epoch"
ANOTHER = "the first batch of the epoch is not the same when it is loaded again. The samples of {} must"


@pytest.mark.parametrize(
    ("make_loader", "at", "says"),
    [
        (lambda: DataLoader(Counting(), batch_size=4), 3, ""),
        (lambda: DataLoader(Counting(), batch_size=4), 6, UNTOLD.format("Counting")),
        (lambda: DataLoader(Counting(), batch_size=4), 8, ANOTHER.format("Counting")),
        (lambda: DataLoader(Plain(), 4, sampler=CountingSampler()), 6, UNTOLD.format("CountingSampler")),
        (lambda: DataLoader(Plain(), 4, sampler=CountingSampler()), 8, ANOTHER.format("Plain")),
        (
            lambda: stateful(Plain(), batch_size=4, sampler=CountingSampler()),
            8,
            UNTOLD.format("CountingSampler"),
        ),
        (lambda: DataLoader(KeepsCount(), batch_size=4), 8, ""),
        (lambda: DataLoader(IsTold(), batch_size=4), 6, ""),
        (OwnLoader, 6, ""),
        (lambda: DataLoader(Plain(), batch_size=4, shuffle=True), 6, ""),
    ],
)
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_loader_that_counts_its_epochs_is_resumed_exactly_or_warned_of_by_name(
    resumed, make_loader, at, says
):
    is_exact, said = resumed(make_loader, at=at)
    if says:
        assert [says in line for line in said] == [True]
    else:
        assert (is_exact, said) == (True, [])


@pytest.mark.parametrize("name", ["keeps count", "is told", "own loader", "sampler that keeps count"])
@pytest.mark.parametrize("at", [6, 9, 10])
def test_in_a_loop_over_epochs_too(open_session, courier, until_held, name, at):
    def training(restore, drain_at=None):
        run = open_session(courier.begin(restore), model=torch.nn.Linear(1, 1))
        loader, seen = LOADERS[name](), []
        with contextlib.suppress(SystemExit):
            for epoch in run.epochs(3):
                for batch in run.batches(loader):
                    seen.append((epoch, batch.tolist()))
                    if run.step + 1 == drain_at:
                        courier.drain()
                        until_held(run)
                    if (epoch, run.step) == (1, 9):
                        break
        return seen

    expected = training(None)
    assert len({tuple(batch) for _, batch in expected}) == len(expected)
    assert training(None, at) == expected[:at]
    assert training(courier.carry()) == expected[at:]


def make_stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Augmented(), batch_size=4, num_workers=1)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize(
    ("make_loader", "at", "says"),
    [
        (lambda: DataLoader(Augmented(), batch_size=4, num_workers=1), 8, ""),
        (lambda: DataLoader(Augmented(), batch_size=4, num_workers=1, persistent_workers=True), 3, ""),
        (
            lambda: DataLoader(Augmented(), batch_size=4, num_workers=1, persistent_workers=True),
            8,
            "persistent_workers keeps them from one epoch to the next",
        ),
        (
            make_stateful,
            3,
            "a StatefulDataLoader does not keep their random state",
        ),
    ],
)
def test_workers_that_may_have_drawn_are_warned_of(resumed, make_loader, at, says):
    is_exact, said = resumed(make_loader, at=at)
    warned = [line for line in said if "resumed batches" in line]
    if says:
        assert says in "".join(warned)
    else:
        assert (is_exact, warned) == (True, [])
