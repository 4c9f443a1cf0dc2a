"""The kits as an author outside has them: installed as a package, with a plugin's tests in another directory."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
CONFTEST = """
import cloudspot


def pytest_report_header(config):
    return f"cloudspot is {cloudspot.__file__}"
"""
TESTS = """
import pytest
from account import Forgetful
from support.worlds.memorycloud import MemoryAccount

from cloudspot.testing.purchasekit import PurchaseTests


class TestMine(PurchaseTests):
    @pytest.fixture
    def account(self):
        return Forgetful()
"""
ACCOUNT = '''
import msgspec
from support.worlds.memorycloud import MemoryAccount


class Forgetful(MemoryAccount):
    """Its books have another boot script."""

    def bought(self, instance_id):
        return msgspec.structs.replace(super().bought(instance_id), user_data="#!/bin/sh\\nfalse\\n")
'''


@pytest.mark.timeout(600)
def test_a_failure_shows_what_was_expected_and_what_was_found(tmp_path):
    wheels, site, project = tmp_path / "wheels", tmp_path / "site", tmp_path / "project"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps")
    built = subprocess.run(
        [*pip, "--no-build-isolation", "-w", str(wheels), str(ROOT)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (project / "tests").mkdir(parents=True)
    for name, text in (("conftest", CONFTEST), ("account", ACCOUNT), ("test_mine", TESTS)):
        (project / "tests" / f"{name}.py").write_text(text)
    (project / "support").symlink_to(ROOT / "tests" / "support")  # the cloud in memory stands for a plugin
    path = os.pathsep.join([str(site), str(project), str(project / "tests"), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [sys.executable, "-S", "-m", "pytest", "-p", "no:cacheprovider", "tests", "-k", "boot_script"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert f"cloudspot is {site}" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    told = next(line for line in done.stdout.splitlines() if "At index 0 diff" in line)
    assert r"'#!/bin/sh\nfalse\n' != '#!/usr/bin/env bash\nsleep 600\n'" in told
