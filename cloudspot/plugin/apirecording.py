"""Requests to a provider's API as they were made and answered, told to an observer in this process.

A plugin passes them on with its SDK's own hooks, and only while there is an observer. Nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class ApiExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its answer, unmasked: they may hold names and secrets."""

    service: str
    """The service's name in the SDK."""
    action: str
    """The operation, such as ``RunInstances``, or the HTTP method and path where operations have no names."""
    request: Any
    """The parameters as JSON values; bytes, streams and times may be among them."""
    answer: Any
    """The answer's body, in the same form, or None if it has none."""
    status: int
    """The HTTP status, or 0 if there was no answer."""
    code: str
    """The provider's error code, or an empty string if the request succeeded."""
    seconds: float
    """The time from the request to its answer, including the SDK's own retries."""


Observer = Callable[[ApiExchange], None]
_observers: list[Observer] = []


def observe(observer: Observer) -> None:
    """Call ``observer`` with each exchange of clients that are made from now on, in the thread that made it.

    For the life of the process. An observer must not raise.
    """
    _observers.append(observer)


def is_observed() -> bool:
    """Return whether somebody observes."""
    return bool(_observers)


def tell(exchange: ApiExchange) -> None:
    """Hand an exchange to the observers."""
    for observer in _observers:
        observer(exchange)
