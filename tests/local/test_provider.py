from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cloudspot.errors import CloudspotError
from cloudspot.jobstore.jobs.state_home import HOME, state_home
from cloudspot.local import plugin
from cloudspot.local.provider import LocalProvider
from cloudspot.testing import plaincalls


def test_the_state_home_is_named_by_the_environment(monkeypatch):
    monkeypatch.setenv(HOME, "/somewhere")
    assert state_home() == Path("/somewhere")
    monkeypatch.setenv(HOME, "relative")
    with pytest.raises(CloudspotError, match="CLOUDSPOT_LOCAL_HOME must be an absolute path: got 'relative'"):
        state_home()


def test_the_state_home_follows_the_xdg_directories(monkeypatch):
    monkeypatch.delenv(HOME, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert state_home() == Path("/state/cloudspot")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_home() == Path.home() / ".local/state/cloudspot"


def test_the_default_store_lies_beside_the_machines(local_home):
    assert LocalProvider().default_store() == f"file://{local_home}/store"


def test_the_boot_profile_is_this_interpreter():
    profile = LocalProvider().boot_profile()
    assert profile.agent_python == profile.train_python == sys.executable
    assert profile.has_cloudspot


def test_the_boot_profiles_interpreter_finds_this_cloudspot(tmp_path):
    profile = LocalProvider().boot_profile()
    found = subprocess.run(
        [profile.agent_python, "-c", "import cloudspot; print(cloudspot.__file__)"],
        env={"PATH": "/usr/bin:/bin", **profile.environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    import cloudspot

    assert found.stdout.strip() == cloudspot.__file__


def test_the_check_of_a_sound_host_finds_nothing_wrong(local_home):
    assert [
        result for result in plaincalls.check(LocalProvider()) if not result.ok and result.name != "torch"
    ] == []


def test_the_check_names_a_state_home_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(HOME, str(tmp_path / "file"))
    failed = [result.name for result in plaincalls.check(LocalProvider()) if not result.ok]
    assert [name for name in failed if name != "torch"] == ["state home"]


def test_the_plugin_answers_for_its_own_names_alone():
    assert plugin.cloudspot_provider(name="local") is LocalProvider
    assert plugin.cloudspot_provider(name="aws") is None
    assert plugin.cloudspot_object_store(url="s3://bucket") is None


def test_the_plugin_module_imports_nothing_heavy():
    code = "import sys, cloudspot.local.plugin; print(*(m for m in sys.modules if m.startswith('cloudspot.local')))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert set(output.split()) == {"cloudspot.local", "cloudspot.local.plugin"}
