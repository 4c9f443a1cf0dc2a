"""Calls of Alibaba Cloud's control plane: a product's action with its parameters, answered by JSON values.

The parameters are sent in the body, because a boot script would make the URL 40 KB long; the RPC style signs
body and URL in the same way (ECS developer reference, "RPC mechanism", checked 2026-11).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cloudspot.calls.retrying import doubling, retry
from cloudspot.decoding import whole_number
from cloudspot.errors import TransientError
from cloudspot.plugin.cloudprovider import Caller
from cloudspot.plugin.sdkerrors import NO_CODES, Codes
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.errors import ERRORS

if TYPE_CHECKING:
    from aliyunsdkcore.request import RpcRequest

NUM_TRIES: Final = 3
PAGE: Final = 100
NUMBERED_PAGE: Final = 50
MAX_PAGES: Final = 1000
"""No account has a longer listing with numbered pages."""
_VERSIONS: Final = {
    "cr": "2018-12-01",
    "Ram": "2015-05-01",
    "Sts": "2015-04-01",
    "Vpc": "2016-04-28",
}


def ask(
    clients: AliyunClients,
    action: str,
    parameters: Mapping[str, Any] = MappingProxyType({}),
    *,
    product: str = "Ecs",
    region: str | None = None,
) -> dict[str, Any]:
    """Make a call once and return its response; if the key has expired, repeat the call with a new key.

    Errors of the SDK are not translated: see :mod:`cloudspot_aliyun.errors`.

    Raises:
        TransientError: the response does not come from Alibaba Cloud.
    """
    used = clients.credentials.get().access_key_id
    try:
        return clients.ask_ecs(_request(product, action, parameters), region=region)
    except ERRORS.raised as error:
        if ERRORS.code_of(error) not in ERRORS.expired or not clients.credentials.renew(used):
            raise
    return clients.ask_ecs(_request(product, action, parameters), region=region)


def read(
    clients: AliyunClients,
    what: str,
    action: str,
    parameters: Mapping[str, Any] = MappingProxyType({}),
    *,
    product: str = "Ecs",
    region: str | None = None,
    codes: Codes = NO_CODES,
) -> dict[str, Any]:
    """Make a call that is safe to repeat, up to three times if the service fails.

    Raises:
        CloudspotError: the class says what to do; the message begins with ``what``.
    """

    def once() -> dict[str, Any]:
        with ERRORS.translated(what, codes):
            return ask(clients, action, parameters, product=product, region=region)

    return retry(once, sleep=time.sleep, waits=doubling(0.1, num=NUM_TRIES - 1))


def caller(clients: AliyunClients) -> Caller:
    """Return the account and the ARN to which the credentials belong. The request needs no permission."""
    what = "asking Alibaba Cloud whose credentials these are"
    answer = read(clients, what, "GetCallerIdentity", product="Sts")
    return Caller(account=str(answer["AccountId"]), arn=str(answer["Arn"]))


def read_pages(
    clients: AliyunClients,
    what: str,
    action: str,
    parameters: Mapping[str, Any],
    *,
    path: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """Yield the items, found at ``path`` in each response, of a listing with pages by ``NextToken``.

    Raises:
        TransientError: the listing repeats a page, so its contents cannot be trusted.
    """
    token, seen = "", set[str]()
    while True:
        more = {"MaxResults": PAGE, **({"NextToken": token} if token else {})}
        answer = read(clients, what, action, {**parameters, **more})
        yield from items(answer, *path)
        token = str(answer.get("NextToken") or "")
        if not token:
            return
        if token in seen:
            raise TransientError(f"{what}: {action} returned the same page twice; try again later")
        seen.add(token)


def read_numbered_pages(
    clients: AliyunClients,
    what: str,
    action: str,
    parameters: Mapping[str, Any],
    *,
    path: Sequence[str],
    product: str = "Ecs",
) -> Iterator[dict[str, Any]]:
    """Yield the items, found at ``path`` in each response, of a listing with numbered pages."""
    num_seen = 0
    for number in range(1, MAX_PAGES + 1):
        page = {"PageNumber": number, "PageSize": NUMBERED_PAGE}
        answer = read(clients, what, action, {**parameters, **page}, product=product)
        found = items(answer, *path)
        yield from found
        num_seen += len(found)
        if not found or num_seen >= (whole_number(answer.get("TotalCount")) or 0):
            return
    raise TransientError(f"{what}: {action} returned more than {MAX_PAGES} pages")


def items(answer: Mapping[str, Any], *path: str) -> list[dict[str, Any]]:
    """Return the list at the path, such as ``Instances``, ``Instance``, or an empty list if it is missing.

    Raises:
        TransientError: the value at the path is not a list of objects.
    """
    node: Any = answer
    for name in path:
        if node is not None and not isinstance(node, Mapping):
            break
        node = (node or {}).get(name)
    listed = node or []
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise TransientError(f"the answer cannot be read: its {'.'.join(path)} is not a list of objects")
    return listed


def flatten(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters in the RPC style: ``Tag.1.Key``, ``SystemDisk.Size``, ``true``."""
    return dict(_flat("", parameters))


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for part, item in value.items():
            yield from _flat(f"{name}.{part}" if name else part, item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value, start=1):
            yield from _flat(f"{name}.{i}", item)
    elif isinstance(value, bool):
        yield name, "true" if value else "false"
    else:
        yield name, str(value)


def _request(product: str, action: str, parameters: Mapping[str, Any]) -> RpcRequest:
    from aliyunsdkcore.request import RpcRequest

    if product == "Ecs":
        module = importlib.import_module(f"aliyunsdkecs.request.v20140526.{action}Request")
        request: RpcRequest = getattr(module, f"{action}Request")()
    else:
        request = RpcRequest(product, _VERSIONS[product], action)
    request.set_method("POST")
    for name, value in flatten(parameters).items():
        request.add_body_params(name, value)
    return request
