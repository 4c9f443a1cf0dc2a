"""Finds the checkpoint directories that a script writes by itself, and tells which are complete."""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from cloudspot.decoding import decode
from cloudspot.disk.partial_files import write_whole
from cloudspot.jobstore.records import File

_log = logging.getLogger(__name__)

SETTLED_SECONDS = 10.0
"""A directory that nothing has touched for this long is complete, unless its complete file is missing."""
_STEP = re.compile(r"(\d+)$")

Fingerprint = tuple[tuple[str, int, int], ...]
"""Path, size and modification time (ns) of each file."""


@dataclass(frozen=True)
class CheckpointDirectory:
    """A checkpoint directory, as it was found."""

    path: Path
    name: str
    """Relative to the working directory."""
    step: int | None
    """The number that its name ends with, or None."""
    fingerprint: Fingerprint


class _Memory(msgspec.Struct, kw_only=True):
    """What a later agent of the machine has to know."""

    came_with_code: tuple[str, ...] = ()
    """The names of the directories that were there before the machine's first script."""
    before: dict[str, Fingerprint] | None = None
    """What there was before the newest script started; None: none was started here."""
    settled: dict[str, Fingerprint] = {}
    """What was quiet for long enough while its script lived, or was left by a script that finished."""


class CheckpointDirectories:
    """Watches the directories that match the job's pattern.

    Only what happens while the script lives proves a directory complete: after its end a half-written
    one is quiet, too.
    """

    def __init__(self, work: Path, pattern: str, complete_file: str | None, *, memory: Path) -> None:
        """``memory`` is a file for what a later agent of this machine has to know."""
        self._work = work
        self._pattern = pattern
        self._complete_file = complete_file
        self._since: dict[str, tuple[Fingerprint, float]] = {}
        self._path = memory
        self._memory = _Memory()
        self._saving = threading.Lock()
        with suppress(FileNotFoundError):
            self._memory = decode(memory.read_bytes(), _Memory)

    @property
    def came_with_code(self) -> tuple[str, ...]:
        """The names of the directories that were there before the machine's first script."""
        return self._memory.came_with_code

    def ready(self, now: float, *, alive: bool) -> tuple[CheckpointDirectory, ...]:
        """Return the complete directories, by step ascending.

        ``now`` is monotonic; ``alive`` says whether the script still runs: when it does not, a
        directory that had not settled by then never will, unless the script finished.
        """
        found = self._matching()
        if alive:
            self._watch(found, now)
        return tuple(sorted(filter(self._is_complete, found), key=lambda directory: directory.step or 0))

    def begin_script(self) -> None:
        """Note that a script is about to start: what exists now is not its work."""
        found = {directory.name: directory.fingerprint for directory in self._matching()}
        memory = self._memory
        if memory.before is None:
            memory.came_with_code = tuple(found)
        memory.before = found
        memory.settled = {name: each for name, each in memory.settled.items() if found.get(name) == each}
        self._save()

    def finish_script(self) -> None:
        """Note that the script has ended and was not cut short: everything that it wrote is complete."""
        self._settle(self._matching())

    def torn(self) -> tuple[CheckpointDirectory, ...]:
        """Return what the script, which has ended, has written to and not completed."""
        if self._memory.before is None:
            return ()
        return tuple(each for each in self._matching() if self._is_new(each) and not self._is_complete(each))

    def _watch(self, found: Sequence[CheckpointDirectory], now: float) -> None:
        """Note how long each directory has been quiet, by a scan during the script's life."""
        since = {}
        for directory in found:
            fingerprint, moment = self._since.get(directory.name, (None, now))
            unchanged = fingerprint == directory.fingerprint
            since[directory.name] = directory.fingerprint, moment if unchanged else now
        self._since = since
        self._settle([each for each in found if now - since[each.name][1] >= SETTLED_SECONDS])

    def _settle(self, directories: Iterable[CheckpointDirectory]) -> None:
        """Remember, for a later agent too, that these are complete, as far as the script wrote them."""
        new = {
            directory.name: directory.fingerprint
            for directory in directories
            if self._is_new(directory) and not self._is_settled(directory)
        }
        if not new:
            return
        self._memory.settled.update(new)
        try:
            self._save()
        except OSError as error:
            _log.warning("a later agent of this machine will not know what is complete: %s", error)

    def _save(self) -> None:
        with self._saving:
            write_whole(self._path, msgspec.json.encode(self._memory))

    def _is_new(self, directory: CheckpointDirectory) -> bool:
        """Return whether the script has written to the directory."""
        before = self._memory.before or {}
        return before.get(directory.name) != directory.fingerprint

    def _is_settled(self, directory: CheckpointDirectory) -> bool:
        return self._memory.settled.get(directory.name) == directory.fingerprint

    def _is_complete(self, directory: CheckpointDirectory) -> bool:
        if not directory.fingerprint:
            return False
        if self._complete_file is None:
            return self._is_settled(directory)
        written_at = _modified_at(directory.path / self._complete_file)
        if written_at is None:
            return False
        # An older one is an earlier save's in a directory that is being rewritten, or other ranks came later.
        newest = max(modified_at for _, _, modified_at in directory.fingerprint)
        return written_at >= newest or self._is_settled(directory)

    def _matching(self) -> list[CheckpointDirectory]:
        try:
            found = sorted(self._work.glob(self._pattern))
        except OSError:  # a directory disappeared during the scan: the next scan sees the rest
            return []
        return [
            CheckpointDirectory(
                path, path.relative_to(self._work).as_posix(), step_of(path.name), fingerprint_of(path)
            )
            for path in found
            if not path.is_symlink() and path.is_dir()
        ]


def is_match(name: str, pattern: str) -> bool:
    """Return whether the pattern finds a directory of this name, which is a safe one."""
    with TemporaryDirectory() as empty:
        path = Path(empty, name)
        path.mkdir(parents=True)
        return path in Path(empty).glob(pattern)


def step_of(name: str) -> int | None:
    """Return the number that a directory's name ends with, or None."""
    match = _STEP.search(name)
    return None if match is None else int(match[1])


def fingerprint_of(path: Path) -> Fingerprint:
    """Return a value that changes when any file of the directory does; a file that vanishes is left out."""
    found = []
    for file in files_below(path):
        try:
            status = file.stat()
        except OSError:
            continue
        found.append((file.relative_to(path).as_posix(), status.st_size, status.st_mtime_ns))
    return tuple(found)


def _modified_at(path: Path) -> int | None:
    """Return when the file, or the link that leads to it, was last written (ns); None: there is no file."""
    try:
        return path.lstat().st_mtime_ns if path.is_file() else None
    except OSError:  # deleted meanwhile
        return None


def files_below(root: Path) -> list[Path]:
    """Return the regular files below the directory, sorted, without links.

    The script may be writing and deleting there; rglob would raise when a directory disappears.
    """
    found = [Path(parent) / name for parent, _, names in os.walk(root) for name in names]
    return sorted(path for path in found if not path.is_symlink() and path.is_file())


def stage(directory: CheckpointDirectory, staging: Path) -> tuple[Path, tuple[File, ...]] | None:
    """Hard-link the files, so that the script may delete them while they are uploaded.

    Returns the staged root and its files, or None when the directory changed or cannot be staged now.
    """
    root = staging / directory.path.name
    shutil.rmtree(root, ignore_errors=True)
    files = []
    try:
        for name, size, _ in directory.fingerprint:
            source, target = directory.path / name, root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(source, target)
            files.append(File(path=name, size=size, mode=source.stat().st_mode & 0o777))
    except OSError:  # gone, not readable, or no room to copy
        return None
    if fingerprint_of(root) != directory.fingerprint:
        return None
    return root, tuple(files)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links; a missing file cannot be copied either
        shutil.copy2(source, target)
