"""Upload the parts of a checkpoint: the chunks first, so that all chunks exist before a part's record does.

Chunks begin and end at the boundaries of items or large files, so items that do not change between two saves
give the same chunks, which are not sent again (``shared_chunks``).
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
from pathlib import Path

import msgspec
import xxhash

from cloudspot.errors import CloudspotError, CorruptData, TransientError
from cloudspot.host.low_priority import is_starved, low_priority_session, lower_thread_priority
from cloudspot.interfaces import Data, ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import create_record, find_record
from cloudspot.jobstore.checkpoints.compression import Compression, Cost, compress
from cloudspot.jobstore.checkpoints.integrity import MAX_CHUNK_BYTES, check_part
from cloudspot.jobstore.checkpoints.shared_chunks import Sharing
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Chunk, File, Part, SaveId, new_nonce
from cloudspot.jobstore.layout.seals import Seal

CHUNK_BYTES = MAX_CHUNK_BYTES
"""Large enough that the latency of a request does not matter, small enough to send several at once."""
NUM_THREADS = 4
MIN_BACKGROUND_BYTES = 16 << 20
"""Smaller parts are sent so quickly that nobody would notice the load."""
MIN_FILE_BYTES = 8 << 20
"""Files of at least this size have their own chunks."""


class GaveWay(CloudspotError):
    """The upload was stopped at its caller's request, before its part was complete."""


Lend = Callable[[int, int], AbstractContextManager[Data]]
"""Lends bytes of a part, given the offset of the first byte and the number of bytes."""


def session_part(seal: Seal, *, sealed_at: datetime) -> Part:
    """Return the record of a part that a rank of a session has sealed, still without chunks."""
    part = Part(
        generation=seal.generation,
        step=seal.step,
        round=seal.round,
        rank=seal.rank,
        num_parts=seal.world_size - len(seal.relieved),
        relieved=seal.relieved,
        rescue=seal.rescue,
        kind="session",
        size=seal.nbytes,
        chunks=(),
        seal=seal.text,
        sealed_at=sealed_at,
        writer=new_nonce(),
    )
    vars(part)["parsed_seal"] = seal
    return part


def directory_part(
    save: SaveId,
    files: Sequence[File],
    *,
    directory: str,
    sealed_at: datetime,
    evidence: str | None = None,
    rank: int = 0,
    num_parts: int = 1,
) -> Part:
    """Return the record of the files of one node's checkpoint directory, still without chunks.

    The files are restored to ``directory``, which is relative to the working directory.
    """
    return Part(
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


class Upload:
    """The upload of one part; after an interruption, it continues where it stopped.

    An upload is safe to repeat, even from another process: the same bytes make the same part, whoever puts
    it.
    """

    def __init__(
        self,
        store: ObjectStore,
        job_id: str,
        part: Part,
        *,
        compression: Compression | None = None,
        is_new: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        num_threads: int = NUM_THREADS,
    ) -> None:
        """Take ``part``, the record without chunks; ``run`` returns the record with chunks.

        ``compression`` decides whether to compress (None: never). ``is_new`` states that nobody has tried to
        upload this part before, so ``run`` does not look for an existing record. No chunk is longer than
        ``chunk_bytes``.
        """
        self._store = with_retries(store)
        self._job_id = job_id
        self._part = part
        self._key = keys.part(job_id, part.save, part.rank)
        self._compression = compression
        self._may_exist = not is_new
        self._runs = chunk_runs(part.size, _cuts(part), chunk_bytes)
        self._num_threads = num_threads
        self._chunks: dict[int, Chunk] = {}
        """The chunks that were uploaded or found, by number."""

    def run(
        self,
        lend: Lend,
        *,
        sharing: Sharing | None = None,
        progress: Callable[[int], None] = lambda _count: None,
        must_yield: Callable[[], bool] = lambda: False,
        check: Callable[[], None] = lambda: None,
        in_background: bool = False,
    ) -> Part:
        """Put the missing chunks, then the record; return the record that is then in the store.

        ``lend`` lends the bytes, which are hashed and uploaded without a copy; no view of them is kept, even
        after an error. Chunks that ``sharing`` finds in another checkpoint are not sent. ``progress`` is
        called from several threads with the size of each finished chunk. ``must_yield`` is called from
        several threads, before each chunk and again after its compression; if it returns true, the upload
        ends. ``check`` is called before the record is put; it raises TransientError if files have changed, so
        that no record describes a mixture of versions. With ``in_background``, the upload of a large part
        lets other programs on this host have the processors first, as long as it still gets some processor
        time.

        Raises:
            CorruptData: the store already has the part with other bytes, or the record contradicts itself.
            GaveWay: ``must_yield`` returned true.
            TransientError: the store failed, a file is shorter than its record states, or ``check`` raised
                it; call again.
        """
        # Once the record is stored, its chunks are never written again, because a commit may name them.
        existing = find_record(self._store, self._key, Part) if self._may_exist else None
        self._may_exist = True
        for chunk in self._chunks.values():
            progress(chunk.size)
        costs: list[Cost] = []
        compresses = self._compression is not None and self._compression.is_used(in_background=in_background)
        yields = in_background and self._part.size >= MIN_BACKGROUND_BYTES
        has_starved = threading.Event()

        def give_way() -> None:
            if must_yield():
                raise GaveWay(f"the upload of {self._key} was stopped at its caller's request")

        def has_time() -> bool:
            """Return whether there is time to compress, which takes much longer than hashing and sending."""
            give_way()
            if yields and is_starved():
                has_starved.set()
            return not has_starved.is_set()

        def carry(number: int) -> None:
            give_way()
            with lend(*self._runs[number]) as data:
                content = len(data), xxh3_128(data)
                chunk = None if existing is not None or sharing is None else sharing.find(content)
                if chunk is None:
                    stored = None
                    if existing is None:
                        stored, cost = self._put(number, data, has_time if compresses else None)
                        costs.append(cost)
                    chunk = Chunk(size=content[0], xxh3_128=content[1], stored=stored)
                self._chunks[number] = chunk
                progress(len(data))

        def carry_if_there_is_time(number: int) -> None:
            if not has_starved.is_set():
                carry(number)
                if is_starved():
                    has_starved.set()

        with _forgetting_frames():
            if yields:
                with low_priority_session():
                    map_parallel(
                        carry_if_there_is_time,
                        self._missing(),
                        num_threads=self._num_threads,
                        begin_thread=lower_thread_priority,
                    )
            map_parallel(carry, self._missing(), num_threads=self._num_threads)
        if self._compression is not None and in_background:
            self._compression.note(costs)
        check()
        chunks = tuple(self._chunks[number] for number in range(len(self._runs)))
        part = msgspec.structs.replace(self._part, chunks=chunks)
        vars(part).update(vars(self._part))  # this keeps the parsed seal
        if existing is not None:
            check_part(part)
            return _same(existing, part, self._key)
        return put_part(self._store, self._job_id, part)

    def _missing(self) -> list[int]:
        return [number for number in range(len(self._runs)) if number not in self._chunks]

    def _put(
        self, number: int, data: Data, may_continue: Callable[[], bool] | None
    ) -> tuple[int | None, Cost]:
        """Put a chunk, compressed unless ``may_continue`` is None; return any compressed size and cost."""
        began = time.monotonic()
        compressed = None if may_continue is None else compress(data, may_continue)
        compressed_at = time.monotonic()
        body = data if compressed is None else compressed
        form = keys.chunk if compressed is None else keys.compressed_chunk
        self._store.put(form(self._job_id, self._part.save, self._part.rank, number), body)
        put_seconds = time.monotonic() - compressed_at
        cost = Cost(compressed_at - began, len(data) - len(body), put_seconds, len(body))
        return None if compressed is None else len(body), cost


def _cuts(part: Part) -> Sequence[int]:
    """Return offsets at which to cut chunks so that unchanged data gives the same chunks in each save."""
    if part.kind == "session":
        seal = part.parsed_seal
        return seal.cuts[: len(seal.items)]  # each item begins at a cut
    ends = list(itertools.accumulate(file.size for file in part.files))
    large = [pair for pair in zip(part.files, ends, strict=True) if pair[0].size >= MIN_FILE_BYTES]
    return sorted({cut for file, end in large for cut in (end - file.size, end)})


def chunk_runs(size: int, cuts: Sequence[int], chunk_bytes: int) -> list[tuple[int, int]]:
    """Return the offset and the length of each chunk of a part of ``size`` bytes, in order.

    A chunk begins at each of ``cuts``, and after every ``chunk_bytes`` from there. Cuts that are out of order
    or outside the part are ignored.
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
    """Put the record of a part whose chunks are in the store; return the record that is then stored there.

    Raises:
        CorruptData: the stored record describes other bytes.
    """
    check_part(part)
    key = keys.part(job_id, part.save, part.rank)
    return _same(create_record(store, key, part), part, key)


def xxh3_128(data: Data) -> str:
    """Return the checksum of a chunk, in hex."""
    return xxhash.xxh3_128_hexdigest(data)


@contextmanager
def lend_view(data: memoryview, start: int, length: int) -> Iterator[Data]:
    """Lend bytes of a view, such as a view of a mapped arena slot."""
    with data[start : start + length] as view:
        yield view


@contextmanager
def lend_files(root: Path, files: Sequence[File], start: int, length: int) -> Iterator[Data]:
    """Lend the bytes of files below ``root``, concatenated in list order.

    The files are read rather than mapped: if a script truncates a mapped file, this process would crash.
    """
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
                    raise TransientError(f"{path} became shorter during its upload")
                filled += count
    except OSError as error:
        raise TransientError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error


def extents(files: Sequence[File], start: int, length: int) -> Iterator[tuple[str, int, int]]:
    """Yield the file, the offset in it and the length of each piece of a range of a part's bytes."""
    end, position = start + length, 0
    for file in files:
        low, high = max(start, position), min(end, position + file.size)
        if low < high:
            yield file.name, low - position, high - low
        position += file.size


def _same(standing: Part, ours: Part, key: str) -> Part:
    """Return the stored record if it describes the same bytes as our record."""
    if _content(standing) != _content(ours):
        raise CorruptData(f"{key} already exists, but describes other bytes")
    return standing


def _content(part: Part) -> tuple[object, ...]:
    chunks = tuple((chunk.size, chunk.xxh3_128) for chunk in part.chunks)
    return part.kind, part.ranks, chunks, part.seal, part.files, part.directory


@contextmanager
def _forgetting_frames() -> Iterator[None]:
    """Clear the frames of errors that leave the block, since a view in a frame keeps its mapping open."""
    try:
        yield
    except BaseException as error:
        link: BaseException | None = error
        while link is not None:
            traceback.clear_frames(link.__traceback__)
            link = link.__cause__ or link.__context__
        raise
