"""An object store in S3: what ``s3://bucket/prefix`` opens.

Create-only puts are S3's conditional writes (``If-None-Match: *``), which hold on versioned buckets too. The
probe at first use detects a server that ignores the condition.

Payloads are sent from where they lie, unsigned over https (and within this machine), with one CRC-32 that S3
compares: about the speed of the socket.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from cloudspot.plugin.bucketstore import BucketStore
from cloudspot.plugin.multipart import PART_BYTES
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.s3bucket import S3Bucket
from cloudspot_aws.s3upload import S3UploadRequests


class S3Store(BucketStore):
    """Objects in a bucket of S3; see BucketStore.

    The bucket's region is looked up at first use, so that it need not be configured.
    """

    def __init__(
        self,
        url: str,
        *,
        clients: AwsClients | None = None,
        part_bytes: int = PART_BYTES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read the URL; no I/O. Streams go up in parts of ``part_bytes``, at least 5 MiB.

        Raises:
            SpecError: ``url`` is not ``s3://bucket`` or ``s3://bucket/prefix``.
        """
        bucket = S3Bucket(url, clients or AwsClients(), sleep)
        super().__init__(bucket, partial(S3UploadRequests, bucket), part_bytes=part_bytes)
