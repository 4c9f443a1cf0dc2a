"""Inputs that a web server has: a real one on loopback, with and without ranges, and servers that misbehave."""

import contextlib
import functools
import hashlib
import os
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from staged_inputs import contents, staging

from cloudspot.errors import AuthError, CloudspotError, CorruptData, ObjectMissing, TransientError
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobstore import http_file
from cloudspot.jobstore.http_file import HttpFile
from cloudspot.jobstore.input_cache import InputCache
from cloudspot.jobstore.inputs import BLOCK_BYTES, InputChanged, InputMissing, open_input
from cloudspot.retrying import retry

LARGE = os.urandom(2 * BLOCK_BYTES + 777)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        server.asked.append((self.path, asked and (int(asked[1]), int(asked[2]))))
        if server.answer is not None and server.answer(self):
            return
        data = server.data
        if asked is not None and server.has_ranges:
            start, end = int(asked[1]), int(asked[2]) + 1
            if start >= len(data):
                self.say(416, b"")
                return
            piece = data[start:end]
            self.say(206, piece, ("Content-Range", f"bytes {start}-{start + len(piece) - 1}/{len(data)}"))
        else:
            self.say(200, data)

    def say(self, status, body, *headers):
        self.send_response(status)
        for name, value in (*self.server.told, *headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: self.server.cut_after])
        if self.server.cut_after is not None:
            self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.data, found.has_ranges, found.answer, found.asked, found.cut_after = b"hello", True, None, [], None
    found.told = (("ETag", '"v1"'), ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT"))
    found.url = f"http://127.0.0.1:{found.server_address[1]}/file.bin"
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


@pytest.fixture
def cache(tmp_path):
    return InputCache(tmp_path / "cache")


def spec(server, **fields):
    return DataSpec(url=server.url, **fields)


@pytest.mark.parametrize("has_ranges", [True, False])
@pytest.mark.parametrize("data", [b"", b"small", LARGE])
def test_a_file_is_staged_with_or_without_ranges(server, cache, data, has_ranges):
    server.data, server.has_ranges = data, has_ranges
    source = open_input(spec(server))
    staged = cache.stage(source, staging())
    assert contents(cache, source, staged) == {"": data}
    assert cache.path_of(source, staged.files[0]).stat().st_mtime == 1445412480
    server.asked.clear()
    assert cache.stage(open_input(spec(server)), staging()).fetched_bytes == 0
    assert {span for _, span in server.asked} == {(0, 0)}


def test_a_large_file_comes_in_blocks(server, cache):
    server.data = LARGE
    cache.stage(open_input(spec(server)), staging())
    spans = sorted(span for _, span in server.asked if span != (0, 0))
    assert spans == [
        (0, BLOCK_BYTES - 1),
        (BLOCK_BYTES, 2 * BLOCK_BYTES - 1),
        (2 * BLOCK_BYTES, len(LARGE) - 1),
    ]


class Killed(Exception):
    """Stands for the end of the agent."""


@pytest.mark.parametrize("has_ranges", [True, False])
def test_what_is_there_counts_only_for_who_reads_it_in_the_same_blocks(server, cache, has_ranges):
    """An agent is killed after some blocks, and for the next one the server has ranges no more, or now does."""
    server.data, server.has_ranges = LARGE, has_ranges

    @contextmanager
    def dying(_total, _here):
        def add(_count):
            raise Killed

        yield add

    with pytest.raises(Killed):
        cache.stage(open_input(spec(server)), staging(num_threads=1, open_progress=dying))
    server.has_ranges = not has_ranges
    source = open_input(spec(server))
    assert contents(cache, source, cache.stage(source, staging())) == {"": LARGE}


def test_an_answer_with_more_bytes_than_asked_for_is_not_taken(server, cache):
    """It would lie over the block behind it, which is there already."""
    server.data, taken = LARGE, []

    def answer(handler):
        asked = (BLOCK_BYTES, 2 * BLOCK_BYTES - 1)
        if taken or handler.headers["Range"] != "bytes={}-{}".format(*asked):
            return False
        taken.append(handler)
        while not (left := list(cache.root.rglob("*.part"))) or left[0].read_bytes()[-1] != 1:
            time.sleep(0.05)
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {asked[0]}-{asked[1]}/{len(LARGE)}")
        for name, value in server.told:
            handler.send_header(name, value)
        handler.end_headers()
        with contextlib.suppress(ConnectionError):
            handler.wfile.write(b"x" * (asked[1] - asked[0] + 1 + BLOCK_BYTES))
        handler.close_connection = True
        return True

    server.answer = answer
    source = open_input(spec(server))
    repeat = functools.partial(retry, sleep=lambda _seconds: None)
    assert contents(cache, source, cache.stage(source, staging(repeat=repeat))) == {"": LARGE}
    assert len(taken) == 1


def test_an_answer_with_another_end_than_asked_for_is_refused(server, cache):
    def answer(handler):
        handler.say(206, b"he", ("Content-Range", "bytes 0-1/5"))
        return True

    server.answer = answer
    with pytest.raises(CloudspotError, match="another range than asked for"):
        cache.stage(open_input(spec(server)), staging())


def test_a_file_that_changes_between_two_blocks_is_staged_again_whole(server, cache):
    server.data = LARGE

    def change(_handler):
        if len(server.asked) == 3:
            server.data, server.told = LARGE[::-1], (("ETag", '"v2"'),)

    server.answer = change
    source = open_input(spec(server))
    assert contents(cache, source, cache.stage(source, staging(num_threads=1))) == {"": LARGE[::-1]}


def test_a_file_that_changes_with_each_answer_is_refused(server, cache):
    def change(_handler):
        server.told = (("ETag", f'"{len(server.asked)}"'),)

    server.answer = change
    with pytest.raises(InputChanged, match=r"file\.bin has changed since it was listed"):
        cache.stage(open_input(spec(server)), staging())


def test_a_hash_stands_for_the_bytes_wherever_they_are(server, cache):
    right = hashlib.sha256(server.data).hexdigest()
    server.told = ()  # a server that tells no version
    cache.stage(open_input(spec(server, sha256=right)), staging())
    mirror = DataSpec(url=server.url.replace("file.bin", "mirror.bin"), sha256=right)
    server.asked.clear()
    assert cache.stage(open_input(mirror), staging()).fetched_bytes == 0
    with pytest.raises(CorruptData, match=f"has the sha256 {right}, and not 111"):
        cache.stage(open_input(spec(server, sha256="1" * 64)), staging())


def test_a_server_that_tells_no_version_needs_a_hash(server, cache):
    server.told = ()
    with pytest.raises(CloudspotError, match="give its sha256"):
        cache.stage(open_input(spec(server)), staging())


def test_an_answer_without_a_length_is_refused(server, cache):
    def chunked(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"5\r\nhello\r\n0\r\n\r\n")
        return True

    server.answer = chunked
    with pytest.raises(CloudspotError, match="does not say how long the file is"):
        cache.stage(open_input(spec(server)), staging())


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, InputMissing), (403, AuthError), (401, AuthError), (503, TransientError), (429, TransientError),
     (400, CloudspotError)],
)  # fmt: skip
def test_the_status_tells_what_to_do(server, cache, status, kind):
    server.answer = lambda handler: handler.say(status, b"") or True
    with pytest.raises(kind, match=rf"file\.bin answered {status}") as caught:
        cache.stage(open_input(spec(server)), staging())
    assert type(caught.value) is kind


def test_a_connection_that_breaks_is_worth_another_try(server, cache):
    source = open_input(spec(server))
    file = source.wanted()[0]
    server.cut_after = 3
    with pytest.raises(TransientError):
        source.read(file, 0, 5, lambda at, view: None)
    server.shutdown()
    server.server_close()
    with pytest.raises(TransientError, match="cannot be read"):
        source.wanted()


def test_no_message_shows_a_query(server):
    server.answer = lambda handler: handler.say(404, b"") or True
    with pytest.raises(ObjectMissing) as caught:
        HttpFile(server.url + "?version=confidential").head()
    assert "confidential" not in str(caught.value)
    assert server.asked[0][0] == "/file.bin?version=confidential"


def test_a_redirection_is_followed_but_not_to_another_scheme(server, monkeypatch):
    def redirect(handler):
        if handler.path == "/file.bin":
            handler.say(302, b"", ("Location", server.target))
            return True
        return False

    server.answer, server.target = redirect, "/elsewhere"
    assert HttpFile(server.url).head().size == 5
    server.target = "ftp://127.0.0.1/x"
    with pytest.raises(CloudspotError, match=r"redirects to ftp://, which is not followed"):
        HttpFile(server.url).head()
    request = http_file.Request("https://host/file")
    with pytest.raises(CloudspotError, match="redirects to http://, which is not followed"):
        http_file._SafeRedirects().redirect_request(request, None, 302, "", {}, "http://host/file")


def test_another_range_than_asked_for_is_refused(server):
    server.answer = lambda h: h.say(206, b"xx", ("Content-Range", "bytes 7-8/100")) or True
    with pytest.raises(CloudspotError, match="another range"):
        HttpFile(server.url).head()
