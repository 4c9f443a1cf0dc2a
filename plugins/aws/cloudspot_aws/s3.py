"""An object store in S3: what ``s3://bucket/prefix`` opens.

Create-only puts are S3's conditional writes (``If-None-Match: *``), which hold on versioned buckets too. The
probe at first use detects a server that ignores the condition.

Payloads are sent from where they lie, unsigned over https (and within this machine), with one CRC-32 that S3
compares: about the speed of the socket.
"""

from cloudspot.plugin.bucketstore import BucketStore
from cloudspot_aws.s3bucket import S3Bucket
from cloudspot_aws.s3upload import S3UploadRequests


class S3Store(BucketStore):
    """Objects in a bucket of S3; ``part_bytes`` is at least 5 MiB. See BucketStore."""

    bucket_type = S3Bucket
    upload_type = S3UploadRequests
