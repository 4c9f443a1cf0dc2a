"""Buckets of a test's own."""

from __future__ import annotations

import itertools
import os
from typing import ClassVar

import boto3
import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from support.clouds.bucketstoretests import BucketCloud, rights_named
from support.stores.lossyproxy import LossyProxy

from cloudspot_aws import permissions
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.s3 import S3Store
from cloudspot_aws_sandbox.rights import rights_of

PART_BYTES = 5 << 20
_numbers = itertools.count()


@pytest.fixture(scope="session")
def make_client():
    """``make_client(url)``: a client of the emulated S3 beside the store; they take long to make."""
    made = {}

    def make(url, region="eu-central-1"):
        if (url, region) not in made:
            made[url, region] = boto3.session.Session().client("s3", region_name=region, endpoint_url=url)
        return made[url, region]

    return make


@pytest.fixture
def s3(aws, make_client):
    return make_client(aws.url)


@pytest.fixture
def make_bucket(aws, make_client):
    """``make_bucket(region)``: make an empty bucket and return its name."""

    def make(region="eu-central-1"):
        name = f"bucket-{next(_numbers)}"
        options = {} if region == "us-east-1" else {"LocationConstraint": region}
        client = make_client(aws.url, region)
        client.create_bucket(Bucket=name, **({"CreateBucketConfiguration": options} if options else {}))
        return name

    return make


@pytest.fixture
def bucket(make_bucket):
    return make_bucket()


_clients: dict[str, AwsClients] = {}
"""By endpoint: clients take long to make."""


@pytest.fixture
def store(bucket):
    """A store in a bucket of its own, below a prefix; its streams go up in the smallest parts there are."""
    clients = _clients.setdefault(os.environ["AWS_ENDPOINT_URL"], AwsClients())
    return S3Store(
        f"s3://{bucket}/some/prefix", clients=clients, part_bytes=PART_BYTES, sleep=lambda seconds: None
    )


class S3Cloud(BucketCloud):
    scheme = "s3"
    store_type = S3Store
    endpoint_variable = "AWS_ENDPOINT_URL"
    actions: ClassVar = {
        "put": "PutObject",
        "get": "GetObject",
        "head": "HeadObject",
        "list": "ListObjectsV2",
        "delete": "DeleteObject",
        "begin": "CreateMultipartUpload",
        "part": "UploadPart",
        "complete": "CompleteMultipartUpload",
    }
    first_actions = ("HeadBucket",)
    rights: ClassVar = {
        "put": "s3:PutObject",
        "get": "s3:GetObject",
        "list": "s3:ListBucket",
        "delete": "s3:DeleteObject",
    }
    failed = ("InternalError", 500)
    throttled = ("SlowDown", 503)
    taken = ("PreconditionFailed", 412)
    how_to_create = "aws s3 mb s3://"
    other_wrong_urls = (
        ("s3://bucket..x", "is not a bucket name"),
        ("s3://fast--use1-az4--x-s3", "a directory bucket does not list its objects in order"),
    )
    large_bytes = 3 * PART_BYTES
    granted_to_nodes = rights_named(permissions.DIRECTORY / "policy-node.json", "s3")
    granted_to_submitters = rights_named(permissions.DIRECTORY / "policy-submitter.json", "s3")
    needed_by_the_check_alone: ClassVar = frozenset()
    rights_of = staticmethod(rights_of)

    def __init__(self, aws, s3):
        self._strict, self._client = aws.s3, s3
        self.server = aws.s3
        self.faults, self.url = aws.faults, aws.url

    def put_raw(self, bucket, name):
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, name, b"")

    def pending(self, bucket):
        return [one["Key"] for one in self._uploads(bucket)]

    def forget_uploads(self, bucket):
        for one in self._uploads(bucket):
            self._client.abort_multipart_upload(Bucket=bucket, Key=one["Key"], UploadId=one["UploadId"])

    def ignore_conditions(self, monkeypatch):
        monkeypatch.setattr(
            type(self._strict),
            "_check_condition",
            lambda self, request: request.environ.pop("HTTP_IF_NONE_MATCH", None),
        )

    def _uploads(self, bucket):
        return self._client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])


@pytest.fixture
def cloud(aws, s3):
    return S3Cloud(aws, s3)


@pytest.fixture
def proxy(aws, monkeypatch):
    """A proxy before the emulated S3, at which stores that are made after it ask."""
    one = LossyProxy(aws.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", one.url)
    yield one
    one.close()
