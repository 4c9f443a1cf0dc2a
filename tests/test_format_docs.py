"""docs/bucket-layout.md and docs/checkpoint-format.md: held to the keys, and the reader there is run."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.records.sessions import put_session_checkpoint
from support.stores.directorystore import directory_store
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from cloudspot.jobstore.checkpoints.compression import Compression
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, Chunk, File, Manifest, Part, SaveId
from cloudspot.train.state import tree

DOCS = Path(__file__).parents[1] / "docs"
LAYOUT = (DOCS / "bucket-layout.md").read_text()
FORMAT = (DOCS / "checkpoint-format.md").read_text()
SAMPLES = {
    "job": "digits-7k3f",
    "sha256": "ab" * 32,
    "nonce": "0123456789abcdef",
    "writer": "0123456789abcdef",
    "provider": "aws",
    "machine": "projects/p/i-0abc.1",
    "stream": "1-0",
    "driver": "function-7",
    "input": "images",
    "artifact": "x",
    "date": "2026-11-20",
    "event": "reclaimed-1-0",
    "shared": f"code/{'ab' * 32}",
    "remover": "digits-7k3f",
    "save": SaveId(7, 7, 7),
    "checkpoint": CheckpointId(7, 7),
}

FORMS = {name: form for name, form in vars(keys).items() if isinstance(form, keys.Key)}


def documented_keys(text):
    """Return the keys of a page's tables as patterns, by what is written there."""
    found = re.findall(r"^\| `([^`]*/[^`]*)` \|", text, re.MULTILINE)
    return {key: re.compile(re.sub(r"<\w+>", r"[^/]+", key)) for key in found}


def example(form):
    return form(*(SAMPLES.get(name, 7) for name in form.fields))


@pytest.mark.parametrize("name", FORMS)
def test_every_key_is_in_the_layout(name):
    key = example(FORMS[name])
    patterns = documented_keys(LAYOUT)
    if name.endswith("prefix"):
        # Sample numbers stand for themselves here: a prefix is the beginning of some key's example.
        examples = [example(each) for other, each in FORMS.items() if not other.endswith("prefix")]
        assert any(each.startswith(key) for each in examples)
    else:
        assert [written for written, pattern in patterns.items() if pattern.fullmatch(key)] != [], key


def test_no_key_is_in_the_layout_that_nobody_writes():
    examples = [example(each) for name, each in FORMS.items() if not name.endswith("prefix")]
    patterns = documented_keys(LAYOUT)
    assert len(patterns) + 1 == len(examples)  # one row tells of both kinds of chunks
    unknown = [written for written, each in patterns.items() if not any(map(each.fullmatch, examples))]
    assert unknown == []


def test_the_digits_are_as_the_page_says():
    text = " ".join(LAYOUT.split())
    assert "`<number>` of the journal to 8 digits, of a chunk to 6, of a log line to 12" in text
    assert "`<launch>`, `<generation>` and `<round>` to 6, `<step>` to 12, `<rank>` to 4" in text
    assert keys.journal("x", 7).split("/")[-1] == "7".zfill(8)
    assert keys.log_segment("x", "1-0", "2026-11-20", 7).split("/")[-1] == "7".zfill(12)
    assert keys.chunk("x", SaveId(7, 8, 11), 9, 10).split("/")[3:] == [
        f"{'7'.zfill(6)}-{'8'.zfill(12)}-{'11'.zfill(6)}",
        "chunks",
        "9".zfill(4),
        "10".zfill(6),
    ]


@pytest.mark.parametrize("record", [Manifest, Part, Chunk, File])
def test_every_field_of_a_manifest_is_in_the_format(record):
    written = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", FORMAT))))
    assert set(record.__struct_fields__) - written == set()


def test_every_tag_of_a_tree_is_in_the_format():
    used = set(re.findall(r'"(\$\w+)"', inspect.getsource(tree)))
    assert len(used) > 12
    assert used - set(re.findall(r'"(\$\w+)"', FORMAT)) == set()


# --- the reader ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader_path(tmp_path_factory):
    (block,) = re.findall(r"```python\n(.*?)```", FORMAT, re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 75
    path = tmp_path_factory.mktemp("docs") / "reader.py"
    path.write_text(block)
    return path


@pytest.fixture(scope="module")
def reader(reader_path):
    spec = importlib.util.spec_from_file_location("reader", reader_path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trained(tmp_path):
    """A bucket with a real checkpoint of two ranks, and the objects in it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20))
    model.register_buffer("b_half", torch.randn(5, 3).to(torch.bfloat16))
    model.register_buffer("b_flags", torch.tensor([True, False, True]))
    model.register_buffer("b_wave", torch.randn(4, dtype=torch.complex64))
    model.register_buffer("tied", model[0].weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    model(torch.randn(8, 30)).sum().backward()
    optimizer.step()
    objects = {"model": model, "optimizer": optimizer}
    store = directory_store(tmp_path / "bucket")
    for step in (40, 50):
        put_session_checkpoint(
            store, "digits-7k3f", CheckpointId(2, step), objects, scratch=tmp_path / "ranks"
        )
    return tmp_path / "bucket", objects


@pytest.mark.full
def test_the_reader_of_the_page_reads_a_real_checkpoint(reader, trained):
    bucket, objects = trained
    state = reader.read_checkpoint(bucket, "digits-7k3f")
    assert list(state) == ["model", "optimizer"]
    expected = objects["model"].state_dict()
    assert state["model"].keys() == expected.keys()
    for name, tensor in expected.items():
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        assert state["model"][name].dtype == wide.numpy().dtype, name
        np.testing.assert_array_equal(state["model"][name], wide.numpy(), err_msg=name)
    saved = objects["optimizer"].state_dict()
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.125
    assert state["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    assert state["optimizer"]["state"].keys() == saved["state"].keys()
    for index, values in saved["state"].items():
        for name, tensor in values.items():
            np.testing.assert_array_equal(state["optimizer"]["state"][index][name], tensor.numpy())
    assert reader.read_checkpoint(bucket, "digits-7k3f", 40).keys() == state.keys()


def test_the_reader_puts_a_sharded_model_together(reader, tmp_path):
    full = {"weight": torch.randn(5, 3, 2), "half": torch.randn(1, 4).bfloat16(), "scale": torch.tensor(2.5)}

    def make():
        mesh = init_device_mesh("cpu", (3,))
        model = torch.nn.Module()
        for name, tensor in full.items():
            places = [Shard(0) if tensor.ndim else Replicate()]
            model.register_buffer(f"b_{name}", distribute_tensor(tensor, mesh, places, src_data_rank=None))
        return {"model": model}

    store, scratch = directory_store(tmp_path / "bucket"), tmp_path / "ranks"
    put_session_checkpoint(store, "digits-7k3f", CheckpointId(1, 9), make, scratch=scratch, world_size=3)
    found = reader.read_checkpoint(tmp_path / "bucket", "digits-7k3f")["model"]
    assert found.keys() == {f"b_{name}" for name in full}
    for name, tensor in full.items():
        np.testing.assert_array_equal(found[f"b_{name}"], tensor.float().numpy(), err_msg=name)


def test_the_reader_reads_compressed_chunks(reader, tmp_path):
    weights = {
        "weight": torch.randn(700, 30) / 50,
        "half": torch.randn(900).bfloat16(),
        "zero": torch.zeros(50),
    }
    model = torch.nn.Module()
    for name, tensor in weights.items():
        model.register_buffer(f"b_{name}", tensor)
    store = directory_store(tmp_path / "bucket")
    manifest = put_session_checkpoint(
        store, "digits-7k3f", CheckpointId(1, 9), {"model": model}, scratch=tmp_path / "ranks",
        chunk_bytes=20_000, compression=Compression(),
    )  # fmt: skip
    assert any(chunk.stored for part in manifest.parts for chunk in part.chunks)
    found = reader.read_checkpoint(tmp_path / "bucket", "digits-7k3f")["model"]
    for name, tensor in weights.items():
        np.testing.assert_array_equal(found[f"b_{name}"], tensor.float().numpy(), err_msg=name)


def test_the_reader_finds_a_flipped_bit(reader, trained):
    bucket, _ = trained
    path = bucket / keys.chunk("digits-7k3f", SaveId(2, 50, 0), 1, 0)
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"chunks/0001/000000 is corrupt"):
        reader.read_checkpoint(bucket, "digits-7k3f")


@pytest.mark.full
def test_the_reader_runs_as_a_program_without_cloudspot(reader_path, trained, tmp_path):
    bucket, _ = trained
    (tmp_path / "cloudspot.py").write_text("raise ImportError('not here')")
    done = subprocess.run(
        [sys.executable, str(reader_path), str(bucket), "digits-7k3f", "50"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("model {'b_half': (5, 3), 'b_flags': (3,), ")
