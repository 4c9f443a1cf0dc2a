"""The cost of transfers to and from a cloud's store: cloudspot, raw HTTP and the SDK's defaults, to one sink.

    python benchmarks/object_store.py s3|gs|oss [--gib 1] [--rounds 5] [--threads 4]
    python benchmarks/object_store.py s3|gs|oss --stream-gib 5      # the memory of a long stream

The sink implements just enough of S3, Cloud Storage and OSS for their SDKs. It drops all uploads and serves
downloads from memory, over plain HTTP on loopback. The real stores add TLS, equally for all clients, and with
S3, boto3 need not hash the payload. The sink knows the uploaded content, so it returns OSS's CRC-64 without
computing it. Rates are of one run; compare the ratios.
"""

from __future__ import annotations

import argparse
import functools
import http.client
import mmap
import os
import random
import re
import resource
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from cloudspot.interfaces import ObjectStore
from cloudspot.registry import open_store

CHUNK_BYTES = 64 << 20
"""The size of a checkpoint's chunks, as in cloudspot.jobstore.checkpoints.parts."""
BLOCK = random.Random(1).randbytes(1 << 20)
"""The uploads repeat this content."""
BUCKET = "bench"
ALIYUN_KEY = "LTAI5tEXAMPLEexample0001", "example0secret1example2secret3"
ALIYUN_REGION = "cn-hangzhou"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scheme", choices=["s3", "gs", "oss"], help="the URL scheme of the store")
    parser.add_argument("--gib", type=float, default=1.0, help="GiB to upload and download (default 1)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="the number of rounds; medians are shown (default 5)"
    )
    parser.add_argument(
        "--threads", type=int, default=4, help="concurrent requests (default 4, like the agent)"
    )
    parser.add_argument("--stream-gib", type=float, help="measure only the memory for a stream of this size")
    arguments = parser.parse_args()
    num_bytes = int(arguments.gib * (1 << 30))
    held = CHUNK_BYTES if arguments.stream_gib is not None else max(num_bytes, CHUNK_BYTES)
    environments = {"s3": s3_environment, "gs": gs_environment, "oss": oss_environment}
    environment = environments[arguments.scheme]
    with Sink(held) as sink, environment(f"http://127.0.0.1:{sink.port}"):
        store = open_store(f"{arguments.scheme}://{BUCKET}")
        if arguments.stream_gib is not None:
            measure_stream(store, int(arguments.stream_gib * (1 << 30)))
            return
        sdks: dict[str, Callable[[], Sdk]] = {"s3": Boto3, "gs": GoogleCloudStorage, "oss": Oss2}
        measure_rates(sink, store, sdks[arguments.scheme](), num_bytes, arguments.rounds, arguments.threads)


@contextmanager
def s3_environment(url: str) -> Iterator[None]:
    """Point boto3 to the sink instead of S3."""
    os.environ.update(
        AWS_ENDPOINT_URL=url,
        AWS_ACCESS_KEY_ID="AKIAIOSFODNN7EXAMPLE",
        AWS_SECRET_ACCESS_KEY="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        AWS_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
    )
    yield


@contextmanager
def gs_environment(url: str) -> Iterator[None]:
    """Point Google's SDK to the sink instead of Cloud Storage and the token endpoint."""
    from cloudspot_gcp_sandbox.identities import ServiceAccount, write_key_file

    account = ServiceAccount.make("bench@my-project-123.iam.gserviceaccount.com", project="my-project-123")
    with tempfile.TemporaryDirectory() as directory:
        key_file = Path(directory) / "key.json"
        key_file.write_text(write_key_file(account, f"{url}/token"))
        os.environ.update(
            STORAGE_EMULATOR_HOST=url,
            CLOUDSDK_API_ENDPOINT_OVERRIDES_IAMCREDENTIALS=url,
            GOOGLE_APPLICATION_CREDENTIALS=str(key_file),
        )
        yield


@contextmanager
def oss_environment(url: str) -> Iterator[None]:
    """Point our OSS store to the sink instead of OSS."""
    os.environ.update(
        OSS_ENDPOINT=url,
        ALIBABA_CLOUD_ACCESS_KEY_ID=ALIYUN_KEY[0],
        ALIBABA_CLOUD_ACCESS_KEY_SECRET=ALIYUN_KEY[1],
        ALIBABA_CLOUD_REGION_ID=ALIYUN_REGION,
    )
    yield


class Sdk(Protocol):
    """A cloud's own SDK with its defaults."""

    name: str

    def upload(self, file: Path) -> None:
        """Send a file."""

    def download(self, file: Path, size: int) -> None:
        """Read into a file."""


class Boto3:
    """The boto3 package with its defaults."""

    name = "boto3"

    def __init__(self) -> None:
        import boto3

        self._client = boto3.session.Session().client("s3")

    def upload(self, file: Path) -> None:
        """Send a file."""
        self._client.upload_file(str(file), BUCKET, "k")

    def download(self, file: Path, size: int) -> None:
        """Read into a file."""
        self._client.download_file(BUCKET, "k", str(file))


class GoogleCloudStorage:
    """The google-cloud-storage package with its defaults."""

    name = "google-cloud-storage"

    def __init__(self) -> None:
        from cloudspot_gcp.clients import GcpClients

        self._bucket = GcpClients().storage().bucket(BUCKET)

    def upload(self, file: Path) -> None:
        """Send a file."""
        self._bucket.blob("k").upload_from_filename(str(file))

    def download(self, file: Path, size: int) -> None:
        """Read into a file."""
        # The sink sends no checksum of the whole object, so the SDK must not check it.
        self._bucket.blob("k").download_to_filename(str(file), checksum=None)


class Oss2:
    """The oss2 package with its defaults."""

    def __init__(self) -> None:
        import oss2
        from crcmod.crcmod import _usingExtension as is_compiled

        kind = "compiled" if is_compiled else "pure"
        self.name = f"oss2 (crcmod {kind})"
        self._bucket = oss2.Bucket(
            oss2.AuthV4(*ALIYUN_KEY), os.environ["OSS_ENDPOINT"], BUCKET, region=ALIYUN_REGION
        )

    def upload(self, file: Path) -> None:
        """Send a file."""
        self._bucket.put_object_from_file("k", str(file))

    def download(self, file: Path, size: int) -> None:
        """Read into a file."""
        self._bucket.get_object_to_file("k", str(file))


def measure_rates(
    sink: Sink,
    store: ObjectStore,
    sdk: Sdk,
    num_bytes: int,
    num_rounds: int,
    num_threads: int,
) -> None:
    """Time all methods in turn, so that noise affects all of them."""
    data = memoryview(bytearray(BLOCK) * (num_bytes >> 20))
    starts = range(0, len(data), CHUNK_BYTES)
    pool = ThreadPoolExecutor(num_threads)
    raw = Raw(sink.port)

    def each(call: Callable[[int, int], None]) -> None:
        def chunk(start: int) -> None:
            call(start, min(CHUNK_BYTES, len(data) - start))

        list(pool.map(chunk, starts))

    kept = threading.local()

    def get_into(start: int, length: int) -> None:
        if not hasattr(kept, "buffer"):
            kept.buffer = bytearray(CHUNK_BYTES)
        with memoryview(kept.buffer)[:length] as view:
            assert store.get_range_into("k", start, view) == length

    def upload_stream() -> None:
        with store.open_upload("stream") as upload:
            for start in starts:
                upload.write(data[start : start + CHUNK_BYTES])
            upload.commit()

    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        file, copy = Path(directory) / "file", Path(directory) / "copy"
        file.write_bytes(data)
        ways: dict[str, Callable[[], None]] = {
            "PUT   raw HTTP": lambda: each(lambda at, n: raw.put(at, data[at : at + n])),
            f"PUT   {type(store).__name__}.put": lambda: each(
                lambda at, n: store.put(f"chunk/{at}", data[at : at + n])
            ),
            f"PUT   {type(store).__name__}.open_upload": upload_stream,
            f"PUT   {sdk.name}, a file": lambda: sdk.upload(file),
            "GET   raw HTTP": lambda: each(raw.get_bytes),
            "GET   raw HTTP, one buffer kept": lambda: each(raw.get_into),
            f"GET   {type(store).__name__}.get_range": lambda: each(
                lambda at, n: check(store.get_range("k", at, n), n)
            ),
            f"GET   {type(store).__name__}.get_range_into, buffer kept": lambda: each(get_into),
            f"GET   {sdk.name}, a file": lambda: sdk.download(copy, len(data)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(num_rounds + 1):
            for name, way in ways.items():
                began, cpu_began = time.perf_counter(), cpu_seconds()
                way()
                if number:  # the first round is a warm-up
                    seconds[name].append(time.perf_counter() - began)
                    cpu[name].append(cpu_seconds() - cpu_began)
    pool.shutdown()
    gigabytes = len(data) / 1e9
    print(f"{gigabytes:.2f} GB in chunks of 64 MiB, {num_threads} at once, median of {num_rounds}")
    print(f"{'':42}{'MB/s':>8}{'of raw':>9}{'CPU s/GB':>10}")
    for name in ways:
        rate = 1e3 * gigabytes / statistics.median(seconds[name])
        floor = 1e3 * gigabytes / statistics.median(seconds[f"{name[:3]}   raw HTTP"])
        print(f"{name:42}{rate:8.0f}{rate / floor:9.2f}{statistics.median(cpu[name]) / gigabytes:10.2f}")


def measure_stream(store: ObjectStore, num_bytes: int) -> None:
    """Stream, and print the peak memory."""
    store.put("warm", BLOCK[:1])
    before = peak_bytes()
    began = time.perf_counter()
    with store.open_upload("stream") as upload:
        for _ in range(num_bytes >> 20):
            upload.write(BLOCK)
        upload.commit()
    seconds = time.perf_counter() - began
    peak = peak_bytes()
    print(
        f"a stream of {num_bytes / 1e9:.2f} GB: {num_bytes / 1e6 / seconds:.0f} MB/s, "
        f"at most {peak / 1e6:.0f} MB in memory, {(peak - before) / 1e6:.0f} MB of them for it"
    )


def check(data: bytes, length: int) -> None:
    """Fail if bytes are missing."""
    assert len(data) == length, (len(data), length)


def cpu_seconds() -> float:
    """Return the CPU time of this process, the client."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would include the memory of the parent at the start of this process.
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii"))
        if found is not None:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


OSS_BUCKET = (
    b"<BucketInfo><Bucket><CreationDate>2026-01-01T00:00:00.000Z</CreationDate>"
    b"<ExtranetEndpoint>x</ExtranetEndpoint><IntranetEndpoint>x</IntranetEndpoint>"
    b"<Location>oss-cn-hangzhou</Location><StorageClass>Standard</StorageClass><Name>bench</Name>"
    b"<Owner><DisplayName>1</DisplayName><ID>1</ID></Owner>"
    b"<AccessControlList><Grant>private</Grant></AccessControlList></Bucket></BucketInfo>"
)


class Raw:
    """The floor: HTTP with the standard library, one connection per thread, no signature and no checksum."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._local = threading.local()

    def put(self, start: int, data: memoryview) -> None:
        """Send the bytes without a copy."""
        connection = self._connection()
        connection.request("PUT", f"/{BUCKET}/raw/{start}", body=data)
        connection.getresponse().read()

    def get_bytes(self, start: int, length: int) -> None:
        """Read into a new ``bytes`` object."""
        check(self._answer(start, length).read(length), length)

    def get_into(self, start: int, length: int) -> None:
        """Read into a kept buffer, whose memory is warm."""
        answer, filled = self._answer(start, length), 0
        with memoryview(self._local.buffer) as view:
            while filled < length:
                filled += answer.readinto(view[filled:length])
        answer.read()

    def _answer(self, start: int, length: int) -> http.client.HTTPResponse:
        connection = self._connection()
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        connection.request("GET", f"/{BUCKET}/k", headers=headers)
        return connection.getresponse()

    def _connection(self) -> http.client.HTTPConnection:
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection("127.0.0.1", self._port)
            self._local.buffer = bytearray(CHUNK_BYTES)
        connection: http.client.HTTPConnection = self._local.connection
        return connection


class Sink:
    """A server that drops uploads and serves downloads from memory, with a process for each connection."""

    def __init__(self, num_bytes: int) -> None:
        self._size = num_bytes
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._socket.getsockname()[1]
        self._pid = 0

    def __enter__(self) -> Sink:
        self._pid = os.fork()
        if self._pid == 0:
            with suppress(KeyboardInterrupt):
                self._serve()
            os._exit(0)
        with suppress(ProcessLookupError):
            os.setpgid(self._pid, self._pid)  # here too, because the child may be ended before it runs
        self._socket.close()
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _serve(self) -> None:
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # leave no zombies
        file = os.memfd_create("sink")
        os.ftruncate(file, self._size)
        with mmap.mmap(file, self._size) as content:
            for position in range(0, self._size, 4096):
                content[position] = 1
        while True:
            connection, _ = self._socket.accept()
            if os.fork() == 0:
                with suppress(ConnectionError):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.answer(connection, file)
                os._exit(0)
            connection.close()

    def answer(self, connection: socket.socket, file: int) -> None:
        """Answer the connection's requests until the client leaves."""
        serve_connection(connection, file, self._size)


def read_head(connection: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
    """Return the head of the next request and the bytes after it; the head is empty if the client left."""
    while b"\r\n\r\n" not in rest:
        more = connection.recv(1 << 16)
        if not more:
            return b"", b""
        rest += more
    head, _, rest = rest.partition(b"\r\n\r\n")
    return head, rest


def asked_range(head: bytes, size: int) -> tuple[int, int] | None:
    """Return the first and the last byte of a requested range, or None for the whole object."""
    found = re.search(rb"\r\nrange: *bytes=(\d+)-(\d*)", head.lower())
    return None if found is None else (int(found[1]), min(int(found[2] or size), size - 1))


def send_bytes(connection: socket.socket, file: int, first: int, last: int) -> None:
    """Send these bytes of the file."""
    while first <= last:
        first += os.sendfile(connection.fileno(), file, first, last - first + 1)


def serve_connection(connection: socket.socket, file: int, size: int) -> None:
    """Answer requests until the client leaves."""
    buffer, rest = bytearray(1 << 20), b""
    while True:
        head, rest = read_head(connection, rest)
        if not head:
            return
        method, target = head.split(b" ", 2)[:2]
        original, head = head, head.lower()
        if b"expect: 100-continue" in head:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = int(found[1]) if (found := re.search(rb"\r\ncontent-length: *(\d+)", head)) else 0
        while b"uploadtype=multipart" in head and len(rest) < min(length, 1 << 10):
            rest += connection.recv(1 << 10)  # the body begins with the object's metadata
        left, original = length - len(rest), original + b"\r\n" + rest[: 1 << 10]
        rest = b""
        while left > 0:
            # MSG_TRUNC drops the bytes in the kernel, without a copy.
            count = connection.recv_into(buffer, min(left, len(buffer)), socket.MSG_TRUNC)
            if count == 0:
                return
            left -= count
        if b"?bucketinfo" in target.lower():
            send(connection, b"200 OK", b"", len(OSS_BUCKET))
            connection.sendall(OSS_BUCKET)
        elif method == b"GET":
            first, last = asked_range(head, size) or (0, size - 1)
            span = b"Content-Range: bytes %d-%d/%d\r\n" % (first, last, size)
            send(connection, b"206 Partial Content", span, last - first + 1)
            send_bytes(connection, file, first, last)
        elif method == b"HEAD":
            send(connection, b"200 OK", b"Last-Modified: Fri, 20 Nov 2026 12:00:00 GMT\r\n", size)
        elif b"/storage/v1/" in target or target == b"/token":
            send_json(connection, method, target, original)
        else:
            is_oss = b"\r\nauthorization: oss4-" in head
            summed = b"x-oss-hash-crc64ecma: %d\r\n" % crc_of(length) if is_oss and method == b"PUT" else b""
            send_xml(connection, method, target, summed)


def send(connection: socket.socket, status: bytes, headers: bytes, length: int) -> None:
    """Send the head of an answer."""
    told = b'ETag: "x"\r\nx-oss-request-id: 1\r\nx-goog-generation: 1\r\n'
    connection.sendall(b"HTTP/1.1 %s\r\n%s%sContent-Length: %d\r\n\r\n" % (status, told, headers, length))


@functools.cache
def crc_of(num_bytes: int) -> int:
    """Return OSS's CRC-64 of an upload of this size."""
    from fastcrc import crc64

    crc = 0
    for start in range(0, num_bytes, len(BLOCK)):
        crc = crc64.xz(BLOCK[: num_bytes - start], crc)
    return crc


def send_xml(connection: socket.socket, method: bytes, target: bytes, headers: bytes) -> None:
    """Answer a request with a body like S3 and OSS."""
    body = b""
    if method == b"POST" and b"?uploads" in target:
        body = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
    elif method == b"POST":
        body = b'<CompleteMultipartUploadResult><ETag>"x"</ETag></CompleteMultipartUploadResult>'
    send(connection, b"200 OK", headers, len(body))
    connection.sendall(body)


def send_json(connection: socket.socket, method: bytes, target: bytes, head: bytes) -> None:
    """Answer a request with a body like Cloud Storage, or one for a token."""
    status, headers, body = b"200 OK", b"Content-Type: application/json\r\n", b"{}"
    piece = re.search(rb"(?i)\r\ncontent-range: *bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", head)
    if target == b"/token":
        body = b'{"access_token": "t", "expires_in": 3600, "token_type": "Bearer"}'
    elif method == b"POST" and b"uploadtype=resumable" in target.lower():
        host = re.search(rb"(?i)\r\nhost: *([^\r]+)", head)
        assert host is not None
        headers += b"Location: http://%s/upload/storage/v1/b/bench/o?upload_id=u\r\n" % host[1]
    elif piece is not None and piece[2] and (piece[3] == b"*" or int(piece[2]) + 1 < int(piece[3])):
        status, headers, body = b"308 Resume Incomplete", b"Range: bytes=0-%s\r\n" % piece[2], b""
    elif found := re.search(rb'(?i)\r\nx-goog-hash: *crc32c=(\S+)|"crc32c": *"[^"]+"', head):
        body = b'{"crc32c": "%s"}' % found[1] if found[1] else b"{%s}" % found[0]
    send(connection, status, headers, len(body))
    connection.sendall(body)


if __name__ == "__main__":
    main()
