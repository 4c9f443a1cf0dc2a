"""A client of metadata services that require a session token.

It needs only the standard library, since it must work on a machine where nothing else does.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import ClassVar

from cloudspot.errors import CloudspotError, TransientError


class MetadataClient:
    """A client that keeps its session token fresh. Thread-safe; subclasses name their cloud's headers."""

    default_endpoint: ClassVar[str]
    """The service's real address, such as ``http://169.254.169.254``."""
    endpoint_variable: ClassVar[str]
    """The environment variable that names another endpoint."""
    disabled_variable: ClassVar[str]
    """The environment variable that tells programs, with ``true``, that there is no such service."""
    token_header: ClassVar[str]
    """The header that carries the token; with ``-ttl-seconds`` after it, the one that asks for a token."""
    token_seconds: ClassVar[int] = 21600
    """The token's lifetime to ask for: commonly the longest that a service gives."""
    refusals: ClassVar[frozenset[int]] = frozenset({401})
    """The statuses that mean that a token is no longer valid."""
    needs_token: ClassVar[bool] = True
    """False: a service without tokens is asked without one."""

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        timeout_seconds: float = 2.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Do no I/O. Without an ``endpoint``, use the environment's, else the real address."""
        self._endpoint = endpoint
        self._timeout_seconds = timeout_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._token: tuple[str, float] | None = None
        """The token, empty if the service has none, and when to ask for another."""

    def get(self, path: str) -> str | None:
        """Return what the service has at ``/latest/<path>``, or None for a 404.

        Raises:
            TransientError: the service did not answer, or answered with another error.
            CloudspotError: the environment says that there is no such service.
        """
        for is_last in (False, True):
            token = self._session_token(renew=is_last)
            try:
                return self._send("GET", path, {self.token_header: token} if token else {})
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                    # The token expired early (a machine that slept, a clock that jumped): get a new one.
                    if error.code in self.refusals and not is_last:
                        continue
                    raise TransientError(f"the metadata service answered {error.code} to {path}") from error
        raise AssertionError("the second round returns or raises")

    def require(self, path: str) -> str:
        """Return what the service has at ``/latest/<path>``.

        Raises:
            TransientError: as in ``get``, or the service has nothing there yet.
        """
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
        request = urllib.request.Request(  # noqa: S310 # http, link-local
            f"{endpoint.rstrip('/')}/latest/{path}", headers=headers, method=method
        )
        try:
            with _opener().open(request, timeout=self._timeout_seconds) as answer:
                body: bytes = answer.read()
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException) as error:  # URLError, timeouts, truncated answers
            raise TransientError(f"the metadata service does not answer: {error}") from error
        return body.decode("utf-8", errors="replace")


def _opener() -> urllib.request.OpenerDirector:
    # Never through a proxy from the environment.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
