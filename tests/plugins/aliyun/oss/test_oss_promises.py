"""The promises of an object store, kept on OSS: over HTTP, by the real SDK, against a strict server."""

import pytest
from support.clouds.bucketstoretests import BucketStoreTests
from support.clouds.elsewhere import elsewhere
from support.clouds.emulated_place import EmulatedPlace
from support.stores.lossyproxy import LossyProxy

from cloudspot.testing.storefaultkit import StoreFaultTests
from cloudspot.testing.storekit import ObjectStoreTests
from cloudspot_aliyun.oss import OssStore


@pytest.mark.full
class TestPromises(ObjectStoreTests):
    """As any store."""

    stream_bytes = 5 << 20

    @pytest.fixture(autouse=True)
    def fill_past_http(self, cloud, bucket):
        self.fill = lambda store, keys: [cloud.put_raw(bucket, f"some/prefix/{key}") for key in keys]


@pytest.mark.full
class TestPromisesAtTheTopOfTheBucket(ObjectStoreTests):
    """As any store, without a prefix."""

    stream_bytes = 5 << 20

    @pytest.fixture
    def store(self, bucket):
        return OssStore(f"oss://{bucket}", part_bytes=1 << 20, sleep=lambda seconds: None)

    left_out = elsewhere(
        "test_an_object_may_be_large",
        "test_of_many_processes_that_create_a_key_exactly_one_wins",
        "test_a_large_listing_is_complete",
    )


class TestOssStore(BucketStoreTests):
    """As any store in a bucket."""


@pytest.mark.full
class TestFaults(StoreFaultTests):
    """As any store whose service fails."""

    @pytest.fixture
    def place(self, cloud, bucket, monkeypatch):
        proxy = LossyProxy(cloud.url)
        monkeypatch.setenv(cloud.endpoint_variable, proxy.url)
        yield EmulatedPlace(cloud, bucket, proxy, monkeypatch)
        proxy.close()
