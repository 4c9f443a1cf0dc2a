"""Inputs that a web server has: a real one on loopback, with and without ranges, and servers that misbehave."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import socket
import threading
import time
import tracemalloc
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.stores.staged_inputs import contents, staging

from cloudspot.calls.retrying import retry
from cloudspot.errors import AuthError, CloudspotError, CorruptData, ObjectMissing, TransientError
from cloudspot.host import paced_http
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobstore.inputs import http_file
from cloudspot.jobstore.inputs.http_file import HttpFile
from cloudspot.jobstore.inputs.input_cache import InputCache
from cloudspot.jobstore.inputs.inputs import BLOCK_BYTES, InputChanged, InputMissing, open_input

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


@pytest.fixture(autouse=True)
def _without_a_proxy_of_this_computers(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


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


@pytest.mark.full
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
    with pytest.raises(CloudspotError, match="did not send the requested range"):
        cache.stage(open_input(spec(server)), staging())


@pytest.mark.full
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
    with pytest.raises(CorruptData, match=f"has the sha256 {right}, not 111"):
        cache.stage(open_input(spec(server, sha256="1" * 64)), staging())


def test_a_server_that_tells_no_version_needs_a_hash(server, cache):
    server.told = ()
    with pytest.raises(CloudspotError, match="set sha256"):
        cache.stage(open_input(spec(server)), staging())


def test_an_answer_without_a_length_is_refused(server, cache):
    def chunked(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"5\r\nhello\r\n0\r\n\r\n")
        return True

    server.answer = chunked
    with pytest.raises(CloudspotError, match="does not state the file's length"):
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
    with pytest.raises(CloudspotError, match=r"redirects to ftp://, and such redirects are not followed"):
        HttpFile(server.url).head()
    request = http_file.Request("https://host/file")
    with pytest.raises(CloudspotError, match="redirects to http://, and such redirects are not followed"):
        http_file._SafeRedirects().redirect_request(request, None, 302, "", {}, "http://host/file")


def redirecting(server, target):
    """Have the server redirect what is asked of it first."""
    server.answer = lambda h: h.path == "/file.bin" and (h.say(302, b"", ("Location", target)) or True)
    return HttpFile(server.url)


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254",
     "100.100.100.200", "[fd00:ec2::254]", "10.0.0.1", "[64:ff9b::7f00:1]", "[2002:7f00:1::1]"],
)  # fmt: skip
def test_a_redirection_leads_to_no_address_that_only_this_machine_reaches(server, host):
    """Metadata services hand out the machine's role; what they say would be an input of the training."""
    file = redirecting(server, f"http://{host}:{server.server_address[1]}/elsewhere?token=confidential")
    with pytest.raises(
        CloudspotError, match=r"/file.bin redirects, but .* is not an address on the"
    ) as caught:
        file.head()
    assert type(caught.value) is CloudspotError
    assert "confidential" not in str(caught.value)
    assert [path for path, _ in server.asked] == ["/file.bin"]


def test_the_host_that_the_job_file_names_may_have_any_address(server):
    for target in (f"http://127.0.0.1:{server.server_address[1]}/elsewhere", "/elsewhere", "//127.0.0.1:1/"):
        with contextlib.nullcontext() if "127.0.0.1:1/" not in target else pytest.raises(TransientError):
            assert redirecting(server, target).head().size == 5


def test_a_redirection_connects_to_the_address_that_was_checked(server, monkeypatch):
    """Asked a second time, the attacker's name server would say 127.0.0.1."""
    answers, connected = iter(["93.184.216.34", "127.0.0.1"]), []
    real_find, real_connect = socket.getaddrinfo, socket.create_connection

    def find(host, port, *args, **options):
        address = next(answers) if host == "cdn.example" else host
        return real_find(address, port, *args, **options)

    def connect(address, *args):
        connected.append(address)
        return real_connect(server.server_address, *args)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(socket, "create_connection", connect)
    assert redirecting(server, "http://cdn.example/elsewhere").head().size == 5
    assert connected == [("127.0.0.1", server.server_address[1]), ("93.184.216.34", 80)]
    with pytest.raises(CloudspotError, match=r"redirects, but cdn\.example is not an address"):
        redirecting(server, "http://cdn.example/elsewhere").head()


def test_of_a_name_with_several_addresses_only_the_public_ones_are_tried(server, monkeypatch):
    found = [
        (2, 1, 6, "", (address, 80)) for address in ("10.0.0.1", "93.184.216.34", "1.1.1.1", "169.254.1.1")
    ]
    tried, real_connect = [], socket.create_connection

    def connect(address, *args):
        tried.append(address[0])
        if address[0] == "93.184.216.34":
            raise ConnectionRefusedError
        return real_connect(server.server_address, *args)

    file = redirecting(server, "http://cdn.example/elsewhere")
    real_find = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *args, **options: found if host == "cdn.example" else real_find(host, *args, **options),
    )
    monkeypatch.setattr(socket, "create_connection", connect)
    assert file.head().size == 5
    assert tried == ["127.0.0.1", "93.184.216.34", "1.1.1.1"]


def test_nothing_but_a_public_address_is_asked_for_through_a_proxy(server, monkeypatch):
    """A proxy connects by itself; it is given no name that leads elsewhere as seen from here."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("no_proxy", "")
    server.answer = lambda h: (
        h.path == "http://files.example/x" and (h.say(302, b"", ("Location", server.target)) or True)
    )
    file = HttpFile("http://files.example/x")
    server.target = "http://169.254.169.254/latest"
    with pytest.raises(CloudspotError, match=r"redirects, but 169\.254\.169\.254 is not"):
        file.head()
    server.target = "http://only-the-proxy-knows.invalid/y"
    assert file.head().size == 5
    assert [path for path, _ in server.asked] == ["http://files.example/x"] * 2 + [server.target]


@pytest.mark.parametrize(
    "target", ["http://[::1", f"http://{'a' * 70}.example/", "http://a..b/", "http://[x]/"]
)
def test_a_redirection_to_what_is_no_url_is_an_error_in_one_line(server, target):
    with pytest.raises(CloudspotError):
        redirecting(server, target).head()


def test_another_range_than_asked_for_is_refused(server):
    server.answer = lambda h: h.say(206, b"xx", ("Content-Range", "bytes 7-8/100")) or True
    with pytest.raises(CloudspotError, match="did not send the requested range"):
        HttpFile(server.url).head()


# --- servers that drag an answer out ------------------------------------------------------------


def test_a_block_that_trickles_is_given_up_and_only_it_is_asked_for_again(server, cache, monkeypatch):
    """The first answer to the second block stops after some bytes, and then drips; the clock is made up."""
    server.data = LARGE
    now, drips, over = [0.0], threading.Event(), threading.Event()

    class Slow(paced_http.PacedResponse):
        @staticmethod
        def monotonic():
            if drips.is_set():
                now[0] += 100  # each further wait seems to take as long
            return now[0]

    monkeypatch.setattr(paced_http.PacedHTTPConnection, "response_class", Slow)

    def drip(handler):
        if drips.is_set() or not handler.headers["Range"].startswith(f"bytes={BLOCK_BYTES}-"):
            return False
        handler.wfile.write(
            b"HTTP/1.1 206 P\r\nContent-Range: bytes %d-%d/%d\r\nContent-Length: %d\r\n"
            b'ETag: "v1"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n'
            % (BLOCK_BYTES, 2 * BLOCK_BYTES - 1, len(LARGE), BLOCK_BYTES)
        )
        drips.set()
        with contextlib.suppress(OSError):
            while not over.wait(0.01):
                handler.wfile.write(b"x")
        handler.close_connection = True
        return True

    server.answer, waits = drip, []

    def forgive(request):
        def again(error):
            waits.append(str(error))
            drips.set(), over.set()
            now[0] = 0.0
            monkeypatch.setattr(Slow, "monotonic", staticmethod(time.monotonic))

        return retry(request, sleep=lambda _seconds: None, on_wait=again)

    source = open_input(spec(server))
    staged = cache.stage(source, staging(repeat=forgive, num_threads=1))
    assert contents(cache, source, staged) == {"": LARGE}
    assert len(waits) == 1
    assert re.search(r"only \d+ bytes arrived in \d+ s", waits[0])
    spans = [span for _, span in server.asked if span != (0, 0)]
    assert sorted(spans) == sorted(
        [
            (0, BLOCK_BYTES - 1),
            *[(BLOCK_BYTES, 2 * BLOCK_BYTES - 1)] * 2,
            (2 * BLOCK_BYTES, len(LARGE) - 1),
        ]
    )


# --- numbers that servers claim -----------------------------------------------------------------


def claim(*headers, status=206):
    """Return an answer of one byte with these headers."""

    def answer(handler):
        handler.wfile.write(
            b"HTTP/1.1 %d P\r\n" % status
            + b"".join(b"%s: %s\r\n" % (name.encode(), value.encode()) for name, value in headers)
            + b'ETag: "a"\r\n\r\nx'
        )
        handler.close_connection = True
        return True

    return answer


def test_a_claim_of_more_than_the_disk_has_is_refused_before_memory_is_used(server, cache, monkeypatch):
    usage = shutil._ntuple_diskusage(10**11, 0, 10**11)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    server.answer = claim(("Content-Range", f"bytes 0-0/{10**13}"), ("Content-Length", "1"))
    tracemalloc.start()
    try:
        with pytest.raises(CloudspotError, match=r"9313.2 GiB are needed, and the whole disk has 93.1"):
            cache.stage(open_input(spec(server)), staging())
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert not list(cache.root.rglob("*.part"))


@pytest.mark.parametrize(
    "headers",
    [
        (("Content-Range", "bytes 0-0/" + "9" * 5000),),
        (("Content-Range", f"bytes 0-0/{1 << 60}"),),
        (("Content-Range", "bytes 0-0/-5"),),
        (("Content-Range", "bytes " + "0" * 5000 + "-0/5"),),
        (("Content-Range", "bytes 0-0/²"),),
        (("Content-Range", "bytes 0-0/*"),),
        (),
    ],
)
def test_a_range_of_impossible_numbers_is_an_ordinary_error(server, headers):
    encoded = tuple((name, value.encode().decode("latin-1")) for name, value in headers)
    server.answer = claim(*encoded)
    with pytest.raises(CloudspotError, match="did not send the requested range"):
        open_input(spec(server)).wanted()


def test_the_body_of_a_redirection_is_not_read(server):
    """One without an end would otherwise be read into memory."""
    over = threading.Event()

    def redirect(handler):
        if handler.path == "/there":
            return False
        handler.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 1000000\r\n\r\nx")
        handler.wfile.flush()
        over.wait(10)  # the rest does not come before the file was read
        handler.close_connection = True
        return True

    server.answer = redirect
    try:
        assert HttpFile(server.url).head().size == len(server.data)
    finally:
        over.set()


@pytest.mark.parametrize("length", ["9" * 5000, str(1 << 60), "-1", "1e3", "0x10", "1_0"])
def test_a_length_of_impossible_numbers_is_an_ordinary_error(server, length):
    server.answer = claim(("Content-Length", length), status=200)
    with pytest.raises(CloudspotError, match="an invalid Content-Length") as caught:
        open_input(spec(server)).wanted()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "date", ["Mon, 01 Jan 99999 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", "9" * 99]
)
def test_an_impossible_time_of_change_is_kept_within_bounds(server, date):
    server.told = (("ETag", '"v1"'), ("Last-Modified", date))
    (file,) = open_input(spec(server)).wanted()
    assert 0 <= file.seconds < 2**33
