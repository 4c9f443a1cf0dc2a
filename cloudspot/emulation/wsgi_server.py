"""Serve a WSGI application on a port of this machine."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


class Server:
    """A server that runs in threads, from its construction until ``close``."""

    def __init__(self, app: WSGIApplication, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Start the server; port 0 means any free port."""
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # so that it does not log each request
        self._server = make_server(host, port, app, threaded=True)
        self.url = f"http://{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="emulated-api", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
