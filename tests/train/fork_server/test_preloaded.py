"""What the imports of a process have read of its environment, and changed in it."""

import os
import sys

import pytest

from cloudspot.train.fork_server.preloaded import Preloaded, differing, recording


@pytest.fixture
def module(tmp_path, monkeypatch):
    """``module(text)``: import a module of that text and return what is known of it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(os, "environ", type(os.environ)(**vars_of(os.environ)))
    for name, value in [("MINE", "1"), ("OTHER", "2")]:
        monkeypatch.setitem(os.environ, name, value)

    def module(text):
        (tmp_path / "one_of_mine.py").write_text(text)
        monkeypatch.delitem(sys.modules, "one_of_mine", raising=False)
        found = Preloaded()
        found.add("one_of_mine")
        return found

    yield module
    sys.modules.pop("one_of_mine", None)


def vars_of(environ):
    names = ("encodekey", "decodekey", "encodevalue", "decodevalue")
    return {"data": {}, **{name: getattr(environ, name) for name in names}}


READS = [
    "os.environ['MINE']",
    "os.getenv('MINE')",
    "os.environ.get('MINE')",
    "'MINE' in os.environ",
    "os.environ.setdefault('MINE', '2')",
    "dict(os.environ); os.environ['MINE']",
    "os.environ['MINE']; os.environ.copy(); list(os.environ.items())",
]


@pytest.mark.parametrize("text", READS)
def test_what_is_read_when_a_module_is_imported_is_known(module, text):
    found = module(f"import os\n{text}\n")
    assert found.readers("MINE") == {"one_of_mine"}
    assert found.readers("OTHER") == set()


def test_a_variable_that_is_read_and_not_set_counts_too(module):
    found = module("import os\nRANK = os.environ.get('NOT_SET')\n")
    assert found.readers("NOT_SET") == {"one_of_mine"}
    assert found.why_not({}, {"NOT_SET": "1"}).startswith(
        "NOT_SET differs, and was read when one_of_mine was"
    )
    assert found.why_not({"NOT_SET": "1"}, {"NOT_SET": "1"}) == ""


@pytest.mark.parametrize("text", ["dict(os.environ)", "list(os.environ.items())", "os.environ.copy()"])
def test_a_list_of_all_variables_reads_none_but_those_that_are_known_to_be_sought_in_it(module, text):
    found = module(f"import os\n{text}\n")
    assert found.readers("MINE") == set()
    assert found.readers("TQDM_DISABLE") == {"one_of_mine"}
    assert module("import os\nos.environ['MINE']\n").readers("TQDM_DISABLE") == set()


def test_what_an_import_has_set_and_removed_is_known_even_if_it_fails(module):
    with pytest.raises(ZeroDivisionError):
        module("import os\nos.environ['NEW'] = '1'\ndel os.environ['MINE']\n1 / 0\n")
    assert (os.environ.get("NEW"), os.environ.get("MINE")) == ("1", None)
    os.environ["MINE"] = "1"
    del os.environ["NEW"]
    found = module("import os\nos.environ.update(NEW='1', OTHER='2')\ndel os.environ['MINE']\n")
    assert found.changed == {"one_of_mine": {"NEW": "1", "MINE": None}}


def test_nothing_is_recorded_outside(module):
    with recording() as read:
        os.environ.get("MINE")
    os.environ.get("OTHER")
    assert read.names == {"MINE"}
    assert type(os.environ).__name__ == "_Environ"


def test_an_object_of_a_module_can_be_named():
    found = Preloaded()
    found.add("json.decoder.JSONDecodeError")
    assert found.names == ["json.decoder.JSONDecodeError"]
    with pytest.raises(AttributeError):
        found.add("json.nothing")


def test_what_a_shell_sets_differs_and_is_no_matter():
    here, there = {"PWD": "/a", "HOME": "/a"}, {"SHLVL": "1", "HOME": "/b", "RANK": "0"}
    assert differing({*here, *there}, here, there) == ["HOME", "RANK"]


def test_pythons_own_modules_are_no_packages():
    assert "json" not in Preloaded().packages()
    assert Preloaded().packages()["pytest"].endswith("pytest/__init__.py")
