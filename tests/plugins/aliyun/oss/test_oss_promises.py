"""The promises of an object store, kept on OSS: over HTTP, by the real SDK, against a strict server."""

import pytest

from cloudspot.testing.storekit import ObjectStoreTests
from cloudspot_aliyun.oss import OssStore


class TestPromises(ObjectStoreTests):
    """As any store."""


class TestPromisesAtTheTopOfTheBucket(ObjectStoreTests):
    """As any store, without a prefix."""

    @pytest.fixture
    def store(self, bucket):
        return OssStore(f"oss://{bucket}", sleep=lambda seconds: None)

    test_an_object_may_be_large = None
    test_of_many_processes_that_create_a_key_exactly_one_wins = None
    test_a_large_listing_is_complete = None
