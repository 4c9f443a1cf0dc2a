"""An object store in Cloud Storage: what ``gs://bucket/prefix`` opens.

Create-only puts are made by Storage's preconditions (``ifGenerationMatch=0``), which hold on versioned
buckets too.

Contents are sent from where they lie and read as they come, by the JSON API, with one CRC32C that Storage
compares and that is compared with what comes back; for all else there is google-cloud-storage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from cloudspot.plugin.bucketstore import BucketStore
from cloudspot.plugin.multipart import PART_BYTES
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.gcsbucket import GcsBucket
from cloudspot_gcp.gcsupload import GcsUploadRequests


class GcsStore(BucketStore):
    """Objects in a bucket of Cloud Storage; see BucketStore."""

    def __init__(
        self,
        url: str,
        *,
        clients: GcpClients | None = None,
        part_bytes: int = PART_BYTES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read the URL; no I/O. Streams go up in parts of ``part_bytes``, a multiple of 256 KiB.

        Raises:
            SpecError: ``url`` is not ``gs://bucket`` or ``gs://bucket/prefix``.
        """
        bucket = GcsBucket(url, clients or GcpClients(), sleep)
        # A resumable upload takes its parts one after another.
        uploads = partial(GcsUploadRequests, bucket)
        super().__init__(bucket, uploads, part_bytes=part_bytes, num_threads=1)
