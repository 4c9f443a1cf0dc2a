"""State on a GPU: `pytest -m gpu`."""

import gc
import tempfile
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from cloudspot.train import handoff
from cloudspot.train.distributed import World
from cloudspot.train.handoff import seals_directory
from cloudspot.train.state import arena, own_pieces, randomness
from cloudspot.train.state.arena import Arena
from cloudspot.train.state.boundary_marks import BoundaryMarks, Description
from cloudspot.train.state.checkpoint import take
from cloudspot.train.state.partition import Item, plan

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_garbage():
    """Collect what earlier tests have left: a forked process may not free their CUDA events."""
    gc.collect()


@pytest.fixture
def memory():
    """A directory in memory, as the arena has on a machine."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.mark.parametrize("place", ["memory", "memory that is locked in part", "unlocked memory", "disk"])
def test_tensors_on_a_gpu_are_copied_bit_for_bit(tmp_path, memory, monkeypatch, place):
    seals_directory(tmp_path).mkdir()
    slots = Arena(
        directory=(tmp_path if place == "disk" else memory) / "memory",
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
    if place == "unlocked memory":
        monkeypatch.setattr(slot, "_can_register", False)
    if place == "memory that is locked in part":
        slot._register(4096, tensors["a"].device)
    slot.write(made.parts[0], [tensors[placement.item.name] for placement in made.parts[0]])
    locked = {"memory": made.part_bytes[0], "memory that is locked in part": 4096}
    assert slot._registered_bytes == locked.get(place, 0)
    assert float(torch.ones(1, device="cuda").add_(1)) == 2.0, "CUDA still has an error to tell"
    data = bytearray(slot.path.read_bytes())
    for placement in made.parts[0]:
        expected = tensors[placement.item.name].cpu()
        found = torch.frombuffer(data, dtype=expected.dtype, count=expected.numel(), offset=placement.offset)
        assert torch.equal(found.reshape(expected.shape), expected)
    slots.close()


def make_model():
    torch.manual_seed(3)
    layers = (
        torch.nn.Linear(64, 64),
        torch.nn.BatchNorm1d(64),
        torch.nn.Dropout(0.4),
        torch.nn.Linear(64, 1),
    )
    return torch.nn.Sequential(*layers).to("cuda")


def check_resumed(courier, train, drain_at):
    """Train undisturbed, and drained and resumed: both end with the same bits."""
    train(None)
    expected = courier.final()
    with pytest.raises(SystemExit):
        train(None, drain_at)
    train(courier.carry())
    assert courier.final() == expected


KINDS = {
    "scaled": {},
    "fused": {"fused": True},
    "capturable": {"capturable": True, "foreach": True},
    "compiled": {},
}
"""How an Adam is made; its counts of steps are on the GPU if it is fused or capturable."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of the compiler
@pytest.mark.parametrize("drain_at", [0, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_on_a_gpu_resumes_bit_equal(open_session, courier, until_held, kind, drain_at):
    def train(restore, drain_at=None):
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), 0.01, **KINDS[kind])
        scaler = torch.amp.GradScaler("cuda", enabled=kind == "scaled")
        run = open_session(courier.begin(restore), model=model, optimizer=optimizer, scaler=scaler)
        forward = torch.compile(model) if kind == "compiled" else model
        for step in run.steps(20):
            with torch.autocast("cuda"):
                loss = forward(torch.randn(16, 64, device="cuda")).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step == drain_at:
                courier.drain()
                until_held(run)

    check_resumed(courier, train, drain_at)


class Averages:
    """Has tensors from the first update on, and takes them as they come."""

    def __init__(self):
        self.mean = None

    def update(self, value):
        self.mean = value.clone() if self.mean is None else self.mean.lerp_(value, 0.1)

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]


def test_tensors_of_tracked_objects_come_back_to_the_gpu_and_moments_to_their_weights(
    open_session, courier, until_held
):
    def train(restore, drain_at=None):
        torch.manual_seed(3)
        model = torch.nn.Conv2d(3, 8, 3).to("cuda", memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), torch.tensor(0.01, device="cuda"), fused=True)
        averages = Averages()
        run = open_session(courier.begin(restore), model=model, optimizer=optimizer, averages=averages)
        for step in run.steps(12):
            loss = model(torch.randn(4, 3, 8, 8, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            averages.update(loss.detach())
            if step == drain_at:
                courier.drain()
                until_held(run)

    check_resumed(courier, train, 6)


@pytest.mark.parametrize("drain_at", [2, 7])
def test_batches_in_pinned_memory_are_replayed(open_session, courier, until_held, drain_at):
    def train(restore, drain_at=None):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        run = open_session(courier.begin(restore), model=model, optimizer=optimizer)
        loader = DataLoader(
            TensorDataset(torch.arange(40 * 64.0).view(40, 64) / 2560),
            batch_size=8,
            shuffle=True,
            num_workers=2,
            pin_memory=True,
        )
        for (batch,) in run.batches(loader, epochs=3):
            assert batch.is_pinned()
            optimizer.zero_grad()
            model(batch.to("cuda", non_blocking=True)).square().mean().backward()
            optimizer.step()
            if run.step == drain_at:
                courier.drain()
                until_held(run)

    check_resumed(courier, train, drain_at)


def test_a_notice_in_an_evaluation_does_not_wait_for_the_gpu(open_session, courier, until_held, memory):
    """What a rank has queued may wait for other ranks: only what was queued before the boundary counts."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    environment = {**courier.begin(), handoff.ARENA: str(memory / "arena")}
    run = open_session(environment, model=model, optimizer=optimizer)
    run.check()
    busy = torch.cuda.Event()
    with pytest.raises(SystemExit):
        for step in run.steps(9):
            if step == 3:
                torch.cuda._sleep(int(16e9))  # some eight seconds
                busy.record()
                courier.drain()
                until_held(run)
                run.check()
            model(torch.randn(16, 64, device="cuda")).square().mean().backward()
            optimizer.step()
    assert not busy.query(), "it waited for the GPU"
    assert courier.drained() == {"step": 3}


def test_what_a_rank_alone_has_is_handed_over_without_waiting_for_the_gpu():
    """From a stream that waits for the boundary alone, as the usual one may wait for other ranks."""
    model = torch.nn.BatchNorm1d(64).cuda()
    marks = BoundaryMarks({"model": model})
    model(torch.randn(16, 64, device="cuda"))
    expected = [each.cpu().clone() for each in model.buffers()]
    described = Description({}, {"random": randomness.capture((0,))})
    marks.mark(0, 1, lambda: described, is_rare=True)
    torch.cuda._sleep(int(16e9))  # some eight seconds
    model(torch.randn(16, 64, device="cuda"))
    busy = torch.cuda.Event()
    busy.record()
    mark = marks.newest
    with marks.after(mark):
        pieces = own_pieces.take(mark, rank=0)
    assert not busy.query(), "it waited for the GPU"
    encoded = {name: own_pieces.encode(name, each) for name, each in pieces.items()}
    kept = own_pieces.rebuild(encoded, mark, rank=0)
    found = take(marks.objects_at(kept.mark)).tensors
    marks.close()
    for each, (name, _) in zip(expected, model.named_buffers(), strict=True):
        assert torch.equal(found[f"model/{name}"], each)
    assert kept.rank_state["random"]["cuda"] == described.flatten_rank_state()["random"]["cuda"]


def test_a_boundary_counts_only_when_the_gpu_has_come_to_it(open_session, courier, memory):
    """Behind a collective whose peer is lost it never does, and whoever waits for it waits for ever."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    run = open_session(
        {**courier.begin(), handoff.ARENA: str(memory / "arena")}, model=model, optimizer=optimizer
    )
    run.check()
    busy = torch.cuda.Event()
    for step in run.steps(4):
        if step == 3:
            assert run._service.held() == "since the last boundary, the GPU has not reached it"
            run._service.report_likeness()
            assert not busy.query(), "it waited for the GPU"
            torch.cuda.synchronize()
            assert run._service.held().step == 3
            run._service.report_likeness()
            told = handoff.read_json(handoff.likeness_path(courier.handoff, 0))
            assert [boundary for boundary, _ in told["digests"]] == [3]
        model(torch.randn(16, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 2:
            torch.cuda._sleep(int(16e9))  # some eight seconds; the next boundary lies behind it
            busy.record()
