"""What the examples promise apart from their runs: the size knob of the small GPT."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from cloudspot.emulation.cloud import TRAINING_PACKAGES
from cloudspot.jobfile.spec import load_job

EXAMPLES = Path(__file__).parents[1] / "examples"
MIB = 2**20


@pytest.fixture(scope="module")
def tinygpt():
    """The script of examples/tinygpt as a module."""
    found = importlib.util.spec_from_file_location("tinygpt", EXAMPLES / "tinygpt" / "train.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def state_bytes(model):
    """Return what the weights and AdamW's state weigh after one step."""
    optimizer = torch.optim.AdamW(model.parameters())
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    kept = [*model.state_dict().values()]
    kept += [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    return sum(each.numel() * each.element_size() for each in kept)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/job.toml")), ids=lambda path: path.parent.name)
def test_the_job_files_of_the_examples_are_valid(path):
    job = load_job(path)
    assert job.name == path.parent.name
    scripts = [word for word in job.run.command or (job.run.entrypoint,) if word.endswith(".py")]
    assert [(path.parent / each).is_file() for each in scripts] == [True]


DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""Of modules that are named otherwise."""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/job.toml")), ids=lambda path: path.parent.name)
def test_an_example_installs_what_it_imports_and_images_of_clouds_lack(path):
    """A job that works on this computer alone would end on its first machine, which costs money."""
    imported = set()
    for script in path.parent.glob("*.py"):
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    lacking = imported - set(sys.stdlib_module_names) - {*TRAINING_PACKAGES, "cloudspot"}
    setup = load_job(path).run.setup or ""
    tried, _, installed = setup.partition("||")
    for module in lacking:
        assert module in tried.replace(",", " ").replace("'", " ").split()
        assert DISTRIBUTIONS.get(module, module) in installed.split()


@pytest.mark.full
@pytest.mark.parametrize("state_mib", [1, 1.5, 2, 3, 5, 8, 13, 25, 50, 100, 250, 500, 777, 1024])
@pytest.mark.parametrize("context", [64, 128])
def test_the_small_gpt_weighs_what_was_asked_for(tinygpt, state_mib, context):
    layers, dim, hidden = tinygpt.shape_for(state_mib, context)
    with torch.device("meta"):
        model = tinygpt.GPT(context, layers, dim, hidden)
    assert state_bytes(model) == pytest.approx(state_mib * MIB, rel=0.02)
    assert dim % layers == 0
    assert 2 * dim < hidden < 8 * dim


def test_a_named_size_gives_what_is_not_named(tinygpt):
    assert tinygpt.parse_arguments([]) == tinygpt.SIZES["small"]
    size = tinygpt.parse_arguments(["--size", "large", "--state-mib", "250", "--epochs", "3"])
    large = tinygpt.SIZES["large"]
    assert size == tinygpt.Size(250, large.context, large.batch_size, large.windows, epochs=3)


@pytest.mark.parametrize("asked", ["0.5", "2000"])
def test_a_weight_out_of_bounds_is_refused(tinygpt, asked, capsys):
    with pytest.raises(SystemExit):
        tinygpt.parse_arguments(["--state-mib", asked])
    assert f"--state-mib must be from 1 to 1024: got {asked}" in capsys.readouterr().err


def test_windows_are_pieces_of_the_text_and_their_next_bytes(tinygpt):
    text = torch.arange(100, dtype=torch.uint8)
    windows = tinygpt.Windows(text, context=9, count=10)
    seen, following = windows[5]
    assert seen.tolist() == list(range(45, 54))
    assert following.tolist() == list(range(46, 55))
    assert windows[9][1][-1] < 100
    assert len(windows) == 10


def test_the_text_is_the_standard_library_and_of_a_fixed_length(tinygpt):
    text = tinygpt.read_library()
    assert (text.dtype, len(text)) == (torch.uint8, tinygpt.TEXT_BYTES)
    assert b"import " in bytes(text[:100_000].tolist())
