"""docs/session.md: each example runs, undisturbed and drained and resumed, and everything public is named."""

import inspect
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import cloudspot.train as spot
from cloudspot.train.sessions.training import Session
from cloudspot.train.state import sharding

PAGE = (Path(__file__).parents[2] / "docs" / "session.md").read_text()
EXAMPLES = re.findall(r"^#+ ([^\n]*)\n(?:(?!^#).)*?^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


class Pairs(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(2)
        for _ in range(30):
            yield torch.randn(2, generator=generator), torch.rand(1, generator=generator)


def names(open_session, tick):
    """Return what the examples use; ``tick`` is called once in each step."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(4)
    model, generator = (
        torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, outputs))
        for outputs in (1, 2)
    )
    critic = torch.nn.Linear(2, 1)
    data = TensorDataset(torch.randn(30, 2), torch.rand(30, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    class Spot:
        session = staticmethod(open_session)

    def loss_of(outputs, targets):
        tick()
        return (outputs - targets).square().mean()

    def noise():
        tick()
        return torch.randn(4, 2)

    return {
        "torch": torch,
        "spot": Spot,
        "model": model,
        "generator": generator,
        "critic": critic,
        "average": torch.optim.swa_utils.AveragedModel(generator),
        "optimizer": optimizer,
        "optimizer_g": torch.optim.Adam(generator.parameters(), 0.01),
        "optimizer_d": torch.optim.Adam(critic.parameters(), 0.01),
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9),
        "scaler": torch.amp.GradScaler("cpu", init_scale=64.0),
        "loader": DataLoader(data, batch_size=4, shuffle=True),
        "stateful_loader": StatefulDataLoader(data, batch_size=4, shuffle=True),
        "stream": DataLoader(Pairs(), batch_size=4),
        "draw_batch": lambda: (torch.randn(4, 2), torch.rand(4, 1)),
        "validation": [(torch.ones(1, 2), torch.ones(1, 1))] * 2,
        "noise": noise,
        "loss_of": loss_of,
        "evaluate": lambda model: model(torch.ones(1, 2)).item(),
    }


@pytest.fixture
def process_group():
    """A group of this process alone, as torchrun would make."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    sharding._held.cache_clear()
    dist.destroy_process_group()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize(("head", "code"), EXAMPLES, ids=[head for head, _ in EXAMPLES])
def test_an_example_ends_as_if_nobody_had_disturbed_it(compare, request, head, code):
    if "fully_shard" in code:
        request.getfixturevalue("process_group")

    def training(open_session, tick):
        exec(compile(code, head, "exec"), names(open_session, tick))

    assert 8 <= compare(training, 11) <= 12


def test_the_page_names_every_argument_and_all_that_a_session_offers():
    arguments = [name for name in inspect.signature(spot.session).parameters if name != "others"]
    for_frameworks = {"begin_again", "connect"}
    offered = [name for name in vars(Session) if not name.startswith("_") and name not in for_frameworks]
    missing = [name for name in arguments if f"`{name}`" not in PAGE]
    missing += [name for name in offered if re.search(rf"`run\.{name}\b", PAGE) is None]
    assert missing == []
    assert len(EXAMPLES) == PAGE.count("```python") == 12
