"""The store in Cloud Storage keeps the promises of a store, over HTTP to the emulated one."""

from types import MappingProxyType

import pytest
from support.clouds.bucketstoretests import BucketStoreTests
from support.clouds.emulated_place import EmulatedPlace
from support.stores.lossyproxy import LossyProxy

from cloudspot.testing.storefaultkit import StoreFaultTests
from cloudspot.testing.storekit import ObjectStoreTests


@pytest.mark.full
class TestPromises(ObjectStoreTests):
    """As any store."""

    stream_bytes = 5 << 20

    @pytest.fixture(autouse=True)
    def fill_past_http(self, cloud, bucket):
        self.fill = lambda store, keys: [cloud.put_raw(bucket, f"some/prefix/{key}") for key in keys]


class TestGcsStore(BucketStoreTests):
    """As any store in a bucket."""


@pytest.mark.full
class TestFaults(StoreFaultTests):
    """As any store whose service fails."""

    deviations = MappingProxyType(
        {
            "test_an_abort_that_fails_hides_no_error_and_can_be_made_good": (
                "an upload that is left is neither listed nor billed, and ends after a week"
            )
        }
    )

    @pytest.fixture
    def place(self, cloud, bucket, monkeypatch):
        proxy = LossyProxy(cloud.url)
        monkeypatch.setenv(cloud.endpoint_variable, proxy.url)
        yield EmulatedPlace(cloud, bucket, proxy, monkeypatch)
        proxy.close()
