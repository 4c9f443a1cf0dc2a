"""Loading: what fits is loaded, what does not is named, what is hostile stays harmless."""

import copy
import json
import pickle
import sys

import pytest
import torch

from cloudspot.train import CheckpointError, SessionError
from cloudspot.train.distributed import World
from cloudspot.train.state import checkpoint
from cloudspot.train.state.checkpoint import Checkpoint
from cloudspot.train.state.partition import plan
from cloudspot.train.state.tree import tensor_bytes


def make_objects(width=8):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def train(objects, num_steps):
    for _ in range(num_steps):
        objects["model"](torch.randn(6, 4)).square().sum().backward()
        objects["optimizer"].step()
        objects["optimizer"].zero_grad()
        objects["scheduler"].step()
    return objects


def write(directory, objects, *, world_size=1, avoid=()):
    """Write the objects' state as a restored checkpoint; return the manifest."""
    state = checkpoint.take(objects)
    table = plan(state.items, world_size=world_size, avoid=avoid)
    parts = []
    directory.mkdir(exist_ok=True)
    for rank in range(world_size):
        data = bytearray(table.part_bytes[rank])
        for place in table.parts[rank]:
            raw = tensor_bytes(state.tensors[place.item.name].contiguous())
            data[place.offset : place.offset + place.item.nbytes] = raw
        (directory / f"part-{rank}.bin").write_bytes(data)
        seal = {
            "format": 1,
            "generation": 2,
            "step": 7,
            "rank": rank,
            "world_size": world_size,
            "kind": "drain",
            "nbytes": len(data),
            "plan": table.digest,
            "items": [place.to_json() for place in table.parts[rank]],
            "objects": {"state": state.objects, "seed": 1, "position": None},
            "rank_states": {str(rank): {}},
        }
        parts.append({"rank": rank, "file": f"part-{rank}.bin", "seal": seal})
    manifest = {"generation": 2, "step": 7, "world_size": world_size, "parts": parts}
    save(directory, manifest)
    return manifest


def save(directory, manifest):
    (directory / "restore.json").write_text(json.dumps(manifest))


def state_of(objects):
    return {name: checkpoint.take({name: each}) for name, each in objects.items()}


def assert_same(one, other):
    for name, state in state_of(one).items():
        expected = state_of(other)[name]
        assert state.objects == expected.objects
        for item, tensor in state.tensors.items():
            assert torch.equal(tensor, expected.tensors[item]), item


@pytest.mark.full
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_a_fresh_process_gets_the_whole_state_back(tmp_path, world_size):
    saved = train(make_objects(), 4)
    write(tmp_path, saved, world_size=world_size)
    fresh = make_objects()
    restored = Checkpoint(tmp_path)
    restored.load(fresh, world=World(0, 1, 0, 1))
    assert (restored.step, restored.world_size) == (7, world_size)
    assert_same(fresh, saved)
    torch.manual_seed(5)
    train(saved, 3)
    torch.manual_seed(5)
    train(fresh, 3)
    assert_same(fresh, saved)


def test_the_loaded_state_does_not_hang_on_the_files(tmp_path):
    saved = train(make_objects(), 2)
    write(tmp_path, saved)
    fresh = make_objects()
    restored = Checkpoint(tmp_path)
    restored.load(fresh, world=World(0, 1, 0, 1))
    with pytest.raises(CheckpointError, match="holds no tensor"):
        restored.item("model/0.weight")
    with (tmp_path / "part-0.bin").open("r+b") as file:
        file.write(b"\xff" * 200)
    assert_same(fresh, saved)


def test_parameters_keep_their_place_in_memory(tmp_path):
    write(tmp_path, train(make_objects(), 1))
    fresh = make_objects()
    addresses = [parameter.data_ptr() for parameter in fresh["model"].parameters()]
    Checkpoint(tmp_path).load(fresh, world=World(0, 1, 0, 1))
    assert [parameter.data_ptr() for parameter in fresh["model"].parameters()] == addresses


def test_wrappers_of_the_model_make_no_difference(tmp_path):
    saved = train(make_objects(), 1)
    write(tmp_path, {**saved, "model": torch.nn.DataParallel(saved["model"])})
    fresh = make_objects()
    Checkpoint(tmp_path).load(
        {**fresh, "model": torch.compile(fresh["model"], backend="eager")}, world=World(0, 1, 0, 1)
    )
    assert_same(fresh, saved)


def partly_wrapped(kind):
    """The objects with parts of the model wrapped; a part within a part, too, and one that has two names."""
    objects = make_objects()
    first, norm, last = objects["model"]
    model = torch.nn.ModuleDict({"body": torch.nn.Sequential(first, norm), "head": last, "again": last})
    if kind == "compiled":
        model["body"][0] = torch.compile(first, backend="eager")
        model["body"] = torch.compile(model["body"], backend="eager")
        model["head"] = model["again"] = torch.compile(last, backend="eager")
    elif kind == "parallel":
        model["body"] = torch.nn.DataParallel(model["body"])
    return {**objects, "model": model}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler
@pytest.mark.parametrize("there", ["plain", "compiled", "parallel"])
@pytest.mark.parametrize("here", ["plain", "compiled", "parallel"])
def test_wrappers_within_the_model_make_no_difference(tmp_path, there, here):
    saved, fresh = partly_wrapped(there), partly_wrapped(here)
    for weight in saved["model"].state_dict().values():
        weight.add_(1)
    saved["model"]["head"].requires_grad_(requires_grad=False)
    write(tmp_path, saved)
    Checkpoint(tmp_path).load(fresh, world=World(0, 1, 0, 1))
    fresh["model"]["head"].requires_grad_(requires_grad=False)
    assert_same(fresh, saved)
    assert checkpoint.take(fresh).items == checkpoint.take(saved).items
    assert set(checkpoint.take(fresh).objects["model"]) >= {
        "body.0.weight",
        "body.1.running_mean",
        "again.bias",
    }
    assert checkpoint.weights_sha256(fresh["model"]) == checkpoint.weights_sha256(saved["model"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler
def test_a_checkpoint_of_an_earlier_version_has_the_names_of_wrapped_parts(tmp_path, monkeypatch):
    saved, fresh = partly_wrapped("compiled"), partly_wrapped("compiled")
    for weight in saved["model"].state_dict().values():
        weight.add_(1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "plain_naming", lambda _module: str)
        write(tmp_path, saved)
    assert "body._orig_mod.1.weight" in (tmp_path / "restore.json").read_text()
    Checkpoint(tmp_path).load(fresh, world=World(0, 1, 0, 1))
    assert_same(fresh, saved)


def test_buffers_of_the_model_are_pinned_and_parameters_are_not():
    items = {item.name: item.pinned for item in checkpoint.take(make_objects()).items}
    assert items == {
        "model/0.weight": False,
        "model/0.bias": False,
        "model/1.weight": False,
        "model/1.bias": False,
        "model/1.running_mean": True,
        "model/1.running_var": True,
        "model/1.num_batches_tracked": True,
        "model/2.weight": False,
        "model/2.bias": False,
    }


def test_what_is_not_trained_is_told_by_the_model():
    objects = make_objects()
    objects["model"][0].requires_grad_(False)
    items = checkpoint.take(objects).items
    assert {item.name for item in items if item.is_frozen} == {"model/0.weight", "model/0.bias"}


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        (lambda o: o.pop("scheduler"), "session() lacks scheduler"),
        (lambda o: o.update(ema=torch.nn.Linear(1, 1)), "the checkpoint lacks ema"),
        (
            lambda o: o.update(model=make_objects(9)["model"]),
            "model/0.weight is float32 [9, 4] in this script and float32 [8, 4] in the checkpoint",
        ),
        (
            lambda o: o["model"].half(),
            "model/0.weight is float16 [8, 4] in this script and float32 [8, 4] in the checkpoint",
        ),
        (
            lambda o: o["model"].append(torch.nn.Linear(2, 2)),
            "the checkpoint's model lacks 3.bias, 3.weight",
        ),
        (lambda o: o["model"].pop(2), "session(model=...) lacks 2.bias, 2.weight"),
        (
            lambda o: o.update(optimizer=torch.optim.Adam(list(o["model"].parameters())[:2])),
            "session(optimizer=...) refuses the checkpoint's state: loaded state dict contains a parameter group",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, objects, message):
    write(tmp_path, train(make_objects(), 1))
    fresh = make_objects()
    objects(fresh)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(tmp_path).load(fresh, world=World(0, 1, 0, 1))
    assert message in str(caught.value)


def test_weights_hash_sees_names_types_shapes_and_bytes():
    one = torch.nn.Linear(2, 3)
    base = checkpoint.weights_sha256(one)
    assert base == checkpoint.weights_sha256(copy.deepcopy(one))
    assert base == checkpoint.weights_sha256(torch.nn.DataParallel(one))
    others = [torch.nn.Sequential(one), copy.deepcopy(one).double(), copy.deepcopy(one)]
    with torch.no_grad():
        others[2].weight[0, 0] += 1e-3
    assert len({base, *map(checkpoint.weights_sha256, others)}) == 4


class Sharded(torch.nn.Linear):
    pass


Sharded.__name__ = "FullyShardedDataParallel"


@pytest.mark.parametrize(
    ("name", "tracked", "message"),
    [
        ("model", Sharded(1, 1), "session(model=...) is sharded by FullyShardedDataParallel, which cannot"),
        ("ema", object(), "session(ema=...) is a object, which cannot be saved: it has no state_dict"),
    ],
)
def test_what_cannot_be_tracked_is_refused_by_name(name, tracked, message):
    with pytest.raises(SessionError) as caught:
        checkpoint.check_tracked({name: tracked})
    assert message in str(caught.value)


# --- hostile checkpoints ------------------------------------------------------------------------


class Bomb:
    def __reduce__(self):
        return (sys.exit, ("a checkpoint ran code",))


def first_item(manifest):
    return manifest["parts"][0]["seal"]["items"][0]


def change_item(**fields):
    return lambda manifest: first_item(manifest).update(fields)


def change_seal(**fields):
    return lambda manifest: manifest["parts"][0]["seal"].update(fields)


HOSTILE = {
    "an offset beyond the end": change_item(offset=1 << 40),
    "a negative offset": change_item(offset=-8),
    "an offset that is no whole number": change_item(offset=0.5),
    "an offset that is true": change_item(offset=True),
    "an unaligned offset": change_item(offset=2),
    "a size that is not the shape's": change_item(nbytes=12),
    "a shape of enormous size": change_item(shape=[1 << 31, 1 << 31, 1 << 31], nbytes=4),
    "a negative shape": change_item(shape=[-1, -32]),
    "a shape that is no list": change_item(shape="32"),
    "an unknown type": change_item(dtype="object"),
    "a type that is an attribute of torch": change_item(dtype="load"),
    "an item without a name": change_item(name=None),
    "an item twice": lambda m: m["parts"][0]["seal"]["items"].append(first_item(m)),
    "an item that is no object": lambda m: m["parts"][0]["seal"]["items"].append(7),
    "a part larger than its file": change_seal(nbytes=1 << 30),
    "another format": change_seal(format=99),
    "another step": change_seal(step=8),
    "another rank": change_seal(rank=1),
    "no items": change_seal(items=None),
    "no objects": change_seal(objects=None),
    "no state": change_seal(objects={"state": []}),
    "a path that leaves the directory": lambda m: m["parts"][0].update(file="../part-0.bin"),
    "an absolute path": lambda m: m["parts"][0].update(file="/etc/passwd"),
    "a missing file": lambda m: m["parts"][0].update(file="part-9.bin"),
    "a part without a file": lambda m: m["parts"][0].pop("file"),
    "a part twice": lambda m: (m["parts"].append(m["parts"][0]), m.update(world_size=2)),
    "no parts": lambda m: m.update(parts=[], world_size=0),
    "fewer parts than ranks": lambda m: m.update(world_size=2),
    "a step that is no number": lambda m: m.update(step="7"),
    "an unknown tensor in the state": lambda m: m["parts"][0]["seal"]["objects"]["state"]["model"].update(
        {"0.weight": {"$item": "elsewhere"}}
    ),
    "a number for a weight": lambda m: m["parts"][0]["seal"]["objects"]["state"]["model"].update(
        {"0.weight": 3}
    ),
    "a model that is a list": lambda m: m["parts"][0]["seal"]["objects"]["state"].update(model=[]),
    "an optimizer that is a string": lambda m: m["parts"][0]["seal"]["objects"]["state"].update(
        optimizer="x"
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest_raises_a_checkpoint_error(tmp_path, case):
    manifest = write(tmp_path, train(make_objects(), 1))
    HOSTILE[case](manifest)
    save(tmp_path, manifest)
    with pytest.raises(CheckpointError):
        Checkpoint(tmp_path).load(make_objects(), world=World(0, 1, 0, 1))


@pytest.mark.parametrize("name", ["restore.json", "part-0.bin"])
def test_a_pickle_is_read_as_bytes_and_never_run(tmp_path, name):
    write(tmp_path, train(make_objects(), 1))
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError):
        Checkpoint(tmp_path).load(make_objects(), world=World(0, 1, 0, 1))


def test_a_torch_file_in_a_parts_place_is_read_as_bytes_and_never_run(tmp_path):
    manifest = write(tmp_path, train(make_objects(), 1))
    torch.save([Bomb(), torch.zeros(4000)], tmp_path / "part-0.bin")
    assert (tmp_path / "part-0.bin").stat().st_size > manifest["parts"][0]["seal"]["nbytes"]
    fresh = make_objects()
    Checkpoint(tmp_path).load(
        fresh, world=World(0, 1, 0, 1)
    )  # any bytes are weights; verifying them is the agent's work


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"step": 1e999}', "nul", '"\\ud800'])
def test_a_manifest_that_is_no_object_raises_a_checkpoint_error(tmp_path, text):
    write(tmp_path, train(make_objects(), 1))
    (tmp_path / "restore.json").write_text(text)
    with pytest.raises(CheckpointError):
        Checkpoint(tmp_path)


def test_a_missing_directory_raises_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoint(tmp_path / "nowhere")


def test_modules_are_told_from_other_objects_with_a_state():
    model = torch.nn.Linear(2, 2)
    objects = {
        "optimizer": torch.optim.AdamW(model.parameters()),
        "model": torch.nn.DataParallel(model),
        "ema": torch.optim.swa_utils.AveragedModel(model),
    }
    assert checkpoint.take(objects).models == ("model", "ema")
