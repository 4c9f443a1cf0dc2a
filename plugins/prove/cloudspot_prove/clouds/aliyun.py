"""Alibaba Cloud: recordings show the fields that the plugin reads; calls are repeated by their actions."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, ClassVar, Final

from cloudspot_prove.clouds import Cloud, public_texts_of
from cloudspot_prove.masking import Allowed
from cloudspot_prove.recording import Exchange

VALUES: Final = frozenset(
    {
        "Amount",
        "AverageSpotDiscount",
        "Category",
        "Code",
        "CpuCoreCount",
        "CpuOptions",
        "DryRun",
        "HttpEndpoint",
        "HttpTokens",
        "ImageFamily",
        "ImageOwnerAlias",
        "InstanceChargeType",
        "InstanceType",
        "InstanceTypeId",
        "InternetMaxBandwidthOut",
        "IoOptimized",
        "Key",
        "LockReason",
        "MemorySize",
        "MinAmount",
        "NetworkType",
        "OSType",
        "PageNumber",
        "PageSize",
        "PerformanceLevel",
        "RegionId",
        "ResourceType",
        "Size",
        "SpotDuration",
        "SpotInterruptionBehavior",
        "SpotPrice",
        "SpotStrategy",
        "Status",
        "StatusCategory",
        "SystemDisk.Category",
        "TotalCount",
        "ZoneId",
    }
)


class Aliyun(Cloud):
    """See Cloud."""

    types_option: ClassVar[str] = "instance_types"
    setup: ClassVar[tuple[str, ...]] = (
        "apt-get update",
        "apt-get install -y python3-venv",
        "python3 -m venv .venv",
        ".venv/bin/pip install torch",
    )
    python: ClassVar[str | None] = ".venv/bin/python"
    release: ClassVar[str | None] = "aliyun ecs DeleteInstance --InstanceId {id} --Force true"
    bill: ClassVar[str] = "https://usercenter2-intl.aliyun.com (Bills, by instance; a day later)"

    free: ClassVar[frozenset[str]] = frozenset(
        {"ClientToken", "StartTime", "EndTime", "UserData", "AutoReleaseTime", "HostName", "InstanceName"}
    )

    def allowed(self) -> Allowed:
        """Return the names that the SDK and the plugin know; see Cloud."""
        return Allowed(names=_public_texts, values=VALUES, texts=_public_texts)

    def repeat(self, exchange: Exchange) -> None:
        """Call the action; see Cloud."""
        from aliyunsdkcore.acs_exception.exceptions import ClientException, ServerException

        from cloudspot_aliyun.api import ask

        products = {"ecs": "Ecs", "ram": "Ram", "sts": "Sts", "vpc": "Vpc"}
        product = products.get(exchange.service, exchange.service)
        with suppress(ServerException, ClientException):
            ask(self._clients, exchange.action, exchange.request, product=product)

    @cached_property
    def _clients(self) -> Any:
        from cloudspot_aliyun.clients import AliyunClients

        return AliyunClients()


@cache
def _public_texts(_service: str) -> frozenset[str]:
    """Return the texts in the plugin's source, and the names of the SDK's parameters.

    The SDK does not define the fields of answers, so the names of fields that the plugin does not read are
    masked, too.
    """
    listed = set()
    for path in (files("aliyunsdkecs") / "request" / "v20140526").iterdir():
        if not path.name.endswith(".py"):
            continue
        listed |= set(re.findall(r"'([A-Z][A-Za-z]+)'", path.read_text(encoding="utf-8")))
    return public_texts_of("cloudspot_aliyun") | public_texts_of("cloudspot.plugin") | frozenset(listed)
