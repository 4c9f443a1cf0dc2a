"""Clients of AWS's services: region, profile, one per service and region."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import botocore.utils
import pytest

from cloudspot.errors import AuthError, SpecError
from cloudspot_aws.clients import AwsClients, parse_time


@pytest.fixture
def config(aws, monkeypatch, tmp_path):
    """An empty AWS configuration file; nothing else names a region."""
    monkeypatch.delenv("AWS_REGION")
    path = tmp_path / "aws-config"
    path.write_text("")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))
    return path


@pytest.fixture
def metadata(monkeypatch):
    """A metadata service of an instance in us-east-2, tokens required."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self):
            self.answer(b"token" if self.headers["X-aws-ec2-metadata-token-ttl-seconds"] else None)

        def do_GET(self):
            is_known = self.path == "/latest/meta-data/placement/region"
            has_token = self.headers["X-aws-ec2-metadata-token"] == "token"
            self.answer(b"us-east-2" if is_known and has_token else None)

        def answer(self, body):
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    yield
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_region_is_the_options_then_the_environments_then_the_profiles(config, metadata, monkeypatch):
    assert AwsClients().region == "us-east-2"
    config.write_text("[default]\nregion = eu-west-3\n[profile lab]\nregion = eu-north-1\n")
    assert AwsClients().region == "eu-west-3"
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert AwsClients().region == "eu-north-1"
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "ap-south-1")
    assert AwsClients().region == "ap-south-1"
    monkeypatch.setenv("AWS_REGION", "ca-central-1")
    assert AwsClients().region == "ca-central-1"
    assert AwsClients(region="sa-east-1").region == "sa-east-1"


def test_no_region_at_all_is_a_spec_error(config):
    assert AwsClients().region_or_none() is None
    with pytest.raises(SpecError, match=r"no AWS region: set providers.aws.region"):
        _ = AwsClients().region


def test_what_cannot_be_used_is_a_spec_error_that_names_it(config, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nope")
    with pytest.raises(
        SpecError,
        match=r"\(nope\) could not be found; to list the profiles that exist, run: aws configure list-profiles",
    ):
        _ = AwsClients().region
    monkeypatch.delenv("AWS_PROFILE")
    with pytest.raises(SpecError, match="cannot use AWS ec2 in 'no region'"):
        AwsClients(region="no region").client("ec2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(SpecError, match="cannot use AWS s3"):
        AwsClients(region="eu-west-1").client("s3")
    config.write_text("[broken\n")
    with pytest.raises(SpecError, match="the AWS configuration cannot be read"):
        _ = AwsClients().region


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "false",
            "from custom-process: it failed and printed nothing on standard error; to see more, run it",
        ),
        ("sh -c 'echo denied by SSO >&2; exit 3'", "from custom-process: denied by SSO"),
        ("/nonexistent/program", "credential_process gives no AWS credentials: No such file or directory"),
        ("echo hello", "credential_process gives no AWS credentials: its output is not JSON"),
        ("echo '{\"Version\": 2}'", "Unsupported version '2' for credential process provider"),
    ],
)
def test_a_credential_process_that_fails_is_an_auth_error_with_its_reason(config, monkeypatch, command, said):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    config.write_text(f"[default]\ncredential_process = {command}\n")
    with pytest.raises(AuthError) as error:
        AwsClients(region="us-east-1").client("s3")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_there_is_one_client_for_each_service_region_and_number_of_attempts(aws):
    clients = AwsClients()
    one = clients.client("ec2")
    assert clients.client("ec2", region="eu-central-1") is one
    assert clients.client("ec2", region="us-east-1") is not one
    assert clients.client("ec2", num_attempts=1) is not one
    assert clients.client("sts") is not one
    assert clients.client("sts").get_caller_identity()["Account"] == "123456789012"
    config = one.meta.config
    assert config.retries["total_max_attempts"] == 3
    assert "cloudspot/" in config.user_agent_extra


def test_clients_of_other_settings_are_others(aws):
    clients = AwsClients()
    plain = clients.client("s3", s3={"payload_signing_enabled": True})
    assert clients.client("s3", s3={"payload_signing_enabled": True}) is plain
    assert clients.client("s3", s3={"payload_signing_enabled": False}) is not plain


@pytest.mark.parametrize(
    "told",
    [
        "Fri, 20 Nov 2026 12:00:01 GMT",
        "Fri, 20-Nov-2026 12:00:01 GMT",
        "2026-11-20T12:00:01.250Z",
        "2026-11-20T12:00:01Z",
        "2026-11-20T12:00:01+02:00",
        "20261120T120001Z",
        1795176001,
        1795176001.5,
        "1795176001",
    ],
    ids=str,
)
def test_times_are_read_as_botocore_reads_them(told):
    found = parse_time(told)
    assert found == botocore.utils.parse_timestamp(told)
    assert found.utcoffset() is not None


def test_times_that_are_not_are_refused_as_botocore_refuses_them():
    for told in ("", "soon", "soonZ", "soon GMT", "2026-11-20Z"):
        with pytest.raises(ValueError, match="timestamp"):
            parse_time(told)


def test_clients_read_times_by_it(aws):
    factory = AwsClients()._session()._session.get_component("response_parser_factory")
    assert factory.create_parser("rest-xml")._timestamp_parser is parse_time
