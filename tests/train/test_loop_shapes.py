"""Loops as people write them: drained in the middle and resumed, each ends as if nobody had disturbed it."""

# ruff: noqa: NPY002 - NumPy's global generator is what is watched

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import cloudspot.train as spot
from cloudspot.train import handoff
from cloudspot.train.sessions import pending_gradients
from cloudspot.train.state.checkpoint import Checkpoint, weights_sha256

NUM_SAMPLES = 22


class Stream(IterableDataset):
    """Draws a random number for each sample, and one more at its end."""

    def __init__(self, num_samples=NUM_SAMPLES):
        self.num_samples = num_samples

    def __iter__(self):
        for number in range(self.num_samples):
            yield torch.tensor([float(number), torch.rand(1).item()])
        torch.rand(1)


def net(*middle, num_inputs=2):
    layers = (torch.nn.Linear(num_inputs, 4), *middle, torch.nn.Dropout(0.4), torch.nn.Linear(4, 1))
    return torch.nn.Sequential(*layers)


# --- gradients that wait for their use ---------------------------------------------------------------


def accumulating(open_session, tick, *, every=4, set_to_none=True):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    run = open_session(model=model, optimizer=optimizer)
    for step in run.steps(26):
        (model(torch.randn(4, 2)).square().mean() / every).backward()
        tick()
        if (step + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
    return weights_sha256(model)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("drain_at", [1, 6, 8, 9, 21])
def test_accumulated_gradients_are_used_before_a_save(compare, drain_at, set_to_none):
    """They are in no checkpoint: a resumed run went on to other weights."""

    def training(open_session, tick):
        return accumulating(open_session, tick, set_to_none=set_to_none)

    assert compare(training, drain_at) == -(-drain_at // 4) * 4


def adversarial(open_session, tick, *, every_d=1, every_g=1, on=("d", "g")):
    generator, critic = net(num_inputs=3), net(num_inputs=1)
    optimizers = {
        "optimizer_g": torch.optim.Adam(generator.parameters(), 0.01),
        "optimizer_d": torch.optim.RMSprop(critic.parameters(), 0.01),
    }
    run = open_session(model=generator, critic=critic, **optimizers)
    for step in run.steps(24):
        if step % every_d == 0:
            optimizers["optimizer_d"].zero_grad()
        fake = generator(torch.randn(4, 3)).detach()
        (critic(fake).mean() - critic(torch.randn(4, 1)).mean()).backward()
        if step % every_d == every_d - 1:
            optimizers["optimizer_d"].step()
        if step % every_g == every_g - 1:
            optimizers["optimizer_g"].zero_grad()
            (-critic(generator(torch.randn(4, 3))).mean()).backward()  # leaves gradients in the critic, too
            optimizers["optimizer_g"].step()
        tick()
    return weights_sha256(generator), weights_sha256(critic)


@pytest.mark.full
@pytest.mark.parametrize(
    ("every_d", "every_g", "drain_at", "saved_at"),
    [(1, 1, 7, 7), (1, 5, 7, 7), (3, 3, 7, 9), (4, 1, 7, 8), (2, 3, 7, 8)],
)
def test_two_optimizers_are_saved_where_neither_waits(compare, every_d, every_g, drain_at, saved_at):
    def training(open_session, tick):
        return adversarial(open_session, tick, every_d=every_d, every_g=every_g)

    assert compare(training, drain_at) == saved_at


@pytest.mark.parametrize("drain_at", [2, 9])
def test_a_step_that_the_scaler_skips_is_followed_by_a_save(compare, drain_at):
    def training(open_session, tick):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
        run = open_session(model=model, optimizer=optimizer, scaler=scaler)
        for step in run.steps(20):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 2)).square().mean()
            scaler.scale(loss * (float("inf") if step in {1, 8} else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            tick()
        return weights_sha256(model)

    # What it has skipped is still in the gradients: only the script knows that it zeroes them.
    assert compare(training, drain_at) == drain_at + 1


def test_gradients_that_nobody_uses_hold_up_no_save_for_ever(open_session, courier, monkeypatch, caplog):
    monkeypatch.setattr(pending_gradients, "LONGEST_ACCUMULATION_STEPS", 10)
    model = net()
    optimizers = {
        name: torch.optim.SGD(model[index].parameters(), 0.1) for name, index in (("a", 0), ("b", 2))
    }
    run = open_session(courier.begin(), model=model, **optimizers)
    with pytest.raises(SystemExit):
        for step in run.steps(100_000):
            model(torch.randn(4, 2)).mean().backward()
            optimizers["a"].step()
            if step == 3:
                courier.drain()
    assert courier.drained()["step"] % 10 == 0
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("for 10 steps, b had gradients that were not used; checkpoints leave them out")


def test_an_optimizer_around_another_one_is_seen_to_step(compare):
    class Wrapper:
        def __init__(self, optimizer):
            self.inner = optimizer

        param_groups = property(lambda self: self.inner.param_groups)

        def state_dict(self):
            return self.inner.state_dict()

        def load_state_dict(self, state):
            self.inner.load_state_dict(state)

    def training(open_session, tick):
        model = net()
        wrapper = Wrapper(torch.optim.Adam(model.parameters(), 0.01))
        run = open_session(model=model, optimizer=wrapper)
        for step in run.steps(12):
            model(torch.randn(4, 2)).square().mean().backward()
            tick()
            if step % 3 == 2:
                wrapper.inner.step()
                wrapper.inner.zero_grad()
        return weights_sha256(model)

    assert compare(training, 4) == 6


# --- what is drawn before the loop ----------------------------------------------------------------


def seed_each_rank(run, loader):
    torch.manual_seed(100 + run.rank)
    random.seed(100 + run.rank)
    np.random.seed(100 + run.rank)


BEFORE_THE_LOOP = {
    "nothing": (lambda run, loader: None, []),
    "seeds": (seed_each_rank, []),
    "the tracked loader": (lambda run, loader: iter(run.dataloader), []),
    "a first batch": (lambda run, loader: next(iter(make_shuffled())), ["torch's"]),
    "torch": (lambda run, loader: torch.randn(3), ["torch's"]),
    "Python": (lambda run, loader: random.random(), ["Python's"]),
    "NumPy": (lambda run, loader: np.random.rand(), ["NumPy's"]),
    "seeds and draws": (lambda run, loader: (random.seed(3), random.random()), ["Python's"]),
    "two": (lambda run, loader: (random.random(), np.random.rand()), ["Python's", "NumPy's"]),
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("name", BEFORE_THE_LOOP)
def test_what_is_drawn_between_the_session_and_the_loop_is_told(open_session, courier, caplog, name):
    """A batch that is fetched there and carried over the steps is in no checkpoint."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    draw, expected = BEFORE_THE_LOOP[name]
    loader = StatefulDataLoader(torch.arange(8.0), batch_size=2, shuffle=True)
    run = open_session(courier.begin(), model=torch.nn.Linear(1, 1), dataloader=loader)
    draw(run, loader)
    assert list(run.steps(2)) == [0, 1]
    said = (
        [f"drawn from {' and '.join(expected)} generator between session() and the loop"] if expected else []
    )
    assert len(caplog.messages) == len(said)
    assert all(line in message for line, message in zip(said, caplog.messages, strict=True))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("is_early", [True, False])
def test_a_batch_that_is_fetched_from_the_tracked_loader_before_the_loop_is_told(
    open_session, courier, caplog, is_early
):
    run = open_session(courier.begin(), model=torch.nn.Linear(1, 1), dataloader=make_stateful_stream())
    batches = iter(run.dataloader)
    if is_early:
        next(batches)
    for _ in run.steps(2):
        next(batches)
    told = [
        line for line in caplog.messages if line.startswith("a batch was fetched from run.dataloader before")
    ]
    assert len(told) == is_early


# --- streams ------------------------------------------------------------------------------------


def make_stream():
    return DataLoader(Stream(), batch_size=4)


def make_stateful_stream():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Stream(), batch_size=4)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("make_loader", [make_stream, make_stateful_stream])
@pytest.mark.parametrize("drain_at", [2, 5, 6, 7, 11])
def test_a_stream_is_resumed_where_it_was_also_at_the_end_of_an_epoch(compare, make_loader, drain_at):
    def training(open_session, tick):
        seen = []
        run = open_session(model=torch.nn.Linear(1, 1))
        for batch in run.batches(make_loader(), epochs=3):
            seen.append((run.step, run.epoch, batch.tolist(), torch.rand(1).item()))
            tick()
        return seen[-6:]

    assert compare(training, drain_at) == drain_at


def make_shuffled_stream():
    """A streaming dataset of ``datasets``: shuffled anew for each epoch, divided among workers, with noise."""
    import datasets

    numbers = datasets.Dataset.from_dict({"number": list(range(NUM_SAMPLES))}).to_iterable_dataset(
        num_shards=4
    )
    return numbers.shuffle(seed=100, buffer_size=7).map(lambda row: {**row, "noise": torch.rand(1).item()})


@pytest.mark.full
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drain_at", [4, 7])
def test_a_stream_that_is_shuffled_for_each_epoch_is_resumed(compare, num_workers, drain_at):
    def training(open_session, tick):
        seen = []
        run = open_session(model=torch.nn.Linear(1, 1))
        stream = make_shuffled_stream()
        for epoch in run.epochs(2):
            stream.set_epoch(epoch)
            for batch in run.batches(DataLoader(stream, batch_size=4, num_workers=num_workers)):
                noise, numbers = batch["noise"].tolist(), batch["number"].tolist()
                seen.append((run.step, epoch, numbers, noise, torch.rand(1).item()))
                tick()
        return seen[-4:]

    assert compare(training, drain_at) == drain_at


@pytest.mark.full
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_is_resumed(compare, in_place):
    def training(open_session, tick):
        model = net(torch.nn.BatchNorm1d(4))
        if in_place:
            model.compile(backend="eager")
        compiled = model if in_place else torch.compile(model, backend="eager")
        optimizer = torch.optim.Adam(compiled.parameters(), 0.01)
        average = torch.optim.swa_utils.AveragedModel(compiled)
        run = open_session(model=compiled, optimizer=optimizer, average=average)
        for _ in run.steps(8):
            optimizer.zero_grad()
            compiled(torch.randn(4, 2)).square().mean().backward()
            optimizer.step()
            average.update_parameters(compiled)
            tick()
        return weights_sha256(compiled), weights_sha256(average)

    assert compare(training, 3) == 3


def test_no_round_is_served_at_the_end_of_a_stream(open_session, courier, until_held):
    """Its interval save had the number of the last one, and both were uploaded as one checkpoint."""
    run = open_session(courier.begin(), model=torch.nn.Linear(1, 1))
    for _ in run.batches(make_stream()):
        if run.step == 2:
            run._service._saver._claiming.join()
        if run.step == 5:
            run._service._link.rounds.request_interval()
            until_held(run)
    assert sorted(courier.seals()) == [6]
    assert handoff.parse_seal_name(courier.seals()[6][0].name) is not None
    assert courier.final()["step"] == 6


# --- epochs -------------------------------------------------------------------------------------


def set_rate(optimizer, _scheduler, epoch):
    optimizer.param_groups[0]["lr"] = 0.01 * 0.5**epoch


def lower_rate(optimizer, _scheduler, _epoch):
    optimizer.param_groups[0]["lr"] *= 0.5


def advance(_optimizer, scheduler, epoch):
    if epoch > 0:
        scheduler.step()


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after", "num_told"),
    [
        (advance, None, [1, 1]),
        (lower_rate, None, [0, 1]),
        (set_rate, None, [0, 0]),  # it comes out the same
        (None, advance, [0, 0]),
    ],
)
def test_a_schedule_that_advances_before_the_batches_is_warned_of(
    open_session, courier, until_held, caplog, before, after, num_told
):
    def train(restore, *, is_drained):
        caplog.clear()
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        run = open_session(courier.begin(restore), model=model, optimizer=optimizer, scheduler=scheduler)
        for epoch in run.epochs(3):
            if before is not None:
                before(optimizer, scheduler, epoch)
            for batch in run.batches([torch.ones(4)] * 3):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                if is_drained and run.step == 4:
                    courier.drain()
                    until_held(run)
            if after is not None:
                after(optimizer, scheduler, epoch + 1)
        return len([line for line in caplog.messages if line.startswith("the code before the batches")])

    told = [train(None, is_drained=False)]
    with pytest.raises(SystemExit):
        train(None, is_drained=True)
    assert courier.drained()["step"] == 5
    told.append(train(courier.carry(5), is_drained=False))
    assert told == num_told


def test_an_optimizer_need_not_have_a_learning_rate():
    """Adafactor of transformers has none by default."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    optimizer.param_groups[0]["lr"] = None
    run = spot.session(model=model, optimizer=optimizer)
    assert [epoch for epoch in run.epochs(2) for _ in run.batches([torch.ones(4)])] == [0, 1]
    run.close()


@pytest.mark.full
def test_the_epochs_own_code_after_a_drain_in_the_last_epoch_is_in_the_last_state(
    open_session, courier, until_held
):
    """A notice in the last epoch's evaluation saves the state from before the epoch's own code."""

    def training(restore, *, is_noticed=False):
        model = torch.nn.Linear(4, 2)
        average = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        run = open_session(courier.begin(restore), model=model, optimizer=optimizer, average=average)
        run.check()
        for epoch in run.epochs(2):
            for batch in run.batches([torch.ones(4)] * 2):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
            if is_noticed and epoch == 1:
                courier.drain()
                until_held(run)
            run.check()
            average.update_parameters(model)

    def num_averaged(checkpoint):
        return int(Checkpoint(checkpoint).item("average/n_averaged"))

    with pytest.raises(SystemExit):
        training(None, is_noticed=True)
    drained = courier.carry(4)
    training(drained)
    assert courier.final()["step"] == 4
    assert courier.is_saved
    last = courier.carry(4)
    assert (num_averaged(drained), num_averaged(last)) == (1, 2)
    training(last)
    assert courier.final()["step"] == 4
    assert not courier.is_saved
    assert courier.seals() == {}


NUM_EPOCHS = 4
BATCHES = 6


def by_epochs(open_session, tick, make_loader, seen):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    run = open_session(model=model, optimizer=optimizer, scheduler=scheduler)
    loader = make_loader()
    for epoch in run.epochs(NUM_EPOCHS):
        assert run.epoch == epoch
        scale = 1 + torch.rand(1).item()  # drawn for the whole epoch
        for batch in run.batches(loader):
            assert run.epoch == epoch
            optimizer.zero_grad()
            loss = (model(batch * scale / NUM_SAMPLES) - 1).square().mean()
            loss.backward()
            optimizer.step()
            seen.append((epoch, run.step, batch.tolist()))
            tick()
        tick()
        scheduler.step()
        seen.append((epoch, run.step, "evaluated", torch.rand(1).item(), scheduler.get_last_lr()))
        tick()
    return weights_sha256(model), scheduler.get_last_lr()


def make_shuffled():
    data = torch.arange(2.0 * NUM_SAMPLES).view(-1, 2)
    return DataLoader(data, batch_size=4, shuffle=True)


@pytest.mark.full
@pytest.mark.filterwarnings(
    "ignore:Detected call of .lr_scheduler.step:UserWarning"
)  # the earlier process did it
@pytest.mark.parametrize("make_loader", [make_shuffled, make_stream])
# Each epoch has 6 batches and two more moments: after them, and after the epoch's own code.
@pytest.mark.parametrize(("drain_at", "step"), [(1, 1), (3, 3), (6, 6), (7, 6), (8, 6), (9, 7)])
def test_a_loop_over_epochs_is_resumed_in_the_middle_of_either(compare, courier, make_loader, drain_at, step):
    seen = []  # of each run

    def training(open_session, tick):
        seen.append([])
        return by_epochs(open_session, tick, make_loader, seen[-1])

    assert compare(training, drain_at) == step
    undisturbed, first, rest = seen
    assert first == undisturbed[: len(first)]
    assert rest == undisturbed[len(undisturbed) - len(rest) :]
    # Nothing is left out, and nothing comes twice but code of an epoch that was saved before it.
    assert len(first) + len(rest) - len(undisturbed) in {0, 1}
    assert courier.final()["step"] == NUM_EPOCHS * BATCHES
    assert handoff.read_progress(courier.handoff, 0) == (24, 24, 24)


def test_a_notice_after_the_last_batches_finds_only_the_end(open_session, courier, until_held):
    run_of, seen = [], []

    def open_one(**objects):
        run_of.append(open_session(courier.begin(), **objects))
        return run_of[0]

    def tick():
        if seen[-1][:3] == (NUM_EPOCHS - 1, NUM_EPOCHS * BATCHES, "evaluated"):
            courier.drain()
            until_held(run_of[0])

    by_epochs(open_one, tick, make_shuffled, seen)
    assert courier.final()["step"] == NUM_EPOCHS * BATCHES


@pytest.mark.full
def test_batches_that_are_left_early_end_their_epoch_only(compare):
    def training(open_session, tick):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        run = open_session(model=model, optimizer=optimizer)
        seen = []
        for epoch in run.epochs(4):
            for batch in run.batches(make_shuffled()):
                if run.step == 3 * (epoch + 1):
                    break
                model(batch).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                seen.append((epoch, run.step, batch.tolist()))
                tick()
            seen.append((epoch, run.step))
        return weights_sha256(model), seen[-4:]

    assert compare(training, 5) == 5


def test_what_comes_after_the_last_batches_is_in_the_last_state(open_session, courier):
    model = torch.nn.Linear(2, 1)
    run = open_session(courier.begin(), model=model)
    for _ in run.epochs(2):
        for _ in run.batches(make_shuffled()):
            pass
        torch.nn.init.ones_(model.weight)
    restored = courier.carry(12)
    other = torch.nn.Linear(2, 1)
    run = open_session(courier.begin(restored), model=other)
    assert other.weight.tolist() == [[1.0, 1.0]]
    assert list(run.epochs(2)) == []
    assert courier.seals() == {}


@pytest.mark.full
def test_an_epoch_has_one_loop_over_batches(open_session):
    run = open_session({})
    with pytest.raises(spot.SessionError, match=r"had no loop over run.batches\(\)"):
        for _ in run.epochs(2):
            pass
    run = open_session({})
    with pytest.raises(spot.SessionError, match="once in each epoch"):
        for _ in run.epochs(2):
            list(run.batches([1]))
            list(run.batches([1]))
    run = open_session({})
    with pytest.raises(spot.SessionError, match="leave out epochs="):
        for _ in run.epochs(2):
            list(run.batches([1], epochs=2))
