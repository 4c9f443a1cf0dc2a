"""Find the checkpoint files that a script writes by itself, and the processes that write to them."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from cloudspot.agent.delivery.checkpoint_states import Finished, Look, Stamp, Version, is_log
from cloudspot.agent.delivery.framework_checkpoints import finish_of, is_whole_file
from cloudspot.decoding import MAX_TALLY
from cloudspot.host.bounded_reads import read_at_most
from cloudspot.host.names import is_safe_name

MAX_POINTER_BYTES = 4096
"""The maximum size of a file that only names a checkpoint."""
SKIPPED = ("__pycache__", ".git", ".venv", "*.pyc", ".cloudspot-*.partial")
"""Names that are never part of a checkpoint."""
_PROC = Path("/proc")
_STEP = re.compile(r"(\d+)(?:_steps)?$")
"""Stable-baselines3 adds the suffix ``_steps``, as in ``ppo_1000_steps.zip``."""
_DATED = re.compile(
    r"\d{4}([-_.])[01]\d\1[0-3]\d(?:[-_.T ]+[0-2]\d(?:[-_.:h]?[0-5]\d){1,2})?$"
    r"|\d{8}[-_.T][0-2]\d(?:[-_.:]?[0-5]\d){1,2}$"
)
"""A name such as 2026-11-20_15-30-53, whose last number is seconds, not a step."""
_LINK_NAME = re.compile("latest|last|newest|current|best|checkpoint|ckpt", re.IGNORECASE)
"""The names of links that count as pointers; a link with another name may be a module of the code."""
_EDGE_BYTES = 256
"""The number of bytes at a file's old end that are compared, to tell a grown file from a rewritten one."""


class CheckpointFiles:
    """Finds the checkpoints that the job's patterns match below the working directory."""

    def __init__(
        self, work: Path, patterns: Sequence[str], exclude: Sequence[str], beside: Sequence[str]
    ) -> None:
        """Create it; ``beside`` names files that belong to a checkpoint file in the same directory."""
        self._work = work
        self._patterns = patterns
        skipped = [pattern.rstrip("/") for pattern in (*exclude, *SKIPPED)]
        self._skipped_name = any_of(pattern for pattern in skipped if "/" not in pattern)
        self._skipped_path = any_of(pattern for pattern in skipped if "/" in pattern)
        self._beside = beside
        self.ignored: Mapping[str, Stamp] = {}
        """The code's files: if the whole directory is watched, checkpoints exclude them until they change."""
        self._edges: dict[str, tuple[Stamp, bytes]] = {}
        self._finished: dict[str, tuple[Version, Finished | None]] = {}

    def looks(self, is_settled: Callable[[Look], bool] = lambda _: False) -> list[Look] | None:
        """Return the checkpoints found, or None if a directory disappeared meanwhile: then call again.

        Looks that ``is_settled`` accepts are not searched for writing processes: this search is slow if
        processes have many files open.
        """
        try:
            return self._scan(is_settled)
        except OSError:
            return None

    def _scan(self, is_settled: Callable[[Look], bool]) -> list[Look]:
        matches = sorted({path for pattern in self._patterns for path in expand(self._work, pattern)})
        names = [path.relative_to(self._work).as_posix() for path in matches]
        kept = [name for name in names if not self.is_excluded(name)]
        files = [name for name in kept if (self._work / name).is_file() and not self._is_foreign(name, kept)]
        looks = [self._directory(name) for name in kept if self._is_directory(name)]
        looks += self._file_groups(files)
        with_pointers = [self._with_pointers(look, {*kept}) for look in looks]
        open_ones = [look for look in with_pointers if not is_settled(look)]
        inodes = (stamp.inode for look in open_ones for stamp in look.files.values())
        written_to = self.writers(inodes, with_maps=False)
        there = {path for look in with_pointers for path in look.files}
        self._edges = {path: edge for path, edge in self._edges.items() if path in there}
        judged = [self._judged(look, written_to) for look in with_pointers]
        self._finished = {look.name: self._finished[look.name] for look in judged}
        return judged

    def writers(self, inodes: Iterable[int], *, with_maps: bool = True) -> frozenset[int]:
        """Return which of the inodes some process can write to; see the function ``writers``."""
        return writers(frozenset(inodes), self._work.stat().st_dev, with_maps=with_maps)

    def _is_directory(self, name: str) -> bool:
        path = self._work / name
        return path.is_dir() and (name == "." or not path.is_symlink())

    def _is_foreign(self, name: str, matched: Collection[str]) -> bool:
        """Return whether the path is a link to anything but another matched file."""
        path = self._work / name
        if not path.is_symlink():
            return False
        target = Path(os.path.realpath(path))
        work = Path(os.path.realpath(self._work))
        return not target.is_relative_to(work) or target.relative_to(work).as_posix() not in matched

    def _directory(self, name: str) -> Look:
        files = {
            path: stamp for path, stamp in self._below(name) if name != "." or self.ignored.get(path) != stamp
        }
        roots = tuple(sorted(files)) if name == "." else (name,)
        return Look(name, step_of(Path(name).name), files, roots)

    def _below(self, name: str) -> Iterator[tuple[str, Stamp]]:
        """Yield the regular files below a directory, and the links to regular files in the same directory."""
        root = self._work if name == "." else self._work / name
        base = len(str(self._work)) + 1
        for parent, directories, names in os.walk(root):
            above = f"{parent}/"[base:]
            directories[:] = [one for one in directories if not self._fits(one, above + one)]
            for one in names:
                stamp = None if self._fits(one, above + one) else _stamp(f"{parent}/{one}", root)
                if stamp is not None:
                    yield above + one, stamp

    def _file_groups(self, names: Sequence[str]) -> list[Look]:
        """Return the matched files grouped by step; files without a step belong to every group."""
        steps: dict[int | None, dict[str, Stamp]] = {}
        for name in names:
            stamp = _stamp(str(self._work / name), self._work)
            if stamp is not None:
                steps.setdefault(file_step_of(name), {})[name] = stamp
                for other in self._beside:
                    path = (Path(name).parent / other).as_posix()
                    mark = _stamp(str(self._work / path), self._work)
                    if mark is not None and path not in names:
                        steps[file_step_of(name)][path] = mark
        common = steps.pop(None, {})
        groups = steps or ({None: {}} if common else {})
        return [
            Look(min(own or common), step, own | common, tuple(sorted(own | common)), is_directory=False)
            for step, own in groups.items()
        ]

    def _with_pointers(self, look: Look, matched: Collection[str]) -> Look:
        """Add the small files and the links beside a checkpoint that name it, such as a file ``latest``."""
        if look.name == ".":
            return look
        found = {}
        for parent in {Path(root).parent for root in look.roots}:
            wanted = {text for root in look.roots for text in _selectors(root)}
            with suppress(OSError), os.scandir(self._work / parent) as entries:
                for entry in entries:
                    path = (parent / entry.name).as_posix()
                    if path in matched or path in look.files or self.is_excluded(path):
                        continue
                    text = None
                    with suppress(OSError):  # it may have been deleted
                        text = self._pointer(entry)
                    if text is not None and text[1] in wanted:
                        found[path] = text[0]
        if not found:
            return look
        return replace(look, files={**look.files, **found}, pointers=frozenset(found))

    def _pointer(self, entry: os.DirEntry[str]) -> tuple[Stamp, str] | None:
        """Return a small file's stamp and text, or a link's stamp and target; None for any other entry."""
        status = entry.stat(follow_symlinks=False)
        stamp = Stamp(status.st_size, status.st_mtime_ns, status.st_ino)
        if entry.is_symlink():
            return (stamp, str(Path(entry.path).readlink())) if _LINK_NAME.search(entry.name) else None
        if not entry.is_file() or not 0 < status.st_size <= MAX_POINTER_BYTES:
            return None
        return stamp, _content(entry.path, stamp)

    def _judged(self, look: Look, written_to: Collection[int]) -> Look:
        """Add whether the files' content shows that they are complete, and which files are being written."""
        known, appended = self._finished.get(look.name), set[str]()
        if known is None or known[0] != look.version:
            appended = {path for path, stamp in look.files.items() if self._has_grown(path, stamp)}
            known = self._finished[look.name] = look.version, self._finish(look)
        busy = frozenset(path for path, stamp in look.files.items() if stamp.inode in written_to)
        return replace(look, appended=frozenset(appended), written_to=busy, finished=known[1])

    def _has_grown(self, path: str, stamp: Stamp) -> bool:
        known = self._edges.get(path)
        if known is not None and known[0] == stamp:
            return False
        edge = b""
        with suppress(OSError), (self._work / path).open("rb") as file:
            is_longer = known is not None and known[0].inode == stamp.inode and known[0].size < stamp.size
            if known is not None and is_longer:
                file.seek(max(0, known[0].size - _EDGE_BYTES))
                is_longer = file.read(min(_EDGE_BYTES, known[0].size)) == known[1]
            file.seek(max(0, stamp.size - _EDGE_BYTES))
            edge = file.read(min(_EDGE_BYTES, stamp.size))
            self._edges[path] = stamp, edge
            return is_longer
        return False

    def _finish(self, look: Look) -> Finished | None:
        own = {p: stamp for p, stamp in look.files.items() if p not in look.pointers and not is_log(p)}
        if not look.is_directory:
            is_whole = len(own) == 1 and all(is_whole_file(self._work / path) for path in own)
            return "own" if is_whole else None
        if look.name == ".":
            return None
        files = [(path[len(look.name) + 1 :], s.size, s.written_at) for path, s in own.items()]
        return finish_of(self._work / look.name, files)

    def is_excluded(self, path: str) -> bool:
        """Return whether a path is excluded from every checkpoint, even if the whole directory is one."""
        parts = path.split("/")
        return any(self._fits(one, "/".join(parts[:end])) for end, one in enumerate(parts, 1))

    def _fits(self, name: str, path: str) -> bool:
        """Return whether an exclusion pattern matches the name or, if the pattern has a slash, the path."""
        return bool(self._skipped_name.match(name) or self._skipped_path.match(path))


def any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """Return a regular expression that matches if any of the patterns matches."""
    return re.compile("|".join(map(fnmatch.translate, patterns)) or r"(?!)")


def _selectors(root: str) -> frozenset[str]:
    """Return the texts that identify a checkpoint: its name, its path and its number."""
    name = root.rpartition("/")[2]
    step = step_of(name) if file_step_of(name) is None else file_step_of(name)
    digits = {str(step), *_STEP.findall(name)} if step is not None else set()
    return frozenset({name, root, f"./{name}", f"./{root}", *digits})


def expand(work: Path, pattern: str) -> list[Path]:
    """Return the paths that a pattern matches below the working directory.

    Raises:
        OSError: a directory disappeared meanwhile.
    """
    pattern = "/".join(part for part in pattern.split("/") if part not in {"", "."})
    return [work] if pattern == "" else list(work.glob(pattern))


def root_of(path: str, patterns: Sequence[str]) -> str | None:
    """Return the shortest leading part of a safe path that matches a pattern, or None if there is none."""
    parts = path.split("/")
    prefixes = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return next((one for one in [".", *prefixes] if any(_is_match(one, each) for each in patterns)), None)


@cache
def _is_match(name: str, pattern: str) -> bool:
    with TemporaryDirectory() as empty:
        path = Path(empty, name)
        path.mkdir(parents=True, exist_ok=True)
        return path in expand(Path(empty), pattern)


def is_pointer(root: Path, path: str, roots: Collection[str]) -> bool:
    """Return whether a file below ``root`` only names one of the checkpoints beside it."""
    found = _text_of(root / path)
    wanted = {
        text for one in roots if posixpath.dirname(one) == posixpath.dirname(path) for text in _selectors(one)
    }
    return found in wanted and (
        not (root / path).is_symlink() or _LINK_NAME.search(posixpath.basename(path)) is not None
    )


def may_replace(work: Path, path: str, patterns: Sequence[str]) -> bool:
    """Return whether a pointer may be written to the path: it does not exist or is another pointer."""
    if not os.path.lexists(work / path):
        return True
    text = _text_of(work / path)
    if text is None:
        return False
    paths = (posixpath.normpath(posixpath.join(base, text)) for base in (posixpath.dirname(path), ""))
    return text.isdigit() or any(is_safe_name(one) and root_of(one, patterns) is not None for one in paths)


def _text_of(path: Path) -> str | None:
    """Return the text of a small file or the target of a link; None for any other path."""
    try:
        if path.is_symlink():
            return str(path.readlink())
        return read_at_most(path, MAX_POINTER_BYTES).decode("utf-8", "surrogateescape").strip()
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=4096)
def _content(path: str, _stamp: Stamp) -> str:
    """Return the text of a small file, which is read only once for each stamp."""
    return _text_of(Path(path)) or ""


def step_of(name: str) -> int | None:
    """Return the number at the end of a directory's name, ignoring a suffix ``_steps``.

    Return None if the name ends with no number, with a date, or with a number too large for a step.
    """
    match = None if _DATED.search(name) else _STEP.search(name)
    return None if match is None or len(match[1]) > len(str(MAX_TALLY)) - 1 else int(match[1])


def file_step_of(path: str) -> int | None:
    """Return the number at the end of a file's name, before its suffixes, by the rules of ``step_of``."""
    name = path.rpartition("/")[2]
    while (stem := name.rpartition(".")[0]) and not name.rpartition(".")[2].isdigit():
        name = stem
    return step_of(name)


def writers(inodes: Collection[int], device: int, *, with_maps: bool = True) -> frozenset[int]:
    """Return which of the inodes of a device some process can write to.

    Such a process has the file open for writing or, if ``with_maps`` (slower), mapped for writing. Processes
    of other users are not seen; without ``/proc``, as on macOS, no process is.
    """
    own, found = str(os.getpid()), set()
    for process in _PROC.iterdir() if inodes and _PROC.joinpath("self/fd").is_dir() else []:
        if not process.name.isdigit() or process.name == own:
            continue
        with suppress(OSError), os.scandir(f"{process}/fd") as descriptors:  # it ended, or is not ours
            for descriptor in descriptors:
                with suppress(OSError):
                    status = descriptor.stat()
                    is_wanted = status.st_ino in inodes and status.st_dev == device
                    if is_wanted and _writes(process / "fdinfo" / descriptor.name):
                        found.add(status.st_ino)
            if with_maps:
                found |= _mapped(process / "maps", inodes, device)
    return frozenset(found)


def _mapped(maps: Path, inodes: Collection[int], device: int) -> frozenset[int]:
    """Return which of the inodes a process has mapped as shared and writable."""
    found = set()
    for line in maps.read_bytes().splitlines():
        _, access, _, place, inode, *_ = line.split(None, 5)
        if access[1:4:2] == b"ws" and int(inode) in inodes:
            major, minor = (int(number, 16) for number in place.split(b":"))
            if os.makedev(major, minor) == device:
                found.add(int(inode))
    return frozenset(found)


def _writes(fdinfo: Path) -> bool:
    with fdinfo.open(encoding="ascii", errors="replace") as file:
        flags = next((int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0)
    return flags & os.O_ACCMODE != os.O_RDONLY


def _stamp(path: str, root: Path) -> Stamp | None:
    """Return the stamp of a regular file, or of the file below ``root`` that a link leads to."""
    try:
        status = os.lstat(path)  # a Path is far slower, and there may be 10,000 files
        if stat.S_ISLNK(status.st_mode):
            if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
                return None
            status = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino)


def files_below(root: Path) -> list[Path]:
    """Return the regular files below the directory, sorted.

    The script may be writing and deleting files there, and rglob would raise if a directory disappeared.
    """
    found = [Path(parent) / name for parent, _, names in os.walk(root) for name in names]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def links_left_out(work: Path, look: Look) -> list[str]:
    """Return the links below a checkpoint directory that do not lead to a regular file there, sorted."""
    if not look.is_directory or look.name == ".":
        return []
    root = work / look.name
    walked = [(Path(parent), (*dirs, *names)) for parent, dirs, names in os.walk(root)]
    links = [parent / name for parent, names in walked for name in names if (parent / name).is_symlink()]
    return sorted(link.relative_to(root).as_posix() for link in links if _stamp(str(link), root) is None)
