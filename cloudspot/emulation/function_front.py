"""The server through which functions reach their emulated cloud; it can interrupt their requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from cloudspot.emulation.wsgi_server import Server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

When = Literal["before", "after"]
Act = Callable[[], bool]


class FunctionFront:
    """Forwards the requests of functions, and counts them. Thread-safe."""

    def __init__(self, app: WSGIApplication, *, host: str) -> None:
        """Serve ``app`` at ``url`` until ``close``."""
        self._app = app
        self._lock = threading.Lock()
        self._num_requests = 0
        self._interrupt: tuple[int, When, Act] | None = None
        self._server = Server(self, host=host)
        self.url = self._server.url

    def interrupt(self, number: int, when: When, act: Act) -> None:
        """Call ``act`` before request ``number`` takes effect, or after that but before its answer.

        Requests are counted from now on, starting at 1. ``act`` returns whether the calling function is still
        running; if it was killed, the request has no effect.
        """
        with self._lock:
            self._num_requests, self._interrupt = 0, (number, when, act)

    def count(self) -> None:
        """Interrupt no request, and restart the count."""
        with self._lock:
            self._num_requests, self._interrupt = 0, None

    @property
    def num_requests(self) -> int:
        """Return how many requests have arrived since ``interrupt`` or ``count``."""
        with self._lock:
            return self._num_requests

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        with self._lock:
            self._num_requests += 1
            number, when, act = self._interrupt or (0, "before", bool)
            is_interrupted = self._num_requests == number
        if is_interrupted and when == "before" and not act():
            start_response("503 Service Unavailable", [])
            return []
        answer = self._app(environ, start_response)
        if is_interrupted and when == "after":
            answer = [b"".join(answer)]
            act()
        return answer

    def close(self) -> None:
        """Stop serving."""
        self._server.close()
