"""What is wrong is one line with its status, before a job is stored or a machine launched."""

import pytest
from click.testing import CliRunner

from cloudspot.cli.main import program
from cloudspot.model import Market

BULK_INSERT = "compute.regionInstances.bulkInsert"


@pytest.fixture
def run(cloud, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("import cloudspot.train\n\ncloudspot.train.session()\n")

    def run(*arguments, **table):
        lines = ['name = "digits"', "[run]", 'workdir = "code"', 'entrypoint = "train.py"', "[providers.gcp]"]
        table = {
            "project": '"my-project-123"',
            "machine_types": '["n2-standard-4"]',
            "image_has_cloudspot": "true",
            **table,
        }
        lines += [f"{name} = {value}" for name, value in table.items()]
        (tmp_path / "job.toml").write_text("\n".join(lines))
        command = [*arguments, str(tmp_path / "job.toml")]
        command += ["--provider", "gcp", "--store", f"file://{tmp_path}/bucket"]
        return CliRunner().invoke(program, command)

    return run


@pytest.mark.parametrize(
    ("table", "status", "message"),
    [
        (
            {"regions": '["us-central9"]'},
            2,
            'providers.gcp.regions: there is no region "us-central9"; did you mean',
        ),
        ({"machine_types": '["n2-standart-4"]'}, 2, 'did you mean "n2-standard-4"?'),
        (
            {"zone": '"us-central1-a"'},
            2,
            "providers.gcp.zone: unknown field; did you mean providers.gcp.zones?",
        ),
    ],
)
def test_a_wrong_option_is_one_line_and_nothing_is_stored_or_launched(
    run, cloud, tmp_path, table, status, message
):
    done = run("run", **table)
    assert (done.exit_code, done.stdout) == (status, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "bucket").exists()
    assert cloud.faults.count(BULK_INSERT) == 0


def test_no_credentials_are_one_line_too(run, tmp_path, monkeypatch):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    done = run("run")
    assert done.exit_code == 4
    assert "no Google credentials found; run `gcloud auth application-default login`" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "bucket").exists()


def test_an_api_that_is_not_there_is_one_line_and_nothing_is_stored(run, tmp_path, monkeypatch):
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "http://127.0.0.1:1")
    done = run("run")
    assert done.exit_code == 7
    assert "no answer from 127.0.0.1:1" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "bucket").exists()


@pytest.mark.full
def test_a_plan_shows_the_offers_and_the_very_request(run, cloud):
    done = run("plan", "--request")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.index("us-central1") < done.stdout.index("perInstanceProperties")
    assert all(market.value in done.stdout for market in Market)
    assert "onHostMaintenance: TERMINATE" in done.stdout
    script = done.stdout.partition("key: startup-script")[2]
    assert script.split("\n")[1:3] == ["          value:", "            | #!/usr/bin/env bash"]
    assert cloud.faults.count(BULK_INSERT) == 0
