"""An object store in OSS: what ``oss://bucket/prefix`` opens.

Create-only puts are made by OSS's ``x-oss-forbid-overwrite``, which a bucket with versioning ignores: such a
bucket is refused.
"""

from cloudspot.plugin.bucketstore import BucketStore
from cloudspot_aliyun.ossbucket import OssBucket
from cloudspot_aliyun.ossupload import OssUploadRequests


class OssStore(BucketStore):
    """Objects in a bucket of OSS; ``part_bytes`` is at least 100 KiB. See BucketStore."""

    bucket: OssBucket
    bucket_type = OssBucket
    upload_type = OssUploadRequests
