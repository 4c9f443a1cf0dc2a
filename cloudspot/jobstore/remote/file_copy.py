"""The node's end of ``cloudspot cp``: reads or writes a file, verifies it, and resumes interrupted copies.

The module runs as ``python -m cloudspot.jobstore.remote.file_copy`` in the job's environment and needs only
the standard library. The program reads a request, one line of JSON, and answers in lines of JSON; the file's
blocks follow on the same stream. The caller's end uses ``read_from`` and ``write_from``, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

BLOCK_BYTES = 1 << 20
PARTIAL = ".cloudspot-partial"
"""The suffix of the name of a file that is not complete yet."""


class CopyError(Exception):
    """A file cannot be copied; the message names the file and the reason."""


def blocks_of(path: Path) -> list[str]:
    """Return the hashes of a file's full blocks, or an empty list if the file does not exist.

    Raises:
        CopyError: the file cannot be read.
    """
    found = []
    try:
        with path.open("rb") as file:
            while len(block := file.read(BLOCK_BYTES)) == BLOCK_BYTES:
                found.append(hashlib.sha256(block).hexdigest())
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CopyError(f"{path}: {error.strerror}") from error
    return found


def describe(path: Path) -> dict[str, Any]:
    """Return the size, mode and hash of a file.

    Raises:
        CopyError: the path is not a file, or the file cannot be read.
    """
    if path.is_dir():
        raise CopyError(f"{path} is a directory; copy an archive of it, for example one made with tar")
    if path.exists() and not path.is_file():  # a device or a pipe may have no end
        raise CopyError(f"{path} is not a file")
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
            return {
                "size": file.tell(),
                "mode": os.fstat(file.fileno()).st_mode & 0o777,
                "sha256": digest.hexdigest(),
            }
    except OSError as error:
        raise CopyError(f"{path}: {error.strerror}") from error


def read_from(path: Path, has: list[str]) -> tuple[int, Iterator[bytes]]:
    """Return the offset at which to resume a copy, and the rest of the file in blocks.

    ``has`` lists the hashes of the blocks that the copy already has.
    """
    num_same = 0
    for mine, theirs in zip(blocks_of(path), has, strict=False):
        if mine != theirs:
            break
        num_same += 1

    def rest() -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(num_same * BLOCK_BYTES)
            while block := file.read(BLOCK_BYTES):
                yield block

    return num_same * BLOCK_BYTES, rest()


def partial_of(path: Path) -> Path:
    """Return the path of the file while it is incomplete."""
    return path.with_name(f".{path.name}{PARTIAL}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open the incomplete file, and keep other copies from writing to it meanwhile.

    Raises:
        CopyError: another copy is writing to it, or it cannot be opened.
    """
    partial = partial_of(path)
    try:
        while True:
            file = os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
            with file:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not _is_at(file, partial):
                        continue  # another copy has completed and renamed it since it was opened
                    try:
                        yield file
                    finally:
                        if os.fstat(file.fileno()).st_size == 0 and _is_at(file, partial):
                            partial.unlink()
                    return
                raise CopyError(
                    f"{path}: another copy is writing it; if that was interrupted, try again in two minutes"
                )
    except OSError as error:
        raise CopyError(f"{path}: {error.strerror}") from error


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Return whether the open file is still at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def write_from(
    path: Path, file: BinaryIO, about: dict[str, Any], start: int, read: Callable[[int], bytes]
) -> None:
    """Write a file from ``start`` on with the bytes of ``read(most)``; move it to its path once it is whole.

    ``file`` is the file that ``writing`` has opened.

    Raises:
        CopyError: the file does not match its hash, or cannot be written. An incomplete file is kept.
    """
    partial = partial_of(path)
    try:
        file.truncate(start)
        file.seek(start)
        left = about["size"] - start
        while left > 0:
            data = read(min(left, BLOCK_BYTES))
            if not data:
                raise CopyError(f"{path}: {left} bytes are missing; copy it again to continue from there")
            file.write(data)
            left -= len(data)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), about["mode"] & 0o777)
        if describe(partial)["sha256"] != about["sha256"]:
            partial.unlink()
            raise CopyError(f"{path} has changed in the meantime, or a block was damaged; copy it again")
        partial.replace(path)
    except OSError as error:
        raise CopyError(f"{path}: {error.strerror}") from error


def send(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Write a message on a line of its own."""
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Answer one request."""
    request = json.loads(source.readline())
    path = Path(request["path"]).expanduser()
    if request["do"] == "write":
        if path.is_dir():
            path /= request["name"]
        with writing(path) as file:
            send(target, {"path": str(path), "has": blocks_of(partial_of(path))})
            start = json.loads(source.readline())["start"]
            write_from(path, file, request["about"], start, source.read)
        send(target, {"done": True})
        return
    about = describe(path)
    send(target, {"about": about, "path": str(path)})
    start, rest = read_from(path, json.loads(source.readline())["has"])
    send(target, {"start": start})
    target.writelines(rest)
    target.flush()


def main() -> None:
    """Answer one request on the standard streams, with a refusal if the copy fails."""
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except CopyError as error:
        send(sys.stdout.buffer, {"refused": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
