"""The promises of an object store, kept by the one in Cloud Storage."""

from cloudspot.testing.storekit import ObjectStoreTests


class TestGcsStore(ObjectStoreTests):
    """Over HTTP to the emulated Cloud Storage, as the SDK and another process see it."""

    stream_bytes = 5 << 20
