"""What is wrong is one line with its status, before a job is stored or a machine launched."""

import pytest
from click.testing import CliRunner

from cloudspot.cli.main import program
from cloudspot.model import Market


@pytest.fixture
def run(cloud, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("import cloudspot.train\n\ncloudspot.train.session()\n")

    def run(*arguments, **table):
        lines = ['name = "digits"', "[run]", 'workdir = "code"', 'entrypoint = "train.py"', "[providers.aws]"]
        table = {
            "region": '"us-east-1"',
            "instance_types": '["g5.xlarge"]',
            "image_has_cloudspot": "true",
            **table,
        }
        lines += [f"{name} = {value}" for name, value in table.items()]
        (tmp_path / "job.toml").write_text("\n".join(lines))
        command = [*arguments, str(tmp_path / "job.toml")]
        command += ["--provider", "aws", "--store", f"file://{tmp_path}/bucket"]
        return CliRunner().invoke(program, command)

    return run


@pytest.mark.parametrize(
    ("table", "status", "message"),
    [
        (
            {"region": '"us-east-9"'},
            2,
            'providers.aws.region: there is no region "us-east-9" in this boto3',
        ),
        ({"instance_types": '["g5.xlrge"]'}, 2, 'us-east-1 has no "g5.xlrge"; did you mean "g5.xlarge"?'),
        ({"image": '"ami-0123456789abcdef0"'}, 2, 'providers.aws.image: there is no "ami-0123456789abcdef0"'),
        ({"instance_profile": '"nobody"'}, 2, 'providers.aws.instance_profile: there is no "nobody"'),
        ({"zone": '"us-east-1a"'}, 2, "providers.aws.zone: unknown field; did you mean providers.aws.zones?"),
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
    assert cloud.faults.count("RunInstances") == 0


def test_no_credentials_are_one_line_too(run, tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    done = run("run")
    assert done.exit_code == 4
    assert "no AWS credentials found; run `aws configure`" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "bucket").exists()


@pytest.mark.full
def test_a_plan_shows_the_offers_and_the_request_with_region_and_account_pinned(run, cloud):
    done = run("plan", "--request", zones='["us-east-1a"]')
    assert done.exit_code == 0, done.stderr
    assert "g5.xlarge  us-east-1a  spot" in " ".join(done.stdout.split()).replace(" us", "  us").replace(
        " spot", "  spot"
    )
    assert "InstanceInitiatedShutdownBehavior: terminate" in done.stdout
    assert cloud.faults.count("GetCallerIdentity") == 1
    assert cloud.alive == []


@pytest.mark.full
def test_a_detached_job_has_its_machine_and_can_be_read_by_anybody(run, cloud, tmp_path):
    done = run("run", "--detach", "--name", "digits-1", zones='["us-east-1a"]')
    assert done.exit_code == 0, done.stderr
    (machine,) = cloud.host.machines.values()
    assert (machine.job.job_id, machine.market) == ("digits-1", Market.SPOT)
    assert b"CLOUDSPOT_JOB=digits-1" in machine.user_data
    assert b"AWS_REGION=us-east-1" in machine.user_data
    (spec,) = (tmp_path / "bucket" / "jobs" / "digits-1").glob("spec*")
    assert '"account":"123456789012"' in spec.read_text().replace(" ", "")
