"""The requests of a multipart upload to S3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloudspot.errors import ObjectMissing
from cloudspot.plugin.multipart import PartedRequests, UploadGone
from cloudspot_aws.s3body import payload
from cloudspot_aws.s3bucket import Bucket

_WRITER = "cloudspot-writer"


class S3UploadRequests(PartedRequests):
    """What a streamed put asks of S3, which takes parts of 5 MiB to 5 GiB; the last may be smaller."""

    def __init__(self, bucket: Bucket, key: str, *, if_absent: bool) -> None:
        self._bucket = bucket
        self._key = key
        self._full = bucket.full(key)
        self._condition = {"IfNoneMatch": "*"} if if_absent else {}

    def begin(self, writer: str) -> str:
        """Begin a multipart upload; see PartedRequests."""
        with self._bucket.asking("write", self._key) as client:
            answer = client.create_multipart_upload(
                Bucket=self._bucket.name,
                Key=self._full,
                ChecksumAlgorithm="CRC32",
                Metadata={_WRITER: writer},
            )
        return str(answer["UploadId"])

    def send(self, upload_id: str, number: int, part: memoryview) -> dict[str, Any]:
        """Send a part; see PartedRequests."""
        with self._bucket.asking("write", self._key) as client, payload(part) as what:
            answer = client.upload_part(
                Bucket=self._bucket.name, Key=self._full, UploadId=upload_id, PartNumber=number, **what
            )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": what["ChecksumCRC32"]}

    def complete(self, upload_id: str, parts: Sequence[dict[str, Any]]) -> None:
        """Make the parts the object; see PartedRequests."""
        with self._bucket.asking("write", self._key) as client:
            client.complete_multipart_upload(
                Bucket=self._bucket.name,
                Key=self._full,
                UploadId=upload_id,
                MultipartUpload={"Parts": list(parts)},
                **self._condition,
            )

    def put(self, writer: str, data: memoryview) -> None:
        """Store the object at once; see PartedRequests."""
        with self._bucket.asking("write", self._key) as client, payload(data) as what:
            client.put_object(
                Bucket=self._bucket.name,
                Key=self._full,
                Metadata={_WRITER: writer},
                **self._condition,
                **what,
            )

    def drop(self, upload_id: str) -> None:
        """Abort the upload; see PartedRequests."""
        try:
            with self._bucket.asking("write", self._key) as client:
                client.abort_multipart_upload(Bucket=self._bucket.name, Key=self._full, UploadId=upload_id)
        except UploadGone:
            return

    def found_writer(self) -> str | None:
        """Return who wrote the object; see PartedRequests."""
        try:
            with self._bucket.asking("read", self._key) as client:
                answer = client.head_object(Bucket=self._bucket.name, Key=self._full)
        except ObjectMissing:
            return None
        return str(answer.get("Metadata", {}).get(_WRITER, ""))
