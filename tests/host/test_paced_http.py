"""Answers that trickle are given up; slow ones that move are not. No test waits: the clock is made up."""

import http.client
import http.server
import io
import socket
import threading
import urllib.request

import pytest

from cloudspot.host import paced_http
from cloudspot.host.paced_http import PacedResponse, read_at_most
from cloudspot.host.public_addresses import handlers


class Clock:
    """Goes on by what a stream takes for a piece."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Dripping(io.RawIOBase):
    """Sends a few bytes at a time, and takes its time for each."""

    def __init__(self, clock, *, piece, seconds, length):
        self.clock, self.piece, self.seconds, self.left = clock, piece, seconds, length

    def readable(self):
        return True

    def readinto(self, buffer):
        count = min(self.piece, self.left, len(buffer))
        if count:
            self.clock.now += self.seconds
        buffer[:count] = b"x" * count
        self.left -= count
        return count


def paced(**how):
    clock = Clock()
    raw = Dripping(clock, **how)
    return clock, io.BufferedReader(paced_http._PacedSocket(raw, clock, paced_http.Pace()))


def test_a_byte_every_half_second_is_given_up_after_three_minutes():
    clock, stream = paced(piece=1, seconds=0.5, length=10**9)
    with pytest.raises(TimeoutError, match="only 360 bytes arrived in 180 s"):
        stream.read(1 << 20)
    assert clock.now == 180.5


def test_a_server_may_work_for_long_before_its_answer_begins():
    clock, stream = paced(piece=100, seconds=3600.0, length=100)
    assert stream.read(100) == b"x" * 100
    assert clock.now == 3600


def test_a_kibibyte_a_second_is_waited_for():
    clock, stream = paced(piece=1024, seconds=1.0, length=1 << 20)
    assert len(stream.read(2 << 20)) == 1 << 20
    assert clock.now == 1024


@pytest.mark.parametrize(("piece", "is_enough"), [(365, True), (363, False)])
def test_the_limit_is_64_kib_in_three_minutes(piece, is_enough):
    _, stream = paced(piece=piece, seconds=1.0, length=70_000)
    if is_enough:
        assert len(stream.read(1 << 20)) == 70_000
    else:
        with pytest.raises(TimeoutError):
            stream.read(1 << 20)


def test_a_fast_start_does_not_make_up_for_a_trickle_later():
    clock = Clock()
    raw = Dripping(clock, piece=1 << 20, seconds=0.1, length=8 << 20)
    stream = io.BufferedReader(paced_http._PacedSocket(raw, clock, paced_http.Pace()))
    stream.read(4 << 20)
    raw.piece, raw.seconds = 1, 0.5
    with pytest.raises(TimeoutError):
        stream.read(4 << 20)
    assert clock.now < 365


def test_the_time_that_the_reader_takes_does_not_count():
    clock, stream = paced(piece=1024, seconds=0.001, length=64 << 10)
    for _ in range(64):
        assert stream.read(1024)
        clock.now += 1000


@pytest.fixture
def url():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\nX-Long: " + b"x" * 2000 + b"\r\n\r\n"
            cut = len(answer) // 2 if self.path == "/headers" else len(answer)
            self.wfile.write(answer[:cut])
            self.wfile.flush()
            told.wait(10)
            self.wfile.write(answer[cut:] + b"y" * 10)
            self.wfile.flush()
            over.wait(10)

        def log_message(self, *_):
            pass

    told, over = threading.Event(), threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", told
    over.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("where", ["/headers"])
def test_headers_that_trickle_are_given_up_too(url, where, monkeypatch):
    base, told = url
    clock = Clock()

    def monotonic():
        if clock.now > 0:  # the second read has begun, so the first one has brought the half
            told.set()
        clock.now += 200  # so each wait takes as long
        return clock.now

    monkeypatch.setattr(PacedResponse, "monotonic", staticmethod(monotonic))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers("127.0.0.1"))
    with (
        pytest.raises(OSError, match=r"bytes arrived in \d+ s"),
        opener.open(base + where, timeout=10) as answer,
    ):
        answer.read()


class SpacesFirst(http.client.HTTPConnection):
    """Connects to a server that answers at once, and sends spaces until it has done the work."""

    response_class = PacedResponse

    def __init__(self, num_bytes):
        super().__init__("store.example")
        self._num_bytes = num_bytes

    def connect(self):
        self.sock, self.far = socket.socketpair()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
        num_spaces = self._num_bytes - len(head % 1000) - len(b"<Done/>")
        body = b" " * num_spaces + b"<Done/>"
        self.far.sendall(head % len(body) + body)


@pytest.mark.parametrize(
    ("method", "seconds", "is_enough"),
    [
        ("GET", 170, True),
        ("GET", 190, False),
        ("POST", 190, True),
        ("PUT", 1700, True),
        ("POST", 1900, False),
    ],
)
def test_a_store_may_work_for_half_an_hour_on_what_it_was_sent(monkeypatch, method, seconds, is_enough):
    clock = Clock()

    class BySecond(paced_http._PacedSocket):
        """Brings a byte a second."""

        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[:1])

    def monotonic():
        clock.now += 0.5
        return clock.now

    monkeypatch.setattr(paced_http, "_PacedSocket", BySecond)
    monkeypatch.setattr(PacedResponse, "monotonic", staticmethod(monotonic))
    connection = SpacesFirst(seconds * 2)
    try:
        connection.request(method, "/")
        if is_enough:
            assert connection.getresponse().read().strip() == b"<Done/>"
        else:
            with pytest.raises(TimeoutError):
                connection.getresponse().read()
    finally:
        connection.far.close()
        connection.close()


class Answer(io.BytesIO):
    """A body of which ``length`` bytes have not come."""

    length = 0


def test_a_body_that_was_cut_short_is_no_body():
    """A registry's half manifest had a digest, too."""
    answer = Answer(b"12345")
    answer.length = 90
    with pytest.raises(ValueError, match="the last 90 bytes of its answer are missing"):
        read_at_most(answer, 100)


def test_a_body_has_a_limit():
    answer = Answer(b"12345")
    assert read_at_most(answer, 5) == b"12345"
    answer.seek(0)
    with pytest.raises(ValueError, match="longer than 4 bytes"):
        read_at_most(answer, 4)
