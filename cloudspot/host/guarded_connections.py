"""Restrict all connections of this process, including those of libraries, to public internet addresses.

Libraries follow redirects and look up names on their own. So each connection is checked by the address to
which it is about to be made. The interpreter reports this address in an audit event, which no code can skip.
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
"""A name that is not resolved within this time counts as known only to a proxy."""
_EVENTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_TO_PROXY = re.compile(rb"(?:CONNECT |[A-Z]+ https?://(?:[^/ ]*@)?)(?:\[([^]\s]*)\]|([^]/:?#\s]+))")
"""The beginning of a request that is meant for a proxy."""


class Permit:
    """Decides which connections one task may make, from any of its threads."""

    def __init__(self, *, may_be_private: bool) -> None:
        """If ``may_be_private``, connections may go anywhere until the first connection to the internet."""
        self._may_be_private = may_be_private
        self.has_refused = False

    def check(self, *, leads_out: bool) -> None:
        """Raise AddressRefused if the connection is not allowed."""
        if leads_out:
            self._may_be_private = False
        elif not self._may_be_private:
            self.has_refused = True
            raise AddressRefused("the address is not on the internet")


permit: ContextVar[Permit] = ContextVar("permit")
"""The permit of the running task; without a permit, only public addresses are allowed."""
_inherited: WeakKeyDictionary[Thread, Permit] = WeakKeyDictionary()
"""The permits of threads that a task started outside its context."""
T = TypeVar("T")


def guard_connections(*, threads_inherit: bool) -> None:
    """From now on, let tasks of this process connect only as their ``permit`` allows; this cannot be undone.

    The proxies in the environment may have any address, and the address may change. If a request to a proxy
    names a host, the name is looked up here and refused if it has only private addresses; a name that only
    the proxy can resolve is allowed.

    If ``threads_inherit``, a thread that lacks its task's context gets the permit of the task that started
    it. Use this only if all tasks of the process may connect to the same addresses, because a library's
    thread may serve several tasks.
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
            if address is not None and not is_proxy(_endpoint(address)):  # None: already connected
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
        Thread.start = start_inheriting  # type: ignore[assignment,method-assign] # no event reports the start
    sys.addaudithook(judge)


def _current() -> Permit:
    return permit.get(None) or _inherited.get(current_thread()) or Permit(may_be_private=False)


def _endpoint(address: Any) -> tuple[Any, ...]:
    return tuple(address[:2]) if isinstance(address, tuple) else (address,)


def _is_public(address: Any) -> bool:
    try:
        return isinstance(address, tuple) and isinstance(address[0], str) and is_public(address[0])
    except ValueError:  # a host name, which the socket resolves itself
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
    """Return the addresses of an HTTP proxy; none for other kinds, whose requests cannot be checked."""
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
    """Return the result of a name lookup, within a time limit.

    Raises:
        socket.gaierror: the name is unknown, or its name server does not answer in time.
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
