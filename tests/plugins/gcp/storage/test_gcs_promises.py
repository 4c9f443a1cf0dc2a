"""The store in Cloud Storage keeps the promises of a store, over HTTP to the emulated one."""

import pytest
from support.clouds.bucketstoretests import BucketStoreTests

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
