"""What an image without cloudspot fetches its agent by: signed by the machine's role, checked by a strict S3."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest

from cloudspot.boot.script import BootPlan, Install, render_boot_script
from cloudspot_aws import fetch as fetching
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.provider import AwsProvider

ROLE = {
    "AccessKeyId": "AKIAIOSFODNN7EXAMPLE",
    "SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "Token": "t",
}


@pytest.fixture
def bucket(aws, monkeypatch):
    """A bucket of the emulated AWS, and a metadata service that gives its owner's keys."""
    s3 = boto3.client("s3")
    name = f"fetch-{datetime.now(timezone.utc):%H%M%S%f}"
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    monkeypatch.setattr(fetching, "read_role", lambda: ROLE)
    return s3, name


@pytest.mark.full
def test_it_writes_the_object_to_the_file(bucket, tmp_path):
    s3, name = bucket
    s3.put_object(Bucket=name, Key="some/prefix/agents/a b+c", Body=b"wheels")
    fetching.fetch(f"s3://{name}/some/prefix/", "agents/a b+c", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"wheels"


def test_what_s3_refuses_is_told_in_its_words(bucket, tmp_path):
    _, name = bucket
    with pytest.raises(OSError, match=r"^S3 answered 404 NoSuchKey$"):
        fetching.fetch(f"s3://{name}", "agents/none", tmp_path / "file")


def test_the_roles_credentials_come_from_the_metadata_service(monkeypatch):
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            seen.append((self.command, self.path, self.headers.get("X-aws-ec2-metadata-token")))
            body = {"/latest/api/token": b"T"}.get(
                self.path, b"role\n" if self.path.endswith("/") else b'{"Token": "t"}'
            )
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = answer  # noqa: N815 # the base class's names

        def log_message(self, *_):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(fetching, "METADATA", f"http://127.0.0.1:{server.server_port}")
    assert fetching.read_role() == {"Token": "t"}
    server.shutdown()
    server.server_close()
    thread.join()
    path = "/latest/meta-data/iam/security-credentials/"
    assert seen == [("PUT", "/latest/api/token", None), ("GET", path, "T"), ("GET", f"{path}role", "T")]


def test_the_whole_script_fits_into_the_user_data():
    profile = AwsProvider(AwsOptions(region="us-east-1")).boot_profile()
    install = Install(
        key="agents/" + "0" * 64,
        sha256="0" * 64,
        digest="0" * 64,
        requirements=("cloudspot", "cloudspot-aws"),
    )
    script = render_boot_script(
        BootPlan(
            job_id="x" * 63,
            submission_sha256="5" * 64,
            launch=999999,
            store_url="s3://" + "b" * 63 + "/" + "p" * 200,
            provider="aws",
            profile=profile,
            max_seconds=timedelta(days=7).total_seconds(),
            version="1.2.3",
            install=install,
        )
    )
    assert len(script) < 15_500  # of 16,384; a longer one would go compressed
