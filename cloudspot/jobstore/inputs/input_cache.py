"""Input files on this machine's disk, named by their content: fetched once, for all jobs and generations.

``objects/`` holds complete files; each file is synced, appears by a rename, and is never written again.
``inputs/<hash of a URL>/`` holds the lock of the process that stages the input, and large files in progress.
After the content, such a file has one byte for each block, which is 1 once the block is written; the file's
name states the block size. So the next process can continue the work of a killed process.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

from cloudspot.errors import CorruptData, ObjectMissing
from cloudspot.host.boot_clock import this_boot
from cloudspot.host.locks import try_lock
from cloudspot.host.partial_files import whole_file
from cloudspot.host.piecewise_writes import write_at
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobstore.access.disk_room import check_fits, check_room
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.inputs.fetching_processes import Fetch, fetching_processes, processes_for
from cloudspot.jobstore.inputs.inputs import (
    BLOCK_BYTES,
    Input,
    InputChanged,
    Wanted,
    open_input,
    version_of_all,
)

T = TypeVar("T")

NUM_THREADS = 16
NUM_ROUNDS = 3
"""The number of times that an input is listed if it keeps changing."""
LOCK_SECONDS = 0.2
"""The interval between checks of whether another process is still staging the same input."""
PORTION_FILES, PORTION_BYTES = 64, 16 << 20
"""The most small files in one request to another process, and their maximum total size."""


class Retry(Protocol):
    """Makes a request and repeats it after transient errors; raises the error that is to end the staging."""

    def __call__(self, request: Callable[[], T], /) -> T:
        """Return the result of the request."""


@dataclass(frozen=True)
class Staging:
    """The way in which an input is brought to this machine."""

    repeat: Retry
    pause: Callable[[float], None]
    """Waits for a number of seconds; raises the error that is to end the staging."""
    open_progress: Callable[[int, int], AbstractContextManager[Callable[[int], None]]]
    """Called with the input's size and the bytes already here; lends a function that is called with further
    bytes.
    """
    num_threads: int = NUM_THREADS
    """The number of threads in each process."""
    num_processes: int = 0
    """The number of processes that fetch small files; 0 chooses a number, 1 means this process alone."""
    spare_share: float = 0.0
    """The share of the disk that must stay free, from 0 to 1."""
    place: Callable[[Staged], None] = lambda _staged: None
    """Called once all files are here, before another process can stage the input and remove a version."""


@dataclass(frozen=True)
class Staged:
    """An input that is completely on this machine."""

    files: Sequence[Wanted]
    num_bytes: int
    fetched_bytes: int
    """The number of bytes that had to be fetched."""
    version: str
    """See ``version_of_all``."""


class InputCache:
    """The cache in a directory, which several processes of this machine may share."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, source: Input, file: Wanted) -> Path:
        """Return the path that the file has once it is here."""
        name = source.content_key(file)
        return self.root / "objects" / name[:2] / name

    def has(self, source: Input, file: Wanted) -> bool:
        """Return whether the complete file is here and has not been changed since."""
        try:
            status = os.lstat(self.path_of(source, file))
        except FileNotFoundError:
            return False
        return status.st_size == file.size and status.st_mtime_ns == _mtime_ns(file)

    def stage(self, source: Input, staging: Staging) -> Staged:
        """Bring every file of the input here, in the versions of a single listing.

        Only one process at a time stages an input. Files that are already here are not fetched again.

        Raises:
            InputMissing: no files exist under the input's URL.
            InputChanged: the input keeps changing.
            CorruptData: a file's hash differs from the one in the job file.
            CloudspotError: a file cannot be fetched, or the disk has too little space.
            OSError: the disk refuses.
        """
        own = self.root / "inputs" / hashlib.sha256(source.spec.url.encode()).hexdigest()[:32]
        own.mkdir(parents=True, exist_ok=True)
        num_fetched, why = 0, ""
        with _waited_lock(own / "lock", staging.pause):
            files = staging.repeat(source.wanted)
            for _ in range(NUM_ROUNDS):
                try:
                    num_fetched += self._fetch(source, files, own, staging)
                    is_whole = True
                except (InputChanged, ObjectMissing) as error:
                    is_whole, why = False, str(error)
                now = staging.repeat(source.wanted)
                version = version_of_all(files)
                if is_whole and version == version_of_all(now):
                    num_bytes = sum(file.size for file in files)
                    staged = Staged(files, num_bytes, num_fetched, version)
                    staging.place(staged)
                    return staged
                gone, new = set(files).difference(now), set(now).difference(files)
                for file in gone:
                    # The stored file may mix versions, or hold a later version.
                    self.path_of(source, file).unlink(missing_ok=True)
                if gone or new:
                    why = f"{source.describe(min(gone | new))} has changed since it was listed"
                files = now
        raise InputChanged(f"{why}, {NUM_ROUNDS} times in a row; stop changing the input, or name a copy")

    def _fetch(self, source: Input, files: Sequence[Wanted], own: Path, staging: Staging) -> int:
        """Fetch the missing files; return the number of bytes fetched."""
        total = sum(file.size for file in files)
        # The progress marks of a large file take space in proportion to its claimed size, so check the claim
        # first.
        check_fits(self.root, total)
        missing = [file for file in files if not self.has(source, file)]
        small = [file for file in missing if file.size <= BLOCK_BYTES]
        large = [
            _Large(self.path_of(source, file), own, source, file)
            for file in missing
            if file.size > BLOCK_BYTES
        ]
        parts = {one.part for one in large}
        for left in own.glob("*.part"):
            if left not in parts:
                left.unlink()  # of an old version, or from an earlier boot
        num_left = sum(file.size for file in small) + sum(one.num_left_bytes for one in large)
        check_room(self.root, num_left, spare_share=staging.spare_share)
        num_processes = staging.num_processes or processes_for(len(small))
        fetch: Fetch = _SmallFiles(self, own, source, staging.num_threads)
        with ExitStack() as stack:
            progress = stack.enter_context(staging.open_progress(total, total - num_left))

            def bring(portion: Sequence[Wanted]) -> None:
                staging.repeat(lambda: fetch(portion))
                progress(sum(file.size for file in portion))

            for one in large:
                stack.callback(one.close)
            blocks = (task for one in large for task in one.tasks(staging.repeat, progress))
            if num_processes > 1:
                fetch = stack.enter_context(fetching_processes(num_processes, fetch))
                portions = (partial(bring, portion) for portion in _portions(small))
                _work((portions, num_processes), (blocks, staging.num_threads))
            else:
                singly = (partial(bring, (file,)) for file in small)
                _work((chain(singly, blocks), staging.num_threads))
        return num_left


class _SmallFiles:
    """Fetches files that take one request each, in this process or in another one."""

    def __init__(self, cache: InputCache, own: Path, source: Input, num_threads: int) -> None:
        self._cache, self._own, self._source, self._num_threads = cache, own, source, num_threads

    def __reduce__(self) -> tuple[Any, ...]:
        root, own = self._cache.root.absolute(), self._own.absolute()
        return _small_files, (root, own, self._source.spec, self._num_threads)

    def __call__(self, files: Sequence[Wanted]) -> None:
        """Fetch the files that are not here yet."""
        missing = [file for file in files if not self._cache.has(self._source, file)]
        failure: BaseException | None = None
        number = self._num_threads
        with ExitStack() as whole:
            # Sync only when all files are written: the file system's journal then commits once for many
            # files.
            fetched = list[tuple[int, Wanted]]()
            try:
                map_parallel(lambda one: fetched.append(self._fetch(one, whole)), missing, num_threads=number)
            except BaseException as error:  # noqa: BLE001 - the other files are kept
                failure = error
            map_parallel(lambda one: _settle(*one), fetched, num_threads=number)
        if failure is not None:
            raise failure

    def _fetch(self, file: Wanted, whole: ExitStack) -> tuple[int, Wanted]:
        """Write the file and return its descriptor; the file appears when ``whole`` is closed."""
        path = self._cache.path_of(self._source, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with ExitStack() as own:
            target = own.enter_context(whole_file(path, mode=0o444, beside=self._own / "lock"))

            def write(at: int, view: memoryview) -> None:
                write_at(target.fileno(), view, at)
                if self._source.spec.sha256 is not None:
                    digest.update(view)

            self._source.read(file, 0, file.size, write)
            _check_hash(self._source, file, digest.hexdigest())
            whole.push(own.pop_all())
        return target.fileno(), file


def _small_files(root: Path, own: Path, spec: DataSpec, num_threads: int) -> _SmallFiles:
    return _SmallFiles(InputCache(root), own, open_input(spec), num_threads)


def _portions(files: Sequence[Wanted]) -> Iterator[Sequence[Wanted]]:
    """Yield the files in portions that take a process some time, but not long."""
    portion: list[Wanted] = []
    num_bytes = 0
    for file in files:
        if portion and (len(portion) == PORTION_FILES or num_bytes + file.size > PORTION_BYTES):
            yield portion
            portion, num_bytes = [], 0
        portion.append(file)
        num_bytes += file.size
    if portion:
        yield portion


class _Large:
    """A file fetched in blocks; until it is complete, it is stored next to the lock."""

    def __init__(self, target: Path, own: Path, source: Input, file: Wanted) -> None:
        self._target, self._source, self._file = target, source, file
        self._block = BLOCK_BYTES if source.has_ranges else file.size
        # Bytes written before a reboot may not all have reached the disk.
        self.part = own / f"{target.name}.{self._block}.{this_boot()}.part"
        self._num_blocks = -(-file.size // self._block)
        self._left = self._read_left()
        self.num_left_bytes = sum(map(self._size, self._left))
        self._descriptor = -1
        self._noting = threading.Lock()
        # The kernel lets only one thread at a time write to a file; other threads would spin.
        self._writing = threading.Lock()

    def tasks(self, repeat: Retry, progress: Callable[[int], None]) -> Iterator[Callable[[], None]]:
        """Yield a task for each missing block; the file stays open until the last task or ``close``."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self.part, flags, 0o600)
        if not self._left:
            yield self._finish
            return
        if len(self._left) == self._num_blocks:
            os.ftruncate(self._descriptor, 0)
        os.ftruncate(self._descriptor, self._file.size + self._num_blocks)

        def task(number: int) -> None:
            repeat(lambda: self._fetch(number))
            with self._noting:
                os.pwrite(self._descriptor, b"\1", self._file.size + number)
                self._left.discard(number)
                is_last = not self._left
            if is_last:
                self._finish()
            progress(self._size(number))

        for number in sorted(self._left):
            yield lambda number=number: task(number)  # type: ignore[misc]

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _size(self, number: int) -> int:
        return min(self._block, self._file.size - number * self._block)

    def _read_left(self) -> set[int]:
        """Return the numbers of the missing blocks."""
        try:
            with self.part.open("rb") as file:
                length = os.fstat(file.fileno()).st_size
                if length == self._file.size:
                    return set()  # already cut to its final length: only the rename is missing
                file.seek(self._file.size)
                marks = file.read() if length == self._file.size + self._num_blocks else b""
        except FileNotFoundError:
            marks = b""
        return {number for number in range(self._num_blocks) if marks[number : number + 1] != b"\1"}

    def _fetch(self, number: int) -> None:
        def write(at: int, view: memoryview) -> None:
            with self._writing:
                write_at(self._descriptor, view, at)

        self._source.read(self._file, number * self._block, self._size(number), write)

    def _finish(self) -> None:
        os.ftruncate(self._descriptor, self._file.size)
        if self._source.spec.sha256 is not None:
            digest, at = hashlib.sha256(), 0
            while data := os.pread(self._descriptor, BLOCK_BYTES, at):
                digest.update(data)
                at += len(data)
            try:
                _check_hash(self._source, self._file, digest.hexdigest())
            except CorruptData:
                self.part.unlink()
                raise
        try:
            _settle(self._descriptor, self._file)
        except OSError:
            self.part.unlink()  # the kernel reports lost writes only once
            raise
        os.fchmod(self._descriptor, 0o444)
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self.part.replace(self._target)
        self.close()


def _work(*kinds: tuple[Iterator[Callable[[], None]], int]) -> None:
    """Run the tasks of each kind in the given number of threads; after an error, start no further task."""
    has_failed = threading.Event()

    def work(tasks: Iterator[Callable[[], None]], taking: threading.Lock) -> None:
        while not has_failed.is_set():
            try:
                with taking:
                    task = next(tasks, None)
                if task is None:
                    return
                task()
            except BaseException:
                has_failed.set()
                raise

    workers: list[Callable[[], None]] = []
    for tasks, num_threads in kinds:
        workers += [partial(work, tasks, threading.Lock())] * num_threads
    map_parallel(lambda worker: worker(), workers, num_threads=len(workers))


def _settle(descriptor: int, file: Wanted) -> None:
    """Sync the file, and set its modification time, so that later changes can be detected."""
    os.fsync(descriptor)
    os.utime(descriptor, ns=(_mtime_ns(file), _mtime_ns(file)))


def _mtime_ns(file: Wanted) -> int:
    return file.seconds * 10**9


def _check_hash(source: Input, file: Wanted, found: str) -> None:
    expected = source.spec.sha256
    if expected is not None and found != expected:
        raise CorruptData(f"{source.describe(file)} has the sha256 {found}, not {expected}")


@contextmanager
def _waited_lock(path: Path, pause: Callable[[float], None]) -> Iterator[None]:
    while True:
        with try_lock(path) as is_free:
            if is_free:
                yield
                return
        pause(LOCK_SECONDS)
