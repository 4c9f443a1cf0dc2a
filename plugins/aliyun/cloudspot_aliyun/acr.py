"""Logins for the Enterprise Edition of Container Registry, Alibaba Cloud's registry of container images.

Sources: Container Registry's API of 2018-12-01, ListInstance and GetAuthorizationToken, and its terms,
"Addresses of container images" (checked 2026-11). A password lasts an hour, or as long as a role's key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from cloudspot.errors import AuthError
from cloudspot.model import RegistryLogin
from cloudspot_aliyun.api import items, read
from cloudspot_aliyun.clients import AliyunClients

_HOST: Final = re.compile(r"([a-z0-9][a-z0-9-]*)-registry(?:-vpc)?\.([a-z0-9-]+)\.cr\.aliyuncs\.com")


def registry_login(clients: AliyunClients, registry: str) -> RegistryLogin | None:
    """Return a new login for one of the account's instances of the Enterprise Edition; see Provider."""
    match = _HOST.fullmatch(registry)
    if match is None:
        return None
    name, region = match.groups()
    what = f"logging in to {registry} (cr:ListInstance, cr:GetAuthorizationToken)"
    listed = _ask(clients, what, "ListInstance", {"InstanceName": name}, region)
    ids = [one["InstanceId"] for one in items(listed, "Instances") if one["InstanceName"] == name]
    if not ids:
        return None  # the instance of another account, whose images may be public
    answer = _ask(clients, what, "GetAuthorizationToken", {"InstanceId": ids[0]}, region)
    origin = "the Alibaba Cloud credentials, which need cr:PullRepository"
    return RegistryLogin(user=answer["TempUsername"], password=answer["AuthorizationToken"], origin=origin)


def _ask(
    clients: AliyunClients, what: str, action: str, parameters: Mapping[str, str], region: str
) -> dict[str, Any]:
    answer = read(clients, what, action, parameters, product="cr", region=region)
    if answer.get("IsSuccess") is False:  # a refusal may come with status 200
        raise AuthError(f"{what}: {action}: Alibaba Cloud refuses: {answer.get('Code')}")
    return answer
