"""A metadata service that answers all the same, and nothing that helps."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cloudspot.testing.machine import Trouble


@contextmanager
def troubled_services():
    """Yield a function that starts one in some trouble, and returns its URL; all are ended behind it."""
    servers, is_over = [], threading.Event()

    def start(trouble):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if trouble is Trouble.HANG:
                    is_over.wait(30.0)
                    self.close_connection = True
                    return
                self.send_response(500 if trouble is Trouble.ERROR else 200)
                self.end_headers()
                self.wfile.write(b"<html><p>Log in</p></html>")

            do_PUT = do_POST = do_GET  # noqa: N815 - its names

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    is_over.set()
    for server in servers:
        server.shutdown()
        server.server_close()
