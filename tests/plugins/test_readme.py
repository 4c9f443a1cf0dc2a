"""What plugins/README.md tells a plugin's author to write is right as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from cloudspot import hookspecs

README = Path(__file__).parents[2] / "plugins" / "README.md"
TESTS = Path(__file__).parents[1]
TEXT = README.read_text(encoding="utf-8")
BLOCKS = dict.fromkeys(("toml", "python"), ())
for language, block in re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
    BLOCKS[language] += (block,)
HOOKS, KIT = BLOCKS["python"]


def test_the_entry_points_are_those_that_cloudspot_looks_for():
    (project,) = BLOCKS["toml"]
    groups = tomllib.loads(project)["project"]["entry-points"]
    assert set(groups) == {hookspecs.PROVIDER_GROUP, hookspecs.STORE_GROUP, hookspecs.SANDBOX_GROUP}
    assert {module for group in groups.values() for module in group.values()} == {"cloudspot_mycloud"}


@pytest.fixture
def plugin(tmp_path):
    """The package of the page, with a store that keeps its promises."""
    package = tmp_path / "cloudspot_mycloud"
    package.mkdir()
    (package / "__init__.py").write_text(HOOKS)
    (package / "store.py").write_text(
        "from support.stores.memorystore import InMemoryStore\n\n\nclass MyStore(InMemoryStore):\n    pass\n"
    )
    return tmp_path


def run(plugin, *words):
    return subprocess.run(
        [sys.executable, *words],
        cwd=plugin,
        env={**os.environ, "PYTHONPATH": f"{plugin}{os.pathsep}{TESTS}"},
        capture_output=True,
        text=True,
    )


def test_the_hooks_answer_for_their_own_cloud_alone(plugin):
    code = (
        "import cloudspot_mycloud as it\n"
        "print(it.cloudspot_provider('aws'), it.cloudspot_sandbox('aws'), it.cloudspot_object_store('s3://b'))\n"
        "print(type(it.cloudspot_object_store('mycloud://b')).__name__)\n"
    )
    done = run(plugin, "-c", code)
    assert (done.stdout, done.stderr) == ("None None None\nMyStore\n", "")


@pytest.mark.full
def test_the_kit_runs_on_the_store(plugin):
    (plugin / "test_store.py").write_text(KIT)
    done = run(plugin, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "range", "test_store.py")
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_what_the_page_names_is_there():
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT):
        assert (README.parent / target).exists(), target
    for name in re.findall(r"`(\w+\.py)`", TEXT):
        assert any((README.parents[1] / where / name).exists() for where in WHERE), name


WHERE = (
    "cloudspot/emulation",
    "cloudspot/plugin",
    "cloudspot/testing",
    "plugins/aws/cloudspot_aws",
)
