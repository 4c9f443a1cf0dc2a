"""The base of metadata services: the response to a request, the data about the machine, and the server.

The service of an emulated cloud, in a plugin's sandbox, subclasses :class:`MetadataService`; a machine's
supervisor serves it at the cloud's real address. To test such a class without a machine, create a
:class:`MachineView` and call ``answer``.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import msgspec

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
_MAX_BODY_BYTES = 1 << 20


class StandingNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's notice that it will reclaim the machine."""

    deadline: datetime
    """When the machine will end (UTC)."""
    deadline_monotonic: float | None = None
    """The same time by this host's monotonic clock, which all its local machines share."""
    action: str = "terminate"
    given_at: datetime = msgspec.field(default_factory=lambda: datetime.now(timezone.utc))


class MachineView:
    """The data about a machine that its metadata service may use. Thread-safe."""

    def __init__(
        self,
        *,
        address: str,
        facts: Mapping[str, Any],
        user_data: bytes = b"",
        tags: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Keep the constant facts; ``tags`` is called at each use."""
        self.address = address
        """The address at which other machines reach it."""
        self.facts = dict(facts)
        """The cloud's facts about the machine since its start (``EmulatedMachine.metadata``)."""
        self.user_data = user_data
        self._tags = tags
        self._notice: StandingNotice | None = None
        self._noticed = threading.Condition()

    @property
    def notice(self) -> StandingNotice | None:
        """The notice of an announced reclaim, which is never withdrawn; None before the announcement."""
        return self._notice

    @notice.setter
    def notice(self, notice: StandingNotice | None) -> None:
        with self._noticed:
            self._notice = notice
            self._noticed.notify_all()

    @property
    def tags(self) -> dict[str, str]:
        """Return the current tags."""
        return dict(self._tags())

    def wait_for_change(self, timeout_seconds: float) -> bool:
        """Wait until the tags or the notice change, for services with a long poll.

        Return whether they changed within ``timeout_seconds``.
        """
        before = (self.notice, self.tags)
        end = time.monotonic() + timeout_seconds
        while time.monotonic() < end:
            if (self.notice, self.tags) != before:
                return True
            with self._noticed:  # a notice ends the wait at once; tags are in files, which are polled
                self._noticed.wait_for(lambda: self._notice is not before[0], _POLL_SECONDS)
        return False


@dataclass(frozen=True)
class Request:
    """One request from a program on the machine."""

    method: str
    """In capitals."""
    path: str
    """The path including the query, exactly as sent."""
    headers: Mapping[str, str]
    """The headers, with lower-case names."""
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """The response to one request."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)
    hop_limit: int | None = None
    """The time to live of the response's packets; with 1, the packets do not reach a container behind a
    router. None means the system's default."""


class MetadataService(ABC):
    """One machine's metadata service. ``answer`` runs in a separate thread for each request."""

    server_version: ClassVar[str] = "metadata"
    """The ``Server`` header of each response."""

    def __init__(self, view: MachineView) -> None:
        self.view = view

    @abstractmethod
    def answer(self, request: Request) -> Answer:
        """Answer a request as the cloud's own service would; this may block, as in a long poll."""


class MetadataServer:
    """Serves a metadata service at an address, in its own threads."""

    def __init__(self, service: MetadataService, address: str, port: int = 0) -> None:
        """Start serving in the calling thread's network namespace; port 0 means any free port."""
        self._server = _Server((address, port), _Handler)
        self._server.service = service
        serve = partial(self._server.serve_forever, poll_interval=_POLL_SECONDS)
        self._thread = threading.Thread(target=serve, name="metadata", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Return the server's URL."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    service: MetadataService

    def server_bind(self) -> None:
        # HTTPServer's method is skipped because it looks up the name of the address, which may not resolve.
        socketserver.TCPServer.server_bind(self)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    # Buffering sends each response in one packet: with unbuffered headers, Nagle's algorithm and delayed
    # acknowledgements would cost 40 ms each time.
    wbufsize = -1
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > _MAX_BODY_BYTES:
            self.close_connection = True
            self._send(Answer(413, b"the body is too large\n"))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, self.rfile.read(int(length)))
        self._send(self.server.service.answer(request))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = _serve  # noqa: N815 # its names

    def _send(self, answer: Answer) -> None:
        if answer.hop_limit is not None:
            self.connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, answer.hop_limit)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def version_string(self) -> str:
        return self.server.service.server_version

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the base class's name
        _log.debug(format, *args)
