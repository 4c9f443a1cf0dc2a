"""``cloudspot providers``."""

import sys
import types

import pytest

from cloudspot import __version__
from cloudspot.calls import CheckResults
from cloudspot.model import CheckResult


def test_the_built_in_provider_is_listed_first(jobs):
    for arguments in (["providers"], ["providers", "list"]):
        assert jobs.run_json(*arguments)[0] == {
            "name": "local",
            "distribution": "cloudspot",
            "version": __version__,
            "error": None,
        }
    lines = jobs.run("providers").stdout.splitlines()
    assert lines[0].split() == ["NAME", "DISTRIBUTION", "VERSION", "STATUS"]
    assert lines[1].split() == ["local", "cloudspot", __version__, "ok"]


@pytest.fixture
def with_torch(monkeypatch):
    """An interpreter that has torch, whatever runs the tests."""
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__spec__=object()))


def test_a_check_names_what_it_tried(jobs, with_torch):
    value = jobs.run_json("providers", "check", "local")
    assert (value["provider"], value["ok"]) == ("local", True)
    assert [check["name"] for check in value["checks"]][:3] == ["bash", "torch", "state home"]
    assert {check["remedy"] for check in value["checks"]} == {None}
    assert "ok      bash: " in jobs.run("providers", "check", "local").stdout


def test_what_could_not_be_tried_is_not_called_ok(jobs, monkeypatch):
    untried = CheckResult(name="ending", ok=True, is_known=False, detail="not tried: there is no machine")
    found = CheckResults(results=(untried,))
    monkeypatch.setattr("cloudspot.local.provider.LocalProvider.check", lambda *_: found)
    said = jobs.run("providers", "check", "local").stdout.splitlines()
    assert said[0] == "unknown ending: not tried: there is no machine"
    assert jobs.run_json("providers", "check", "local")["checks"][0]["is_known"] is False


def test_advice_of_a_check_that_succeeds_is_not_called_ok(jobs, monkeypatch):
    advised = CheckResult(name="bucket lifecycle", ok=True, detail="parts stay", remedy="add a rule")
    found = CheckResults(results=(advised,))
    monkeypatch.setattr("cloudspot.local.provider.LocalProvider.check", lambda *_: found)
    assert jobs.run("providers", "check", "local").stdout.splitlines() == [
        "advice  bucket lifecycle: parts stay; add a rule"
    ]
    value = jobs.run_json("providers", "check", "local")
    assert (value["ok"], value["checks"][0]["remedy"]) == (True, "add a rule")


def test_a_check_that_fails_ends_with_1(jobs, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    value = jobs.run_json("providers", "check", "local", status=1)
    assert value["ok"] is False
    assert value["checks"][0]["remedy"] == "install bash"
    lines = jobs.run("providers", "check", "local", status=1).stdout.splitlines()
    assert lines[0] == "FAILED  bash: not found on PATH; install bash"


def test_a_home_that_is_in_the_way_and_a_missing_torch_come_with_their_remedies(jobs, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLOUDSPOT_LOCAL_HOME", f"{tmp_path}/file/home")
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__spec__=None))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lines = jobs.run("providers", "check", "local", status=1).stdout.splitlines()
    assert lines[1:3] == [
        (
            f"FAILED  torch: {sys.executable} does not have it; pip install torch numpy, "
            "or name an interpreter that has it in run.python"
        ),
        (
            f"FAILED  state home: {tmp_path}/file/home cannot be written: Not a directory; "
            "set CLOUDSPOT_LOCAL_HOME to a directory of your own"
        ),
    ]
    monkeypatch.setenv("CLOUDSPOT_LOCAL_HOME", str(tmp_path / "local-home"))


def test_the_options_come_from_a_job_file(jobs):
    jobs.job_file.write_text(
        jobs.job_file.read_text() + '[providers.local]\nzones = ["x"]\ncapacity = {y = 0}\n'
    )
    result = jobs.run("providers", "check", "local", "--job-file", str(jobs.job_file), status=2)
    assert "providers.local.capacity" in result.stderr


def test_an_unknown_provider_is_a_plugin_error(jobs):
    assert jobs.run("providers", "check", "moon", status=3).stderr.startswith("error: ")
