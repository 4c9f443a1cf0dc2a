"""A client of a metadata service that wants a session token, for the plugins of the clouds that have one.

It stands on the standard library: every agent carries it, and it must answer on a machine where nothing
else works.
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
    """A client of the metadata service that keeps its session token fresh. Thread-safe.

    A plugin makes a subclass of it that says what its cloud calls the things.
    """

    default_endpoint: ClassVar[str]
    """The service's real address, such as ``http://169.254.169.254``."""
    endpoint_variable: ClassVar[str]
    """The environment variable by which the service is found elsewhere."""
    disabled_variable: ClassVar[str]
    """The one by which programs are told that there is none (``true``)."""
    token_header: ClassVar[str]
    """What a request carries its token in; a token is asked for with the same and ``-ttl-seconds``."""
    token_seconds: ClassVar[int] = 21600
    """The life that is asked for: commonly the longest that a service gives."""
    refusals: ClassVar[frozenset[int]] = frozenset({401})
    """The statuses by which the service says that a token holds no more."""
    needs_token: ClassVar[bool] = True
    """False: a service that knows of no tokens is asked without."""

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        timeout_seconds: float = 2.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Do no I/O; ``endpoint`` None: the environment's, else the real address."""
        self._endpoint = endpoint
        self._timeout_seconds = timeout_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._token: tuple[str, float] | None = None
        """With the moment at which to ask for another; an empty one: the service has none."""

    def get(self, path: str) -> str | None:
        """Return what the service says at ``/latest/<path>``, or None where it has nothing.

        Raises:
            TransientError: the service did not answer, or with another error.
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
                    # The token has run out (a machine that slept, a clock that jumped): ask for a new one.
                    if error.code in self.refusals and not is_last:
                        continue
                    raise TransientError(f"the metadata service answered {error.code} to {path}") from error
        raise AssertionError("the second round returns or raises")

    def require(self, path: str) -> str:
        """Return what the service says at ``/latest/<path>``.

        Raises:
            TransientError: as ``get``, and when it has nothing there yet.
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
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts; an answer cut short
            raise TransientError(f"the metadata service does not answer: {error}") from error
        return body.decode("utf-8", errors="replace")


def _opener() -> urllib.request.OpenerDirector:
    # Never by way of a proxy that the environment names.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
