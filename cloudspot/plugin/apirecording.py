"""Report requests to a provider's API, with their answers, to an observer in this process.

A plugin reports them through its SDK's own hooks, and only while there is an observer. This module stores
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class ApiExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its answer, unmasked: they may contain names and secrets."""

    service: str
    """The service's name in the SDK."""
    action: str
    """The operation, such as ``RunInstances``, or the HTTP method and path for services without named
    operations."""
    request: Any
    """The parameters as JSON values, which may also include bytes, streams and times."""
    answer: Any
    """The answer's body, in the same form, or None if the answer has no body."""
    status: int
    """The HTTP status, or 0 if there was no answer."""
    code: str
    """The provider's error code, or an empty string if the request succeeded."""
    seconds: float
    """The time from the request to its answer, including the SDK's own retries."""


Observer = Callable[[ApiExchange], None]
_observers: list[Observer] = []


def observe(observer: Observer) -> None:
    """Call ``observer`` with each exchange of clients that are made from now on, in the exchange's thread.

    This lasts for the life of the process. An observer must not raise.
    """
    _observers.append(observer)


def is_observed() -> bool:
    """Return whether there is an observer."""
    return bool(_observers)


def report(exchange: ApiExchange) -> None:
    """Pass an exchange to the observers."""
    for observer in _observers:
        observer(exchange)
