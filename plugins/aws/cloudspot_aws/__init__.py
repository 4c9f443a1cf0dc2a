"""cloudspot on Amazon Web Services.

Importing the package imports no SDK; the service modules do so when used.
"""

from __future__ import annotations

from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import ObjectStore, Provider

cloudspot_api_version = 2


@hookimpl
def cloudspot_provider(name: str) -> type[Provider] | None:
    """Return the provider ``aws``."""
    if name != "aws":
        return None
    from cloudspot_aws.provider import AwsProvider

    return AwsProvider


@hookimpl
def cloudspot_object_store(url: str) -> ObjectStore | None:
    """Open ``s3://bucket/prefix``."""
    if not url.lower().startswith("s3://"):
        return None
    from cloudspot_aws.s3 import S3Store

    return S3Store(url)
