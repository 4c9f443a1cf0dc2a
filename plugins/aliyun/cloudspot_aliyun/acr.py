"""Log-ins for Container Registry, Alibaba Cloud's registry of container images, in its Enterprise Edition.

Sources: Container Registry's API of 2018-12-01, ListInstance and GetAuthorizationToken, and its terms,
"Addresses of container images" (checked 2026-11). A password lasts an hour, or as long as a role's key.
"""

from __future__ import annotations

import re
from typing import Final

from cloudspot.errors import CloudspotError
from cloudspot.model import RegistryLogin
from cloudspot_aliyun.api import items, read
from cloudspot_aliyun.clients import AliyunClients

_HOST: Final = re.compile(r"([a-z0-9][a-z0-9-]*)-registry(?:-vpc)?\.([a-z0-9-]+)\.cr\.aliyuncs\.com")


def registry_login(clients: AliyunClients, registry: str) -> RegistryLogin | None:
    """Return a new log-in for an instance of the Enterprise Edition; see Provider."""
    match = _HOST.fullmatch(registry)
    if match is None:
        return None
    name, region = match.groups()
    what = f"logging in to {registry}, which takes cr:ListInstance and cr:GetAuthorizationToken"
    listed = read(clients, what, "ListInstance", {"InstanceName": name}, product="cr", region=region)
    found = [one["InstanceId"] for one in items(listed, "Instances") if one["InstanceName"] == name]
    if not found:
        raise CloudspotError(f"{what}: the account has no registry {name!r} in {region}")
    given = {"InstanceId": found[0]}
    answer = read(clients, what, "GetAuthorizationToken", given, product="cr", region=region)
    if not answer.get("AuthorizationToken"):  # a refusal may come with the status 200
        raise CloudspotError(f"{what}: Alibaba Cloud refuses: {answer.get('Code')}")
    origin = "the Alibaba Cloud credentials, which need cr:PullRepository"
    return RegistryLogin(user=answer["TempUsername"], password=answer["AuthorizationToken"], origin=origin)
