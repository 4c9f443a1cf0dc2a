"""What an import brings with it: no torch, no SDK, and for the trainer nothing but the standard library."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cloudspot.local.filestore import FileStore

HEAVY = ("torch", "numpy", "sklearn", "torchdata", "boto3", "botocore", "google", "oss2", "aliyunsdkcore")


def modules_after(statement):
    """Return the top-level modules that a fresh interpreter has loaded after the statement."""
    code = f"""
import sys
before = set(sys.modules)
{statement}
import json
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "module",
    [
        "cloudspot",
        "cloudspot.interfaces",
        "cloudspot.jobfile.spec",
        "cloudspot.registry",
        "cloudspot.train",
        "cloudspot.train.handoff",
        "cloudspot.agent",
        "cloudspot.boot",
        "cloudspot.controller",
        "cloudspot.jobstore",
        "cloudspot.cli.main",
        "cloudspot.local.plugin",
    ],
)
def test_importing_it_brings_neither_torch_nor_an_sdk(module):
    assert modules_after(f"import {module}").isdisjoint(HEAVY)


@pytest.mark.full
def test_no_module_of_the_agent_brings_numpy_which_machines_lack():
    every = """
import importlib, pkgutil, cloudspot.agent
for one in pkgutil.walk_packages(cloudspot.agent.__path__, "cloudspot.agent."):
    if not one.name.endswith("__main__"):
        importlib.import_module(one.name)
"""
    brought = modules_after(every)
    assert {"cloudspot", "msgspec", "xxhash"} <= brought
    assert brought.isdisjoint({*HEAVY, "zstandard"})


@pytest.mark.parametrize("module", ["cloudspot.train", "cloudspot.train.handoff"])
def test_the_trainers_package_needs_only_the_standard_library(module):
    assert modules_after(f"import {module}") - sys.stdlib_module_names == {"cloudspot"}


def test_the_command_line_starts_with_click_alone():
    brought = modules_after("import cloudspot.cli.main") - sys.stdlib_module_names - {"cloudspot"}
    assert brought <= {"click", "typing_extensions", "colorama"}


@pytest.mark.full
def test_listing_the_providers_brings_neither_torch_nor_an_sdk():
    assert modules_after("from cloudspot.registry import list_providers; list_providers()").isdisjoint(HEAVY)


@pytest.mark.full
def test_a_listing_of_a_built_in_store_searches_no_installed_distributions(tmp_path):
    FileStore(f"file://{tmp_path}/store").establish()
    listing = """
from cloudspot.cli.main import program
try:
    program.main(["ps", "--json"], prog_name="cloudspot")
except SystemExit as end:
    assert end.code == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys{listing}assert 'importlib.metadata' not in sys.modules"],
        env={"PATH": "/usr/bin:/bin", "CLOUDSPOT_LOCAL_HOME": str(tmp_path), "CLOUDSPOT_CONFIG": ""},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
