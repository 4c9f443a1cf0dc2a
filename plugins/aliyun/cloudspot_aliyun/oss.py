"""An object store in OSS: what ``oss://bucket/prefix`` opens.

Create-only puts are made by OSS's ``x-oss-forbid-overwrite``, which a bucket with versioning ignores: such a
bucket is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from cloudspot.plugin.bucketstore import BucketStore
from cloudspot.plugin.multipart import PART_BYTES
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.ossbucket import OssBucket
from cloudspot_aliyun.ossupload import OssUploadRequests


class OssStore(BucketStore):
    """Objects in a bucket of OSS; see BucketStore.

    The bucket's region is looked up at first use, so that it need not be configured.
    """

    def __init__(
        self,
        url: str,
        *,
        clients: AliyunClients | None = None,
        part_bytes: int = PART_BYTES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read the URL; no I/O. Streams go up in parts of ``part_bytes``, at least 100 KiB.

        Raises:
            SpecError: ``url`` is not ``oss://bucket`` or ``oss://bucket/prefix``.
        """
        self.bucket = OssBucket(url, clients or AliyunClients(), sleep)
        super().__init__(self.bucket, partial(OssUploadRequests, self.bucket), part_bytes=part_bytes)
