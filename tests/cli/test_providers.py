"""``cloudspot providers``."""

from cloudspot import __version__


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


def test_a_check_names_what_it_tried(jobs):
    value = jobs.run_json("providers", "check", "local")
    assert (value["provider"], value["ok"]) == ("local", True)
    assert [check["name"] for check in value["checks"]][:2] == ["bash", "state home"]
    assert "ok      bash: " in jobs.run("providers", "check", "local").stdout


def test_a_check_that_fails_ends_with_1(jobs, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    value = jobs.run_json("providers", "check", "local", status=1)
    assert value["ok"] is False
    assert "FAILED  bash" in jobs.run("providers", "check", "local", status=1).stdout


def test_the_options_come_from_a_job_file(jobs):
    jobs.job_file.write_text(
        jobs.job_file.read_text() + '[providers.local]\nzones = ["x"]\nno_capacity = ["y"]\n'
    )
    result = jobs.run("providers", "check", "local", "--job-file", str(jobs.job_file), status=2)
    assert "providers.local.no_capacity" in result.stderr


def test_an_unknown_provider_is_a_plugin_error(jobs):
    assert jobs.run("providers", "check", "moon", status=3).stderr.startswith("error: ")
