"""The store in S3 keeps the promises of a store, against a strict S3."""

from cloudspot.testing.storekit import ObjectStoreTests


class TestPromises(ObjectStoreTests):
    """As any store."""

    stream_bytes = 12 << 20
