"""Requests to a provider's API as they were made and answered, told to an observer in this process.

A plugin tells of them by its SDK's own hooks, and only while somebody observes: nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class ApiExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its answer, with whatever they hold: names and secrets, too."""

    service: str
    """The service's name, as the SDK has it."""
    action: str
    """The operation, such as ``RunInstances``, or the HTTP method and path where operations have no names."""
    request: Any
    """The parameters as JSON values; bytes, streams and times may be among them."""
    answer: Any
    """The answer's body, in the same way; None: it has none."""
    status: int
    """The HTTP status; 0: there was no answer."""
    code: str
    """The error's code in the provider's words; empty: the request succeeded."""
    seconds: float
    """From the request to its answer, an SDK's own repetitions included."""


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
