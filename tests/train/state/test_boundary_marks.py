"""What a mark of a boundary notes: the state there, although much has changed since."""

import contextlib
import dataclasses
import gc
import weakref
from unittest import mock

import numpy as np
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


class Statistics(torch.nn.Module):
    """As ``BatchNorm``, without a count of its batches."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))

    def forward(self, inputs):
        return torch.nn.functional.batch_norm(inputs, self.mean, self.var, training=True)


class Assigned(torch.nn.Module):
    """With a buffer that is another one after each pass, and one that is in no state."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, size))
        self.register_buffer("last", torch.zeros(size), persistent=False)

    def forward(self, inputs):
        self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0, keepdim=True)
        self.last = inputs.detach()[0]
        return inputs - self.mean


class WrittenByData(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))

    def forward(self, inputs):
        self.mean.data.add_(inputs.detach().mean(0))
        return inputs


LAYERS = {
    "batch norm": torch.nn.BatchNorm1d,
    "batch norm over all batches": lambda size: torch.nn.BatchNorm1d(size, momentum=None),
    "batch norm without weights": lambda size: torch.nn.BatchNorm1d(size, affine=False),
    "statistics that nothing counts": Statistics,
    "assigned": Assigned,
    "written by data": WrittenByData,
}


@pytest.mark.parametrize("name", LAYERS)
def test_buffers_are_those_of_the_boundary_whatever_a_forward_pass_makes_of_them(make, name):
    model = torch.nn.Sequential(
        *[layer for _ in range(40) for layer in (torch.nn.Linear(4, 4), LAYERS[name](4))]
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    train(model, optimizer)
    objects = {"model": model, "optimizer": optimizer}
    taken = take(objects)
    then = taken.objects, {name: tensor.tolist() for name, tensor in taken.tensors.items()}
    marks = make(objects)
    for number in (1, 2):
        model(torch.randn(3, 4))
        now = {name: tensor.tolist() for name, tensor in take(objects).tensors.items()}
        assert now != then[1]
        assert state_at(marks) == then
        train(model, optimizer)
        assert marks.standing() == ()
        marks.mark(number, number, lambda: DESCRIPTION)
        taken = take(objects)
        then = taken.objects, {name: tensor.tolist() for name, tensor in taken.tensors.items()}
    at_boundary = take(marks.objects_at(marks.standing()[0]))
    assert (at_boundary.items, at_boundary.models) == (taken.items, taken.models)


def test_statistics_that_nothing_counts_are_no_others_in_a_large_model(make):
    """Of so many tensors, one in three was looked at, and these two were not."""
    layers = [torch.nn.Linear(4, 4) for _ in range(65)]
    model = torch.nn.Sequential(*layers[:2], Statistics(4), *layers[2:])
    then = [each.tolist() for each in model[2].buffers()]
    marks = make({"model": model})
    model(torch.randn(3, 4))
    (mark,) = marks.standing()
    saved = take(marks.objects_at(mark)).tensors
    assert [saved["model/2.mean"].tolist(), saved["model/2.var"].tolist()] == then
    assert then != [each.tolist() for each in model[2].buffers()]


def test_an_optimizer_that_is_not_tracked_may_step(make):
    model, probe = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
    marks = make({"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)})
    train(probe, torch.optim.Adam(probe.parameters()))
    assert len(marks.standing()) == 1


def test_a_step_begins_to_write_once_its_closure_has_returned(make):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    marks = make({"model": model, "optimizer": optimizer})
    seen = []

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4)).square().sum()
        loss.backward()
        seen.append(len(marks.standing()))
        return loss

    optimizer.step(closure)
    assert seen[:2] == [1, 0]


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


def test_what_a_process_group_does_to_buffers_and_wrappers_do_to_names_is_not_saved(make):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        inner = torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.compile(torch.nn.BatchNorm1d(4), backend="eager")
        )
        model = torch.nn.parallel.DistributedDataParallel(inner)
        expected = take({"model": model})
        then = expected.objects, {name: tensor.tolist() for name, tensor in expected.tensors.items()}
        marks = make({"model": model})
        for each in inner.buffers():  # as rank 0's are broadcast
            each.copy_(torch.full_like(each, 7))
        assert state_at(marks) == then
        assert "model/1.running_mean" in then[1]
    finally:
        dist.destroy_process_group()


def test_buffers_that_are_tied_stay_tied(make):
    model = torch.nn.ModuleList([Statistics(4), Statistics(4), torch.nn.Linear(4, 4)])
    model[1].mean = model[0].mean
    model[1].var = model[0].var[:]  # another tensor at the same place
    model[0].register_buffer("of_weight", model[2].weight.data)
    then = take({"model": model})
    marks = make({"model": model})
    model[0](torch.randn(3, 4))
    (mark,) = marks.standing()
    now = take(marks.objects_at(mark))
    assert (now.objects, now.items) == (then.objects, then.items)
    assert sorted(now.tensors) == ["model/0.mean", "model/0.of_weight", "model/0.var", "model/2.bias"]
    model[1].mean = model[0].mean.clone()
    assert marks.standing() == ()


@pytest.fixture
def no_room(monkeypatch):
    """No buffer is copied that has more than 8 bytes."""
    monkeypatch.setattr(noted_state, "SMALL_BYTES", 8)
    monkeypatch.setattr(noted_state, "BUFFER_SHARE", 0.0)


def test_large_buffers_are_watched_by_their_counters_and_by_elements(make, no_room):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    marks = make({"model": model})
    model[1].num_batches_tracked.add_(1)  # the smallest has room
    assert len(marks.standing()) == 1
    model(torch.randn(3, 4))
    assert marks.standing() == ()
    assert marks.problem == "a model's weights were written to"
    marks.mark(1, 1, lambda: DESCRIPTION)
    assert [mark.number for mark in marks.standing()] == [1]
    model[1].running_var.add_(1)
    assert marks.standing() == ()
    assert marks.problem == "model/1.running_var was written to"


def test_buffers_are_copied_up_to_a_share_of_the_state(make, monkeypatch):
    monkeypatch.setattr(noted_state, "SMALL_BYTES", 0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(4))
    marks = make({"model": model})
    model[1](torch.randn(3, 4))
    assert len(marks.standing()) == 1
    model[0].register_buffer("table", torch.zeros(64 * 64))
    assert marks.standing() == ()
    marks.mark(2, 2, lambda: DESCRIPTION)
    model[1](torch.randn(3, 4))
    assert [mark.number for mark in marks.standing()] == [2]
    model[0].table[5] = 1.0
    assert marks.standing() == ()
    assert marks.problem == "model/0.table was written to"


def test_a_digest_is_of_the_weights_that_all_ranks_hold(make, no_room):
    def digest(model):
        marks = make({"model": model})
        return marks.digest(marks.standing()[0])

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    digests = [digest(model)]
    model(torch.randn(3, 4))  # each rank of other samples
    digests.append(digest(model))
    with torch.no_grad():
        model[0].bias.add_(1)
    digests.append(digest(model))
    assert digests[0] == digests[1] != digests[2]


def test_an_averaged_model_stands_until_it_is_updated(make):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer)
    average.update_parameters(model)
    objects = {"model": model, "optimizer": optimizer, "average": average}
    taken = take(objects)
    then = taken.objects, {name: tensor.tolist() for name, tensor in taken.tensors.items()}
    marks = make(objects)
    model(torch.randn(3, 4))
    average(torch.randn(3, 4))
    assert state_at(marks) == then
    average.update_parameters(model)
    assert marks.standing() == ()


def test_a_module_that_goes_or_comes_is_seen_and_the_next_boundary_is_marked(make):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Statistics(4), torch.nn.Linear(4, 4))
    marks = make({"model": model})
    old = model[1]  # lives on
    for change in (
        lambda: model.__setitem__(1, Statistics(4)),
        lambda: model.__delitem__(1),
        lambda: model.insert(1, old),
        lambda: model.append(torch.nn.Linear(4, 4)),
    ):
        change()
        assert marks.standing() == ()
        assert marks.problem == "a tensor of a model or optimizer was replaced"
        marks.mark(1, 1, lambda: DESCRIPTION)
        assert [mark.number for mark in marks.standing()][:1] == [1]


def test_a_module_that_was_exchanged_before_a_boundary_is_not_taken_for_the_one_before(make):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Statistics(4))
    marks = make({"model": model})
    old, model[1] = model[1], Statistics(4)
    model(torch.randn(3, 4))
    marks.mark(1, 1, lambda: DESCRIPTION)
    assert old.mean.any() == torch.tensor(False)
    assert marks.standing() == ()
    marks.mark(2, 2, lambda: DESCRIPTION)
    assert state_at(marks)[1]["model/1.mean"] == model[1].mean.tolist()


def test_an_optimizer_with_other_tensors_after_each_step_is_marked_at_each(make):
    class Renewing(torch.optim.SGD):
        def step(self):
            for each in self.param_groups[0]["params"]:
                self.state[each] = {"sum": self.state.get(each, {"sum": 0})["sum"] + each.detach()}
            return super().step()

    model = torch.nn.Linear(4, 2)
    optimizer = Renewing(model.parameters(), 0.1)
    marks = make({"model": model, "optimizer": optimizer})
    for number in (1, 2, 3):
        train(model, optimizer)
        marks.mark(number, number, lambda: DESCRIPTION)
        assert [mark.number for mark in marks.standing()] == [number]


def test_a_state_whose_tensors_do_not_last_is_asked_for_once(make):
    called = []

    class Copying(torch.nn.Linear):
        def state_dict(self, **options):
            called.append(True)
            return {name: each.clone() for name, each in super().state_dict(**options).items()}

    marks = make({"model": Copying(4, 2)})
    for number in (1, 2, 3):
        marks.mark(number, number, lambda: DESCRIPTION)
    assert called == [True]
    assert marks.standing() == ()
    assert marks.problem == "the state_dict of a model or optimizer returns new tensors on each call"


def test_what_modules_save_beside_tensors_is_that_of_the_boundary(make):
    class Counting(torch.nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.seen = {"batches": [0]}

        def forward(self, inputs):
            self.seen["batches"][0] += 1
            return super().forward(inputs)

        def get_extra_state(self):
            return self.seen

        def set_extra_state(self, state):
            self.seen = state

    model = torch.nn.Sequential(Counting(), Counting())
    then = take({"model": model}).objects
    marks = make({"model": model})
    model(torch.ones(1, 4))
    assert state_at(marks)[0] == then
    assert then["model"]["1._extra_state"] == {"batches": [0]}
    idle = BoundaryMarks({"model": model})
    idle.mark(0, 0, lambda: DESCRIPTION, is_rare=True)
    assert idle.standing() == (), "this runs the script's code, as its own objects do"


def test_what_a_scheduler_changes_in_place_is_that_of_the_boundary(make):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.param_groups[0]["history"] = [1]
    schedulers = [
        torch.optim.lr_scheduler.ConstantLR(optimizer),
        torch.optim.lr_scheduler.StepLR(optimizer, 1),
    ]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, schedulers, [2])
    steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    scheduler.seen = {"arrays": (np.zeros(2), {1}), "empty": None}
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "steps": steps}
    then = take(objects).objects
    marks = make(objects)
    schedulers[1].base_lrs[0] = 7.0
    steps.milestones[9] += 1
    scheduler.seen["arrays"][0][0] = 1.0
    scheduler.seen["arrays"][1].add(2)
    optimizer.param_groups[0]["history"].append(2)
    assert take(objects).objects != then
    assert state_at(marks)[0] == then


@pytest.mark.parametrize("trained", [True, False])
def test_a_few_of_many_weights_show_that_all_were_written_to_by_data(make, trained):
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(50)])
    for layer in model[1:40]:
        layer.requires_grad_(False)
    marks = make({"model": model})
    with torch.no_grad():
        model[3].weight.data[0, 0] = float("nan")
    marks.mark(1, 1, lambda: DESCRIPTION)
    assert [mark.number for mark in marks.standing()][:1] == [1]
    for each in model.parameters():
        if each.requires_grad is trained:
            each.data.mul_(1.5)
    assert marks.standing() == ()
    assert marks.problem == "a model's weights were written to"


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
    assert marks.problem == "its state was not noted: call run.check() before the loop"
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
        digest = marks.digest(marks.standing()[0])
        model.weight.to_local().data.mul_(2.0)
        assert marks.standing() == ()
        assert marks.problem == "a model's weights were written to"
        marks.mark(2, 2, lambda: DESCRIPTION)
        assert marks.digest(marks.standing()[0]) == digest, "other ranks hold other shards"
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


def test_of_boundaries_without_a_step_between_the_first_is_held_before_the_next_step_and_after(make):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    marks = make({"model": model, "optimizer": optimizer})
    train(model, optimizer)
    for number in (1, 2):  # the second one as at the end of an epoch
        marks.mark(number, 1, lambda: DESCRIPTION)
    assert (marks.first_since_step().number, marks.before_step) == (1, 0)
    train(model, optimizer)
    marks.mark(3, 2, lambda: DESCRIPTION)
    assert (marks.first_since_step().number, marks.before_step) == (3, 1)


def test_marks_that_take_long_are_made_seldom(make, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(boundary_marks.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(boundary_marks.time, "thread_time", lambda: now[0])
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


def test_one_mark_that_takes_long_keeps_no_other_from_being_made(make, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(boundary_marks.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(boundary_marks.time, "thread_time", lambda: now[0])
    marks = make({"model": torch.nn.Linear(1, 1)})
    marks.is_used = False
    costs = iter([1e-5, 1e-5, 1e-5, 5.0, 1e-5, 1e-5])

    def describe():
        now[0] += next(costs)
        return DESCRIPTION

    for number in range(1, 7):
        now[0] += 0.01
        marks.mark(number, number, describe)
        assert marks._marks[-1].number == number


def test_a_boundary_that_a_device_has_not_come_to_does_not_stand(make, monkeypatch):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    marks = make({"model": model, "optimizer": optimizer})
    train(model, optimizer)
    marks.mark(1, 1, lambda: DESCRIPTION)
    has_come = False
    event = mock.Mock(query=lambda: has_come)
    behind = dataclasses.replace(marks.newest, events=(event,))
    marks._first = behind
    monkeypatch.setattr(marks, "after", lambda _mark: contextlib.nullcontext())
    assert marks.first_since_step() is None
    assert marks.problem == "the GPU has not reached it"
    has_come = True
    assert marks.first_since_step() is behind
