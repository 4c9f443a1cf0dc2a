"""Buckets of a test's own."""

from __future__ import annotations

import http.client
import itertools
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import boto3
import pytest

from cloudspot_aws.s3 import S3Store

PART_BYTES = 5 << 20
_numbers = itertools.count()


@pytest.fixture
def make_bucket(aws):
    """``make_bucket(region)``: make an empty bucket and return its name."""

    def make(region="eu-central-1"):
        name = f"bucket-{next(_numbers)}"
        client = boto3.session.Session().client("s3", region_name=region)
        options = {} if region == "us-east-1" else {"LocationConstraint": region}
        client.create_bucket(Bucket=name, **({"CreateBucketConfiguration": options} if options else {}))
        return name

    return make


@pytest.fixture
def bucket(make_bucket):
    return make_bucket()


@pytest.fixture
def store(bucket):
    """A store in a bucket of its own, below a prefix; its streams go up in the smallest parts there are."""
    return S3Store(f"s3://{bucket}/some/prefix", part_bytes=PART_BYTES, sleep=lambda seconds: None)


class Proxy:
    """Stands between client and server; what is done with an answer is the test's to say."""

    def __init__(self, upstream):
        proxy, address = self, urlsplit(upstream).netloc
        self.num_dropped = 0
        self.drop = lambda method, path: False
        """Say of a request whether its answer is lost on the way, after it had its effect."""
        self.change_request = lambda body: body
        self.cut_answer = False
        """Break off in the middle of what is read."""

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                connection = http.client.HTTPConnection(address)
                try:
                    connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        if name.lower() != "expect":
                            connection.putheader(name, value)
                    connection.endheaders(proxy.change_request(body))
                    answer = connection.getresponse()
                    data = answer.read()
                finally:
                    connection.close()
                if proxy.drop(self.command, self.path):
                    proxy.num_dropped += 1
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                        self.send_header(name, value)
                length = answer.headers.get("Content-Length", str(len(data)))
                self.send_header("Content-Length", length)
                self.end_headers()
                is_cut = proxy.cut_answer and self.command == "GET"
                self.wfile.write(data[: len(data) // 2] if is_cut else data)
                self.close_connection = is_cut

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815 - its names

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def proxy(aws, monkeypatch):
    """A proxy before the emulated S3, at which the store of the test asks."""
    one = Proxy(aws.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", one.url)
    yield one
    one.close()
