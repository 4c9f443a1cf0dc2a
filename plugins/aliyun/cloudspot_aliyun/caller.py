"""Finds out whom the credentials belong to."""

from __future__ import annotations

import msgspec

from cloudspot_aliyun.api import read
from cloudspot_aliyun.clients import AliyunClients


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the credentials belong to."""

    account: str
    """The account's number."""
    arn: str


def caller(clients: AliyunClients) -> Caller:
    """Return whom the credentials belong to; needs no right.

    Raises:
        AuthError: there are none, or Alibaba Cloud does not accept them.
        TransientError: Alibaba Cloud did not answer.
    """
    answer = read(
        clients, "asking Alibaba Cloud whose credentials these are", "GetCallerIdentity", product="Sts"
    )
    return Caller(account=str(answer["AccountId"]), arn=str(answer["Arn"]))
