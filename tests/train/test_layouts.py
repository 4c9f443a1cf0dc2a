"""How tensors lie in memory, of which type and on which device: a resume brings them back as they were."""

import hashlib
import json

import pytest
import torch

from cloudspot.train import handoff
from cloudspot.train.errors import CheckpointError

OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.01, fused=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9, fused=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, 0.01, fused=True),
}


def digest(model):
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_moments_of_a_fused_optimizer_belong_to_the_weights_they_belonged_to(compare, name):
    """Its kernels walk through memory, and take state that lies like the parameter for granted."""

    def training(open_, tick):
        layers = torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
        model = torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)
        optimizer = OPTIMIZERS[name](model.parameters())
        run = open_(model=model, optimizer=optimizer)
        for _ in run.steps(12):
            tick()
            images = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
            optimizer.zero_grad()
            model(images).square().mean().backward()
            optimizer.step()
        return digest(model)

    compare(training, 6)


class WithMasterWeights(torch.optim.Optimizer):
    """Keeps weights of more digits than the parameters have, as Adafactor keeps its moments."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["master"] = parameter.double()
            state["master"].add_(parameter.grad.double(), alpha=-0.01)
            parameter.copy_(state["master"])


@pytest.mark.full
def test_state_of_an_optimizer_keeps_its_own_type(compare):
    def training(open_, tick):
        model = torch.nn.Linear(16, 16).to(torch.bfloat16)
        optimizer = WithMasterWeights(model.parameters())
        run = open_(model=model, optimizer=optimizer)
        for _ in run.steps(30):
            tick()
            optimizer.zero_grad()
            model(torch.randn(4, 16, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
        return hashlib.sha256(model.weight.detach().float().numpy().tobytes()).hexdigest()

    compare(training, 12)


class Tracked:
    """An object that takes its tensors as they come."""

    def __init__(self, **tensors):
        vars(self).update(tensors)

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


@pytest.fixture
def resumed(courier, open_session, until_held):
    """``resumed(tracked, fresh, change)``: save one, let ``change`` have the seal, and load it into the other."""

    def resume(tracked, fresh, change=lambda _layouts: None):
        run = open_session(courier.begin(), averages=tracked)
        with pytest.raises(SystemExit):
            for _ in run.steps(3):
                courier.drain()
                until_held(run)
        restore = courier.carry()
        path = restore / handoff.RESTORE_MANIFEST
        manifest = json.loads(path.read_text())
        change(manifest["parts"][0]["seal"]["objects"]["layouts"])
        path.write_text(json.dumps(manifest))
        open_session(courier.begin(restore), averages=fresh)

    return resume


def test_tensors_of_tracked_objects_lie_as_they_did(resumed):
    permuted = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    fresh = Tracked()
    resumed(Tracked(permuted=permuted, gaps=torch.arange(8)[::2], wide=torch.ones(1).expand(5)), fresh)
    assert torch.equal(fresh.permuted, permuted)
    assert fresh.permuted.stride() == permuted.stride()
    assert fresh.gaps.tolist() == [0, 2, 4, 6]
    assert (fresh.wide.tolist(), fresh.wide.stride()) == ([1.0] * 5, (1,)), "it can be written to"


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "meta", "nonsense", ""])
def test_a_device_that_is_not_here_is_the_cpu(resumed, device):
    def change(layouts):
        layouts["averages/one"] = {"device": device}

    fresh = Tracked()
    resumed(Tracked(one=torch.arange(3)), fresh, change)
    assert fresh.one.tolist() == [0, 1, 2]
    assert fresh.one.device.type == "cpu"


@pytest.mark.parametrize("strides", [[1, 1], [4, 2], [0, 1], [1]])
def test_strides_by_which_elements_would_share_a_place_or_leave_one_are_not_used(resumed, strides):
    def change(layouts):
        layouts["averages/one"] = {"strides": strides}

    fresh = Tracked()
    resumed(Tracked(one=torch.arange(6).reshape(2, 3)), fresh, change)
    assert fresh.one.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert fresh.one.is_contiguous()


@pytest.mark.parametrize("layout", [{"strides": [-1, 2]}, {"strides": ["a", 1]}, {"strides": "ab"}, [], 1])
def test_a_layout_that_is_malformed_is_an_error(resumed, layout):
    def change(layouts):
        layouts["averages/one"] = layout

    with pytest.raises(CheckpointError, match="averages/one"):
        resumed(Tracked(one=torch.arange(6).reshape(2, 3)), Tracked(), change)
