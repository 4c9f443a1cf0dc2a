"""The object store in OSS that ``oss://bucket/prefix`` opens.

Create-only puts use OSS's ``x-oss-forbid-overwrite``, which is ignored if the bucket has versioning, so such
a bucket is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import oss2.models

from cloudspot.plugin.bucket import require
from cloudspot.plugin.bucketstore import BucketStore
from cloudspot.plugin.multipart import PartedRequests
from cloudspot_aliyun.ossbucket import WRITER, OssBucket
from cloudspot_aliyun.osspayload import payload

FORBID_OVERWRITE = "x-oss-forbid-overwrite"
BINARY = "application/octet-stream"


class OssUploadRequests(PartedRequests):
    """The requests of one upload to OSS, which takes parts of 100 KiB to 5 GiB; the last may be smaller."""

    bucket: OssBucket

    def __init__(self, bucket: OssBucket, key: str, *, if_absent: bool) -> None:
        super().__init__(bucket, key, if_absent=if_absent)
        self._condition = {FORBID_OVERWRITE: "true"} if if_absent else {}

    def begin(self, writer: str) -> str:
        with self.bucket.asking("write", self.key) as client:
            headers = {WRITER: writer, "Content-Type": BINARY}
            return str(client.init_multipart_upload(self.name, headers=headers).upload_id)

    def send(self, upload_id: str, number: int, part: memoryview) -> oss2.models.PartInfo:
        what = f"{self.bucket.url}: part {number} of {self.key}"
        with (
            self.bucket.asking("write", self.key) as client,
            payload(part, what) as (body, headers, check),
        ):
            answer = client.upload_part(self.name, upload_id, number, body, headers=headers)
            check(answer.headers)
            return oss2.models.PartInfo(number, require(answer.etag, "an ETag"))

    def complete(self, upload_id: str, parts: Sequence[oss2.models.PartInfo]) -> None:
        with self.bucket.asking(self.verb, self.key) as client:
            answer = client.complete_multipart_upload(
                self.name, upload_id, list(parts), headers=self._condition
            )
            require(b"<ETag>" in answer.resp.read() or None, "an ETag")
        self.bucket.check_create(answer.headers)

    def put(self, writer: str, data: memoryview) -> None:
        with (
            self.bucket.asking(self.verb, self.key) as client,
            payload(data, f"{self.bucket.url}: {self.key}") as (body, headers, check),
        ):
            more = {WRITER: writer, "Content-Type": BINARY, **self._condition}
            answer = client.put_object(self.name, body, headers={**headers, **more})
            check(answer.headers)
            require(answer.etag, "an ETag")
        self.bucket.check_create(answer.headers)

    def drop(self, upload_id: str) -> None:
        with self.bucket.asking("write", self.key) as client:
            client.abort_multipart_upload(self.name, upload_id)


class OssStore(BucketStore):
    """Objects in a bucket of OSS; ``part_bytes`` is at least 100 KiB. See BucketStore."""

    bucket: OssBucket
    bucket_type = OssBucket
    upload_type = OssUploadRequests
