"""Finds out whom the credentials belong to, and which right they lack by a refusal's word."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import SDK_ERRORS, translated

_ENCODED: Final = re.compile(r"Encoded authorization failure message: (\S+)")
_NOT_AUTHORIZED: Final = re.compile(r"not authorized to perform: ([a-z0-9-]+:[A-Za-z]+)")


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the credentials belong to."""

    account: str
    """12 digits."""
    arn: str


def caller(clients: AwsClients) -> Caller:
    """Return whom the credentials belong to; needs no right.

    Raises:
        AuthError: there are none, or AWS does not accept them.
        TransientError: AWS did not answer.
    """
    with translated("asking AWS whose credentials these are"):
        answer = clients.client("sts").get_caller_identity()
    return Caller(account=str(answer["Account"]), arn=str(answer["Arn"]))


def denied_action(clients: AwsClients, error: BaseException) -> str | None:
    """Return the right that the refusal says is missing, such as ``iam:PassRole``; None: it does not say.

    EC2 names it in plain words, or encoded; decoding needs ``sts:DecodeAuthorizationMessage``.
    """
    text = str(error)
    match = _NOT_AUTHORIZED.search(text)
    if match is not None:
        return match[1]
    encoded = _ENCODED.search(text)
    if encoded is None:
        return None
    try:
        answer = clients.client("sts").decode_authorization_message(EncodedMessage=encoded[1])
        decoded: Any = json.loads(answer["DecodedMessage"])
        return str(decoded["context"]["action"])
    except (*SDK_ERRORS, KeyError, TypeError, ValueError):
        return None  # the refusal itself is reported all the same
