"""The store in memory keeps the promises of a store, so that what is tested on it is tested."""

import pytest
from support.stores.memorystore import NOT_SHARED, InMemoryStore

from cloudspot.testing.storekit import ObjectStoreTests


class TestPromises(ObjectStoreTests):
    deviations = NOT_SHARED
    can_presign = False

    @pytest.fixture
    def store(self):
        return InMemoryStore()
