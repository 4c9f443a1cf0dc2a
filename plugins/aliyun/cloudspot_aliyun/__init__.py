"""cloudspot on Alibaba Cloud. Importing the package imports no SDK; the service modules do so when used."""

from __future__ import annotations

from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import ObjectStore, Provider

cloudspot_api_version = 2


@hookimpl
def cloudspot_provider(name: str) -> type[Provider] | None:
    """Return the provider ``aliyun``."""
    if name != "aliyun":
        return None
    from cloudspot_aliyun.provider import AliyunProvider

    return AliyunProvider


@hookimpl
def cloudspot_object_store(url: str) -> ObjectStore | None:
    """Open ``oss://bucket/prefix``."""
    if not url.lower().startswith("oss://"):
        return None
    from cloudspot_aliyun.oss import OssStore

    return OssStore(url)
