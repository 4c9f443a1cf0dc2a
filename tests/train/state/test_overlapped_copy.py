"""A copy that is made next to a step: it is whole before anything is written to, or it says what was."""

import threading

import pytest
import torch

from cloudspot.train.state import overlapped_copy
from cloudspot.train.state.overlapped_copy import Deferred, OverlappedCopy


@pytest.fixture
def make(monkeypatch):
    """``make(**tensors)``: a copy of them in small pieces, not started."""
    monkeypatch.setattr(overlapped_copy, "PIECE_BYTES", 256)
    monkeypatch.setattr(overlapped_copy, "_BETWEEN_BYTES", 256)

    def make_one(**tensors):
        return OverlappedCopy(
            [
                Deferred(name, torch.zeros(each.shape, dtype=each.dtype), each)
                for name, each in tensors.items()
            ]
        )

    return make_one


def copied(made):
    return [target.tolist() for target in made._targets]


@pytest.fixture
def held(monkeypatch):
    """An event: until it is set, threads copy nothing."""
    goes_on, copy_piece = threading.Event(), OverlappedCopy._copy_piece

    def wait(self, *, with_threads):
        if not with_threads:
            goes_on.wait(60)
        return copy_piece(self, with_threads=with_threads)

    monkeypatch.setattr(OverlappedCopy, "_copy_piece", wait)
    yield goes_on
    goes_on.set()


def test_a_thread_copies_all_of_it_and_says_so(make):
    one, other = torch.randn(300), torch.arange(5)
    made, ended = make(one=one, other=other), threading.Event()
    made.start(ended.set)
    assert ended.wait(60)
    assert copied(made) == [one.tolist(), other.tolist()]
    assert made.nbytes == 1240
    assert made.is_done()
    assert (made.written(), made.torn(), made.differing()) == ([], [], [])


def test_what_no_thread_has_copied_yet_is_copied_before_the_caller_goes_on(make, held):
    one = torch.randn(300)
    made = make(one=one)
    made.start(lambda: None)
    threading.Timer(0.05, held.set).start()  # the thread may hold a piece of its own
    made.finish()
    before = one.tolist()
    one.zero_()
    assert copied(made) == [before]
    assert made.torn() == []


WRITES = {
    "in place": lambda each: each.mul_(2),
    "to a part of it": lambda each: each[40:41].add_(1),
    "by its data": lambda each: each.data.mul_(2),
    "through another view": lambda each: each.detach().view(-1).mul_(2),
    "by NumPy": lambda each: each.detach().numpy().__imul__(2),
}


@pytest.mark.parametrize("how", WRITES)
def test_what_was_written_to_since_the_boundary_is_named(make, how):
    one, other = torch.nn.Parameter(torch.randn(300)), torch.randn(9)
    made = make(one=one, other=other)
    with torch.no_grad():
        WRITES[how](one)
    assert made.written() == ["one"]


def test_weights_that_are_swapped_and_put_back_while_they_are_copied_are_named(make):
    """Neither their versions nor what they hold in the end is different."""
    one = torch.nn.Parameter(torch.randn(300))
    made, kept = make(one=one), one.detach().clone()
    made._copy_piece(with_threads=False)
    one.data.mul_(2)
    made._copy_piece(with_threads=False)
    one.data.copy_(kept)
    made.copy_now()
    assert made.written() == []
    assert made.torn() == ["one"]


def test_a_trial_compares_each_byte(make):
    one = torch.nn.Parameter(torch.randn(300))
    made = make(one=one)
    made.copy_now()
    one.data[17] += 1  # no sample
    assert (made.written(), made.torn()) == ([], [])
    assert made.differing() == ["one"]
    assert made.share_of(["one"]) == 1.0


def test_what_takes_the_place_of_a_tensor_is_not_copied(make):
    one = torch.nn.Parameter(torch.randn(300))
    made, before = make(one=one), one.tolist()
    one.data = torch.zeros(300)
    made.copy_now()
    assert copied(made) == [before]
    assert (made.written(), made.torn()) == ([], [])


def test_memory_that_a_script_frees_is_not_read(make):
    one = torch.randn(300)
    made = make(one=one)
    one.untyped_storage().resize_(0)
    made.copy_now()
    assert made.written() == ["one"]


def test_a_part_of_a_dtensor_is_watched_by_the_counter_of_the_whole_too(make):
    part, whole = torch.randn(9), torch.randn(18)
    made = OverlappedCopy([Deferred("one", torch.zeros(9), part, whole)])
    whole.add_(1)
    assert made.written() == ["one"]


def test_a_thread_that_fails_keeps_nobody_waiting(make, monkeypatch):
    made, ended = make(one=torch.randn(300)), threading.Event()

    def fail(*_):
        raise ValueError("no")

    monkeypatch.setattr(overlapped_copy.ctypes, "memmove", fail)
    made.start(ended.set)
    made.finish()
    assert ended.wait(60)
    assert str(made.error) == "no"


def test_after_it_is_cancelled_nothing_is_copied(make, held):
    made, ended = make(one=torch.randn(300)), threading.Event()
    made.start(ended.set)
    threading.Timer(0.05, held.set).start()
    assert made.cancel()
    made.join()
    assert ended.is_set()
    assert made._left
