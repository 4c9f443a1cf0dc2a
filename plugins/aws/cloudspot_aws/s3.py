"""The object store in S3 that ``s3://bucket/prefix`` opens.

Create-only puts use S3's conditional writes (``If-None-Match: *``), which work on versioned buckets too. The
probe at the first use detects a server that ignores the condition.

Payloads are sent without a copy, unsigned over https (and within this machine), with one CRC-32 that S3
verifies, so uploads run at about the speed of the socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from cloudspot.plugin.bucket import require
from cloudspot.plugin.bucketstore import BucketStore
from cloudspot.plugin.multipart import PartedRequests
from cloudspot_aws.s3bucket import WRITER, S3Bucket
from cloudspot_aws.s3payload import payload


class S3UploadRequests(PartedRequests):
    """The requests of one upload to S3, which takes parts of 5 MiB to 5 GiB; the last may be smaller."""

    bucket: S3Bucket

    def __init__(self, bucket: S3Bucket, key: str, *, if_absent: bool) -> None:
        super().__init__(bucket, key, if_absent=if_absent)
        self._target = {"Bucket": bucket.name, "Key": self.name}
        self._condition = {"IfNoneMatch": "*"} if if_absent else {}

    def begin(self, writer: str) -> str:
        checksum = {"ChecksumAlgorithm": "CRC32"} if self.bucket.has_checksums else {}
        with self.bucket.asking("write", self.key) as client:
            answer = client.create_multipart_upload(**self._target, **checksum, Metadata={WRITER: writer})
            return str(require(answer.get("UploadId"), "an upload's id"))

    def send(self, upload_id: str, number: int, part: memoryview) -> dict[str, Any]:
        with self.bucket.asking("write", self.key) as client, self._payload(part) as payload:
            answer = client.upload_part(**self._target, UploadId=upload_id, PartNumber=number, **payload)
            etag = require(answer.get("ETag"), "an ETag")
        checksum = {name: value for name, value in payload.items() if name == "ChecksumCRC32"}
        return {"PartNumber": number, "ETag": etag, **checksum}

    def complete(self, upload_id: str, parts: Sequence[dict[str, Any]]) -> None:
        with self.bucket.asking(self.verb, self.key) as client:
            answer = client.complete_multipart_upload(
                **self._target, UploadId=upload_id, MultipartUpload={"Parts": list(parts)}, **self._condition
            )
            require(answer.get("ETag"), "an ETag")

    def put(self, writer: str, data: memoryview) -> None:
        with self.bucket.asking(self.verb, self.key) as client, self._payload(data) as what:
            answer = client.put_object(**self._target, Metadata={WRITER: writer}, **self._condition, **what)
            require(answer.get("ETag"), "an ETag")

    def _payload(self, data: memoryview) -> AbstractContextManager[Mapping[str, Any]]:
        return payload(data, has_checksum=self.bucket.has_checksums)

    def drop(self, upload_id: str) -> None:
        with self.bucket.asking("write", self.key) as client:
            client.abort_multipart_upload(**self._target, UploadId=upload_id)


class S3Store(BucketStore):
    """Objects in a bucket of S3; ``part_bytes`` is at least 5 MiB. See BucketStore."""

    bucket_type = S3Bucket
    upload_type = S3UploadRequests
