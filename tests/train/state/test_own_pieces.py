"""What a rank alone has, in pieces, and what another makes of them."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from cloudspot.train.state import own_pieces, randomness
from cloudspot.train.state.boundary_marks import BoundaryMarks, Description
from cloudspot.train.state.checkpoint import take


@pytest.fixture
def mark_of():
    """``mark_of(model, **rank_state)``: the mark of a boundary."""
    made = []

    def make(model=None, **rank_state):
        model = torch.nn.Linear(2, 2) if model is None else model
        marks = BoundaryMarks({"model": model})
        made.append(marks)
        state = {"random": randomness.capture(), **rank_state}
        marks.mark(3, 4, lambda: Description({}, state), is_rare=True)
        assert marks.newest is not None, marks.problem
        return marks.newest

    yield make
    for each in made:
        each.close()


def encoded(mark, *, rank):
    return {name: own_pieces.encode(name, each) for name, each in own_pieces.take(mark, rank=rank).items()}


def test_the_state_of_a_rank_is_what_a_save_of_its_own_would_hold(mark_of):
    random.seed(3)
    feed = {"generators": [torch.arange(3)], "start": {"python": (3, (1, 2), None)}, "keeps_workers": False}
    mark = mark_of(feed=feed, nothing=None, empty={}, odd={"$a": 1}, numbered={1: 2}, ended=True)
    own = own_pieces.rebuild(encoded(mark, rank=1), mark, rank=1)
    assert own.rank_state == json.loads(json.dumps(mark.description.flatten_rank_state()))
    assert own.mark == replace(mark, models=own.mark.models)


def test_rank_0_gives_the_buffers_of_its_models_and_they_take_the_place_of_others(mark_of):
    models = [torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[0](torch.randn(4, 2))
    theirs, mine = map(mark_of, models)
    own = own_pieces.rebuild(encoded(theirs, rank=0), mine, rank=0)
    marks = BoundaryMarks({"model": models[1]})
    taken = take(marks.objects_at(own.mark)).tensors
    marks.close()
    for name, each in models[0].named_buffers():
        assert torch.equal(taken[f"model/{name}"], each)
    assert not any(name[0] == "buffers" for name in encoded(theirs, rank=1))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pieces: pieces.pop(("buffers", "model", "0")),
        lambda pieces: pieces.update({("buffers", "model", "0"): b"1234"}),
        lambda pieces: pieces.update({("buffers", "model", "0"): b"123"}),
        lambda pieces: pieces.update({("state", "random", "torch"): b"{"}),
        lambda pieces: pieces.update({("state",): b"{}"}),
        lambda pieces: pieces.update({("state", "random"): b"[]"}),
        lambda pieces: [pieces.pop(name) for name in tuple(pieces) if name[1] == "random"],
    ],
)
def test_pieces_that_are_not_whole_are_none(mark_of, spoil):
    mark = mark_of(torch.nn.BatchNorm1d(3))
    pieces = encoded(mark, rank=0)
    assert own_pieces.rebuild(pieces, mark, rank=0) is not None
    spoil(pieces)
    assert own_pieces.rebuild(pieces, mark, rank=0) is None


def test_what_has_not_changed_is_known_as_such():
    def state():
        return {"a": (1, np.arange(3), [torch.ones(2)]), "b": {"c": (3, (1, 2), None)}}

    same, other, third = state(), state(), state()
    other["a"][1][0] = 7
    third["a"][2][0][0] = 7
    assert own_pieces.is_same(state(), same)
    assert not own_pieces.is_same(state(), other)
    assert not own_pieces.is_same(state(), third)
    assert not own_pieces.is_same((1, 2), [1, 2])
    assert not own_pieces.is_same({"a": 1}, {"a": 1, "b": 2})
    assert not own_pieces.is_same(torch.ones(2), torch.ones(2, dtype=torch.int64))
    assert not own_pieces.is_same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not own_pieces.is_same(torch.ones(2), torch.ones(2, 1))
    assert not own_pieces.is_same(np.arange(3), np.arange(4))


def test_a_rank_that_cannot_give_all_says_why(mark_of, monkeypatch):
    norm = torch.nn.BatchNorm1d(3)
    assert own_pieces.obstacle(mark_of(norm), rank=0) is None
    monkeypatch.setattr("cloudspot.train.state.noted_state.SMALL_BYTES", 12)
    monkeypatch.setattr("cloudspot.train.state.noted_state.BUFFER_SHARE", 0.0)
    assert "too large" in own_pieces.obstacle(mark_of(norm), rank=0)
    assert own_pieces.obstacle(mark_of(norm), rank=1) is None
    mark = mark_of()
    asked = replace(mark, description=replace(mark.description, loader_state=dict))
    assert "only when the state is saved" in own_pieces.obstacle(asked, rank=1)
