"""What a mark of a boundary notes: the state there, although much has changed since."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist

from cloudspot.train.state import boundary_marks, noted_state, sharding
from cloudspot.train.state.boundary_marks import BoundaryMarks, Description
from cloudspot.train.state.checkpoint import take

DESCRIPTION = Description({}, {})


class Shadow:
    """A moving average as people write it: other tensors with each update."""

    def __init__(self, model):
        self.weights = {name: each.detach().clone() for name, each in model.named_parameters()}

    def update(self, model):
        for name, each in model.named_parameters():
            self.weights[name] = 0.9 * self.weights[name] + 0.1 * each.detach()

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]


@pytest.fixture
def make():
    """``make(objects)``: their marks, the first one made."""
    made = []

    def make_one(objects):
        made.append(BoundaryMarks(objects))
        made[-1].is_used = True
        made[-1].mark(0, 0, lambda: DESCRIPTION, is_rare=True)
        return made[-1]

    yield make_one
    for each in made:
        each.close()


def train(model, *optimizers, scaler=None):
    model(torch.randn(3, 4)).square().mean().backward()
    for each in optimizers:
        each.step()
        each.zero_grad()


def state_at(marks):
    (mark,) = marks.standing()
    taken = take(marks.objects_at(mark))
    return taken.objects, {name: tensor.tolist() for name, tensor in taken.tensors.items()}


def test_a_mark_has_the_state_of_the_boundary_whatever_small_has_changed_since(make):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), capturable=False, foreach=False)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    objects = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "average": Shadow(model),
    }
    taken = take(objects)
    then = taken.objects, {name: tensor.tolist() for name, tensor in taken.tensors.items()}
    marks = make(objects)
    assert state_at(marks) == then
    scheduler.step()
    scaler.update(2.0)
    objects["average"].update(model)
    model(torch.ones(1, 4)).sum().backward()
    model.eval()
    assert state_at(marks) == then
    taken = take(objects)
    assert (taken.objects, {name: each.tolist() for name, each in taken.tensors.items()}) != then
    train(model, optimizer)
    assert marks.standing() == ()
    assert marks.problem == "an optimizer has stepped"


def test_an_optimizer_that_is_not_tracked_may_step(make):
    model, probe = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
    marks = make({"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)})
    train(probe, torch.optim.Adam(probe.parameters()))
    assert len(marks.standing()) == 1


def test_a_step_that_has_only_begun_is_seen(make):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    marks = make({"model": model, "optimizer": optimizer})
    seen = []

    def closure():
        seen.append((marks.standing(), model.weight._version))
        return model(torch.ones(1, 4)).sum()

    version = model.weight._version
    optimizer.step(closure)
    assert seen == [((), version)]


@pytest.mark.full
def test_large_tensors_of_other_objects_are_neither_copied_nor_kept(make, monkeypatch):
    monkeypatch.setattr(noted_state, "SMALL_BYTES", 8)
    model = torch.nn.Linear(4, 2)
    average = Shadow(model)
    marks = make({"model": model, "average": average})
    then = average.weights["weight"].tolist()
    assert state_at(marks)[1]["average/weights/weight"] == then
    reference = weakref.ref(average.weights["weight"])
    average.update(model)
    gc.collect()
    assert reference() is None
    assert marks.standing() == ()
    assert marks.problem == "a tensor of average was written to or replaced"


@pytest.mark.full
def test_what_a_script_takes_off_the_device_is_not_kept(make):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    marks = make({"model": model, "optimizer": optimizer})
    reference = weakref.ref(optimizer.state[model.weight]["exp_avg"])
    optimizer.state[model.weight]["exp_avg"] = torch.zeros(2, 4)
    gc.collect()
    assert reference() is None
    assert marks.standing() == ()
    assert marks.problem == "a tensor of a model or optimizer was replaced"


def test_a_state_that_cannot_be_noted_ends_no_training(make):
    class Broken:
        def state_dict(self):
            raise ValueError("not now")

        def load_state_dict(self, state):
            pass

    marks = make({"model": torch.nn.Linear(1, 1), "broken": Broken()})
    assert marks.standing() == ()
    assert marks.problem == "not now"


def test_the_scripts_own_objects_are_left_alone_until_it_checks(make):
    called = []

    class Counting(Shadow):
        def state_dict(self):
            called.append(True)
            return super().state_dict()

    model = torch.nn.Linear(4, 2)
    marks = BoundaryMarks({"model": model, "average": Counting(model)})
    marks.mark(0, 0, lambda: DESCRIPTION, is_rare=True)
    assert (called, marks.standing()) == ([], ())
    assert marks.problem == "nothing was noted of it: call run.check() before the loop"
    marks.is_used = True
    marks.mark(1, 1, lambda: DESCRIPTION)
    assert called == [True]
    assert [mark.number for mark in marks.standing()] == [1]


def test_sharded_weights_are_followed_in_what_this_rank_holds(make):
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = torch.nn.Linear(4, 2)
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        train(model, optimizer)
        marks = make({"model": model, "optimizer": optimizer})
        model(torch.ones(1, 4))
        assert len(marks.standing()) == 1
        with torch.no_grad():
            model.weight.mul_(2.0)
        assert marks.standing() == ()
        assert marks.problem == "model/weight was written to"
        marks.mark(1, 1, lambda: DESCRIPTION)
        model.weight.to_local().data.mul_(2.0)
        assert marks.standing() == ()
        assert marks.problem == "a model's weights were written to"
    finally:
        sharding._held.cache_clear()
        dist.destroy_process_group()


def test_of_two_boundaries_without_a_change_between_them_both_stand(make):
    model = torch.nn.Linear(4, 2)
    marks = make({"model": model})
    for number in (1, 2):
        marks.mark(number, number, lambda: DESCRIPTION)
    assert [mark.number for mark in marks.standing()] == [2, 1]
    with torch.no_grad():
        model.weight.zero_()
    marks.mark(3, 3, lambda: DESCRIPTION)
    assert [mark.number for mark in marks.standing()] == [3]


def test_marks_that_take_long_are_made_seldom(make, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(boundary_marks.time, "perf_counter", lambda: now[0])
    marks = make({"model": torch.nn.Linear(1, 1)})
    marks.is_used = False

    def describe():
        now[0] += 0.01
        return DESCRIPTION

    made = []
    for number in range(1, 3000):
        now[0] += 0.002
        marks.mark(number, number, describe)
        if marks._marks[-1].number == number:
            made.append(number)
    assert made[:3] == [1, 2, 3]  # what they take is not known yet
    assert 5 <= len(made) <= 3 + 6 / 1.0
