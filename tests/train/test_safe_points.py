"""``run.check()``: a notice in the middle of an evaluation loses no step, and no bit."""

import random

import pytest
import torch
from torch.utils.data import DataLoader

from cloudspot.train import handoff
from cloudspot.train.rounds.save_order import DRAIN, SaveOrder
from cloudspot.train.state import boundary_marks
from cloudspot.train.state.checkpoint import weights_sha256

NUM_CHECKS = 5
"""In one evaluation."""


def net(*middle):
    return torch.nn.Sequential(torch.nn.Linear(2, 4), *middle, torch.nn.Dropout(0.4), torch.nn.Linear(4, 1))


def evaluate(run, tick, seen):
    """Draw random numbers of each generator, as an evaluation may, and check."""
    for _ in range(NUM_CHECKS):
        drawn = (torch.rand(1).item(), random.random())
        tick()
        run.check()
        seen.append(drawn)


def train_step(model, optimizer, inputs):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


def loader():
    return DataLoader(torch.arange(44.0).view(22, 2) / 22, batch_size=4, shuffle=True)


def in_steps(open_session, tick, seen, model):
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    run = open_session(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in run.steps(14):
        if step % 4 == 0:
            evaluate(run, tick, seen)
        train_step(model, optimizer, torch.randn(4, 2))
        scheduler.step()
        tick()


def in_batches(open_session, tick, seen, model):
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    run = open_session(model=model, optimizer=optimizer)
    for batch in run.batches(loader(), epochs=3):
        if run.step % 4 == 2:
            evaluate(run, tick, seen)
        train_step(model, optimizer, batch)
        tick()


def in_epochs(open_session, tick, seen, model):
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    run = open_session(model=model, optimizer=optimizer, scheduler=scheduler)
    for _ in run.epochs(3):
        for batch in run.batches(loader()):
            train_step(model, optimizer, batch)
            tick()
        scheduler.step()  # before the evaluation
        evaluate(run, tick, seen)


def with_a_tracked_loader(open_session, tick, seen, model):
    from torchdata.stateful_dataloader import StatefulDataLoader

    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    stateful = StatefulDataLoader(torch.arange(24.0).view(12, 2) / 12, batch_size=2, shuffle=True)
    run = open_session(model=model, optimizer=optimizer, dataloader=stateful)
    batches = None
    for step in run.steps(14):
        if step % 4 == 0:
            evaluate(run, tick, seen)
        if batches is None:
            batches = iter(run.dataloader)
        batch = next(batches, None)
        if batch is None:
            batches = iter(run.dataloader)
            batch = next(batches)
        train_step(model, optimizer, batch)
        tick()


LOOPS = {each.__name__: each for each in (in_steps, in_batches, in_epochs, with_a_tracked_loader)}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("name", LOOPS)
def test_a_notice_in_an_evaluation_ends_as_if_nobody_had_disturbed_it(compare, name):
    seen = []  # of each run

    def training(open_session, tick):
        random.seed(5)
        model = net()
        seen.append([])
        LOOPS[name](open_session, tick, seen[-1], model)
        return weights_sha256(model)

    chance = random.Random(name)
    for _ in range(5):
        compare(training, chance.randrange(2, 28))
        expected, first, rest = seen[-3:]
        assert first == expected[: len(first)]
        assert rest == expected[len(expected) - len(rest) :]
        # An evaluation that was left begins again, and none is left out.
        assert 0 <= len(first) + len(rest) - len(expected) < NUM_CHECKS


# --- where it leaves ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def all_marked(monkeypatch):
    """Mark each boundary once a script checks, however short the steps and busy the machine."""
    monkeypatch.setattr(boundary_marks, "ALWAYS_SECONDS", 1e9)


@pytest.fixture
def evaluated(open_session, courier, until_held):
    """``evaluated(model, evaluate)``: drained in an evaluation at the beginning of step 3; where it was saved.

    ``evaluate(check)`` begins with a ``check`` in which nothing is known of the notice yet.
    """

    def run(model, evaluate, *, at_end=False, **others):
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        session = open_session(courier.begin(), model=model, optimizer=optimizer, **others)
        session.check()  # from now on each boundary is marked
        expected, num_checks = [], 0

        def check():
            nonlocal num_checks
            num_checks += 1
            session.check()
            if num_checks == 1:
                expected.append(weights_sha256(model))
                courier.drain()
                until_held(session)

        with pytest.raises(SystemExit):
            for step in session.steps(9):
                if step == 3 and not at_end:
                    evaluate(check)
                train_step(model, optimizer, torch.randn(4, 2))
                if step == 3 and at_end:
                    evaluate(check)
        return courier.drained()["step"], num_checks

    return run


def check_thrice(check):
    for _ in range(3):
        check()


def test_an_evaluation_is_left_at_the_check_after_the_notice(evaluated, courier, caplog):
    assert evaluated(net(), check_thrice) == (3, 2)
    assert list(courier.seals()) == [3]
    assert caplog.messages == []


@pytest.mark.full
def test_the_mode_of_the_model_and_gradients_of_no_use_are_no_state(evaluated):
    model = net()

    def evaluate(check):
        model.eval()
        with torch.inference_mode():
            model(torch.ones(1, 2))
            check_thrice(check)
        model.train()

    assert evaluated(model, evaluate) == (3, 2)
    model = net()

    def backward(check):
        model(torch.ones(1, 2)).sum().backward()
        check_thrice(check)

    assert evaluated(model, backward) == (3, 2)


def swap(average, model):
    with torch.no_grad():
        for one, other in zip(average.parameters(), model.parameters(), strict=True):
            one.copy_(other + 1)


def swap_data(average, model):
    for one, other in zip(average.parameters(), model.parameters(), strict=True):
        one.data.copy_(other.data + 1)


def exchange_data(average, model):
    for one, other in zip(average.parameters(), model.parameters(), strict=True):
        one.data = other.data + 1


CHANGES = {
    "weights that are written to": (lambda model: swap(model, net()), "was written to"),
    "weights that are written to by data": (lambda model: swap_data(model, net()), "weights were written to"),
    "weights that are exchanged": (lambda model: exchange_data(model, net()), "weights were written to"),
    "a loaded state": (lambda model: model.load_state_dict(net().state_dict()), "was written to"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_weights_are_no_safe_point_and_that_is_told(evaluated, caplog, name):
    change, told = CHANGES[name]
    model = net()

    def evaluate(check):
        check()
        change(model)
        check_thrice(check)

    assert evaluated(model, evaluate) == (4, 4)
    (line,) = caplog.messages
    assert line.startswith("rank 0 is not at a safe point: since the last boundary, ")
    assert told in line


def test_short_steps_are_marked_once_the_script_checks(
    open_session, courier, until_held, caplog, monkeypatch
):
    monkeypatch.setattr(boundary_marks, "IDLE_SHARE", 0.0)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    run = open_session(courier.begin(), model=model, optimizer=optimizer)
    with pytest.raises(SystemExit):
        for step in run.steps(9):
            if step == 3:
                courier.drain()
                until_held(run)
                run.check()
            train_step(model, optimizer, torch.randn(4, 2))
    assert "its state was not noted: call run.check() before the loop" in caplog.text
    assert courier.drained() == {"step": 4}


def test_the_statistics_of_a_batch_norm_are_saved_as_they_were_at_the_boundary(
    open_session, courier, evaluated, caplog
):
    model, expected = net(torch.nn.BatchNorm1d(4)), []

    def evaluate(check):
        check()
        expected.append(weights_sha256(model))
        model(torch.randn(3, 2))
        assert weights_sha256(model) != expected[0]
        check_thrice(check)

    assert evaluated(model, evaluate) == (3, 2)
    assert caplog.messages == []
    restored = net(torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(restored.parameters(), 0.01)
    open_session(courier.begin(courier.carry(3)), model=restored, optimizer=optimizer)
    assert weights_sha256(restored) == expected[0]


def test_after_the_step_a_notice_waits_for_its_end_and_that_is_told_once(evaluated, caplog):
    assert evaluated(net(), check_thrice, at_end=True) == (4, 3)
    told, line = caplog.messages
    assert told.startswith("run.check() was called after the optimizer's step, where it cannot save")
    assert "an optimizer has stepped" in line


class Counter:
    def __init__(self):
        self.number = 0

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


def test_what_is_no_tensor_is_saved_as_it_was_at_the_boundary(open_session, courier, evaluated):
    counter = Counter()

    def evaluate(check):
        counter.number = 1
        check_thrice(check)

    assert evaluated(net(), evaluate, counter=counter) == (3, 2)
    restored, model = Counter(), net()
    restored.number = 7
    optimizer = torch.optim.Adam(model.parameters())
    open_session(courier.begin(courier.carry(3)), model=model, optimizer=optimizer, counter=restored)
    assert restored.number == 0


def test_a_pending_interval_save_does_not_hold_up_a_notice(open_session, courier, wait_until):
    """Its boundary is decided and lies after the evaluation."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    run = open_session(courier.begin(), model=model, optimizer=optimizer)
    run.check()
    rounds = run._service._link.rounds
    with pytest.raises(SystemExit):
        for step in run.steps(9):
            if step == 3:
                run.check()
                run._service._saver._claiming.join()
                rounds.request_interval()
                wait_until(lambda: rounds._order is not None)
                run.check()
                courier.drain()
                wait_until(lambda: rounds._can_rewind)
                run.check()
            train_step(model, optimizer, torch.randn(4, 2))
    assert courier.drained() == {"step": 3}
    assert list(courier.seals()) == [3]


def test_a_boundary_that_was_saved_already_is_not_saved_again(open_session, courier, until_held):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    run = open_session(courier.begin(), model=model, optimizer=optimizer)
    run.check()
    with pytest.raises(SystemExit):
        for step in run.steps(9):
            if step == 2:
                run._service._saver._claiming.join()
                run._service._link.rounds.request_interval()
                until_held(run)
            if step == 3:
                assert list(courier.seals()) == [3]
                courier.drain()
                until_held(run)
                run.check()
            train_step(model, optimizer, torch.randn(4, 2))
    assert courier.drained() == {"step": 3}


def test_a_drain_at_a_boundary_behind_that_is_sealed_has_a_save_of_its_own(open_session, courier, until_held):
    """That save may need a part of a machine that is about to go, or be of the other boundary of its step."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    run = open_session(courier.begin(), model=model, optimizer=optimizer)
    run.check()
    service = run._service
    for step in run.steps(4):
        if step == 2:
            service._saver._claiming.join()
            service._link.rounds.request_interval()
            until_held(run)
        if step == 3:
            assert list(courier.seals()) == [3]
            (mark,) = service._marks.standing()
            service.standing(mark.number)
            assert service.copy(SaveOrder(DRAIN, mark.number, 2)) is not None
            service.publish()
            break
        train_step(model, optimizer, torch.randn(4, 2))
    names = [
        handoff.parse_seal_name(path.name) for path in handoff.seals_directory(courier.handoff).iterdir()
    ]
    assert sorted((name.step, name.round) for name in names) == [(3, 1), (3, 2)]


def test_outside_of_the_loop_and_before_its_first_step_a_check_saves_nothing(
    open_session, courier, until_held
):
    run = open_session(courier.begin(), model=torch.nn.Linear(2, 1))
    run.check()
    courier.drain()
    until_held(run)
    run.check()
    with pytest.raises(SystemExit):
        for _ in run.steps(3):
            pytest.fail("there is a boundary before the first step")
    assert courier.drained() == {"step": None}
    run = open_session(courier.begin(), model=torch.nn.Linear(2, 1))
    assert list(run.steps(3)) == [0, 1, 2]
    courier.drain()
    run.check()
    assert courier.final()["step"] == 3


def test_without_an_agent_a_check_does_nothing(open_session):
    run = open_session({}, model=torch.nn.Linear(2, 1))
    for _ in run.steps(2):
        run.check()
