"""Which files of a directory are code: .gitignore and .cloudspotignore, read as git reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".cloudspotignore")
"""In the order in which they are read: of several patterns that match, the last one decides."""
_ALWAYS = ("__pycache__/",)
"""Ignored unless a pattern of the user's brings them back: what python itself leaves behind."""
_TRAILING_SPACE = re.compile(r"(?<!\\)\s+$")


class Ignores:
    """Judges the entries of a working directory, from the top down.

    Patterns of a directory hold for all below it, those of a deeper one come later and so outrank
    them. Ignore files between the enclosing repository's root and the working directory count as
    well, unless they ignore the working directory itself, which its user has named on purpose.
    """

    def __init__(self, workdir: Path) -> None:
        above = [_Patterns.read(path) for path in _repository_above(workdir)]
        if any(_decide(above, path, is_directory=True) for path in (workdir, *workdir.parents)):
            above = []
        self._patterns = (_Patterns.parse(workdir, _ALWAYS), *above, _Patterns.read(workdir))

    def below(self, directory: Path) -> Ignores:
        """Return what holds in a subdirectory of the one that these patterns hold in."""
        deeper = Ignores.__new__(Ignores)
        deeper._patterns = (*self._patterns, _Patterns.read(directory))  # noqa: SLF001
        return deeper

    def match(self, path: Path, *, is_directory: bool) -> bool:
        """Say whether the entry is left out; nothing below a directory that is can come back."""
        return is_secret(path.name) or _decide(self._patterns, path, is_directory=is_directory)


def is_secret(name: str) -> bool:
    """Say whether an entry is never code, whatever any pattern says: .git, .env and .env.* are not."""
    lower = name.lower()  # A case-insensitive file system opens .ENV as .env.
    return lower in (".git", ".env") or lower.startswith(".env.")


@dataclass(frozen=True)
class _Pattern:
    """One line of an ignore file.

    pathspec translates the wildcards. Made to be asked about files, it also says yes for all that
    lies below what a pattern names, and then ``!data/`` brings back files in ``data`` that a line before
    it left out; git, which walks, compares a pattern with an entry's own path only.
    """

    brings_back: bool
    directories_only: bool
    path: GitIgnoreSpec
    """Matches the whole path of what it names."""
    name: GitIgnoreSpec | None
    """Matches the last segment; None where it is ``**``, which matches all."""
    num_segments: int | None
    """Of the paths that it can match; None: any number."""
    is_anchored: bool

    @classmethod
    def parse(cls, line: str) -> _Pattern | None:
        """Return the line's pattern; None for a blank one, a comment, and what git cannot read either."""
        text = _TRAILING_SPACE.sub("", line)
        if not text or text.startswith("#"):
            return None
        brings_back = text.startswith("!")
        glob = text.removeprefix("!")
        directories_only = glob.endswith("/")
        is_anchored = "/" in glob.removesuffix("/")
        segments = glob.removesuffix("/").removeprefix("/").split("/")
        try:
            return cls(
                brings_back=brings_back,
                directories_only=directories_only,
                path=GitIgnoreSpec.from_lines(["/" + "/".join(segments)]),
                name=None if segments[-1] == "**" else GitIgnoreSpec.from_lines(["/" + segments[-1]]),
                num_segments=None if "**" in segments else len(segments),
                is_anchored=is_anchored,
            )
        except ValueError:
            return None

    def match(self, path: str, *, is_directory: bool) -> bool:
        """Say whether the entry itself is named, not only a directory above it."""
        if self.directories_only and not is_directory:
            return False
        if self.name is not None and not self.name.match_file(path.rpartition("/")[2]):
            return False
        if not self.is_anchored:
            return True
        return self.num_segments in (None, path.count("/") + 1) and self.path.match_file(path)


@dataclass(frozen=True)
class _Patterns:
    """The patterns of one directory, the last line first."""

    directory: Path
    patterns: tuple[_Pattern, ...]

    @classmethod
    def parse(cls, directory: Path, lines: Iterable[str]) -> _Patterns:
        parsed = [pattern for line in lines if (pattern := _Pattern.parse(line)) is not None]
        return cls(directory, tuple(reversed(parsed)))

    @classmethod
    def read(cls, directory: Path) -> _Patterns:
        lines: list[str] = []
        for name in IGNORE_FILES:
            try:
                text = (directory / name).read_text(encoding="utf-8", errors="surrogateescape")
            except (FileNotFoundError, IsADirectoryError):
                continue
            lines += text.removeprefix("\ufeff").split("\n")
        return cls.parse(directory, lines)


def _decide(patterns: Iterable[_Patterns], path: Path, *, is_directory: bool) -> bool:
    for one in reversed(tuple(patterns)):
        if one.directory not in path.parents:
            continue
        name = path.relative_to(one.directory).as_posix()
        for pattern in one.patterns:
            if pattern.match(name, is_directory=is_directory):
                return not pattern.brings_back
    return False


def _repository_above(workdir: Path) -> Iterator[Path]:
    """Yield the directories from the enclosing repository's root down to above ``workdir``."""
    if os.path.lexists(workdir / ".git"):
        return
    for number, parent in enumerate(workdir.parents):
        if os.path.lexists(parent / ".git"):
            yield from reversed(workdir.parents[: number + 1])
            return
