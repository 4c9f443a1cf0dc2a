"""cloudspot on Alibaba Cloud. Importing this imports no SDK; the service modules do, when used."""

from __future__ import annotations

import importlib.util

from cloudspot.errors import PluginError
from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import ObjectStore, Provider


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


@hookimpl
def cloudspot_sandbox(name: str) -> type[object] | None:
    """Return the emulated Alibaba Cloud.

    Raises:
        PluginError: what only the emulation needs is not installed.
    """
    if name != "aliyun":
        return None
    if importlib.util.find_spec("werkzeug") is None:
        raise PluginError(
            'the emulated Alibaba Cloud needs werkzeug; run: pip install "cloudspot-aliyun[sandbox]"'
        )
    from cloudspot_aliyun.sandbox.cloud import EmulatedAliyun

    return EmulatedAliyun
