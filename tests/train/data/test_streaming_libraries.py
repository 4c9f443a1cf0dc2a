"""Streaming libraries with small data on disk: what docs/frameworks.md says of each is so."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from cloudspot.train.data.resumable_batches import ResumableBatches
from cloudspot.train.state import randomness
from cloudspot.train.state.tree import flatten, rebuild

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]
NUM_SAMPLES, BATCH_SIZE, NUM_EPOCHS = 24, 4, 3


def huggingface(_directory):
    import datasets

    samples = datasets.Dataset.from_list([{"x": index} for index in range(NUM_SAMPLES)])
    stream = samples.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=9)
    return DataLoader(stream.with_format("torch"), batch_size=BATCH_SIZE)


def litdata(directory, *, loader=None):
    library = pytest.importorskip("litdata")
    from litdata.streaming.writer import BinaryWriter

    if not directory.exists():
        directory.mkdir()
        writer = BinaryWriter(str(directory), chunk_size=6)
        for index in range(NUM_SAMPLES):
            writer[index] = {"x": index}
        writer.done()
        writer.merge()
    stream = library.StreamingDataset(str(directory), shuffle=True, seed=5)
    return (loader or library.StreamingDataLoader)(stream, batch_size=BATCH_SIZE)


def mosaic(directory, *, loader=None):
    library = pytest.importorskip("streaming", exc_type=ImportError)
    if not directory.exists():
        with library.MDSWriter(out=str(directory), columns={"x": "int"}, size_limit=200) as writer:
            for index in range(NUM_SAMPLES):
                writer.write({"x": index})
    library.base.util.clean_stale_shared_memory()
    stream = library.StreamingDataset(
        local=str(directory), shuffle=True, shuffle_seed=7, batch_size=BATCH_SIZE, num_canonical_nodes=1
    )
    return (loader or library.StreamingDataLoader)(stream, batch_size=BATCH_SIZE)


def webdataset(directory, *, shuffles=None):
    library = pytest.importorskip("webdataset")
    urls = [f"{directory}/{shard}.tar" for shard in range(4)]
    if not directory.exists():
        directory.mkdir()
        for shard, url in enumerate(urls):
            with library.TarWriter(url) as writer:
                for index in range(6):
                    writer.write({"__key__": f"{index}", "x.cls": 6 * shard + index})
    stream = library.WebDataset(urls, shardshuffle=4, detshuffle=True, seed=1)
    if shuffles is not None:
        stream = stream.compose(shuffles(library))
    return DataLoader(stream.decode().map(lambda found: {"x": found["x.cls"]}), batch_size=BATCH_SIZE)


def iterate(loader, restored=None, *, stop=None):
    """Return the batches, and what a save at the step ``stop`` holds; or go on from that."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global generator is part of the state
    torch.manual_seed(1)
    feed, seen = ResumableBatches(loader, epochs=NUM_EPOCHS, world_size=1), []
    if restored is not None:
        position, rank_position, draws = (rebuild("saved", each) for each in restored)
        feed.resume(position, rank_position, world_size=1, random=draws)
        randomness.restore(draws)
    while feed.has_next() and len(seen) != stop:
        (batch,) = feed.fetch()
        seen.append(batch["x"].tolist())
    draws = feed.random or randomness.capture()
    saved = None if stop is None else [flatten("saved", each, None) for each in (*feed.take(), draws)]
    feed.close()
    return seen, saved


@pytest.fixture
def check(tmp_path, caplog):
    """``check(make)``: return which resumptions are exact, and what was said at the others, by step."""

    def run(make, steps):
        expected, _ = iterate(make(tmp_path / "data"))
        assert len({tuple(batch) for batch in expected}) == len(expected) == 18, (
            "each epoch has its own order"
        )
        found = {}
        for step in steps:
            first, saved = iterate(make(tmp_path / "data"), stop=step)
            caplog.clear()
            rest, _ = iterate(make(tmp_path / "data"), saved)
            said = "".join(each.getMessage() for each in caplog.records if each.name == "cloudspot")
            found[step] = "exact" if (first, rest) == (expected[:step], expected[step:]) else said
        return found

    return run


UNTOLD = "the first epoch of this process is epoch 1, but {} has no set_epoch"
ANOTHER = "the first batch of the epoch is not the same when it is loaded again. The samples of {} must"


@pytest.mark.parametrize(
    "make",
    [
        huggingface,
        litdata,
        lambda directory: litdata(directory, loader=DataLoader),
        mosaic,
    ],
    ids=["datasets", "litdata", "litdata in a DataLoader", "mosaic"],
)
def test_a_stream_that_is_told_the_epoch_or_keeps_its_state_is_resumed_exactly(check, make):
    assert check(make, (3, 6, 8)) == {3: "exact", 6: "exact", 8: "exact"}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (
            lambda directory: webdataset(directory, shuffles=lambda library: library.detshuffle(8)),
            "WebDataset",
        ),
        (lambda directory: mosaic(directory, loader=DataLoader), "StreamingDataset"),
    ],
    ids=["webdataset", "mosaic in a DataLoader"],
)
def test_a_stream_that_counts_its_epochs_is_warned_of_by_name(check, make, name):
    found = check(make, (3, 6, 8))
    assert found[3] == "exact"
    assert found[6].startswith(UNTOLD.format(name))
    assert ANOTHER.format(name) in found[8]


def test_the_shuffle_of_webdataset_that_has_no_seed_is_warned_of_in_the_first_epoch(check):
    found = check(lambda directory: webdataset(directory, shuffles=lambda library: library.shuffle(8)), (3,))
    assert ANOTHER.format("WebDataset") in found[3]
