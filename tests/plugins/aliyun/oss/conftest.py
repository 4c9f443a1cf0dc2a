"""An emulated OSS, on a port of this machine, and buckets of a test's own."""

from __future__ import annotations

import itertools
import socket
from datetime import datetime, timezone
from typing import ClassVar

import pytest
from support.clouds.bucketstoretests import BucketCloud, rights_named

from cloudspot.emulation.api_faults import Faults
from cloudspot.emulation.role_credentials import Secrets
from cloudspot.emulation.wsgi_server import Server
from cloudspot_aliyun import permissions
from cloudspot_aliyun.oss import OssStore
from cloudspot_aliyun_sandbox.ossbuckets import HeldBucket, Stored
from cloudspot_aliyun_sandbox.rights import rights_of
from cloudspot_aliyun_sandbox.rolekeys import RoleKeys
from cloudspot_aliyun_sandbox.strict_oss import StrictOss

KEY_ID = "LTAI5tEXAMPLEexample0001"
KEY_SECRET = "example0secret1example2secret3"
REGION = "cn-hangzhou"
PART_BYTES = 1 << 20
_numbers = itertools.count()


class EmulatedOss:
    """The server of a test session; the faults are a test's own."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.roles = RoleKeys("a-seed")
        self.secrets = Secrets({KEY_ID: KEY_SECRET}, self.roles)
        self.app = StrictOss(faults=self.faults, secrets=self.secrets, roles=self.roles)
        self.server = Server(self.app)
        self.url = self.server.url

    def make_bucket(self, region=REGION, versioning=""):
        name = f"bucket-{next(_numbers)}"
        self.app.buckets[name] = HeldBucket(name, region, datetime.now(timezone.utc), versioning)
        return name


@pytest.fixture(scope="session")
def oss_server():
    one = EmulatedOss()
    yield one
    one.server.close()


@pytest.fixture
def oss(oss_server, monkeypatch, tmp_path):
    """The emulated OSS, as the environment names it to any tool; no fault is left of the test before."""
    for name, value in {
        "OSS_ENDPOINT": oss_server.url,
        "ALIBABA_CLOUD_ACCESS_KEY_ID": KEY_ID,
        "ALIBABA_CLOUD_ACCESS_KEY_SECRET": KEY_SECRET,
        "ALIBABA_CLOUD_REGION_ID": REGION,
        "ALIBABA_CLOUD_ECS_METADATA_DISABLED": "true",
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("ALIBABA_CLOUD_PROFILE", "ALIBABA_CLOUD_SECURITY_TOKEN", "ALIBABA_CLOUD_ECS_METADATA"):
        monkeypatch.delenv(name, raising=False)
    oss_server.faults.__init__()
    yield oss_server
    oss_server.faults.__init__()


@pytest.fixture
def bucket(oss):
    return oss.make_bucket()


@pytest.fixture
def store(bucket):
    """A store in a bucket of its own, below a prefix; its streams go up in small parts."""
    return OssStore(f"oss://{bucket}/some/prefix", part_bytes=PART_BYTES, sleep=lambda seconds: None)


@pytest.fixture
def domain(oss, bucket, monkeypatch):
    """A domain that is bound to the bucket, in an account that may not use the public endpoint."""
    name, ask = "runs.example.com", socket.getaddrinfo

    def here(host, *rest, **options):
        return ask("127.0.0.1" if host == name else host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", here)
    monkeypatch.setattr(oss.app, "domains", {name: bucket})
    monkeypatch.setattr(oss.app, "is_public_endpoint_forbidden", True)
    return oss.url.replace("127.0.0.1", name)


class OssCloud(BucketCloud):
    scheme = "oss"
    store_type = OssStore
    endpoint_variable = "OSS_ENDPOINT"
    actions: ClassVar = {
        "put": "PutObject",
        "get": "GetObject",
        "head": "HeadObject",
        "list": "ListObjectsV2",
        "delete": "DeleteObject",
        "begin": "InitiateMultipartUpload",
        "part": "UploadPart",
        "complete": "CompleteMultipartUpload",
    }
    first_actions = ("GetBucketInfo",)
    rights: ClassVar = {
        "put": "oss:PutObject",
        "get": "oss:GetObject",
        "list": "oss:ListObjects",
        "delete": "oss:DeleteObject",
    }
    failed = ("InternalError", 500)
    throttled = ("SlowDown", 503)
    taken = ("FileAlreadyExists", 409)
    how_to_create = "ossutil mb oss://"
    other_wrong_urls = (("oss://bucket/\\x", "no key that begins with a backslash"),)
    large_bytes = 3 * PART_BYTES
    granted_to_nodes = rights_named(permissions.DIRECTORY / "policy-node.json", "oss")
    granted_to_submitters = rights_named(permissions.DIRECTORY / "policy-submitter.json", "oss")
    needed_by_the_check_alone: ClassVar = frozenset()
    rights_of = staticmethod(rights_of)

    def __init__(self, oss):
        self._app = self.server = oss.app
        self.faults, self.url = oss.faults, oss.url

    def put_raw(self, bucket, name):
        now = datetime.now(timezone.utc)
        self._app.buckets[bucket].objects[name] = Stored(b"", "0" * 32, "Normal", now, "text/plain", {})

    def pending(self, bucket):
        return [one.key for one in self._app.buckets[bucket].uploads.values()]

    def forget_uploads(self, bucket):
        self._app.buckets[bucket].uploads.clear()

    def ignore_conditions(self, monkeypatch):
        monkeypatch.setattr("cloudspot_aliyun_sandbox.strict_oss._forbids", lambda request: False)


@pytest.fixture
def cloud(oss):
    return OssCloud(oss)
