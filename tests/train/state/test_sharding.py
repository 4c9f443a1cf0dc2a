"""DTensors of any mesh: saved rank by rank and loaded into other meshes, without a process for each rank."""

import json
import math
import threading
import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from support.worlds.fake_world import fake_world
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from cloudspot.train import CheckpointError, SessionError, handoff
from cloudspot.train.distributed import World
from cloudspot.train.sessions.pending_gradients import PendingGradients
from cloudspot.train.state import boxes, checkpoint, restored_files, sharding
from cloudspot.train.state.checkpoint import Checkpoint
from cloudspot.train.state.partition import plan
from cloudspot.train.state.tree import tensor_bytes


def distribute(full, mesh, placements):
    """Return this rank's DTensor of a tensor that every rank has."""
    return distribute_tensor(full, mesh, placements, src_data_rank=None)


def fsdp_over_tp(full, mesh, dim):
    """Return the DTensor that FSDP makes of one that tensor parallelism has divided along ``dim``."""
    data_place, tensor_place = mesh.get_coordinate()
    local = full
    for along, place, count in ((dim, tensor_place, mesh.size(1)), (0, data_place, mesh.size(0))):
        size = -(-local.shape[along] // count)
        start = min(size * place, local.shape[along])
        local = local.narrow(along, start, min(size, local.shape[along] - start))
    first = _StridedShard(0, split_factor=mesh.size(1)) if dim == 0 else Shard(0)
    return DTensor.from_local(
        local.contiguous(), mesh, [first, Shard(dim)], run_check=False, shape=full.shape, stride=full.stride()
    )


class Weights(torch.nn.Module):
    """Parameters of the given tensors, of which the last is tied to the first."""

    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_parameter(name, torch.nn.Parameter(tensor))
        self.again = next(self.parameters())
        self.register_buffer("count", torch.tensor(3))


def full_tensors():
    generator = torch.Generator().manual_seed(1)
    return {
        "matrix": torch.randn(7, 6, generator=generator),
        "small": torch.randn(5, 6, generator=generator).bfloat16(),
        "short": torch.randn(1, generator=generator),
        "turned": torch.randn(6, 4, generator=generator).t(),
        "none": torch.zeros(0, 6),
    }


def shard_all(mesh_shape, place):
    """Return the tensors, each a DTensor on a mesh of all ranks; ``place(name, tensor, mesh)`` makes it."""
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("one", "two")[: len(mesh_shape)])
    return {name: place(name, tensor, mesh) for name, tensor in full_tensors().items()}


LAYOUTS = {
    "none": ((1,), None),
    "fsdp-2": ((2,), lambda _, full, mesh: distribute(full, mesh, [Shard(0)])),
    "fsdp-4": ((4,), lambda _, full, mesh: distribute(full, mesh, [Shard(0)])),
    "columns-3": ((3,), lambda _, full, mesh: distribute(full, mesh, [Shard(full.ndim - 1)])),
    "replicas": ((2, 2), lambda _, full, mesh: distribute(full, mesh, [Replicate(), Shard(0)])),
    "slices": ((2, 2), lambda _, full, mesh: distribute(full, mesh["one"], [Shard(0)])),
    "tp": ((2, 2), lambda _, full, mesh: distribute(full, mesh, [Shard(0), Shard(full.ndim - 1)])),
    "fsdp-over-rows": ((2, 2), lambda _, full, mesh: fsdp_over_tp(full, mesh, 0)),
    "flattened": (
        (2, 2),
        lambda _, full, mesh: distribute(full, mesh._flatten("all"), [Shard(0)]),
    ),
    "fsdp-over-columns": ((3, 2), lambda _, full, mesh: fsdp_over_tp(full, mesh, full.ndim - 1)),
}


def objects_of(layout):
    mesh_shape, place = LAYOUTS[layout]
    model = Weights(full_tensors() if place is None else shard_all(mesh_shape, place))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.5, foreach=False)}


def num_ranks_of(layout):
    mesh_shape, _ = LAYOUTS[layout]
    return int(torch.tensor(mesh_shape).prod())


def step(objects):
    """Make a step in which each parameter's gradient is the parameter itself."""
    for parameter in objects["model"].parameters():
        parameter.grad = parameter.detach().clone()
    objects["optimizer"].step()
    objects["optimizer"].zero_grad()


def save_layout(directory, layout):
    """Write what all ranks hold after two steps as a restored checkpoint; return the seals."""
    return save(directory, num_ranks_of(layout), lambda: objects_of(layout), step, step)


def save(directory, num_ranks, make, *steps):
    """Write what all ranks hold after the steps as a restored checkpoint; return the seals."""
    seals = []
    for rank in range(num_ranks):
        with fake_world(rank, num_ranks):
            objects = make()
            for each in steps:
                each(objects)
            state = checkpoint.take(objects)
            table = plan(state.items, world_size=num_ranks)
            data = bytearray(table.part_bytes[rank])
            for each in table.parts[rank]:
                tensor = state.tensors[each.item.name].contiguous()
                assert tuple(tensor.shape) == each.shape
                data[each.offset : each.offset + each.nbytes] = tensor_bytes(tensor)
            (directory / f"part-{rank}.bin").write_bytes(data)
            seals.append(
                {
                    "format": 1,
                    "step": 2,
                    "rank": rank,
                    "nbytes": len(data),
                    "plan": table.digest,
                    "items": [each.to_json() for each in table.parts[rank]],
                    "objects": {"state": state.objects, "seed": 1, "position": None},
                    "rank_states": {str(rank): {}},
                }
            )
    parts = [{"rank": rank, "file": f"part-{rank}.bin", "seal": seal} for rank, seal in enumerate(seals)]
    manifest = {"generation": 1, "step": 2, "world_size": num_ranks, "parts": parts}
    (directory / "restore.json").write_text(json.dumps(manifest))
    return seals


def expected_after(num_steps):
    """Return the state of one process after so many steps, by name."""
    objects = objects_of("none")
    for _ in range(num_steps):
        step(objects)
    return checkpoint.take(objects).tensors


def check_rank(layout, rank, objects, expected):
    """Check that what a rank holds is what lies there in the expected tensors, and still divided as it was."""
    fresh = objects_of(layout)["model"].state_dict()
    state = objects["optimizer"].state_dict()["state"]
    found = {f"model/{name}": tensor for name, tensor in objects["model"].state_dict().items()}
    for number, values in state.items():
        found.update({f"optimizer/state/{number}/{key}": tensor for key, tensor in values.items()})
    assert found.keys() - {"model/again"} == expected.keys()
    for name, tensor in found.items():
        full = expected["model/matrix" if name == "model/again" else name]
        if not sharding.is_dtensor(tensor):
            assert torch.equal(tensor, full), name
            continue
        box = sharding.box_of(tensor)
        for dim, (start, length) in enumerate(zip(*box, strict=True)):
            full = full.narrow(dim, start, length)
        assert torch.equal(sharding.local_of(tensor), full), (name, rank)
    for key, tensor in fresh.items():
        now = objects["model"].state_dict()[key]
        assert sharding.is_dtensor(now) == sharding.is_dtensor(tensor)
        assert getattr(now, "placements", None) == getattr(tensor, "placements", None)


@pytest.mark.full
@pytest.mark.parametrize("old", LAYOUTS)
def test_any_mesh_loads_what_any_other_has_saved(tmp_path, old):
    seals = save_layout(tmp_path, old)
    saved, then = expected_after(2), expected_after(3)
    one = Checkpoint(tmp_path)
    assert {name for seal in seals for name in (item["name"] for item in seal["items"])} == saved.keys()
    for name, tensor in saved.items():
        assert torch.equal(one.item(name), tensor), name
    for new in LAYOUTS:
        num_ranks = num_ranks_of(new)
        for rank in {0, num_ranks - 1}:
            with fake_world(rank, num_ranks):
                objects = objects_of(new)
                Checkpoint(tmp_path).load(objects, world=World(0, 1, 0, 1))
                check_rank(new, rank, objects, saved)
                step(objects)
                check_rank(new, rank, objects, then)


class OnDemand:
    """Plays the agent: the files are empty until a rank asks for what it reads."""

    def __init__(self, directory, handoff_directory, monkeypatch):
        self.directory = directory
        self.handoff = handoff_directory
        self.whole = {path.name: path.read_bytes() for path in directory.glob("part-*.bin")}
        self.asked = {}
        for name, data in self.whole.items():
            (directory / name).write_bytes(bytes(len(data)))
        manifest = json.loads((directory / "restore.json").read_text())
        (directory / "restore.json").write_text(json.dumps({**manifest, "on_demand": True}))
        monkeypatch.setenv("CLOUDSPOT_HANDOFF", str(handoff_directory))
        monkeypatch.setattr(restored_files, "time", mock.Mock(sleep=self.answer))

    def answer(self, _seconds):
        """Bring what was asked for while the rank waits."""
        for path in self.handoff.glob("wanted-*.json"):
            answer, wanted = handoff.answer_to(path), json.loads(path.read_text())
            if answer.exists() and answer.read_text() == wanted["nonce"]:
                continue
            ranges = wanted["ranges"]
            self.asked[answer.name] = {
                name: sum(end - start for start, end in found) for name, found in ranges.items()
            }
            for name, found in ranges.items():
                with (self.directory / name).open("r+b") as file:
                    for start, end in found:
                        file.seek(start)
                        file.write(self.whole[name][start:end])
            answer.write_text(wanted["nonce"])


@pytest.mark.full
@pytest.mark.parametrize("old", LAYOUTS)
@pytest.mark.parametrize("new", LAYOUTS)
def test_a_rank_asks_for_all_that_it_reads(tmp_path, monkeypatch, old, new):
    (tmp_path / "handoff").mkdir()
    save_layout(tmp_path, old)
    OnDemand(tmp_path, tmp_path / "handoff", monkeypatch)
    saved, then = expected_after(2), expected_after(3)
    num_ranks = num_ranks_of(new)
    for rank in {0, num_ranks - 1}:
        with fake_world(rank, num_ranks):
            objects = objects_of(new)
            Checkpoint(tmp_path).load(objects, world=World(rank, 1, 0, 1))
            check_rank(new, rank, objects, saved)
            step(objects)
            check_rank(new, rank, objects, then)


def test_a_rank_asks_for_no_other_ranks_shards(tmp_path, monkeypatch):
    (tmp_path / "handoff").mkdir()

    def objects():
        mesh = init_device_mesh("cpu", (4,))
        model = Weights({"w": distribute(torch.randn(64, 8), mesh, [Shard(0)])})
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.5, foreach=False)}

    save(tmp_path, 4, objects, step)
    agent = OnDemand(tmp_path, tmp_path / "handoff", monkeypatch)
    with fake_world(2, 4):
        Checkpoint(tmp_path).load(objects(), world=World(2, 1, 0, 1))
    shards = 3 * 16 * 8 * 4  # the weight and AdamW's two averages
    found = agent.asked["fetched-2"]
    assert found.pop("part-2.bin") >= shards
    assert sum(found.values()) < 64  # AdamW's count of steps and the buffer, wherever they lie


@pytest.mark.full
def test_an_answer_to_an_earlier_process_of_the_rank_is_none_to_this_one(tmp_path, monkeypatch):
    """It took what the other had asked for for its own, and loaded zeros."""
    save_layout(tmp_path, "fsdp-2")
    OnDemand(tmp_path, tmp_path, monkeypatch)
    for num_ranks, layout in ((2, "fsdp-2"), (1, "none")):
        with fake_world(0, num_ranks):
            objects = objects_of(layout)
            Checkpoint(tmp_path).load(objects, world=World(0, 1, 0, 1))
            check_rank(layout, 0, objects, expected_after(2))


def test_a_rank_goes_on_when_all_have_what_they_read():
    store, gone_on = dist.HashStore(), []

    def wait(rank):
        restored_files.await_all(store, World(rank, 3, 0, 1))
        gone_on.append(rank)

    threads = [threading.Thread(target=wait, args=(rank,)) for rank in (0, 2)]
    for thread in threads:
        thread.start()
    while not store.check(["fetched//0", "fetched//2"]):
        time.sleep(0.001)
    assert gone_on == []
    wait(1)
    for thread in threads:
        thread.join(10)
    assert sorted(gone_on) == [0, 1, 2]


def test_what_was_not_asked_for_is_never_read(tmp_path, monkeypatch):
    """It would be zeros."""
    save_layout(tmp_path, "fsdp-2")
    OnDemand(tmp_path, tmp_path, monkeypatch)
    with pytest.raises(CheckpointError, match="but were not fetched"):
        Checkpoint(tmp_path).item("model/matrix")
    monkeypatch.delenv("CLOUDSPOT_HANDOFF")
    with fake_world(0, 2), pytest.raises(CheckpointError, match="there is no agent"):
        Checkpoint(tmp_path).load(objects_of("fsdp-2"), world=World(0, 1, 0, 1))


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    mesh_shape=st.sampled_from([(2,), (3,), (4,), (2, 2), (2, 3)]),
    data=st.data(),
)
def test_the_box_of_each_rank_is_what_torch_gives_it(shape, mesh_shape, data):
    dims = st.one_of(st.just(Replicate()), st.integers(0, len(shape) - 1).map(Shard))
    placements = [data.draw(dims) for _ in mesh_shape]
    full = torch.arange(torch.tensor(shape).prod()).reshape(shape)
    num_ranks = int(torch.tensor(mesh_shape).prod())
    with fake_world(data.draw(st.integers(0, num_ranks - 1)), num_ranks):
        tensor = distribute(full, init_device_mesh("cpu", mesh_shape), placements)
        shards, local = sharding.describe("w", tensor)
        box = sharding.box_of(tensor)
        assert torch.equal(local, full[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))])
        assert boxes.problem([each.box for each in shards], shape) is None
        rank = dist.get_rank()
        assert [each.box for each in shards if rank in each.holders] == [box] * (box.num_elements > 0)


@pytest.mark.parametrize("length", [1, 3, 7, 8, 13])
@pytest.mark.parametrize("mesh_shape", [(2, 2), (2, 3), (3, 2), (4, 2), (2, 2, 2)])
def test_the_box_of_each_rank_is_what_fsdp_has_left_it_of_what_tensor_parallelism_has(mesh_shape, length):
    names = ("replicate", "shard", "tp")[-len(mesh_shape) :]
    num_ranks = int(torch.tensor(mesh_shape).prod())
    for rank in range(num_ranks):
        with fake_world(rank, num_ranks):
            mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(5, length), torch.nn.Linear(length, 4))
            full = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            styles = {"0": ColwiseParallel(), "1": RowwiseParallel()}
            parallelize_module(model, mesh["tp"], styles, src_data_rank=None)
            fully_shard(model, mesh=mesh[names[:-1]])
            for name, tensor in model.state_dict().items():
                shards, local = sharding.describe(name, tensor)
                assert boxes.problem([each.box for each in shards], full[name].shape) is None
                box = sharding.box_of(tensor)
                mine = tuple(slice(a, a + n) for a, n in zip(*box, strict=True))
                assert torch.equal(local.flatten(), full[name][mine].flatten()), (name, rank)
                held = [each for each in shards if rank in each.holders]
                assert [each.box for each in held] == [box] * (box.num_elements > 0)
                num_copies = math.prod(mesh_shape[:-2]) * (mesh_shape[-1] if name == "1.bias" else 1)
                assert {len(each.holders) for each in shards} == {num_copies}


def test_the_shards_of_a_doomed_rank_stay_and_its_replicas_take_over():
    with fake_world(0, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        full = torch.zeros(4, 2)
        model = Weights({
            "copied": distribute(full, mesh, [Replicate(), Shard(0)]),
            "alone": distribute(full, mesh, [Shard(0), Shard(1)]),
            "everywhere": distribute(full, mesh, [Replicate(), Replicate()]),
        })  # fmt: skip
        items = checkpoint.take({"model": model}).items
    doomed = plan(items, world_size=4, avoid={0, 1})
    names = [sorted(each.item.name for each in part) for part in doomed.parts]
    assert names[0] == ["model/alone", "model/count"]  # the buffer is pinned
    assert names[1] == ["model/alone"]
    assert sorted(names[2] + names[3]) == ["model/alone"] * 2 + ["model/copied"] * 2 + ["model/everywhere"]


class Averages(torch.optim.Optimizer):
    """Keeps averages of a gradient's rows and columns, DTensors of other shapes, and a plain table."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["rows"] = parameter.detach()[:, :1].clone()
            state["columns"] = parameter.new_zeros((1, parameter.shape[1])) + 2
            state["scale"] = parameter.new_zeros(()) + 3
            state["levels"] = torch.arange(4.0)
            state["step"] = torch.tensor(5.0)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_state_of_other_shapes_than_the_parameters_is_divided_as_it_was(tmp_path, num_ranks):
    full = torch.arange(20.0).reshape(5, 4)

    def objects():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = Weights({"w": distribute(full, mesh, [Shard(0)])})
        return {"model": model, "optimizer": Averages(model.parameters())}

    save(tmp_path, 2, objects, lambda made: made["optimizer"].step())
    with fake_world(0, num_ranks):
        made = objects()
        Checkpoint(tmp_path).load(made, world=World(0, 1, 0, 1))
        [found] = made["optimizer"].state.values()
        found = dict(found)
        made["optimizer"].step()
        [expected] = made["optimizer"].state.values()
        assert found.keys() == expected.keys()
        for key, tensor in found.items():
            assert type(tensor) is type(expected[key]), key
            assert tensor.shape == expected[key].shape
            if sharding.is_dtensor(tensor):
                assert tensor.placements == expected[key].placements, key
                assert torch.equal(sharding.local_of(tensor), sharding.local_of(expected[key])), key
            else:
                assert torch.equal(tensor, expected[key])


def test_what_boxes_cannot_describe_is_refused_by_name():
    with fake_world(0, 4):
        mesh = init_device_mesh("cpu", (4,))
        local = torch.zeros(2, 2)
        partial = DTensor.from_local(local, mesh, [Partial()], run_check=False)
        with pytest.raises(SessionError, match=r"^model/w is a DTensor that cannot be saved: .*Partial"):
            checkpoint.take({"model": Weights({"w": partial})})
        some = DTensor.from_local(local, DeviceMesh("cpu", [0, 1]), [Shard(0)], run_check=False)
        with pytest.raises(SessionError, match=r"2 of 4 ranks; make it a slice of a mesh of all ranks"):
            checkpoint.take({"model": Weights({"w": some})})
    with fake_world(3, 4):
        mesh = init_device_mesh("cpu", (4,))
        other = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=(6, 2), stride=(2, 1))
        with pytest.raises(
            SessionError, match=r"this rank should hold a shard \[0, 2\] of \[6, 2\], but holds \[2, 2\]"
        ):
            checkpoint.take({"model": Weights({"w": other})})


def hole(seals):
    del seals[1]["items"][0]


def twice(seals):
    seals[1]["items"][0]["global_offset"] = seals[0]["items"][0]["global_offset"]


def other_shape(seals):
    seals[1]["items"][0]["global_shape"] = [99, 6]


def no_offset(seals):
    del seals[1]["items"][0]["global_offset"]


def other_type(seals):
    seals[1]["items"][0]["dtype"] = "int32"


def also_whole(seals):
    item = seals[1]["items"][0]
    del item["global_offset"], item["global_shape"]


@pytest.mark.parametrize("harm", [hole, twice, other_shape, no_offset, other_type, also_whole])
def test_shards_that_do_not_make_up_a_tensor_are_refused(tmp_path, harm):
    save_layout(tmp_path, "fsdp-2")
    manifest = json.loads((tmp_path / "restore.json").read_text())
    seals = [part["seal"] for part in manifest["parts"]]
    for seal in seals:
        seal["items"].sort(key=lambda item: item["name"] != "model/matrix")
    assert [seal["items"][0]["global_offset"] for seal in seals] == [[0, 0], [4, 0]]
    harm(seals)
    (tmp_path / "restore.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="model/matrix"):
        Checkpoint(tmp_path)


def test_the_weights_of_a_sharded_model_have_no_hash_unless_one_rank_holds_them_all():
    expected = checkpoint.weights_sha256(objects_of("none")["model"])
    with fake_world(0, 1):
        mesh = init_device_mesh("cpu", (1,))
        alone = Weights({name: distribute(full, mesh, [Shard(0)]) for name, full in full_tensors().items()})
        assert checkpoint.weights_sha256(alone) == expected
    with fake_world(0, 2):
        assert checkpoint.weights_sha256(objects_of("fsdp-2")["model"]) is None


def test_gradients_that_fsdp_has_yet_to_reduce_are_pending():
    """They are in no ``.grad``: only FSDP knows of them."""
    with fake_world(0, 2):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        for each in (*model, model):
            fully_shard(each, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.SGD(model.parameters())
        gradients = PendingGradients({"model": model, "optimizer": optimizer}, rank=0)

        def ends_at_a_boundary(*, is_reduced, has_step):
            model.set_requires_gradient_sync(is_reduced)
            model(torch.ones(2, 4)).sum().backward()
            if has_step:
                optimizer.step()
                optimizer.zero_grad()
            return gradients.end_step()

        assert ends_at_a_boundary(is_reduced=True, has_step=True)
        assert not ends_at_a_boundary(is_reduced=False, has_step=False)
        assert not ends_at_a_boundary(is_reduced=False, has_step=False)
        assert not ends_at_a_boundary(is_reduced=True, has_step=False)
        assert ends_at_a_boundary(is_reduced=True, has_step=True)
        assert not ends_at_a_boundary(is_reduced=False, has_step=True)
        assert ends_at_a_boundary(is_reduced=True, has_step=True)
        gradients.close()


def test_gradients_that_fsdp_adds_to_are_pending():
    """FSDP adds to what is inside the DTensor, a script changes the DTensor: either has its own version."""
    with fake_world(0, 2):
        model = torch.nn.Linear(4, 4)
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.SGD(model.parameters())
        gradients = PendingGradients({"optimizer": optimizer}, rank=0)
        ends = []
        for kind in ("backward", "step", "backward", "step", "nothing", "change", "step"):
            if kind == "change":
                model.weight.grad.mul_(0.5)
            elif kind != "nothing":
                model(torch.ones(2, 4)).sum().backward()
            if kind == "step":
                optimizer.step()
            ends.append(gradients.end_step())
        assert ends == [False, True, False, True, True, False, True]
        gradients.close()


def test_statistics_that_differ_between_ranks_are_found_in_sharded_models():
    with fake_world(0, 2):
        layers = [torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.SyncBatchNorm(4)]
        model = torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(4, track_running_stats=False))
        assert sharding.own_statistics(model) == []
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        assert sharding.own_statistics(model) == ["1"]
