"""``cloudspot schema``: what is shipped, and the tables of the plugins that are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

pytestmark = pytest.mark.full


PLUGIN = '''
import msgspec
from cloudspot.hookspecs import hookimpl
from cloudspot.local.provider import LocalProvider

class MoonOptions(msgspec.Struct):
    """``[providers.moon]``: far away."""
    crater: int
    """Which one."""

class Moon(LocalProvider):
    name = "moon"
    options_type = MoonOptions

@hookimpl
def cloudspot_provider(name):
    return Moon
'''


def install(directory: Path, name: str, code: str) -> None:
    (directory / f"{name}_plugin.py").write_text(code)
    info = directory / f"{name}_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: cloudspot-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[cloudspot.providers]\n{name} = {name}_plugin\n")


def test_the_tables_of_installed_plugins_are_part_of_it_and_a_broken_one_hides_none(tmp_path):
    install(tmp_path, "moon", PLUGIN)
    install(tmp_path, "mars", "raise OSError('no air')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "cloudspot", "schema"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert (
        'warning: provider "mars" of cloudspot-mars 1.0 is broken: its module raised OSError: no air'
        in done.stderr
    )
    tables = json.loads(done.stdout)["properties"]["providers"]["properties"]
    assert tables["moon"]["properties"]["crater"] == {"type": "integer", "description": "Which one."}
    shipped = json.loads(resources.files("cloudspot").joinpath("job.schema.json").read_text())
    assert tables["local"] == shipped["properties"]["providers"]["properties"]["local"]
