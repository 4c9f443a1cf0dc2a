"""State on a GPU; skipped where there is none."""

import pytest
import torch

from cloudspot.train import arena
from cloudspot.train.arena import Arena
from cloudspot.train.distributed import World
from cloudspot.train.handoff import seals_directory
from cloudspot.train.partition import Item, plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("registered", [True, False])
def test_tensors_on_a_gpu_are_copied_bit_for_bit(tmp_path, monkeypatch, registered):
    seals_directory(tmp_path).mkdir()
    slots = Arena(
        directory=tmp_path / "memory",
        spill=tmp_path / "disk",
        handoff=tmp_path,
        generation=1,
        world=World(0, 1, 0, 1),
    )
    monkeypatch.setattr(arena, "_STAGING_BYTES", 1000)
    tensors = {
        "a": torch.randn(300, 7, device="cuda").t(),
        "b": torch.randn(5, dtype=torch.bfloat16, device="cuda"),
        "c": torch.tensor(3.0),
    }
    items = [
        Item(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), t.element_size())
        for name, t in tensors.items()
    ]
    made = plan(items, world_size=1)
    slots.claim(made.part_bytes[0])
    slot = slots.free_slot()
    if not registered:
        monkeypatch.setattr(type(slot), "_register", lambda self, nbytes: False)
    slot.write(made.parts[0], [tensors[placement.item.name] for placement in made.parts[0]])
    assert (slot._registered_bytes > 0) is registered
    data = bytearray(slot.path.read_bytes())
    for placement in made.parts[0]:
        expected = tensors[placement.item.name].cpu()
        found = torch.frombuffer(data, dtype=expected.dtype, count=expected.numel(), offset=placement.offset)
        assert torch.equal(found.reshape(expected.shape), expected)
    slots.close()


@pytest.mark.parametrize("drain_at", [0, 9])
def test_a_training_on_a_gpu_resumes_bit_equal(open_session, courier, until_held, drain_at):
    def train(restore, drain_at=None):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.4), torch.nn.Linear(64, 1))
        model.to("cuda")
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda")
        run = open_session(courier.begin(restore), model=model, optimizer=optimizer, scaler=scaler)
        for step in run.steps(20):
            with torch.autocast("cuda"):
                loss = model(torch.randn(16, 64, device="cuda")).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step == drain_at:
                courier.drain()
                until_held(run)

    train(None)
    expected = courier.final()
    with pytest.raises(SystemExit):
        train(None, drain_at)
    train(courier.carry())
    assert courier.final() == expected
