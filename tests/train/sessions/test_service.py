"""What a rank says that it holds after others were lost."""

import contextlib
import json
import random
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.distributed import HashStore
from torchdata.stateful_dataloader import StatefulDataLoader

from cloudspot.train import handoff
from cloudspot.train.rounds.save_order import RESCUE, SaveOrder
from cloudspot.train.sessions import failed_backward, service
from cloudspot.train.state import boundary_marks
from cloudspot.train.state.own_pieces import OwnState
from cloudspot.train.state.tree import rebuild

DATA = [torch.ones(2) for _ in range(4)]


class Counting:
    """A loader that knows its position."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while True:
            self.position += 1
            yield DATA[0]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


@pytest.fixture
def rank(open_session, courier, monkeypatch):
    """``rank(**tracked)``: a session that may be rescued, and how to make a step in it."""
    monkeypatch.setattr(boundary_marks, "IDLE_SHARE", 1e9)

    def make(**tracked):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        environment = {**courier.begin(), handoff.RESCUE: "1"}
        run = open_session(environment, model=model, optimizer=optimizer, **tracked)

        def step():
            model(DATA[0]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return run, step

    monkeypatch.setattr(service, "Rescue", _Unheard)
    monkeypatch.setattr(service.sigterm, "put_off", lambda _may_put_off: None)
    return make


class _Unheard:
    """Takes the place of the thread, which no test here needs."""

    def __init__(self, *_args, **_options):
        pass

    def start(self):
        pass

    stop = hold = begin = start


def test_where_each_rank_alone_knows_its_place_in_the_data_all_have_to_be_there(rank):
    loader = Counting()
    run, step = rank(dataloader=loader)
    batches = iter(run.dataloader)
    for number in run.steps(3):
        if number == 2:
            assert run._service.held().needs_all
            assert run._service.held().draws
        next(batches)
        step()


@pytest.mark.parametrize("has_code", [False, True])
def test_random_numbers_of_an_epochs_own_code_count_and_those_of_its_loader_do_not(rank, has_code):
    run, step = rank()
    loader = torch.utils.data.DataLoader(DATA)
    found = None
    for _ in run.epochs(3):
        if has_code:
            random.random()
        for _batch in run.batches(loader):
            if run.step > 0:
                found = run._service.held()
            step()
    assert (found.draws, found.holders) == (has_code, ())


def test_what_changes_while_it_is_looked_at_holds_nothing(rank, monkeypatch):
    run, step = rank()

    def fail(_objects):
        raise RuntimeError("dictionary changed size during iteration")

    for number in run.steps(2):
        if number == 1:
            with monkeypatch.context() as patch:
                patch.setattr(service.checkpoint, "take", fail)
                assert "changed size" in run._service.held()
        step()


def test_a_failed_backward_pass_before_the_loop_spoils_no_boundary(rank):
    """As where a framework searches for a batch size that fits into memory."""
    run, step = rank()
    run._service._note_failure("a backward pass has failed", RuntimeError("out of memory"))
    for number in run.steps(2):
        if number == 1:
            assert run._service.held().step == 1
        step()


def test_what_lost_ranks_had_handed_over_is_saved_with_what_is_held(rank, courier):
    run, step = rank()
    for number in run.steps(3):
        if number == 2:
            served = run._service
            keeps = SimpleNamespace(
                at=lambda mark: {7: OwnState({"of": "rank 7"}, mark)} if mark.number == 2 else {},
                offer=lambda mark, draws: None,
                close=lambda: None,
            )
            served._own_states = keeps
            assert served.held().keeps == (7,)
            order = SaveOrder(RESCUE, 2, 900_001, rescue={"kept": [7]}, keepers={7: 0})
            assert served.save(order) == 2
            seal = json.loads(courier.seals()[2][0].read_text())
            assert seal["rank_states"].keys() == {"0", "7"}
            assert seal["rank_states"]["7"] == {"of": "rank 7"}
            assert served.save(SaveOrder(RESCUE, 2, 900_002, keepers={8: 0})) is None  # it does not keep that
            served.save(SaveOrder(RESCUE, 2, 900_003, keepers={7: 1}))
            assert json.loads(courier.seals()[2][0].read_text())["rank_states"].keys() == {"0"}
        step()


@pytest.mark.parametrize("hands_over", [False, True])
def test_a_place_in_the_data_that_is_handed_over_costs_no_step(rank, hands_over, monkeypatch):
    run, step = rank()
    told = []
    monkeypatch.setattr(run._service, "_warn_of_loss_cost", told.append)
    if hands_over:
        run._service._own_states = SimpleNamespace(offer=lambda mark, draws: None, close=lambda: None)
    for _batch in run.batches(Counting()):
        step()
        if run.step == 2:
            break
    assert (told[1:] == [None]) if hands_over else ("is known to that rank only" in told[1])


def test_a_rank_that_cannot_listen_says_so_to_its_agent_and_trains_on(rank, courier):
    run, step = rank()
    run._service._hand_over("secret@203.0.113.7", HashStore())  # no machine of ours has that address
    for _ in run.steps(1):
        step()
    said = handoff.read_json(handoff.own_state_path(courier.handoff, 0))
    assert said["problem"].startswith("its keeper cannot listen: ")
    assert run._service._own_states is None


def test_a_script_that_goes_on_after_a_failed_backward_pass_ends_with_that_error(rank):
    """Without other ranks in it, that is an error of its own."""
    run, step = rank()
    with (
        pytest.raises(ZeroDivisionError),
        failed_backward.noted(run._service._note_failure, succeeded=mock.Mock()),
    ):
        for number in run.steps(3):
            if number == 1:
                with contextlib.suppress(ZeroDivisionError):
                    Broken.apply(torch.ones(1, requires_grad=True)).backward()
            else:
                step()
    assert number == 1
    assert run._service.held().step == 1


class Broken(torch.autograd.Function):
    """Fails in the backward pass."""

    @staticmethod
    def forward(_ctx, value):
        return value.clone()

    @staticmethod
    def backward(_ctx, _gradient):
        return 1 / 0


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_in_the_middle_of_a_step_a_tracked_loader_is_saved_where_it_stood_at_the_boundary(rank, courier):
    loader = StatefulDataLoader(torch.arange(12).tolist(), batch_size=2)
    run, step = rank(dataloader=loader)
    batches = iter(run.dataloader)
    for number in run.steps(4):
        fetched = next(batches)
        if number == 2:
            assert fetched.tolist() == [4, 5]
            held = run._service.held()
            assert (
                run._service.save(SaveOrder("rescue", held.boundary, 900_001, rescue={"cause": "lost"})) == 2
            )
            break
        step()
    seals = [json.loads(path.read_text()) for path in handoff.seals_directory(courier.handoff).iterdir()]
    (seal,) = [each for each in seals if each["kind"] == "rescue"]
    state = rebuild("rank", seal["rank_states"]["0"])
    again = StatefulDataLoader(torch.arange(12).tolist(), batch_size=2)
    again.load_state_dict(state["dataloader"])
    assert next(iter(again)).tolist() == [4, 5]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("num_batches", [1, 2, 3])
def test_a_rank_whose_steps_fetch_different_numbers_of_batches_tells_nothing_of_others(rank, num_batches):
    loader = StatefulDataLoader(torch.arange(12).tolist(), batch_size=1)
    run, step = rank(dataloader=loader)
    batches = iter(run.dataloader)
    found = None
    for number in run.steps(3):
        for _ in range(num_batches if number == 0 else 1):
            next(batches)
        if number == 2:
            found = run._service.held()
        step()
    assert found.needs_all == (num_batches > 1)


def test_a_rank_tells_ever_more_seldom_which_weights_it_holds_and_whether_it_draws(rank, courier):
    run, step = rank()
    path = handoff.likeness_path(courier.handoff, 0)
    told = {}
    for number in run.steps(10):
        run._service.report_likeness()
        told[number] = json.loads(path.read_text()) if path.exists() else None
        step()
    assert told[0] is None
    assert told[1] == {"rank": 0, "draws": False, "digests": []}
    assert [boundary for boundary, _ in told[9]["digests"]] == [2, 3, 5, 9]
    assert len({digest for _, digest in told[9]["digests"]}) == 4


def test_an_optimizer_that_steps_within_the_backward_pass_leaves_nothing_to_save(rank):
    run, _ = rank()
    service, model, optimizer = run._service, run._objects["model"], run._objects["optimizer"]
    service._marks.expects_backward = True
    model.bias.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with failed_backward.noted(service._note_failure, succeeded=service._marks.note_backward):
        for number in run.steps(3):
            if number == 2:
                assert "its state was not noted after a complete backward pass" in service.held()
            model(DATA[0]).sum().backward()
            optimizer.zero_grad()


def test_an_optimizer_whose_closure_runs_the_backward_pass_leaves_a_boundary_to_save(rank):
    """As Lightning's do."""
    run, _ = rank()
    service, model, optimizer = run._service, run._objects["model"], run._objects["optimizer"]
    service._marks.expects_backward = True

    def closure():
        if number == 3:
            raise RuntimeError("connection closed by peer")
        optimizer.zero_grad()
        model(DATA[0]).sum().backward()

    with failed_backward.noted(service._note_failure, succeeded=service._marks.note_backward):
        for number in run.steps(4):
            if number == 2:
                assert service.held().step == 2
            if number < 3:
                optimizer.step(
                    *([closure] if number < 2 else []), **({"closure": closure} if number == 2 else {})
                )
                assert "an optimizer has stepped" in service.held()
            else:
                with pytest.raises(RuntimeError):
                    optimizer.step(closure)
                assert service.held().step == 3
                break
