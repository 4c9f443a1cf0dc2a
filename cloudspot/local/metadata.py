"""A machine's metadata service over HTTP: the server that its supervisor runs, the client on the node.

::

    GET /identity      {"instance_id", "rank", "address", ..., "job_id", "launch"}
    GET /tags/<name>   the announced value as text; 404 before it is announced
    GET /notice        {"deadline", "action"}; 404 while there is none

As at the clouds' services, a request without the header is refused, so that a URL that an outsider
slips into a training's data cannot reach it through the training.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, TypeVar

import msgspec

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.interfaces import PreemptionSource
from cloudspot.model import NodeIdentity, PreemptionNotice

METADATA = "CLOUDSPOT_LOCAL_METADATA"
"""The environment variable with the service's URL, on a machine."""
HEADER = "Metadata-Flavor"
HEADER_VALUE = "cloudspot-local"

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class StandingNotice(msgspec.Struct, frozen=True, kw_only=True):
    """What ``/notice`` answers."""

    deadline: datetime
    action: str = "terminate"


class MetadataServer:
    """Serves one machine's metadata on a free port of its address, in threads of its own."""

    def __init__(
        self, address: str, *, identity: Mapping[str, Any], tags: Callable[[], Mapping[str, str]]
    ) -> None:
        """Start to serve; ``tags`` is asked anew at each request."""
        self._notice: StandingNotice | None = None
        self._identity = dict(identity)
        self._tags = tags
        self._server = _Server((address, 0), _Handler)
        self._server.answer = self._answer
        self._thread = threading.Thread(target=self._server.serve_forever, name="metadata", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Return where it listens."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def publish(self, notice: StandingNotice) -> None:
        """Let ``/notice`` answer this from now on."""
        self._notice = notice

    def close(self) -> None:
        """Stop to serve."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, path: str) -> tuple[str, bytes] | None:
        """Return the content type and body for a path, or None for 404."""
        if path == "/identity":
            return "application/json", json.dumps(self._identity).encode()
        if path == "/notice":
            notice = self._notice
            return None if notice is None else ("application/json", msgspec.json.encode(notice))
        prefix, _, name = path.rpartition("/")
        if prefix == "/tags":
            value = self._tags().get(urllib.parse.unquote(name))
            return None if value is None else ("text/plain; charset=utf-8", value.encode())
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answer: Callable[[str], tuple[str, bytes] | None]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    # One packet an answer: unbuffered headers meet Nagle and a delayed acknowledgement, 40 ms each time.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.headers.get(HEADER) != HEADER_VALUE:
            self._send(403, "text/plain", f"the header {HEADER}: {HEADER_VALUE} is missing\n".encode())
            return
        answer = self.server.answer(self.path)
        if answer is None:
            self._send(404, "text/plain", b"there is nothing here\n")
        else:
            self._send(200, *answer)

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the base class's name
        _log.debug(format, *args)


class LocalPreemptionSource(PreemptionSource):
    """Reads the notice from the machine's own metadata service."""

    poll_seconds: ClassVar[float] = 0.2

    def __init__(self, *, notice_seconds: float) -> None:
        self.notice_seconds = notice_seconds

    def poll(self) -> PreemptionNotice | None:
        """Return the standing notice, or None."""
        notice = _fetch_json("/notice", StandingNotice)
        if notice is None:
            return None
        return PreemptionNotice(deadline=notice.deadline, action=notice.action, source="local-metadata")


def read_identity() -> NodeIdentity:
    """Return who this machine is, by its metadata service.

    Raises:
        TransientError: the service does not answer, or with something else.
        CloudspotError: this process does not run on a local machine.
    """
    identity = _fetch_json("/identity", NodeIdentity)
    if identity is None:
        raise TransientError("the metadata service knows no identity yet")
    return identity


def _fetch_json(path: str, kind: type[_T]) -> _T | None:
    body = fetch(path)
    try:
        return None if body is None else msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:  # a malformed text, or another value
        raise TransientError(f"the metadata service answered nonsense to {path}: {error}") from error


def fetch(path: str, *, timeout_seconds: float = 5.0) -> bytes | None:
    """Return what the metadata service answers for the path, or None where it has nothing.

    Raises:
        TransientError: the service does not answer.
        CloudspotError: this process does not run on a local machine.
    """
    url = os.environ.get(METADATA)
    if not url:
        raise CloudspotError(f"{METADATA} is not set: this process runs on no machine of provider 'local'")
    request = urllib.request.Request(url + path, headers={HEADER: HEADER_VALUE})  # noqa: S310 # http, on loopback
    try:
        with _opener().open(request, timeout=timeout_seconds) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404:
                return None
            raise TransientError(f"the metadata service answered {error.code} to {path}") from error
    except (OSError, http.client.HTTPException) as error:  # URLError and timeouts; an answer that breaks off
        raise TransientError(f"the metadata service does not answer: {error}") from error


def _opener() -> urllib.request.OpenerDirector:
    # Never by way of a proxy that the environment names.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
