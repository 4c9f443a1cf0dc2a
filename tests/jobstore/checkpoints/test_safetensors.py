"""Exported tensors, read by the safetensors library as a stranger would."""

import json
import os
import re

import pytest
import safetensors
import safetensors.torch
import torch
from support.stores.faultstore import FaultPlan, FaultyStore, Outage
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from cloudspot.errors import CloudspotError, CorruptData, TransientError
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.checkpoints import chunks
from cloudspot.jobstore.checkpoints import safetensors as writing
from cloudspot.jobstore.checkpoints.safetensors import num_bytes_read, write_safetensors
from cloudspot.jobstore.checkpoints.tensors import choose, shared_state
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, SaveId

AT = CheckpointId(2, 40)
METADATA = {"job": "x", "step": "40", "quote": 'é"\n'}


class Model(torch.nn.Module):
    """Weights of many types and shapes, two of them tied."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name in ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2"):
            value = torch.randn(31, 17, generator=generator).to(getattr(torch, name))
            self.register_buffer(f"a_{name}", value)
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
            value = torch.randint(0, 100, (7, 5), generator=generator).to(getattr(torch, name))
            self.register_buffer(f"a_{name}", value)
        self.register_buffer("flags", torch.randn(100, generator=generator) > 0)
        self.register_buffer("count", torch.tensor(2**40))
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.embedding = torch.nn.Embedding(50, 16)
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.large = torch.nn.Linear(100, 100)


class Odd(torch.nn.Module):
    """A weight that safetensors has no type for, and a state that is no tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("wave", torch.zeros(3, dtype=torch.complex128))

    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        pass


def export(store, commit, path, **choice):
    chosen = choose(commit, **choice)
    size = write_safetensors(store, "x", commit, chosen.tensors, path, metadata=METADATA)
    assert size == path.stat().st_size
    return chosen


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert (
            found[name].view(torch.uint8).equal(tensor.contiguous().view(torch.uint8))
            if tensor.dim()
            else (found[name].equal(tensor))
        ), name


@pytest.mark.parametrize(("world_size", "chunk_bytes"), [(1, 10_000_000), (2, 1000), (3, 777)])
def test_plain_safetensors_loads_the_weights_into_the_model(
    store, tmp_path, put_session_checkpoint, world_size, chunk_bytes
):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    commit = put_session_checkpoint(
        store,
        "x",
        AT,
        {"model": model, "optimizer": optimizer},
        world_size=world_size,
        chunk_bytes=chunk_bytes,
    )
    path = tmp_path / "model.safetensors"
    assert export(store, commit, path).left_out == ()
    found = safetensors.torch.load_file(path)
    assert_same(found, model.state_dict())
    other = Model()
    other.large.weight.data.zero_()
    other.load_state_dict(found)
    assert other.large.weight.equal(model.large.weight)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == METADATA
    assert sorted(tmp_path.glob(".*")) == []


@pytest.mark.parametrize(
    ("mesh_shape", "dims"),
    [((4,), (0,)), ((4,), (1,)), ((2, 2), (0, 1)), ((2, 2), (1, 1)), ((2, 2), (None, 0))],
)
def test_a_sharded_model_is_put_together(store, tmp_path, put_session_checkpoint, mesh_shape, dims):
    generator = torch.Generator().manual_seed(0)
    shapes = {"even": (8, 4, 2), "uneven": (7, 5), "short": (1, 3), "turned": (3, 1)}
    full = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    full["small"] = torch.arange(30, dtype=torch.int16).reshape(6, 5)

    def make():
        mesh = init_device_mesh("cpu", mesh_shape)
        places = [Replicate() if dim is None else Shard(dim) for dim in dims]
        model = torch.nn.Module()
        for name, tensor in full.items():
            model.register_buffer(name, distribute_tensor(tensor, mesh, places, src_data_rank=None))
        model.register_buffer("plain", torch.ones(3))
        return {"model": model}

    commit = put_session_checkpoint(store, "x", AT, make, world_size=4, chunk_bytes=50)
    path = tmp_path / "model.safetensors"
    export(store, commit, path)
    assert_same(safetensors.torch.load_file(path), {**full, "plain": torch.ones(3)})
    for only in (choose(commit).tensors[:1], choose(commit).tensors[2:4]):
        write_safetensors(store, "x", commit, only, path, metadata={})
        assert_same(safetensors.torch.load_file(path), {each.name: full[each.name] for each in only})


def test_a_block_is_asked_for_at_a_time_and_the_file_is_the_same(
    store, tmp_path, put_session_checkpoint, monkeypatch
):
    model = Model()
    commit = put_session_checkpoint(store, "x", AT, {"model": model}, chunk_bytes=10_000_000)
    export(store, commit, tmp_path / "at-once.safetensors")
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 777)
    lengths = []

    class Noting(type(store)):
        def get_range(self, key, start, length):
            lengths.append(length)
            return super().get_range(key, start, length)

    export(Noting(store.url), commit, tmp_path / "by-blocks.safetensors")
    assert (tmp_path / "by-blocks.safetensors").read_bytes() == (
        tmp_path / "at-once.safetensors"
    ).read_bytes()
    # Of each part's one chunk the last request asks for a byte too many.
    expected = [777 for part in commit.parts for _ in range(part.size // 777)]
    assert sorted(lengths) == sorted([*expected, *(part.size % 777 + 1 for part in commit.parts)])


def test_of_two_that_write_one_file_neither_takes_the_half_of_the_other(
    store, tmp_path, put_session_checkpoint
):
    commit = put_session_checkpoint(store, "x", AT, {"model": Model()}, chunk_bytes=1000)
    path = tmp_path / "model.safetensors"
    first_is_done = []

    def begin_again(_count):
        # The second runs while the first is in the middle.
        if not first_is_done:
            first_is_done.append(True)
            export(store, commit, path)
            first_is_done.append(path.read_bytes())

    chosen = choose(commit)
    write_safetensors(
        store, "x", commit, chosen.tensors, path, metadata=METADATA, progress=begin_again, num_threads=1
    )
    assert first_is_done == [True, path.read_bytes()]
    assert sorted(tmp_path.glob(".*")) == []


def test_a_wrapped_model_has_its_own_names(store, tmp_path, put_session_checkpoint):
    model = torch.nn.Linear(3, 2)

    class SavesTheWrapper:
        """As a script that hands over what DistributedDataParallel returns, inside an object of its own."""

        def state_dict(self):
            return {f"module.{name}": value for name, value in model.state_dict().items()}

        def load_state_dict(self, state):
            pass

    commit = put_session_checkpoint(
        store, "x", AT, {"model": torch.nn.DataParallel(model), "own": SavesTheWrapper()}
    )
    for choice in ({}, {"only": "own"}):
        path = tmp_path / "model.safetensors"
        export(store, commit, path, **choice)
        assert_same(safetensors.torch.load_file(path), model.state_dict())


def test_several_models_are_told_apart_or_taken_alone(store, tmp_path, put_session_checkpoint):
    one, two = torch.nn.Linear(3, 2), torch.nn.Linear(2, 3)
    commit = put_session_checkpoint(store, "x", AT, {"generator": one, "critic": two})
    path = tmp_path / "model.safetensors"
    export(store, commit, path)
    assert_same(
        safetensors.torch.load_file(path),
        {
            **{f"generator.{name}": value for name, value in one.state_dict().items()},
            **{f"critic.{name}": value for name, value in two.state_dict().items()},
        },
    )
    export(store, commit, path, only="critic")
    assert_same(safetensors.torch.load_file(path), two.state_dict())
    with pytest.raises(CloudspotError, match=r"holds no object 'model'; it holds: generator, critic$"):
        choose(commit, only="model")


def test_the_whole_state_has_every_tensor_under_its_path(store, tmp_path, put_session_checkpoint):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    commit = put_session_checkpoint(store, "x", AT, {"model": model, "optimizer": optimizer})
    path = tmp_path / "state.safetensors"
    export(store, commit, path, whole=True)
    found = safetensors.torch.load_file(path)
    assert_same(
        found,
        {
            "model/weight": model.weight.detach(),
            "model/bias": model.bias.detach(),
            **{
                f"optimizer/state/{index}/{key}": value
                for index, values in optimizer.state_dict()["state"].items()
                for key, value in values.items()
            },
        },
    )
    assert shared_state(commit)["state"]["optimizer"]["param_groups"][0]["lr"] == 0.125
    export(store, commit, path, only="optimizer")
    assert sorted(safetensors.torch.load_file(path))[:2] == ["state/0/exp_avg", "state/0/exp_avg_sq"]


def test_weights_are_read_without_the_optimizers_chunks(store, tmp_path, put_session_checkpoint):
    model = torch.nn.Linear(1000, 10)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1000)).sum().backward()
    optimizer.step()
    commit = put_session_checkpoint(store, "x", AT, {"model": model, "optimizer": optimizer}, world_size=1)
    counted, told = FaultyStore(store, FaultPlan(), tmp_path / "faults"), []
    tensors = choose(commit).tensors
    write_safetensors(
        counted, "x", commit, tensors, tmp_path / "m.safetensors", metadata={}, progress=told.append
    )
    assert commit.size > 120_000
    assert sum(told) == num_bytes_read("x", commit, tensors) < 44_000
    assert counted.calls["get_range"] == len(told) == sum(told) // 1000


def test_what_the_format_cannot_hold_is_refused_by_name(store, tmp_path, put_session_checkpoint):
    commit = put_session_checkpoint(store, "x", AT, {"model": Odd()})
    path = tmp_path / "model.safetensors"
    with pytest.raises(
        CloudspotError, match=r"^wave is of type complex128, which a \.safetensors file cannot hold"
    ):
        export(store, commit, path)
    assert list(tmp_path.glob("*.safetensors*")) == []
    assert choose(commit).left_out == ("_extra_state",)


def test_without_a_model_it_is_asked_what_is_wanted(store, put_session_checkpoint):
    model = torch.nn.Linear(3, 2)
    commit = put_session_checkpoint(store, "x", AT, {"optimizer": torch.optim.SGD(model.parameters())})
    with pytest.raises(CloudspotError, match=r"is a model; export one of them with --only, .*: optimizer$"):
        choose(commit)


@pytest.mark.parametrize("harm", ["flip", "cut", "delete"])
def test_a_corrupt_chunk_is_named_and_nothing_is_left(store, tmp_path, put_session_checkpoint, harm):
    model = torch.nn.Linear(100, 100)
    commit = put_session_checkpoint(store, "x", AT, {"model": model})
    key = keys.chunk("x", SaveId(2, 40, 0), 0, 3)
    data = bytearray(store.get(key))
    data[500] ^= 1
    store.delete(key)
    if harm != "delete":
        store.put(key, data if harm == "flip" else data[:-1])
    path = tmp_path / "model.safetensors"
    path.write_text("older")
    with pytest.raises(CorruptData, match=re.escape(key)):
        export(store, commit, path)
    assert path.read_text() == "older"
    assert sorted(tmp_path.glob(".*")) == []


def test_an_outage_leaves_what_was_there(store, tmp_path, put_session_checkpoint):
    commit = put_session_checkpoint(store, "x", AT, {"model": torch.nn.Linear(100, 100)})
    down = FaultyStore(
        store, FaultPlan(outages=(Outage(start=0, end=2e9),)), tmp_path / "faults", clock=lambda: 1.0
    )
    path = tmp_path / "model.safetensors"
    with pytest.raises(TransientError):
        write_safetensors(
            with_retries(down, sleep=lambda seconds: None),
            "x",
            commit,
            choose(commit).tensors,
            path,
            metadata={},
        )
    assert not path.exists()


def test_a_disk_that_refuses_is_one_line(store, tmp_path, put_session_checkpoint, monkeypatch):
    commit = put_session_checkpoint(store, "x", AT, {"model": torch.nn.Linear(100, 100)})
    with pytest.raises(
        CloudspotError, match=r"^cannot write .*/none/m.safetensors: No such file or directory$"
    ):
        export(store, commit, tmp_path / "none" / "m.safetensors")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CloudspotError, match=r"^cannot write .*/m.safetensors: No space left on device$"):
        export(store, commit, tmp_path / "m.safetensors")
    assert sorted(tmp_path.glob(".*")) == []


def test_a_table_that_readers_would_refuse_is_not_written(
    store, tmp_path, put_session_checkpoint, monkeypatch
):
    commit = put_session_checkpoint(store, "x", AT, {"model": torch.nn.Linear(100, 100)})
    monkeypatch.setattr(writing, "MAX_HEADER_BYTES", 100)
    with pytest.raises(
        CloudspotError, match=r"the table of these tensors has \d+ bytes, but safetensors allows only 100"
    ):
        export(store, commit, tmp_path / "m.safetensors")


def test_a_seal_that_contradicts_itself_is_corrupt(store, checkpoints):
    commit = checkpoints.session(store, AT, [b"a" * 2000])
    assert json.loads(commit.parts[0].seal)["objects"] == {"best": float("inf")}
    with pytest.raises(CorruptData, match="no state of objects"):
        choose(commit)
