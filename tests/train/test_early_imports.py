"""Which of a script's imports are made before it runs."""

import os
import sys
import types

import pytest

from cloudspot.train.early_imports import EarlyImports, import_early, leading_imports

BEGINNING = b'''"""A training."""

from __future__ import annotations
import os, random
import numpy as np
import scipy.stats, torch
from sklearn.datasets import load_digits, load_iris as iris
'''
FOUND = (
    ("numpy", ()),
    ("scipy.stats", ()),
    ("torch", ()),
    ("sklearn.datasets", ("load_digits", "load_iris")),
)


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"os.environ['HF_HOME'] = '/data'\nimport transformers",
        b"import unsloth, transformers",
        b"from . import transformers",
        b"from .transformers import Trainer",
        b"import mine\nimport transformers",
        b"if True:\n    import transformers",
        b"try:\n    import transformers\nexcept ImportError:\n    pass",
        b"import lightning\nimport transformers",
        b"import cloudspot.train.lightning\nimport transformers",
        b"from cloudspot.train.lightning import SpotCallback\nimport transformers",
        b"from cloudspot.train import lightning, session\nimport transformers",
    ],
)
def test_the_imports_with_which_a_script_begins(rest):
    assert leading_imports(BEGINNING + rest, {"mine", "train"}) == FOUND


def test_the_scripts_own_modules_end_them():
    assert leading_imports(BEGINNING, {"scipy"}) == FOUND[:1]
    assert leading_imports(BEGINNING, {"os"}) == ()
    assert leading_imports(b"from numpy import *\n", ()) == (("numpy", ()),)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """``packages``: one that was "tried", ``tqdm``, with a module of its own, and sets a variable."""
    (tmp_path / "found" / "tqdm-9.dist-info").mkdir(parents=True)
    (tmp_path / "found" / "tqdm-9.dist-info" / "METADATA").write_text("Name: tqdm\nVersion: 9\n")
    (tmp_path / "found" / "tqdm").mkdir()
    (tmp_path / "found" / "tqdm" / "__init__.py").write_text("import os\nos.environ['SET_HERE'] = 'x'\n")
    (tmp_path / "found" / "tqdm" / "auto.py").write_text("")
    (tmp_path / "found" / "elsewhere.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "found")
    for name in [name for name in sys.modules if name.partition(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "tqdm"]:
        del sys.modules[name]


def script(packages, text):
    path = packages / "train.py"
    path.write_text(text)
    return path


def test_modules_and_what_is_taken_from_them_are_imported(packages):
    early = import_early(script(packages, "from tqdm import auto\nimport tqdm.auto\n"), {"train"})
    assert early == EarlyImports(("tqdm", "tqdm.auto"), {"SET_HERE": "x"})
    assert isinstance(sys.modules["tqdm.auto"], types.ModuleType)


@pytest.mark.parametrize(
    ("text", "modules"),
    [("from tqdm import nothing\n", ("tqdm",)), ("import tqdm.nothing\n", ()), ("import\n", ()), ("\0", ())],
)
def test_what_cannot_be_imported_is_left_to_the_script(packages, text, modules):
    assert import_early(script(packages, text), {"train"}).modules == modules


def test_a_script_that_is_missing_imports_nothing(packages):
    assert import_early(packages / "none.py", set()) == EarlyImports()


def test_nothing_is_imported_where_the_script_has_a_module_that_is_elsewhere_too(packages):
    """What is imported might find the other one, and the script would then find that as well."""
    assert import_early(script(packages, "import tqdm\n"), {"train", "elsewhere"}) == EarlyImports()
    assert "tqdm" not in sys.modules


@pytest.mark.parametrize("name", ["datasets", "transformers"])
def test_nothing_is_imported_where_the_job_has_a_package_of_such_a_name(packages, monkeypatch, name):
    """Imported here, it would take every rank for rank 0, also if a package that was tried imports it."""
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    (packages / "own" / name).mkdir(parents=True)
    (packages / "own" / name / "__init__.py").write_text("import os\nRANK = os.environ.get('RANK')\n")
    monkeypatch.syspath_prepend(packages / "own")
    assert import_early(script(packages, "import tqdm\n"), {"train"}) == EarlyImports()


def test_only_variables_of_a_start_may_be_others():
    early = EarlyImports(("tqdm",))
    here = {"HOME": "/a", "RANK": "0", "PWD": "/a"}
    there = {"HOME": "/a", "RANK": "1", "LOCAL_RANK": "1", "CLOUDSPOT_GENERATION": "2", "MASTER_PORT": "3"}
    assert early.variable_in_the_way(here, there) is None
    assert early.variable_in_the_way(here, {**there, "HOME": "/b"}) == "HOME"
    assert early.variable_in_the_way(here, {**there, "HF_HOME": "/b"}) == "HF_HOME"
    assert early.variable_in_the_way({**here, "RANKS": "1"}, there) == "RANKS"
    assert EarlyImports().variable_in_the_way(here, {**there, "HOME": "/b"}) is None
