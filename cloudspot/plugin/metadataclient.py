"""Read a cloud's metadata service, with session tokens if the cloud uses them.

It uses only the standard library, because every agent includes it and it must work on a machine where nothing
else does.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.message import Message
from typing import ClassVar

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.host.public_addresses import NoRedirects

MAX_ANSWER_BYTES = 1 << 20
"""The maximum size of an answer in bytes; usual answers have a few KiB."""


class MetadataClient:
    """A client that renews its session token. Thread-safe.

    A plugin's subclass sets the names that its cloud uses.
    """

    default_endpoint: ClassVar[str]
    """The service's real address, such as ``http://169.254.169.254``."""
    endpoint_variable: ClassVar[str]
    """The environment variable that sets a different address."""
    disabled_variable: ClassVar[str]
    """The environment variable that disables the service if its value is ``true``."""
    token_header: ClassVar[str]
    """The header that carries a request's token; with ``-ttl-seconds`` appended, the header that requests a
    token."""
    token_seconds: ClassVar[int] = 21600
    """The token's lifetime; the default is the usual maximum."""
    refusals: ClassVar[frozenset[int]] = frozenset({401})
    """The statuses which mean that a token is no longer valid."""
    needs_token: ClassVar[bool] = True
    """Whether a token is required; if not, a service without tokens is called without one."""

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        timeout_seconds: float = 2.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Do no I/O; without ``endpoint``, the environment or else ``default_endpoint`` gives the address."""
        self._endpoint = endpoint
        self._timeout_seconds = timeout_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._token: tuple[str, float] | None = None
        """The token ("" if the service has none), and the time at which the next one is requested."""

    def get(self, path: str) -> str | None:
        """Return the service's answer for ``/latest/<path>``, or None if it has nothing there.

        Raises:
            TransientError: the service did not answer, or answered with another error.
            CloudspotError: the environment disables the service.
        """
        for is_last in (False, True):
            token = self._session_token(renew=is_last)
            try:
                return self._send("GET", path, {self.token_header: token} if token else {})
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                    # The token has expired (the machine slept, or the clock jumped), so a new one is
                    # requested.
                    if error.code in self.refusals and not is_last:
                        continue
                    raise TransientError(f"the metadata service answered {error.code} to {path}") from error
        raise AssertionError("the second round returns or raises")

    def require(self, path: str) -> str:
        """Return the result of ``get``; raise TransientError if the service has nothing there yet."""
        value = self.get(path)
        if value is None:
            raise TransientError(f"the metadata service has no {path} yet")
        return value

    def _session_token(self, *, renew: bool) -> str:
        with self._lock:
            now = self._monotonic()
            if self._token is None or renew or now >= self._token[1]:
                self._token = (self._ask_for_token(), now + 0.8 * self.token_seconds)
            return self._token[0]

    def _ask_for_token(self) -> str:
        try:
            return self._send(
                "PUT", "api/token", {f"{self.token_header}-ttl-seconds": str(self.token_seconds)}
            ).strip()
        except urllib.error.HTTPError as error:
            with error:
                if error.code in {404, 405} and not self.needs_token:
                    return ""
                raise TransientError(f"the metadata service gave no token (HTTP {error.code})") from error

    def _send(self, method: str, path: str, headers: dict[str, str]) -> str:
        if os.environ.get(self.disabled_variable, "").lower() == "true":
            raise CloudspotError(
                f"{self.disabled_variable}=true: this process may not ask the metadata service"
            )
        endpoint = self._endpoint or os.environ.get(self.endpoint_variable) or self.default_endpoint
        url = f"{endpoint.rstrip('/')}/latest/{path}"
        body, _ = ask_metadata(url, headers, method=method, timeout=self._timeout_seconds)
        return body


def ask_metadata(
    url: str, headers: Mapping[str, str], *, timeout: float, method: str = "GET"
) -> tuple[str, Message]:
    """Return the body and the headers of an answer; the request never goes through a proxy.

    Raises:
        HTTPError: the service answered with an error, or with a redirect, which must not receive the token.
        TransientError: the service did not answer within ``timeout`` seconds, or its answer was incomplete or
            too long.
    """
    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310 # link-local
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirects())
    try:
        with opener.open(request, timeout=timeout) as answer:
            body: bytes = answer.read(MAX_ANSWER_BYTES + 1)
            if len(body) > MAX_ANSWER_BYTES:
                raise TransientError(f"the metadata service answers with more than {MAX_ANSWER_BYTES} bytes")
            if answer.length:
                raise TransientError("the metadata service's answer is truncated")
            return body.decode("utf-8", errors="replace"), answer.headers
    except urllib.error.HTTPError:
        raise
    except (OSError, ValueError, http.client.HTTPException) as error:  # or an invalid header value
        raise TransientError(f"the metadata service does not answer: {str(error)[:200]}") from error


def parse_time(text: str) -> datetime:
    """Return the time in a text such as ``2017-09-18T08:22:00Z``; raise ValueError for any other text."""
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
