"""Buckets of a test's own."""

from __future__ import annotations

import itertools

import pytest

from cloudspot_gcp.gcs import GcsStore

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
