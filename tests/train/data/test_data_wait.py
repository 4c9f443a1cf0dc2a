"""How long a rank has waited for its batches."""

import pytest
from torch.utils.data import DataLoader

from cloudspot.train.data import data_wait
from cloudspot.train.data.resumable_batches import ResumableBatches


@pytest.fixture
def clock(monkeypatch):
    """A clock that shows whatever was added to it, and no wait so far."""
    passed = [0]
    monkeypatch.setattr("time.perf_counter_ns", lambda: passed[0])
    monkeypatch.setattr(data_wait, "_wait", type(data_wait._wait)())
    return passed


def test_before_a_loader_is_asked_nothing_is_known(clock):
    assert data_wait.nanoseconds() == -1


def test_the_time_in_a_loader_counts_once_and_that_between_two_batches_does_not(clock):
    class Slow(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                clock[0] += 7
                yield batch

    batches = ResumableBatches(
        Slow(list(range(6)), batch_size=2), epochs=1, first=0, world_size=1, rank=0, devices=()
    )
    while batches.fetch() is not None:
        clock[0] += 1000
    assert data_wait.nanoseconds() == 21


def test_a_wait_that_fails_counts(clock):
    with pytest.raises(OSError, match="disk"), data_wait.waiting(), data_wait.waiting():
        clock[0] += 5
        raise OSError("disk")
    assert data_wait.nanoseconds() == 5
