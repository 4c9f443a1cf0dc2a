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

from cloudspot.agent.delivery.framework_checkpoints import INCOMPLETE_FILE, looks_finished
from cloudspot.decoding import decode
from cloudspot.host.partial_files import write_whole
from cloudspot.jobfile.spec import CheckpointSpec
from cloudspot.jobstore.layout.records import File

_log = logging.getLogger(__name__)

SETTLED_SECONDS = 10.0
"""A directory that nothing has touched for this long is complete, unless its complete file is missing."""
KNOWN_SECONDS = 2.0
"""The same if its content, or the absence of its incomplete file, says so: other ranks may still write."""
RESTLESS_SECONDS = 300.0
"""The user is told of a directory that has not been complete for this long."""
_STEP = re.compile(r"(\d+)$")
_DATED = re.compile(
    r"\d{4}([-_.])[01]\d\1[0-3]\d(?:[-_.T ]+[0-2]\d(?:[-_.:h]?[0-5]\d){1,2})?$"
    r"|\d{8}[-_.T][0-2]\d(?:[-_.:]?[0-5]\d){1,2}$"
)
"""A name such as 2026-11-20_15-30-53, whose last number counts seconds and no steps."""

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

    @property
    def written_at(self) -> int:
        """When one of its files was last written (ns); 0: it has none."""
        return max((modified_at for _, _, modified_at in self.fingerprint), default=0)


class _Memory(msgspec.Struct, kw_only=True):
    """What a later agent of the machine has to know."""

    came_with_code: tuple[str, ...] = ()
    """The names of the directories that were there before the machine's first script."""
    before: dict[str, Fingerprint] | None = None
    """What there was before the newest script started; None: none was started here."""
    settled: dict[str, Fingerprint] = {}
    """What was quiet for long enough while its script lived, or was left by a script that finished."""
    asked: dict[str, Fingerprint | None] | None = None
    """What there was when the script was asked to save; None for what was incomplete then."""


class CheckpointDirectories:
    """Watches the directories that match the job's pattern.

    Only what happens while the script lives proves a directory complete: after its end a half-written
    one is quiet, too.
    """

    def __init__(self, work: Path, spec: CheckpointSpec, *, memory: Path) -> None:
        """``memory`` is a file for what a later agent of this machine has to know."""
        assert spec.directory is not None
        self._work = work
        self._pattern = spec.directory
        self._complete_file = spec.complete_file
        self._incomplete_file = spec.incomplete_file
        self._incomplete_since: dict[str, float] = {}
        self._since: dict[str, tuple[Fingerprint, float]] = {}
        self.save_seconds: float | None = None
        """How long the script took to write the newest directory that it was seen to write."""
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
        """Return the complete directories, by step ascending, and of one step by when they were written.

        ``now`` is monotonic; ``alive`` says whether the script still runs: when it does not, a
        directory that had not settled by then never will, unless the script finished.
        """
        found = self._matching()
        if alive:
            self._watch(found, now)
            self._incomplete_since = {
                each.name: self._incomplete_since.get(each.name, now)
                for each in found
                if self.is_new(each) and not self._is_complete(each) and not self._is_remains(each)
            }
        elif self._complete_file is not None:
            self._settle(filter(self._is_complete, found))
        # What no script here has written was restored, or came with the code.
        written = [each for each in found if self.is_new(each) or self._is_settled(each)]
        complete = filter(self._is_complete, written)
        return tuple(sorted(complete, key=lambda directory: (directory.step or 0, directory.written_at)))

    def restless(self, now: float) -> tuple[str, ...]:
        """Return the names of the directories that the script writes to and has not completed for long."""
        return tuple(
            name for name, since in self._incomplete_since.items() if now - since >= RESTLESS_SECONDS
        )

    def begin_script(self) -> None:
        """Note that a script is about to start: what exists now is not its work."""
        found = {directory.name: directory.fingerprint for directory in self._matching()}
        memory = self._memory
        if memory.before is None:
            memory.came_with_code = tuple(found)
        memory.before, memory.asked = found, None
        self._incomplete_since.clear()
        memory.settled = {name: each for name, each in memory.settled.items() if found.get(name) == each}
        self._save()

    def finish_script(self) -> None:
        """Note that the script has ended and was not cut short: everything that it wrote is complete."""
        self._settle(self._matching())

    def ask(self) -> None:
        """Note that the script is asked to save now: what it begins from now on is its answer."""
        if self._memory.asked is None:
            # What the script has not touched since it started was restored, or came with the code; what its
            # content says is complete may be too new to be sure of, but is not what the script writes now.
            whole = self._is_complete, self._says_complete, lambda each: not self.is_new(each)
            self._memory.asked = {
                each.name: each.fingerprint if any(is_so(each) for is_so in whole) else None
                for each in self._matching()
            }
            self._save()

    @property
    def was_asked(self) -> bool:
        """Whether the script was asked to save."""
        return self._memory.asked is not None

    def is_new(self, directory: CheckpointDirectory) -> bool:
        """Return whether the script has written to the directory."""
        before = self._memory.before or {}
        return before.get(directory.name) != directory.fingerprint

    def is_answer(self, directory: CheckpointDirectory) -> bool:
        """Return whether the script has begun to write this after it was asked to save."""
        asked = self._memory.asked
        if asked is None or not self.is_new(directory):
            return False
        if directory.name not in asked:
            return True
        before = asked[directory.name]
        return before is not None and before != directory.fingerprint

    def finish_answer(self, *, exited_0: bool) -> None:
        """Note that the script has ended after it was asked to save.

        Its answer is complete if it left with status 0, as it was asked to, or the answer's content says so;
        unless it lacks a file of the checkpoint before, as when the process ends under a thread that saves.
        """
        found = self._matching()
        expected = self._kinds_before([each for each in found if not self.is_answer(each)])
        asked = self._memory.asked or {}
        self._settle(
            each
            for each in found
            if expected <= _kinds(each)
            and (
                (self.is_answer(each) and (exited_0 or self._says_complete(each)))
                # It was being written when the script was asked, perhaps once more afterwards.
                or (exited_0 and each.name in asked and self.is_new(each) and self._says_complete(each))
            )
        )

    def _kinds_before(self, found: Sequence[CheckpointDirectory]) -> frozenset[str]:
        """Return what files the newest of these has that is complete, for the next one to have, too."""
        written = [each for each in found if each.fingerprint]
        complete = [each for each in written if self._is_complete(each) or not self.is_new(each)]
        return _kinds(max(complete, key=lambda directory: directory.written_at)) if complete else frozenset()

    def torn(self, *, only_incomplete: bool = True) -> tuple[CheckpointDirectory, ...]:
        """Return what the script, which has ended, has written to; by default only what is not complete."""
        if self._memory.before is None:
            return ()
        found = self._matching()
        new = tuple(filter(self.is_new, found))
        if not only_incomplete:
            return new
        # The script may have thinned out an older one, from which it does not resume.
        newest = max((each.step or 0 for each in found if self._is_complete(each)), default=0)
        return tuple(
            each
            for each in new
            if not self._is_complete(each) and not (self._is_remains(each) and (each.step or 0) < newest)
        )

    def _watch(self, found: Sequence[CheckpointDirectory], now: float) -> None:
        """Note how long each directory has been quiet, by a scan during the script's life."""
        since = {}
        for directory in found:
            fingerprint, moment = self._since.get(directory.name, (None, now))
            unchanged = fingerprint == directory.fingerprint
            since[directory.name] = directory.fingerprint, moment if unchanged else now
        self._since = since
        expected = self._kinds_before(found)
        quiet = [
            each
            for each in found
            if now - since[each.name][1] >= SETTLED_SECONDS
            or (self._complete_file is not None and self._is_complete(each))
            or (
                now - since[each.name][1] >= KNOWN_SECONDS
                and self._says_complete(each)
                and expected <= _kinds(each)
            )
        ]
        for directory in filter(self.is_new, quiet):
            if not self._is_settled(directory):
                self.save_seconds = self._seconds_to_write(directory)
        self._settle(quiet)

    def _seconds_to_write(self, directory: CheckpointDirectory) -> float:
        """Return the time from the first to the last change of what is new in a directory."""
        known = {
            *(self._memory.before or {}).get(directory.name, ()),
            *self._memory.settled.get(directory.name, ()),
        }
        times = [entry[2] for entry in directory.fingerprint if entry not in known]
        return (max(times) - min(times)) / 1e9 if times else 0.0

    def _settle(self, directories: Iterable[CheckpointDirectory]) -> None:
        """Remember, for a later agent too, that these are complete, as far as the script wrote them."""
        new = {
            directory.name: directory.fingerprint
            for directory in directories
            if self.is_new(directory) and not self._is_settled(directory) and not self._is_remains(directory)
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

    def _is_settled(self, directory: CheckpointDirectory) -> bool:
        return self._memory.settled.get(directory.name) == directory.fingerprint

    def _says_complete(self, directory: CheckpointDirectory) -> bool:
        """Return whether a directory says by what is in it, or is not any more, that it is complete."""
        if self._complete_file is not None or self._is_settled(directory):
            return False
        if self._incomplete_file is not None:
            return bool(directory.fingerprint) and self._incomplete_file not in _names(directory)
        return looks_finished(directory.path, directory.fingerprint)

    def _is_complete(self, directory: CheckpointDirectory) -> bool:
        if not directory.fingerprint:
            return False
        if self._complete_file is None:
            marker = self._incomplete_file or INCOMPLETE_FILE
            return marker not in _names(directory) and self._is_settled(directory)
        written_at = _modified_at(directory.path / self._complete_file)
        if written_at is None or self._is_remains(directory):
            return False
        # An older one is an earlier save's in a directory that is being rewritten, or other ranks came later.
        return written_at >= directory.written_at or self._is_settled(directory)

    def _is_remains(self, directory: CheckpointDirectory) -> bool:
        """Return whether it is what is left of a complete one that a script has begun to delete.

        Only a complete file, which may go last, makes that a question.
        """
        if self._complete_file is None:
            return False
        memory, files = self._memory, set(directory.fingerprint)
        return any(
            files < set(known.get(directory.name, ())) for known in (memory.settled, memory.before or {})
        )

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


def _names(directory: CheckpointDirectory) -> frozenset[str]:
    return frozenset(name for name, _, _ in directory.fingerprint)


def _kinds(directory: CheckpointDirectory) -> frozenset[str]:
    """Return the names of the files without the numbers in them, which may be steps."""
    return frozenset(re.sub(r"\d+", "", name) for name in _names(directory))


def step_of(name: str) -> int | None:
    """Return the number that a directory's name ends with; None if there is none, or a date ends the name."""
    match = None if _DATED.search(name) else _STEP.search(name)
    return None if match is None else int(match[1])


def fingerprint_of(path: Path) -> Fingerprint:
    """Return a value that changes when any file of the directory does; a file that vanishes is left out."""
    found = []
    for file in files_below(path, with_links=True):  # each link is saved as the file that it leads to
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


def files_below(root: Path, *, with_links: bool = False) -> list[Path]:
    """Return the regular files below the directory, sorted; ``with_links``: also the links that lead to one.

    The script may be writing and deleting there; rglob would raise when a directory disappears.
    """
    found = [Path(parent) / name for parent, _, names in os.walk(root) for name in names]
    return sorted(
        path
        for path in found
        if path.is_file() and (not path.is_symlink() or (with_links and _leads_within(path, root)))
    )


def other_links(root: Path) -> list[Path]:
    """Return the links below the directory that do not lead to a regular file there, sorted."""
    walked = [(Path(parent), (*dirs, *names)) for parent, dirs, names in os.walk(root)]
    found = [parent / name for parent, names in walked for name in names]
    return sorted(path for path in found if path.is_symlink() and not _leads_within(path, root))


def _leads_within(link: Path, root: Path) -> bool:
    return link.is_file() and link.resolve().is_relative_to(root.resolve())


def stage(directory: CheckpointDirectory, staging: Path) -> tuple[Path, tuple[File, ...]] | None:
    """Hard-link the files, so that the script may delete them while they are uploaded.

    Returns the staged root and its files, or None when the directory changed or cannot be staged now.
    """
    root = staging / directory.path.name
    shutil.rmtree(root, ignore_errors=True)
    files = []
    try:
        # The oldest first: in that order they are restored.
        for name, size, _ in sorted(directory.fingerprint, key=lambda file: file[2]):
            source, target = directory.path / name, root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(source.resolve(), target)
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
