"""Holds all that this process connects to, whatever library does it, to addresses of the internet.

Libraries follow redirects by themselves, and look up names when they like. So each connection is judged by
the address to which it is about to be made: the interpreter tells it in an audit event, which no code skips.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from concurrent import futures
from contextvars import ContextVar
from threading import Thread, current_thread
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies
from weakref import WeakKeyDictionary

from cloudspot.host.public_addresses import AddressRefused, is_public, public_addresses

LOOKUP_SECONDS = 5.0
"""A name that is not found within this counts as one that only a proxy knows."""
_EVENTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_TO_PROXY = re.compile(rb"(?:CONNECT |[A-Z]+ https?://(?:[^/ ]*@)?)(?:\[([^]\s]*)\]|([^]/:?#\s]+))")
"""How a request begins that a proxy is to pass on."""


class Permit:
    """Where the connections may lead that one task makes, in whichever of its threads."""

    def __init__(self, *, may_be_private: bool) -> None:
        """``may_be_private``: it may go anywhere, until it was on the internet; nothing leads back."""
        self._may_be_private = may_be_private
        self.has_refused = False

    def check(self, *, leads_out: bool) -> None:
        """Raise AddressRefused if a connection may not be made."""
        if leads_out:
            self._may_be_private = False
        elif not self._may_be_private:
            self.has_refused = True
            raise AddressRefused("this is not an address on the internet")


permit: ContextVar[Permit] = ContextVar("permit")
"""That of the running task; without one, it connects to public addresses only."""
_inherited: WeakKeyDictionary[Thread, Permit] = WeakKeyDictionary()
"""The permits of threads that a task has started outside of its context."""
T = TypeVar("T")


def guard_connections(*, threads_inherit: bool) -> None:
    """From now on, let tasks of this process connect only as their ``permit`` says; cannot be undone.

    The proxies that the environment names may have any address, also a new one. A name that a proxy is asked
    for is looked up here, and refused if it leads to no public address; one that only the proxy knows is left
    to it.

    ``threads_inherit``: a thread without the context of its task has the permit of the task that started it.
    Only for a process in which all tasks may connect to the same addresses, since a library's thread may work
    for several of them.
    """
    named = getproxies()
    urls = {named[kind] for kind in ("http", "https", "all") if kind in named}
    proxies = {address for url in urls for address in _addresses(url)}

    def is_proxy(endpoint: tuple[Any, ...]) -> bool:
        if endpoint not in proxies:
            proxies.update(address for url in urls for address in _addresses(url))
        return endpoint in proxies

    def judge(event: str, args: tuple[Any, ...]) -> None:
        if event in _EVENTS:
            address = args[1]
            if address is not None and not is_proxy(_endpoint(address)):  # None: connected before
                _current().check(leads_out=_is_public(address))
        elif event == "http.client.send" and proxies and isinstance(args[1], (bytes, bytearray)):
            match = _TO_PROXY.match(args[1])
            if match is not None:
                _current().check(leads_out=_leads_out((match[1] or match[2]).decode("ascii", "replace")))

    start = Thread.start

    def start_inheriting(thread: Thread) -> None:
        _inherited[thread] = _current()
        start(thread)

    if threads_inherit:
        Thread.start = start_inheriting  # type: ignore[assignment,method-assign] # nothing tells of a thread's start
    sys.addaudithook(judge)


def _current() -> Permit:
    return permit.get(None) or _inherited.get(current_thread()) or Permit(may_be_private=False)


def _endpoint(address: Any) -> tuple[Any, ...]:
    return tuple(address[:2]) if isinstance(address, tuple) else (address,)


def _is_public(address: Any) -> bool:
    try:
        return isinstance(address, tuple) and isinstance(address[0], str) and is_public(address[0])
    except ValueError:  # a name, which the socket looks up itself
        return False


def _leads_out(host: str) -> bool:
    try:
        _limited(lambda: public_addresses(host, 0))
    except socket.gaierror:
        return True
    except OSError:
        return False
    return True


def _addresses(proxy: str) -> list[tuple[Any, ...]]:
    """Return the addresses of a proxy for HTTP; what another kind is asked for cannot be seen."""
    try:
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if url.scheme not in {"http", "https"} or not url.hostname:
            return []
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        host = url.hostname
        infos = _limited(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, ValueError):
        return []
    return [_endpoint(info[4]) for info in infos]


def _limited(look_up: Callable[[], T]) -> T:
    """Return what a lookup of a name finds.

    Raises:
        socket.gaierror: the name is not known, or its name server does not answer in time.
    """
    future = futures.Future[T]()

    def run() -> None:
        try:
            future.set_result(look_up())
        except BaseException as error:  # noqa: BLE001 - for the caller
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return future.result(LOOKUP_SECONDS)
    except futures.TimeoutError:
        raise socket.gaierror(socket.EAI_AGAIN, "its name server does not answer") from None
