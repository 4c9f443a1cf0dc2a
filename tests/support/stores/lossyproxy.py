"""A proxy before an emulated cloud, which loses answers, refuses, and changes what passes."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class LossyProxy:
    """Passes requests on to ``upstream``; a test sets what goes wrong."""

    def __init__(self, upstream: str) -> None:
        proxy, address = self, urlsplit(upstream).netloc
        self.num_dropped = 0
        self.drop: Callable[[str, str], bool] = lambda method, path: False
        """Returns whether the answer to a request is lost, after the request had its effect."""
        self.change_request: Callable[[bytes], bytes] = lambda body: body
        self.change_answer: Callable[[bytes], bytes] = lambda body: body
        """Is applied to the body of a success."""
        self.forbids = ""
        """A request with a header that begins so is answered as a server does that does not implement it."""
        self.page: bytes | None = None
        """Answers each request in place of the cloud, as the login page of a network does."""
        self.page_status, self.page_type = 200, "text/html"
        self.takes: Callable[[str, str], bool] = lambda method, path: True
        """Returns whether ``page`` answers a request; the cloud answers the others."""
        self.cuts_answers = False
        """Answers to GET break off in the middle."""
        self.hides_ranges = False
        """Answers with a part of an object claim to be the whole."""

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if proxy.forbids and any(name.lower().startswith(proxy.forbids) for name in self.headers):
                    said = b"<Error><Code>NotImplemented</Code><Message>A header is unknown</Message></Error>"
                    self.send_response(501)
                    self.send_header("Content-Length", str(len(said)))
                    self.end_headers()
                    self.wfile.write(said)
                    return
                page = proxy.page
                if page is not None and proxy.takes(self.command, self.path):
                    self.send_response(proxy.page_status)
                    self.send_header("Content-Type", proxy.page_type)
                    self.send_header("Content-Length", str(len(page)))
                    self.end_headers()
                    self.wfile.write(b"" if self.command == "HEAD" else page)
                    return
                connection = http.client.HTTPConnection(address)
                try:
                    connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        if name.lower() != "expect":
                            connection.putheader(name, value)
                    connection.endheaders(proxy.change_request(body))
                    answer = connection.getresponse()
                    data = answer.read()
                    if answer.status < 300:
                        data = proxy.change_answer(data)
                finally:
                    connection.close()
                if proxy.drop(self.command, self.path):
                    proxy.num_dropped += 1
                    self.close_connection = True
                    return
                self.send_response(200 if proxy.hides_ranges and answer.status == 206 else answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                        self.send_header(name, value)
                is_head = self.command == "HEAD"
                length = answer.headers.get("Content-Length") if is_head else None
                self.send_header("Content-Length", length or str(len(data)))
                self.end_headers()
                is_cut = proxy.cuts_answers and self.command == "GET"
                self.wfile.write(data[: len(data) // 2] if is_cut else data)
                self.close_connection = is_cut

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_PATCH = handle_any  # noqa: N815 - its names

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.01))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
