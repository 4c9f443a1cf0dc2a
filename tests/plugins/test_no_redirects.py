"""Services that give or get a machine's credentials make no redirects: one would take these elsewhere."""

import importlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError

import pytest

import cloudspot_aws.fetch as aws
from cloudspot.errors import TransientError
from cloudspot.plugin.metadataclient import MAX_ANSWER_BYTES, ask_metadata

HEADERS = {"Authorization": "the machine's"}


class Server(BaseHTTPRequestHandler):
    """Redirects from ``/`` to another server, which keeps what it is asked; answers with much elsewhere.

    From ``/cut`` comes less than it says.
    """

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        if self.path != "/":
            self.send_response(200)
            if self.path.startswith("/cut"):
                self.send_header("Content-Length", str(1 << 40))
            self.end_headers()
            self.wfile.write(b"x" if self.path.startswith("/cut") else b"x" * (MAX_ANSWER_BYTES + 2))
            return
        self.send_response(307)
        self.send_header("Location", f"http://127.0.0.1:{self.server.other.server_port}/elsewhere")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def servers():
    """Two, of which the first redirects to the second."""
    made = [ThreadingHTTPServer(("127.0.0.1", 0), Server) for _ in range(2)]
    for server in made:
        server.asked, server.other = [], made[1]
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
    yield made
    for server in made:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "module",
    [
        "cloudspot_aliyun.fetch",
        "cloudspot_aliyun.selfend",
        "cloudspot_aws.fetch",
        "cloudspot_gcp.fetch",
        "cloudspot_gcp.selfend",
    ],
)
def test_what_runs_on_a_machine_by_itself_follows_none(servers, module):
    first, second = servers
    with pytest.raises(OSError, match="307"):
        importlib.import_module(module).ask(f"http://127.0.0.1:{first.server_port}/", HEADERS)
    assert (len(first.asked), second.asked) == (1, [])


def test_a_metadata_service_leads_nowhere_and_says_little(servers):
    first, second = servers
    with pytest.raises(HTTPError, match="307"):
        ask_metadata(f"http://127.0.0.1:{first.server_port}/", HEADERS, timeout=30)
    assert (len(first.asked), second.asked) == (1, [])
    with pytest.raises(TransientError, match="answers with more than 1048576 bytes"):
        ask_metadata(f"http://127.0.0.1:{second.server_port}/much", HEADERS, timeout=30)
    with pytest.raises(TransientError, match="is truncated"):
        ask_metadata(f"http://127.0.0.1:{second.server_port}/cut", HEADERS, timeout=30)


def test_an_agent_archive_that_is_cut_short_or_is_said_to_be_huge_is_an_error(servers, monkeypatch, tmp_path):
    monkeypatch.setattr(aws, "read_role", dict)
    monkeypatch.setattr(aws, "sign", lambda *_: {})
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{servers[1].server_port}")
    with pytest.raises(OSError, match=r"^the object is truncated or too long$"):
        aws.fetch("s3://cut", "", tmp_path / "archive")
