"""A service on this machine to which messages are sent, as good or as bad as its URLs say."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Sink(http.server.ThreadingHTTPServer):
    """Keeps what is posted, and answers with the status in the path; ``/drip`` never comes to its end."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.got = []
        self.released = threading.Event()
        self.location = ""
        """Where the status 307 redirects to."""
        self.last_title: str | None = None
        """With this one, what drips is let go, so that nobody waits for it at the end."""

    @property
    def url(self):
        return f"json://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/drip":
            # Each byte is in time, and the whole never is: no time limit of a socket helps.
            self.wfile.write(b"HTTP/1.0 200 OK\r\n")
            while not self.server.released.wait(0.2):
                self.wfile.write(b"x")
            return
        self.server.got.append((self.path, body))
        if body["title"] == self.server.last_title:
            self.server.released.set()
        self.send_response(int(self.path.rpartition("/")[2]))
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    def log_message(self, *args):
        pass


@contextmanager
def open_sink() -> Iterator[Sink]:
    """Serve until the end of the block."""
    with Sink() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


@contextmanager
def dead_url() -> Iterator[str]:
    """Yield a URL where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"json://127.0.0.1:{taken.getsockname()[1]}/"
