"""Upload the parts of a checkpoint: chunks first, so that a part's record never lacks one.

Chunks are cut where what changes meets what does not, so that what stays the same from save to save makes the
same chunks, which are not sent again (``shared_chunks``).
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
import xxhash

from cloudspot.errors import CloudspotError, CorruptData, TransientError
from cloudspot.host.low_priority import is_starved, low_priority_session, lower_thread_priority
from cloudspot.interfaces import Data, ObjectStore
from cloudspot.jobstore.access.parallel import each
from cloudspot.jobstore.access.patience import patient
from cloudspot.jobstore.access.stored_records import create_record, find_record
from cloudspot.jobstore.checkpoints.compression import Compression, Cost, compress
from cloudspot.jobstore.checkpoints.integrity import MAX_CHUNK_BYTES, check_part
from cloudspot.jobstore.checkpoints.shared_chunks import Sharing
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Chunk, File, Part, SaveId, new_nonce

CHUNK_BYTES = MAX_CHUNK_BYTES
"""Large enough to make a request worth its latency, small enough to send several at once."""
NUM_THREADS = 4
MIN_BACKGROUND_BYTES = 16 << 20
"""What is less is sent before anybody would feel it."""
MIN_FILE_BYTES = 8 << 20
"""Files of this size or more have chunks of their own."""


class GaveWay(CloudspotError):
    """An upload ended where its caller asked it to, before its part was whole."""


def upload_part(
    store: ObjectStore,
    job_id: str,
    save: SaveId,
    *,
    rank: int,
    num_parts: int,
    relieved: tuple[int, ...] = (),
    data: memoryview,
    seal: bytes,
    sealed_at: datetime,
    cuts: Sequence[int] = (),
    sharing: Sharing | None = None,
    compression: Compression | None = None,
    progress: Callable[[int], None] = lambda _count: None,
    is_repeated: bool = True,
    done: dict[int, Chunk] | None = None,
    gives_way: Callable[[], bool] = lambda: False,
    chunk_bytes: int = CHUNK_BYTES,
    num_threads: int = NUM_THREADS,
    in_background: bool = False,
) -> Part:
    """Upload what one rank of a session has sealed; return its record, which is then in the store.

    Safe to repeat: the same bytes are the same part, whoever put it.

    ``rank`` is the global one, ``num_parts`` the world size without the ``relieved``, ``sealed_at`` UTC.
    ``data``, such as a view of the mapped arena slot, is hashed and put in place; no view of it is kept, not
    even after an error.
    ``cuts`` are offsets, ascending, at which a chunk begins; no chunk has more than ``chunk_bytes``. What
    ``sharing`` finds elsewhere is not sent; the rest is compressed when ``compression`` says so (None:
    never). ``progress`` is called from several threads with the bytes of each chunk that is done. Not
    ``is_repeated``: nobody has ever tried to upload this part, so it is not looked for first. ``done`` holds
    the chunks that an earlier call with the same arguments has put, by their numbers, and takes in those that
    this one puts. ``gives_way`` is asked before each chunk, and again once it is compressed, from several
    threads, and ends the upload once it is true. With ``in_background``, what else runs on this host gets the
    processors first, if the part is large, for as long as it leaves some time to this.

    Raises:
        CorruptData: the store has the part with other bytes, or the seal contradicts it.
        GaveWay: as ``gives_way`` asked.
    """
    part = Part(
        generation=save.generation,
        step=save.step,
        round=save.round,
        rank=rank,
        num_parts=num_parts,
        relieved=relieved,
        kind="session",
        size=len(data),
        chunks=(),
        seal=seal.decode(),
        sealed_at=sealed_at,
        writer=new_nonce(),
    )
    with _forgetting_frames():
        read = partial(_lend_view, data)
        return _upload(
            store,
            job_id,
            part,
            read,
            chunk_runs(len(data), cuts, chunk_bytes),
            num_threads,
            progress,
            sharing=sharing,
            compression=compression,
            is_repeated=is_repeated,
            done=done,
            gives_way=gives_way,
            in_background=in_background,
        )


def upload_directory(
    store: ObjectStore,
    job_id: str,
    save: SaveId,
    *,
    rank: int,
    num_parts: int,
    root: Path,
    files: Sequence[File],
    directory: str,
    sealed_at: datetime,
    check: Callable[[], None] = lambda: None,
    sharing: Sharing | None = None,
    compression: Compression | None = None,
    progress: Callable[[int], None] = lambda _count: None,
    chunk_bytes: int = CHUNK_BYTES,
    num_threads: int = NUM_THREADS,
    in_background: bool = False,
    evidence: str | None = None,
) -> Part:
    """Upload the files of one node's checkpoint directory; return its record, as ``upload_part`` does.

    ``root`` holds the files; ``directory``, relative to the working directory, is where they are restored.
    Files are read, not mapped, so a script that truncates one cannot end this process. ``check`` is called
    after reading and before the record is put; it raises TransientError if the files have changed, so that
    no record ever describes a mixture.

    Raises:
        CorruptData: the store has the part with other bytes, or a path is not safe.
        TransientError: the store failed, a file is shorter than its record says, or ``check`` raised it;
            call again.
    """
    part = Part(
        generation=save.generation,
        step=save.step,
        round=save.round,
        rank=rank,
        num_parts=num_parts,
        kind="directory",
        size=sum(file.size for file in files),
        chunks=(),
        files=tuple(files),
        directory=directory,
        evidence=evidence,
        sealed_at=sealed_at,
        writer=new_nonce(),
    )
    ends = list(itertools.accumulate(file.size for file in files))
    cuts = sorted(
        {
            cut
            for file, end in zip(files, ends, strict=True)
            if file.size >= MIN_FILE_BYTES
            for cut in (end - file.size, end)
        }
    )
    return _upload(
        store,
        job_id,
        part,
        partial(_lend_files, root, files),
        chunk_runs(part.size, cuts, chunk_bytes),
        num_threads,
        progress,
        check,
        sharing=sharing,
        compression=compression,
        in_background=in_background,
    )


def chunk_runs(size: int, cuts: Sequence[int], chunk_bytes: int) -> list[tuple[int, int]]:
    """Return the start and the length of each chunk of a part of ``size`` bytes, in order.

    A chunk begins at each of ``cuts``, and after each ``chunk_bytes`` from there. Cuts that are not in order,
    or not within the part, are left out.
    """
    if not 0 < chunk_bytes <= MAX_CHUNK_BYTES:
        raise ValueError(f"chunk_bytes must be in 1 to {MAX_CHUNK_BYTES}: got {chunk_bytes}")
    starts = [0]
    for cut in cuts:
        if starts[-1] < cut < size:
            starts.append(cut)
    return [
        (start, min(chunk_bytes, end - start))
        for first, end in itertools.pairwise([*starts, size])
        for start in range(first, end, chunk_bytes)
    ]


def put_part(store: ObjectStore, job_id: str, part: Part) -> Part:
    """Put the record of a part whose chunks are in the store; return the record that stands.

    Raises:
        CorruptData: the record that stands is of other bytes.
    """
    check_part(part)
    key = keys.part(job_id, part.save, part.rank)
    return _same(create_record(store, key, part), part, key)


def xxh3_128(data: Data) -> str:
    """Return the checksum of a chunk, in hex."""
    return xxhash.xxh3_128_hexdigest(data)


_Read = Callable[[int, int], AbstractContextManager[Data]]
"""Lends a number of a part's bytes (the second argument) from a start (the first, inclusive)."""


@contextmanager
def _lend_view(data: memoryview, start: int, length: int) -> Iterator[Data]:
    with data[start : start + length] as view:
        yield view


@contextmanager
def _lend_files(root: Path, files: Sequence[File], start: int, length: int) -> Iterator[Data]:
    """Lend the bytes of files, one after the other in list order."""
    buffer = bytearray(length)
    with memoryview(buffer) as view:
        filled = 0
        for path, offset, count in extents(files, start, length):
            with view[filled : filled + count] as target:
                _fill(root / path, offset, target)
            filled += count
    yield buffer


def _fill(path: Path, offset: int, target: memoryview) -> None:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            filled = 0
            while filled < len(target):
                with target[filled:] as rest:
                    count = file.readinto(rest) or 0
                if count == 0:
                    raise TransientError(f"{path} became shorter while it was uploaded")
                filled += count
    except OSError as error:
        raise TransientError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error


def extents(files: Sequence[File], start: int, length: int) -> Iterator[tuple[str, int, int]]:
    """Yield where a run of a part's bytes lies: file, offset in the file, length."""
    end, position = start + length, 0
    for file in files:
        low, high = max(start, position), min(end, position + file.size)
        if low < high:
            yield file.name, low - position, high - low
        position += file.size


def _upload(
    store: ObjectStore,
    job_id: str,
    part: Part,
    read: _Read,
    runs: Sequence[tuple[int, int]],
    num_threads: int,
    progress: Callable[[int], None],
    check: Callable[[], None] = lambda: None,
    *,
    sharing: Sharing | None,
    compression: Compression | None,
    is_repeated: bool = True,
    done: dict[int, Chunk] | None = None,
    gives_way: Callable[[], bool] = lambda: False,
    in_background: bool,
) -> Part:
    store = patient(store)
    key = keys.part(job_id, part.save, part.rank)
    # Once the record stands, its chunks are never written again: a commit may name them.
    found = find_record(store, key, Part) if is_repeated else None

    compresses = compression is not None and compression.is_used(in_background=in_background)
    costs: list[Cost] = []
    yields = in_background and part.size >= MIN_BACKGROUND_BYTES
    gets_nothing = threading.Event()

    def give_way() -> None:
        if gives_way():
            raise GaveWay(f"the upload of {key} gave way")

    def put(number: int, data: Data) -> int | None:
        """Put a chunk; return how many bytes it has in the store if it is compressed."""
        began = time.monotonic()
        compressed = compress(data, has_time) if compresses else None
        compressed_at = time.monotonic()
        body = data if compressed is None else compressed
        form = keys.chunk if compressed is None else keys.compressed_chunk
        chunk_key = form(job_id, part.save, part.rank, number)
        store.put(chunk_key, body)
        put_seconds = time.monotonic() - compressed_at
        costs.append(Cost(compressed_at - began, len(data) - len(body), put_seconds, len(body)))
        return None if compressed is None else len(body)

    def has_time() -> bool:
        """Return whether there is time to compress, which takes much longer than to hash and to send."""
        give_way()
        if yields and is_starved():
            gets_nothing.set()
        return not gets_nothing.is_set()

    chunks = {} if done is None else done
    for chunk in chunks.values():
        progress(chunk.size)

    def carry(number: int) -> None:
        give_way()
        with read(*runs[number]) as data:
            content = len(data), xxh3_128(data)
            chunk = None if found is not None or sharing is None else sharing.find(content)
            if chunk is None:
                stored = put(number, data) if found is None else None
                chunk = Chunk(size=content[0], xxh3_128=content[1], stored=stored)
            chunks[number] = chunk
            progress(len(data))

    left = [number for number in range(len(runs)) if number not in chunks]
    if yields:

        def carry_if_there_is_time(number: int) -> None:
            if not gets_nothing.is_set():
                carry(number)
                if is_starved():
                    gets_nothing.set()

        with low_priority_session():
            each(
                carry_if_there_is_time,
                left,
                num_threads=num_threads,
                begin_thread=lower_thread_priority,
            )
    each(carry, [number for number in left if number not in chunks], num_threads=num_threads)
    if compression is not None and in_background:
        compression.note(costs)
    check()
    part = msgspec.structs.replace(part, chunks=tuple(chunks[number] for number in range(len(runs))))
    if found is not None:
        check_part(part)
        return _same(found, part, key)
    return put_part(store, job_id, part)


def _same(standing: Part, ours: Part, key: str) -> Part:
    """Return the standing record if it names the same bytes as ours."""
    if _content(standing) != _content(ours):
        raise CorruptData(f"{key} exists already and names other bytes")
    return standing


def _content(part: Part) -> tuple[object, ...]:
    chunks = tuple((chunk.size, chunk.xxh3_128) for chunk in part.chunks)
    return part.kind, part.ranks, chunks, part.seal, part.files, part.directory


@contextmanager
def _forgetting_frames() -> Iterator[None]:
    """Clear the frames of an error that passes: a view of the data in one would keep its mapping open."""
    try:
        yield
    except BaseException as error:
        link: BaseException | None = error
        while link is not None:
            traceback.clear_frames(link.__traceback__)
            link = link.__cause__ or link.__context__
        raise
