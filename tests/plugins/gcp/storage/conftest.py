"""Buckets of a test's own."""

from __future__ import annotations

import itertools
from typing import ClassVar

import pytest
from support.clouds.bucketstoretests import BucketCloud, rights_named

from cloudspot_gcp import permissions
from cloudspot_gcp.gcs import GcsStore
from cloudspot_gcp_sandbox.taken import rights_of

PART_BYTES = 1 << 20
_numbers = itertools.count()


@pytest.fixture
def bucket(gcp):
    """An empty bucket's name."""
    name = f"bucket-{next(_numbers)}"
    gcp.storage.buckets.make(name, project=gcp.account.project)
    return name


@pytest.fixture
def store(bucket):
    """A store in a bucket of its own, below a prefix; its streams go up in small parts."""
    return GcsStore(f"gs://{bucket}/some/prefix", part_bytes=PART_BYTES, sleep=lambda seconds: None)


class GcsCloud(BucketCloud):
    lists_uploads = False
    scheme = "gs"
    store_type = GcsStore
    endpoint_variable = "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"
    actions: ClassVar = {
        "put": "storage.objects.insert",
        "get": "storage.objects.get",
        "head": "storage.objects.get",
        "list": "storage.objects.list",
        "delete": "storage.objects.delete",
        "begin": "storage.objects.insert",
        "part": "resumable.put",
        "complete": "resumable.put",
    }
    abort_action = "resumable.cancel"
    first_actions = ("token",)
    rights: ClassVar = {
        "put": "storage.objects.create",
        "get": "storage.objects.get",
        "list": "storage.objects.list",
        "delete": "storage.objects.delete",
    }
    failed = ("backendError", 503)
    throttled = ("rateLimitExceeded", 429)
    taken = ("conditionNotMet", 412)
    how_to_create = "gcloud storage buckets create gs://"
    other_wrong_urls = (
        ("gs://google-1", "is not a bucket name"),
        ("gs://bucket..x", "is not a bucket name"),
    )
    large_bytes = 3 * PART_BYTES
    granted_to_nodes = granted_to_submitters = rights_named(
        permissions.DIRECTORY / "role-bucket.yaml", "storage"
    )
    needed_by_the_check_alone: ClassVar = frozenset({"storage.buckets.get"})
    rights_of = staticmethod(rights_of)

    def __init__(self, gcp):
        self._storage = self.server = gcp.storage
        self.faults, self.url = gcp.faults, gcp.url

    def put_raw(self, bucket, name):
        self._storage.buckets.put(bucket, name, b"", fields={}, conditions={})

    def pending(self, bucket):
        return [session.name for session in self._storage.sessions.pending(bucket)]

    def forget_uploads(self, bucket):
        for session in self._storage.sessions.pending(bucket):
            self._storage.sessions.cancel(session.id)

    def ignore_conditions(self, monkeypatch):
        monkeypatch.setattr("cloudspot_gcp_sandbox.objects.check_conditions", lambda *_: None)


@pytest.fixture
def cloud(gcp):
    return GcsCloud(gcp)
