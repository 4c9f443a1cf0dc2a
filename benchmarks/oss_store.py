"""What bytes cost on their way to OSS and back: the store, and oss2's own ways, to one plain sink.

    python benchmarks/oss_store.py [--mib 256] [--rounds 3]

The sink, a process of its own, speaks just enough of OSS: it tells the CRC-64 of what it is sent, and sends
what it holds in memory, over plain HTTP on loopback; the real one adds TLS, the same for all. Rates are of
one run; compare the ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

from fastcrc import crc64

BLOCK_BYTES = 1 << 20
KEY_ID, KEY_SECRET = "LTAI5tEXAMPLEexample0001", "example0secret1example2secret3"
INFO = (
    b"<BucketInfo><Bucket><CreationDate>2026-01-01T00:00:00.000Z</CreationDate>"
    b"<ExtranetEndpoint>x</ExtranetEndpoint><IntranetEndpoint>x</IntranetEndpoint>"
    b"<Location>oss-cn-hangzhou</Location><StorageClass>Standard</StorageClass><Name>bench</Name>"
    b"<Owner><DisplayName>1</DisplayName><ID>1</ID></Owner>"
    b"<AccessControlList><Grant>private</Grant></AccessControlList></Bucket></BucketInfo>"
)
STARTED = b"<R><Bucket>bench</Bucket><Key>k</Key><UploadId>1</UploadId></R>"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="how much goes up and down (default 256)")
    parser.add_argument("--rounds", type=int, default=3, help="how often; medians are shown (default 3)")
    arguments = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    sink = multiprocessing.get_context("fork").Process(
        target=serve, args=(listener, arguments.mib), daemon=True
    )
    sink.start()
    os.environ.update(
        OSS_ENDPOINT=f"http://127.0.0.1:{listener.getsockname()[1]}",
        ALIBABA_CLOUD_ACCESS_KEY_ID=KEY_ID,
        ALIBABA_CLOUD_ACCESS_KEY_SECRET=KEY_SECRET,
        ALIBABA_CLOUD_REGION_ID="cn-hangzhou",
    )
    try:
        measure(arguments.mib, arguments.rounds)
    finally:
        sink.kill()


def measure(num_mib: int, num_rounds: int) -> None:
    """Time every way in turn, so that a noisy moment meets them all."""
    import crcmod.crcmod
    import oss2

    from cloudspot_aliyun.oss import OssStore

    data = content(num_mib)
    store = OssStore("oss://bench")
    plain = oss2.Bucket(
        oss2.AuthV4(KEY_ID, KEY_SECRET), os.environ["OSS_ENDPOINT"], "bench", region="cn-hangzhou"
    )
    kept = bytearray(len(data))

    def upload() -> None:
        with store.open_upload("k") as stream, memoryview(data) as view:
            for start in range(0, len(data), BLOCK_BYTES):
                stream.write(view[start : start + BLOCK_BYTES])
            stream.commit()

    ways: dict[str, Callable[[], object]] = {
        "PUT  oss2 put_object": lambda: plain.put_object("k", data),
        "PUT  OssStore.put": lambda: store.put("k", data),
        "PUT  OssStore.open_upload": upload,
        "GET  oss2 get_object": lambda: plain.get_object("k").read(),
        "GET  OssStore.get": lambda: store.get("k"),
        "GET  OssStore.get_range_into, buffer kept": lambda: store.get_range_into("k", 0, kept),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(num_rounds + 1):
        for name, way in ways.items():
            began, cpu_began = time.perf_counter(), cpu_seconds()
            way()
            if number:  # The first round only warms up.
                seconds[name].append(time.perf_counter() - began)
                cpu[name].append(cpu_seconds() - cpu_began)
    kind = "compiled" if crcmod.crcmod._usingExtension else "in pure Python"  # noqa: SLF001 - said nowhere else
    gigabytes = len(data) / 1e9
    print(f"{gigabytes:.2f} GB, median of {num_rounds}; oss2's crcmod is {kind}")
    print(f"{'':42}{'MB/s':>8}{'of oss2':>9}{'CPU s/GB':>10}")
    for name in ways:
        rate = 1e3 * gigabytes / statistics.median(seconds[name])
        reference = next(other for other in ways if other[:9] == f"{name[:5]}oss2")
        floor = 1e3 * gigabytes / statistics.median(seconds[reference])
        print(f"{name:42}{rate:8.0f}{rate / floor:9.2f}{statistics.median(cpu[name]) / gigabytes:10.2f}")


def content(num_mib: int) -> bytes:
    """Return the bytes that go up and come down."""
    return bytes(range(256)) * (BLOCK_BYTES // 256) * num_mib


def cpu_seconds() -> float:
    """Return the processor time of this process, the client."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def serve(listener: socket.socket, num_mib: int) -> None:
    """Answer until killed, a thread a connection."""
    held = content(num_mib)
    crc = crc64.xz(held)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer_all, args=(connection, held, crc), daemon=True).start()


def answer_all(connection: socket.socket, held: bytes, held_crc: int) -> None:
    """Answer one connection's requests."""
    stream = connection.makefile("rb", buffering=BLOCK_BYTES)
    while True:
        line = stream.readline()
        if not line:
            return
        method, path, _ = line.split()
        crc, has_range = receive(stream)
        status, body = b"200 OK", b""
        if b"bucketInfo" in path:
            body = INFO
        elif b"uploads" in path:
            body = STARTED
        elif method == b"GET":
            crc, body = held_crc, held
            status = b"206 Partial Content" if has_range else status
        head = b'HTTP/1.1 %b\r\nETag: "A"\r\nx-oss-hash-crc64ecma: %d\r\nContent-Length: %d\r\n\r\n'
        connection.sendall(head % (status, crc, len(body)))
        connection.sendall(body)


def receive(stream: BinaryIO) -> tuple[int, bool]:
    """Read a request; return its body's CRC-64, and whether it asks for a range."""
    left, has_range = 0, False
    while (header := stream.readline()) not in {b"\r\n", b""}:
        name, _, value = header.partition(b":")
        has_range |= name.lower() == b"range"
        if name.lower() == b"content-length":
            left = int(value)
    crc = 0
    while left:
        block = stream.read(min(left, BLOCK_BYTES))
        left -= len(block)
        crc = crc64.xz(block, crc)
    return crc, has_range


if __name__ == "__main__":
    main()
