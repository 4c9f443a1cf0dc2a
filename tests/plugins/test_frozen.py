"""A plugin of version 2 of the interfaces, which nobody edits any more, works with this cloudspot."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import MappingProxyType

import pytest
from click.testing import CliRunner

import cloudspot
from cloudspot import registry
from cloudspot.cli.main import program
from cloudspot.errors import PluginError
from cloudspot.testing.providerkit import ProviderTests
from cloudspot.testing.storekit import ObjectStoreTests

FROZEN = str(Path(__file__).parent / "frozen")


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """On the path of this process and of those that the kits start."""
    monkeypatch.syspath_prepend(FROZEN)
    path = os.pathsep.join(filter(None, (FROZEN, os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)


class TestFrozenProvider(ProviderTests):
    name = "frozen"
    options = MappingProxyType({"region": "north"})


@pytest.mark.full
class TestFrozenStore(ObjectStoreTests):
    can_presign = False

    @pytest.fixture
    def store(self, tmp_path):
        return registry.open_store(f"frozen://{tmp_path}/store.sqlite")


@pytest.fixture
def outdated(monkeypatch):
    """The same plugin as its author wrote it for version 1, in place of the one above."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "outdated"))
    monkeypatch.delitem(sys.modules, "cloudspot_frozen", raising=False)
    yield
    sys.modules.pop("cloudspot_frozen", None)


@pytest.mark.parametrize(
    "command",
    [
        ["plugin", "check", "frozen", "--tests", "."],
        ["providers", "check", "frozen"],
        ["ps", "--store", "frozen:///s"],
    ],
)
def test_the_plugin_of_version_1_is_refused_with_one_line_that_says_what_to_upgrade(outdated, command):
    result = CliRunner().invoke(program, command)
    assert result.exit_code == PluginError.exit_code
    assert result.stdout == ""
    assert result.stderr == (
        'error: plugin "frozen" of cloudspot-frozen 1.0 is written for version 1 of cloudspot\'s interfaces, but '
        f"cloudspot {cloudspot.__version__} has version 2; upgrade cloudspot-frozen\n"
    )


def test_the_plugin_of_version_1_is_listed_with_the_reason_and_hides_no_other(outdated):
    result = CliRunner().invoke(program, ["providers", "list"])
    assert result.exit_code == 0
    lines = {line.split()[0]: " ".join(line.split()) for line in result.stdout.splitlines() if line.strip()}
    assert lines["local"].endswith(" ok")
    assert "is written for version 1" in " ".join(result.stdout.split())
