"""An emulated Alibaba Cloud: strict fakes of its services, and machines that really boot."""

from __future__ import annotations

from cloudspot.hookspecs import hookimpl

cloudspot_api_version = 2


@hookimpl
def cloudspot_sandbox(name: str) -> type[object] | None:
    """Return the emulated Alibaba Cloud."""
    if name != "aliyun":
        return None
    from cloudspot_aliyun_sandbox.cloud import EmulatedAliyun

    return EmulatedAliyun
