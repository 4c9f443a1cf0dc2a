"""Finds the checkpoint directories that a script writes by itself, and tells which are complete."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cloudspot.decoding import decode
from cloudspot.disk.partial_files import write_whole
from cloudspot.jobstore.records import File

SETTLED_SECONDS = 10.0
"""A directory that nothing has touched for this long is complete, if no file is to say so."""
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
        self._torn: dict[str, Fingerprint] = {}
        """What was not complete when a script ended: quiet is no proof until something writes there."""
        self._alive_at = 0.0
        self._finished = False
        self._memory = memory
        self._before: dict[str, Fingerprint] | None = None
        """What there was before the script started; None: none was started here."""
        with suppress(FileNotFoundError):
            self._before = decode(memory.read_bytes(), dict[str, Fingerprint])

    def ready(self, now: float, *, alive: bool) -> tuple[CheckpointDirectory, ...]:
        """Return the complete directories, by step ascending.

        ``now`` is monotonic; ``alive`` says whether the script still runs: when it does not, a
        directory that had not settled by then never will, unless it finished.
        """
        if alive:
            self._alive_at = now
        found = []
        seen: dict[str, tuple[Fingerprint, float]] = {}
        for directory in self._matching():
            name, fingerprint = directory.name, directory.fingerprint
            known = self._since.get(name)
            changed = known is None or known[0] != fingerprint
            since = now if changed or known is None else known[1]
            seen[name] = (fingerprint, since)
            if self._complete_file is not None:
                complete = (directory.path / self._complete_file).is_file()
            else:
                complete = self._is_settled(name, fingerprint, since)
            if complete and fingerprint:
                found.append(directory)
        if alive:
            self._since = seen
        return tuple(sorted(found, key=lambda directory: directory.step or 0))

    def begin_script(self) -> None:
        """Note that a script is about to start: what exists now is not its work."""
        self._before = {directory.name: directory.fingerprint for directory in self._matching()}
        write_whole(self._memory, msgspec.json.encode(self._before))

    def torn(self) -> tuple[CheckpointDirectory, ...]:
        """Return what the script, which has ended, has written to and not completed."""
        if self._before is None:
            return ()
        complete = {directory.name for directory in self.ready(self._alive_at, alive=False)}
        return tuple(
            directory
            for directory in self._matching()
            if directory.name not in complete and self._before.get(directory.name) != directory.fingerprint
        )

    def end_of_script(self, *, finished: bool = False) -> None:
        """Note that the script has ended: what has not settled by now counts as torn.

        A script that has ``finished`` by itself was not cut short: everything that it wrote is complete.
        """
        if finished:
            self._finished = True
            return
        torn = {}
        for directory in self._matching():
            known = self._since.get(directory.name)
            is_known = known is not None and known[0] == directory.fingerprint
            if not is_known or known is None or not self._is_settled(directory.name, *known):
                torn[directory.name] = directory.fingerprint
        self._torn = torn

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

    def _is_settled(self, name: str, fingerprint: Fingerprint, since: float) -> bool:
        settled = self._finished or self._alive_at - since >= SETTLED_SECONDS
        return settled and self._torn.get(name) != fingerprint


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
