"""HTTP connections on which redirects cannot lead to private addresses.

A machine can reach itself, its network, and a metadata service that hands out the credentials of its role. So
a server may redirect only to globally routable addresses and to the host of the original request. The
connection is made to exactly the address that was checked, because a second lookup of the name may return
another address.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request

from cloudspot.host.paced_http import PacedHTTPConnection, PacedHTTPSConnection

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "2001::/23", "3fff::/20")
)
"""Networks that some versions of ``ipaddress`` consider global, and the address of a cloud's own service."""


class AddressRefused(OSError):
    """A host has no globally routable address."""


def is_public(address: str) -> bool:
    """Return whether an IP address, and any IPv4 address embedded in it, is globally routable.

    Source: RFC 6890 and its registries, as implemented in ``ipaddress``; RFC 4291, 2.5.5.2 (IPv4-mapped); RFC
        3056 (6to4); RFC 6052 (NAT64).
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        if ip.sixtofour is not None:
            return is_public(str(ip.sixtofour))
        if ip not in _GLOBAL_UNICAST:
            return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


def public_addresses(host: str, port: int) -> list[str]:
    """Return the globally routable addresses of a host.

    Raises:
        AddressRefused: the host has addresses, but no globally routable one.
        OSError: the host's name is unknown.
    """
    # A trailing dot is not part of any address, and a resolver may ignore it.
    infos = socket.getaddrinfo(host.rstrip("."), port, type=socket.SOCK_STREAM)
    found = [str(info[4][0]) for info in infos]
    public = [address for address in dict.fromkeys(found) if is_public(address)]
    if not public:
        raise AddressRefused(f"{host} is not an address on the internet")
    return public


class NoRedirects(HTTPRedirectHandler):
    """Turns a redirect into an error, for services that never redirect and always get a credential."""

    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        """Return None, so that the redirect is not followed."""


def handlers(own_host: str) -> tuple[HTTPHandler, HTTPSHandler]:
    """Return handlers for ``build_opener`` that allow a private address only for ``own_host``.

    Responses that arrive too slowly are given up; see ``paced_http``.

    A proxy in the environment makes its own connections, so a name that has only private addresses here is
    not requested through the proxy either.

    A ``URLError`` whose reason is an ``AddressRefused`` reports a refusal.
    """
    own_host = own_host.strip("[]").lower()

    class _Clear(HTTPHandler):
        def http_open(self, req: Request) -> http.client.HTTPResponse:
            return self.do_open(_making(PacedHTTPConnection, own_host, req), req)

    class _Secure(HTTPSHandler):
        def https_open(self, req: Request) -> http.client.HTTPResponse:
            made = _making(PacedHTTPSConnection, own_host, req)
            return self.do_open(made, req, context=self._context)  # type: ignore[attr-defined]

    return _Clear(), _Secure()


def _making(kind: Callable[..., Any], own_host: str, request: Request) -> Any:
    """Return a factory that makes connections for the request; each checks its address when it is opened."""

    def connect(address: tuple[str, int], timeout: Any = None, source_address: Any = None) -> socket.socket:
        is_proxy = request.has_proxy() or request._tunnel_host  # type: ignore[attr-defined]  # noqa: SLF001
        host = (urlsplit(request.full_url).hostname or "") if is_proxy else address[0]
        if host.lower() == own_host:
            return socket.create_connection(address, timeout, source_address)
        if is_proxy:
            with suppress(socket.gaierror):  # only the proxy can resolve the name
                public_addresses(host, 0)
            return socket.create_connection(address, timeout, source_address)
        *others, last = public_addresses(host, address[1])
        for public in others:
            with suppress(OSError):
                return socket.create_connection((public, address[1]), timeout, source_address)
        return socket.create_connection((last, address[1]), timeout, source_address)

    def make(host: str, **options: Any) -> Any:
        made = kind(host, **options)
        made._create_connection = connect  # noqa: SLF001 - there since Python 2.7, and there is no public hook
        return made

    return make
