"""The local site in this process, and a browser that knows no more than HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator

import uvicorn

from cloudspot_ui.live.access import Access
from cloudspot_ui.live.site import Site

TOKEN = "the-token"


class Browser:
    """Asks the site; it has the cookie once it has opened the first URL."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.host = f"127.0.0.1:{port}"
        self.cookie = ""

    def ask(self, path, *, method="GET", body=None, **headers):
        """Return the answer with its whole body as ``data``; ``headers`` replace what a browser sends."""
        sent = {"Host": self.host, "Cookie": self.cookie}
        if method == "POST":
            sent |= {"Origin": f"http://{self.host}", "Content-Type": "application/x-www-form-urlencoded"}
        sent |= {name.capitalize(): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            sent = {name: value for name, value in sent.items() if value is not None}
            connection.putrequest(method, path, skip_host=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            data = (body or "").encode()
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            answer = connection.getresponse()
            answer.data = answer.read()
            return answer

    def log_in(self):
        """Open the first URL."""
        answer = self.ask(f"/?token={TOKEN}")
        assert answer.status == 303
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        return self

    def text(self, path):
        """Return a page."""
        answer = self.ask(path)
        assert answer.status == 200, answer.data
        return answer.data.decode()

    @contextlib.contextmanager
    def events(self, path) -> Iterator[Iterator[tuple[str, object]]]:
        """Yield the events of a page as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Host": self.host, "Cookie": self.cookie})
            answer = connection.getresponse()
            assert answer.status == 200

            def read():
                name = ""
                for line in answer:
                    if line.startswith(b"event: "):
                        name = line[7:].decode().strip()
                    elif line.startswith(b"data: "):
                        yield name, json.loads(line[6:])

            yield read()


@contextlib.contextmanager
def served(store, *, may_write=False) -> Iterator[Browser]:
    """Serve a store's pages while the block runs."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    application = Access(Site(store, may_write=may_write).application(), port, token=TOKEN)
    server = uvicorn.Server(
        uvicorn.Config(application, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield Browser(port)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
