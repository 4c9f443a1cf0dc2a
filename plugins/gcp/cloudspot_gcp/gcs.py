"""An object store in Cloud Storage: what ``gs://bucket/prefix`` opens.

Create-only puts are made by Storage's preconditions (``ifGenerationMatch=0``), which hold on versioned
buckets too.

Contents are sent from where they lie and read as they come, by the JSON API, with one CRC32C that Storage
compares and that is compared with what comes back; for all else there is google-cloud-storage.
"""

from typing import ClassVar

from cloudspot.plugin.bucketstore import BucketStore
from cloudspot_gcp.gcsbucket import GcsBucket
from cloudspot_gcp.gcsupload import GcsUploadRequests


class GcsStore(BucketStore):
    """Objects in a bucket of Cloud Storage; ``part_bytes`` is a multiple of 256 KiB. See BucketStore."""

    bucket_type = GcsBucket
    upload_type = GcsUploadRequests
    num_threads: ClassVar[int] = 1  # A resumable upload takes its parts one after another.
