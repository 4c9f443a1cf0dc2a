"""HTTP connections that give up on a response that arrives too slowly.

A socket's timeout limits only a server's silence. A server that sends a byte every half second, in the
headers or in the body, never reaches it.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.request import HTTPRedirectHandler, Request

LEAST_BYTES = 64 << 10
WINDOW_SECONDS = 180.0
"""A response that delivers less than ``LEAST_BYTES`` in this much waiting time is given up."""
WORK_SECONDS = 1800.0
"""The same limit for requests that change something: a store may send only spaces while it assembles an
upload."""
_READS = frozenset({"GET", "HEAD"})


class Pace:
    """Measures the speed of a response by the time spent waiting for it."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._num_bytes = 0
        self._seconds = 0.0

    def note(self, num_bytes: int, seconds: float) -> None:
        """Record the number of bytes received and the seconds waited for them.

        Raises:
            TimeoutError: too few bytes have arrived for too long.
        """
        self._num_bytes += num_bytes
        self._seconds += seconds
        if self._seconds < self._window_seconds:
            return
        if self._num_bytes < LEAST_BYTES:
            raise TimeoutError(f"only {self._num_bytes} bytes arrived in {self._seconds:.0f} s")
        self._num_bytes, self._seconds = 0, 0.0


class _PacedSocket(io.RawIOBase):
    """The receiving side of a socket, with its pace measured.

    The time that the reader spends between two reads does not count. Nor does the silence before the first
    byte: a server may need time to prepare a response, and the socket's timeout limits that time.
    """

    def __init__(self, inner: io.RawIOBase, monotonic: Callable[[], float], pace: Pace) -> None:
        self._inner, self._monotonic, self._pace = inner, monotonic, pace
        self._has_begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        began = self._monotonic()
        count = self._inner.readinto(buffer)
        if count and self._has_begun:
            self._pace.note(count, self._monotonic() - began)
        self._has_begun = True
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()


class PacedResponse(http.client.HTTPResponse):
    """A response whose pace is measured from its first header on."""

    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, **more: Any
    ) -> None:
        super().__init__(sock, debuglevel, method, **more)
        raw: Any = self.fp.detach()
        pace = Pace(WINDOW_SECONDS if method in _READS else WORK_SECONDS)
        self.fp = io.BufferedReader(_PacedSocket(raw, type(self).monotonic, pace))


def pace(connection: type[http.client.HTTPConnection]) -> None:
    """Use ``PacedResponse`` for all connections of a class, for libraries that create their own."""
    connection.response_class = PacedResponse


class PacedHTTPConnection(http.client.HTTPConnection):
    """An HTTP connection with paced responses."""

    response_class = PacedResponse


class PacedHTTPSConnection(http.client.HTTPSConnection):
    """An HTTPS connection with paced responses."""

    response_class = PacedResponse


class UnreadRedirects(HTTPRedirectHandler):
    """Follows redirects like its base class, without reading their bodies, which may be endless."""

    def redirect_request(self, req: Request, fp: Any, *rest: Any) -> Request | None:
        """Return the redirected request, or None."""
        fp.close()
        return super().redirect_request(req, fp, *rest)


def read_at_most(answer: http.client.HTTPResponse, most: int) -> bytes:
    """Return the body of a response.

    Raises:
        ValueError: the body is longer than ``most`` bytes, or is incomplete.
    """
    data = answer.read(most + 1)
    if len(data) > most:
        raise ValueError(f"its answer is longer than {most} bytes")
    if answer.length:
        raise ValueError(f"the last {answer.length} bytes of its answer are missing")
    return data
