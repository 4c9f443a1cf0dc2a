"""Fetch checkpoints from the bucket to the disk: verify every chunk, and write nothing outside the target."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cloudspot.errors import CloudspotError, CorruptData
from cloudspot.host.names import SymlinkError, make_parents, printable
from cloudspot.host.partial_files import partial_directory, write_whole
from cloudspot.host.piecewise_writes import write_at
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.disk_room import check_room
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.checkpoints.chunks import (
    StoredChunk,
    check_sizes,
    read_blocks,
    read_chunk,
    stored_chunks,
)
from cloudspot.jobstore.checkpoints.integrity import check_manifest
from cloudspot.jobstore.checkpoints.parts import NUM_THREADS, extents, xxh3_128
from cloudspot.jobstore.layout.records import File, Manifest, Part
from cloudspot.train.handoff import ON_DEMAND, RESTORE_MANIFEST

_MAX_LINK_BYTES = 4096
"""The maximum length of a path on Linux."""
_AGE_NANOSECONDS = 1_000_000
"""The difference between the modification times of successive files in a restored directory."""


def verify(
    store: ObjectStore,
    job_id: str,
    manifest: Manifest,
    *,
    progress: Callable[[int], None] = lambda _count: None,
) -> None:
    """Read every chunk of the checkpoint and verify its checksum; pass the number of bytes to ``progress``.

    Raises:
        CorruptData: the manifest contradicts itself, or a chunk is missing, too short, too long or changed,
            even on a second read; the message names the first problem.
    """
    check_manifest(manifest)
    store = with_retries(store)
    chunks = stored_chunks(job_id, manifest)
    check_sizes(store, job_id, manifest, chunks)

    def check(stored: StoredChunk) -> None:
        try:
            size = sum(len(block) for _, block in read_blocks(store, stored))
        except CorruptData:  # as in ``read_chunk``
            size = sum(len(block) for _, block in read_blocks(store, stored))
        progress(size)

    map_parallel(check, chunks, num_threads=NUM_THREADS)


def fetch(
    store: ObjectStore,
    job_id: str,
    manifest: Manifest,
    directory: Path,
    *,
    present: Collection[int] = (),
    nodes: Sequence[int] | None = None,
    accept: Callable[[Path], None] = lambda _root: None,
    progress: Callable[[int], None] = lambda _count: None,
    num_threads: int = NUM_THREADS,
) -> int:
    """Write a checkpoint to the disk, verified.

    The files of a session's checkpoint are written to ``directory``, which is created if needed:
    ``part-<rank>.bin`` for each rank, and ``restore.json`` last. A script's own checkpoint is restored as its
    original directory, below ``directory`` (the working directory). The checkpoint appears there only when it
    is complete; files that it has outside any directory replace existing ones. Before it appears, ``accept``
    is called with the path of the directory that holds it, and may raise. Files with other names are left
    alone, and no symlink is followed. ``progress`` is called with the number of bytes as they arrive.

    For a script's own checkpoint, ``nodes`` lists the nodes whose files are fetched; if several nodes have a
    file of the same path, the first node's is kept. With None, the files of all nodes are fetched; if several
    nodes have files, each node's are put below ``node-<number>``.

    For a session's checkpoint, the files of the ranks in ``present`` are already in ``directory``, and no
    other process may write to them. Chunks that verify there are not read from the store; their total bytes
    are returned.

    Raises:
        CorruptData: the manifest is not safe to follow, or a chunk is missing, too short, too long or
            changed.
        CloudspotError: the disk refuses, it has too little space (which is checked before anything is
            written), or the checkpoint directory exists already.
    """
    check_manifest(manifest)
    store = with_retries(store)
    chunks = [
        stored for stored in stored_chunks(job_id, manifest) if nodes is None or stored.part.rank in nodes
    ]
    writer = _ChunkWriter(store, chunks, present, progress)
    # All chunks must exist before a byte is written, so that no false size in the manifest can fill the disk.
    check_sizes(store, job_id, manifest, chunks)
    with _disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        _check_room(directory, manifest, sum(stored.chunk.size for stored in chunks))
        if manifest.kind == "session":
            files = _make_files(manifest, directory, present)
            map_parallel(
                lambda s: writer.write(directory, files[s.part.rank], s), chunks, num_threads=num_threads
            )
            write_whole(directory / RESTORE_MANIFEST, _description(manifest))
        else:
            _fetch_directories(manifest, nodes, chunks, directory, writer, accept, num_threads)
    return writer.present_bytes


def holds_files(manifest: Manifest, node: int, directory: Path) -> bool:
    """Return whether the directory holds a node's files of a script's own checkpoint, unchanged."""
    buffer = bytearray(1 + max((chunk.size for part in manifest.parts for chunk in part.chunks), default=0))
    part = manifest.parts[node]
    try:
        sizes = [(directory / (part.directory or "") / file.name).lstat().st_size for file in part.files]
        return sizes == [file.size for file in part.files] and all(
            _is_there(directory / (part.directory or ""), part.files, stored, buffer)
            for stored in stored_chunks("", manifest)
            if stored.part.rank == node
        )
    except OSError:
        return False


def lay_out(
    store: ObjectStore, job_id: str, manifest: Manifest, directory: Path, *, present: Collection[int] = ()
) -> None:
    """Make the files of a session's checkpoint as ``fetch`` does, but empty; ``fetch_ranges`` fills them.

    Check that the store has all chunks. The files of the ranks in ``present`` are left unchanged.

    Raises:
        CorruptData: the manifest is not safe to follow, or a chunk is missing or has another size.
        CloudspotError: the disk refuses.
    """
    check_manifest(manifest)
    check_sizes(with_retries(store), job_id, manifest, stored_chunks(job_id, manifest))
    with _disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        _make_files(manifest, directory, present)
        write_whole(directory / RESTORE_MANIFEST, _description(manifest, on_demand=True))


def fetch_ranges(
    store: ObjectStore,
    job_id: str,
    manifest: Manifest,
    directory: Path,
    ranges: Mapping[str, Sequence[tuple[int, int]]],
    *,
    progress: Callable[[int], None] = lambda _count: None,
    num_threads: int = NUM_THREADS,
) -> tuple[int, int]:
    """Write verified bytes into some ranges of the files that ``lay_out`` has made.

    ``ranges`` maps each file to pairs of a first byte and the byte after the last one. Every chunk that a
    range touches is read whole, unless the file already holds its verified bytes. Return the total bytes of
    all touched chunks, and of those that the files held already.

    Raises:
        CorruptData: a chunk is missing, too short, too long or changed.
        CloudspotError: the disk refuses, or has too little space for the chunks.
    """
    store = with_retries(store)
    chunks = [stored for stored in stored_chunks(job_id, manifest) if _is_touched(stored, ranges)]
    writer = _ChunkWriter(store, chunks, {part.rank for part in manifest.parts}, progress)
    files = {part.rank: _files_of(part) for part in manifest.parts}
    num_bytes = sum(stored.chunk.size for stored in chunks)
    with _disk_errors(directory):
        _check_room(directory, manifest, num_bytes)
        map_parallel(
            lambda s: writer.write(directory, files[s.part.rank], s), chunks, num_threads=num_threads
        )
    return num_bytes, writer.present_bytes


def _is_touched(stored: StoredChunk, ranges: Mapping[str, Sequence[tuple[int, int]]]) -> bool:
    end = stored.start + stored.chunk.size
    return any(low < end and stored.start < high for low, high in ranges.get(part_file(stored.part.rank), ()))


class _ChunkWriter:
    """Writes chunks to files. Each thread reuses its buffer, because touching fresh memory costs most."""

    def __init__(
        self,
        store: ObjectStore,
        chunks: Sequence[StoredChunk],
        present: Collection[int],
        progress: Callable[[int], None],
    ) -> None:
        """Take the chunks to write. Chunks of the ranks in ``present`` may be in the files already."""
        self._store = store
        self._present = present
        self._progress = progress
        self._own = threading.local()
        self._room = 1 + max((stored.chunk.size for stored in chunks), default=0)
        self._found: list[int] = []

    @property
    def present_bytes(self) -> int:
        """The total bytes of the chunks that were already in the files."""
        return sum(self._found)

    def write(self, root: Path, files: Sequence[File], stored: StoredChunk) -> None:
        """Write a chunk's verified bytes to its files below a directory, unless they are there already."""
        if not hasattr(self._own, "buffer"):
            self._own.buffer = bytearray(self._room)
        if stored.part.rank in self._present and _is_there(root, files, stored, self._own.buffer):
            self._found.append(stored.chunk.size)
        else:
            with read_chunk(self._store, stored, self._own.buffer) as data:
                _write(root, files, stored, data)
        self._progress(stored.chunk.size)


def is_restored(directory: Path, manifest: Manifest) -> bool:
    """Return whether a session's checkpoint was restored to the directory; no part is read.

    Raises:
        CorruptData: the manifest is not safe to follow.
    """
    try:
        restored = (directory / RESTORE_MANIFEST).read_bytes()
    except OSError:
        return False
    check_manifest(manifest)
    sizes = {part_file(part.rank): part.size for part in manifest.parts}
    there = {path.name: path.lstat().st_size for path in directory.iterdir() if path.name in sizes}
    return restored in (_description(manifest), _description(manifest, on_demand=True)) and there == sizes


def is_fetched_on_demand(directory: Path) -> bool:
    """Return whether ``lay_out`` has made the checkpoint files in the directory."""
    found = json.loads((directory / RESTORE_MANIFEST).read_bytes())
    return isinstance(found, dict) and found.get(ON_DEMAND) is True


def part_file(rank: int) -> str:
    """Return the name of the file that holds a rank's part."""
    return f"part-{rank}.bin"


def _files_of(part: Part) -> tuple[File]:
    return (File(path=part_file(part.rank), size=part.size, mode=0o600),)


def _make_files(manifest: Manifest, directory: Path, present: Collection[int]) -> dict[int, tuple[File]]:
    """Make empty files for a session's ranks outside ``present``; return the files of all ranks."""
    (directory / RESTORE_MANIFEST).unlink(missing_ok=True)
    files = {part.rank: _files_of(part) for part in manifest.parts}
    for rank, (file,) in files.items():
        if rank not in present:
            _remove(directory / file.path)
        _set_size(directory / file.path, file.size, flags=0 if rank in present else os.O_CREAT | os.O_EXCL)
    return files


def _description(manifest: Manifest, *, on_demand: bool = False) -> bytes:
    """Return the restore manifest, which the training reads, with the seals exactly as they were written."""
    head = {
        "generation": manifest.generation,
        "step": manifest.step,
        "world_size": manifest.parts[0].parsed_seal.world_size,
        **({ON_DEMAND: True} if on_demand else {}),
    }
    parts = [
        f'{{"rank": {part.rank}, "file": "{part_file(part.rank)}", "seal": {part.seal}}}'
        for part in manifest.parts
    ]
    return f'{json.dumps(head)[:-1]}, "parts": [{", ".join(parts)}]}}'.encode()


def _fetch_directories(
    manifest: Manifest,
    nodes: Sequence[int] | None,
    chunks: Sequence[StoredChunk],
    directory: Path,
    writer: _ChunkWriter,
    accept: Callable[[Path], None],
    num_threads: int,
) -> None:
    order = [part.rank for part in manifest.parts] if nodes is None else nodes
    parts = [manifest.parts[rank] for rank in order]
    for name in {part.directory or "" for part in parts} - {"."}:
        _check_free(directory, name)
    with partial_directory(directory) as staging:
        whole = staging / "whole"
        roots = {part.rank: _root_of(staging, part) for part in parts}
        for part in parts:
            for file in part.files:
                # Require a new file, because a disk that ignores case maps two names to the same file.
                path = make_parents(roots[part.rank], file.name)
                _set_size(path, file.size, flags=os.O_CREAT | os.O_EXCL)
        map_parallel(
            lambda s: writer.write(roots[s.part.rank], s.part.files, s), chunks, num_threads=num_threads
        )
        for part in parts:
            first = time.time_ns() - len(part.files) * _AGE_NANOSECONDS
            for number, file in enumerate(part.files):
                path = roots[part.rank] / file.name
                path.chmod(file.mode & 0o777)
                # Some trainers, such as Lightning, resume from the newest file.
                written_at = first + number * _AGE_NANOSECONDS
                os.utime(path, ns=(written_at, written_at))
            for file in part.files:
                if file.is_link:
                    _make_link(roots[part.rank], file, part)
        for part in reversed(parts):
            place = whole / f"node-{part.rank}" if nodes is None and len(parts) > 1 else whole
            place.mkdir(parents=True, exist_ok=True)
            _place(staging / str(part.rank), place)
        accept(whole)
        _place(whole, directory)


def _root_of(staging: Path, part: Part) -> Path:
    """Make a directory for the files of a part, apart from those of other parts; return its path."""
    root = staging / str(part.rank)
    root.mkdir()
    return root if part.directory == "." else make_parents(root, f"{part.directory}/file").parent


def _make_link(root: Path, file: File, part: Part) -> None:
    """Make a link to a file of the same checkpoint or to a directory of such files; refuse all others."""
    path = root / file.name
    target = os.fsdecode(path.read_bytes()) if file.size <= _MAX_LINK_BYTES else ""
    lands = posixpath.normpath(posixpath.join(posixpath.dirname(file.name), target))
    is_within = any(f"{one.name}/".startswith(f"{lands}/") for one in part.files)
    if not target or "\0" in target or posixpath.isabs(target) or not is_within:
        raise CorruptData(f"the link {file.path!r} leads to {printable(target)!r}, outside its checkpoint")
    path.unlink()
    path.symlink_to(target)


def _place(source: Path, target: Path) -> None:
    """Move the contents of one directory to another, top-level files last, because these mark a checkpoint.

    A new directory appears in one step; an existing file is replaced.
    """
    for entry in sorted(source.iterdir(), key=lambda path: (not path.is_dir() or path.is_symlink(), path)):
        place = target / entry.name
        is_directory = entry.is_dir() and not entry.is_symlink()
        if is_directory and place.is_symlink():
            raise CorruptData(
                f"checkpoint directory {printable(entry.name)!r}: {SymlinkError(place).strerror}"
            )
        if is_directory and place.is_dir():
            _place(entry, place)
        else:
            entry.rename(place)


def _check_room(directory: Path, manifest: Manifest, num_bytes: int) -> None:
    """Check that the disk has space for these bytes of a checkpoint.

    A few compressed bytes can claim to be a chunk of any size. Space that this checkpoint's part files
    already occupy counts as free.
    """
    names = {part_file(part.rank) for part in manifest.parts}
    held = sum(path.lstat().st_blocks * 512 for path in directory.iterdir() if path.name in names)
    check_room(directory, num_bytes - held)


def _set_size(path: Path, size: int, *, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def _is_there(root: Path, files: Sequence[File], stored: StoredChunk, buffer: bytearray) -> bool:
    """Return whether the files already hold the verified bytes of a chunk."""
    position = 0
    with memoryview(buffer) as room:
        for name, offset, length in extents(files, stored.start, stored.chunk.size):
            descriptor = os.open(root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                with room[position : position + length] as target:
                    position += os.preadv(descriptor, [target], offset)
            finally:
                os.close(descriptor)
        with room[:position] as data:
            return xxh3_128(data) == stored.chunk.xxh3_128


def _write(root: Path, files: Sequence[File], stored: StoredChunk, data: memoryview) -> None:
    """Write a chunk's bytes to the files that its part consists of."""
    position = 0
    for name, offset, length in extents(files, stored.start, stored.chunk.size):
        descriptor = os.open(root / name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with data[position : position + length] as run:
                write_at(descriptor, run, offset)
        finally:
            os.close(descriptor)
        position += length


def _check_free(directory: Path, name: str) -> None:
    """Check that a checkpoint directory does not exist yet, and make its parent directories."""
    try:
        path = make_parents(directory, name)
    except SymlinkError as error:
        raise CorruptData(f"checkpoint directory {name!r}: {error.strerror}") from error
    if os.path.lexists(path):
        raise CloudspotError(f"checkpoint directory {path} already exists; remove it first")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CloudspotError(
            f"cannot write a checkpoint to {directory}: {error.strerror or error}"
        ) from error
