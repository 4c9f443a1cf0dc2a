"""Staging of inputs from S3 against s5cmd, rclone and threaded boto3, for many small and few large files.

    python benchmarks/stage_from_s3.py [--directory DIR] [--small 20000] [--large 4] [--gb 5] [--rounds 3]
                                       [--latency-ms 0]

The server implements just enough of S3 and sends from memory, over plain HTTP on loopback; TLS would be an
equal addition for all clients. For each small object it returns its MD5 and, on request, a CRC-32, like S3
for objects that current SDKs upload in one piece. Staging checks the CRC-32, and rclone the MD5 unless that
is switched off; s5cmd and boto3 check nothing here.

Each round stages into an empty cache, like an agent, and makes the others fetch the same objects into an
empty directory, in rotating order. The others do not sync their files, so a `sync` of the file system counts
for all. Programs that are not on the PATH are reported and left out. Then staging is killed in the middle and
restarted, and finally it is started with all files staged. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import itertools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from object_store import Sink, asked_range, read_head, s3_environment, send_bytes

STAGE = """
import sys, time
from contextlib import contextmanager
from pathlib import Path
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobstore.inputs.input_cache import InputCache, Staging
from cloudspot.jobstore.inputs.inputs import open_input

@contextmanager
def progress(total, here):
    yield lambda count: None

staging = Staging(lambda request: request(), time.sleep, progress)
print(InputCache(Path(sys.argv[2])).stage(open_input(DataSpec(url=sys.argv[1])), staging).fetched_bytes)
"""
UPLOADED_IN_PARTS = 16 << 20
"""Objects from this size on are uploaded in parts, and have no checksum of the whole object."""
DATE = "Fri, 20 Nov 2026 12:00:00 GMT"


class Server(Sink):
    """Serves buckets of equal objects."""

    def __init__(self, buckets: dict[str, tuple[int, int]], *, latency_seconds: float = 0.0) -> None:
        """Create it with each bucket's number of objects and their size, and the latency of each object."""
        super().__init__(max(size for _, size in buckets.values()))
        self._buckets = buckets
        self._latency_seconds = latency_seconds
        self._sums = {size: sums(size) for _, size in buckets.values() if size < UPLOADED_IN_PARTS}

    def answer(self, connection: socket.socket, file: int) -> None:
        """Answer the connection's requests until the client leaves."""
        rest = b""
        while True:
            head, rest = read_head(connection, rest)
            if not head:
                return
            method, target = head.decode().split(" ", 2)[:2]
            url = urlsplit(target)
            bucket, _, key = unquote(url.path).lstrip("/").partition("/")
            count, size = self._buckets[bucket]
            if not key:
                body = b"" if method == "HEAD" else self._list(bucket, count, size, parse_qs(url.query))
                connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                continue
            span = asked_range(head, size)
            first, last = span or (0, size - 1)
            status = "200 OK" if span is None else "206 Partial Content"
            told = "" if span is None else f"Content-Range: bytes {first}-{last}/{size}\r\n"
            if size in self._sums and span is None and b"x-amz-checksum-mode: enabled" in head.lower():
                told = f"x-amz-checksum-crc32: {self._sums[size][1]}\r\n"
            if self._latency_seconds:
                time.sleep(self._latency_seconds)
            connection.sendall(
                f"HTTP/1.1 {status}\r\nETag: {self._etag(key, size)}\r\n"
                f"Last-Modified: {DATE}\r\nAccept-Ranges: bytes\r\n"
                f"{told}Content-Length: {last - first + 1}\r\n\r\n".encode()
            )
            if method == "GET":
                send_bytes(connection, file, first, last)

    def _etag(self, key: str, size: int) -> str:
        return f'"{self._sums[size][0]}"' if size in self._sums else f'"{key}-2"'

    def _list(self, bucket: str, count: int, size: int, query: dict[str, list[str]]) -> bytes:
        after = next(
            (query[name][0] for name in ("continuation-token", "start-after", "marker") if name in query), ""
        )
        limit = min(int(query.get("max-keys", ["1000"])[0]), 1000)
        names = [f"{number:06}" for number in range(count)]
        left = [name for name in names if name > after and name.startswith(query.get("prefix", [""])[0])]
        more, page = len(left) > limit, left[:limit]
        objects = "".join(
            f"<Contents><Key>{name}</Key><LastModified>2026-11-20T12:00:00.000Z</LastModified>"
            f"<ETag>{self._etag(name, size)}</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass>"
            "</Contents>"
            for name in page
        )
        following = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
        return (
            f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount><MaxKeys>{limit}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{following}{objects}</ListBucketResult>"
        ).encode()


def sums(size: int) -> tuple[str, str]:
    """Return the MD5 and the CRC-32, in S3's format, of an object of this size: see ``Sink``."""
    content = (b"\1" + bytes(4095)) * (size // 4096 + 1)
    crc = zlib.crc32(content[:size]).to_bytes(4, "big")
    return hashlib.md5(content[:size]).hexdigest(), base64.b64encode(crc).decode()


# --- the methods ------------------------------------------------------------------------------


def stage(bucket: str, to: Path) -> list[str]:
    return [sys.executable, "-c", STAGE, f"s3://{bucket}/", str(to)]


def s5cmd(bucket: str, to: Path) -> list[str]:
    url = os.environ["AWS_ENDPOINT_URL"]
    return ["s5cmd", "--endpoint-url", url, "--log", "error", "cp", f"s3://{bucket}/*", f"{to}/"]


def rclone(bucket: str, to: Path, *more: str) -> list[str]:
    options = f"provider=Other,env_auth=true,list_version=2,endpoint='{os.environ['AWS_ENDPOINT_URL']}'"
    remote = f":s3,{options}:{bucket}"
    number = str(16 * len(os.sched_getaffinity(0)))  # the concurrency of staging
    fast = ["--transfers", number, "--checkers", "16", "--multi-thread-streams", "4", *more]
    return ["rclone", "copy", remote, str(to), "--config", "/dev/null", *fast]


def rclone_unchecked(bucket: str, to: Path) -> list[str]:
    return rclone(bucket, to, "--ignore-checksum")


BOTO3 = """
import shutil, sys
from concurrent.futures import ThreadPoolExecutor
import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
config = Config(max_pool_connections=32, response_checksum_validation="when_required")
client = boto3.client("s3", config=config)
pages = client.get_paginator("list_objects_v2").paginate(Bucket=sys.argv[1])
keys = [one["Key"] for page in pages for one in page["Contents"]]
large = TransferConfig(max_concurrency=16, multipart_chunksize=16 << 20)

def fetch(key):
    with open(f"{sys.argv[2]}/{key}", "wb") as file:
        shutil.copyfileobj(client.get_object(Bucket=sys.argv[1], Key=key)["Body"], file, 1 << 20)

if len(keys) > 16:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(fetch, keys))
else:
    for key in keys:
        client.download_file(sys.argv[1], key, f"{sys.argv[2]}/{key}", Config=large)
"""


def boto3(bucket: str, to: Path) -> list[str]:
    return [sys.executable, "-c", BOTO3, bucket, str(to)]


WAYS: dict[str, Callable[[str, Path], list[str]]] = {
    "staged": stage, "s5cmd": s5cmd, "rclone": rclone, "rclone, unchecked": rclone_unchecked,
    "boto3 in 16 threads": boto3,
}  # fmt: skip


@contextmanager
def directory(root: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path)
        os.sync()


def run(command: list[str]) -> tuple[float, float, float]:
    """Return the seconds until all files are on the disk, the CPU seconds, and the peak memory in MB."""
    os.sync()
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[0]} ended with status {process.returncode}")
    os.sync()
    took = time.perf_counter() - began
    return took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def measure(bucket: str, num_bytes: int, root: Path, rounds: int) -> None:
    ways = {name: way for name, way in WAYS.items() if shutil.which(way(bucket, root)[0])}
    for name in WAYS.keys() - ways.keys():
        print(f"{name} is not on the PATH: left out")
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in itertools.islice(itertools.cycle(ways), number, number + len(ways)):
            way = ways[name]
            with directory(root) as to:
                measured = run(way(bucket, to))
            if number:  # in the first pass, the memory of the server and the machine is cold
                found[name].append(measured)
    print(f"{bucket}: {num_bytes / 1e9:.2f} GB")
    for name, all_of_it in found.items():
        took, cpu, memory = (statistics.median(column) for column in zip(*all_of_it, strict=True))
        ratios = sorted(other[0] / ours[0] for ours, other in zip(found["staged"], all_of_it, strict=True))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(
            f"  {name:20} {took:7.2f} s, {num_bytes / took / 1e6:6.0f} MB/s, "
            f"{cpu:6.1f} s of the processor, {memory:4.0f} MB; staging goes at {spread} of this rate"
        )
    with directory(root) as to:
        began = time.perf_counter()
        killed = subprocess.Popen(stage(bucket, to), stdout=subprocess.DEVNULL)
        time.sleep(statistics.median(one[0] for one in found["staged"]) / 2)
        killed.kill()
        killed.wait()
        took = time.perf_counter() - began
        rest, again = (subprocess.run(stage(bucket, to), capture_output=True, check=True) for _ in range(2))
        print(
            f"  killed after {took:.1f} s, the next start fetched "
            f"{int(rest.stdout) / 1e9:.2f} GB, and the third {int(again.stdout)} bytes"
        )


def main() -> None:
    """Serve, measure, and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--directory", type=Path, help="the directory for all files (default: a temporary one)"
    )
    parser.add_argument(
        "--small", type=int, default=20_000, help="the number of small files, or 0 (default 20,000)"
    )
    parser.add_argument("--large", type=int, default=4, help="the number of large files, or 0 (default 4)")
    parser.add_argument("--gb", type=float, default=5.0, help="the total GB of either kind (default 5)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--latency-ms", type=float, default=0.0, help="the latency of each object (default 0)"
    )
    given = parser.parse_args()
    counts = {"small-files": given.small, "large-files": given.large}
    buckets = {name: (count, int(given.gb * 1e9 / count)) for name, count in counts.items() if count}
    os.environ.pop("AWS_CA_BUNDLE", None)  # rclone rejects it, and nothing here is encrypted
    with (
        tempfile.TemporaryDirectory(dir=given.directory) as name,
        Server(buckets, latency_seconds=given.latency_ms / 1e3) as server,
        s3_environment(f"http://127.0.0.1:{server.port}"),
    ):
        for bucket, (count, size) in buckets.items():
            measure(bucket, count * size, Path(name), given.rounds)


if __name__ == "__main__":
    main()
