"""Which files of a directory are code: .gitignore and .cloudspotignore, read as git reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from cloudspot.errors import BundleError

IGNORE_FILES = (".gitignore", ".cloudspotignore")
"""In the order in which they are read: of several patterns that match, the last one decides."""
_ALWAYS = ("__pycache__/",)
"""Ignored unless a pattern of the user's brings them back: what python itself leaves behind."""


@dataclass(frozen=True)
class _Patterns:
    """The patterns of one directory."""

    directory: Path
    spec: GitIgnoreSpec


class Ignores:
    """Judges the entries of a working directory, from the top down.

    Patterns of a directory hold for all below it, those of a deeper one come later and so outrank
    them. Ignore files between the enclosing repository's root and the working directory count as
    well, unless they ignore the working directory itself, which its user has named on purpose.
    """

    def __init__(self, workdir: Path) -> None:
        self._patterns = [_Patterns(workdir, GitIgnoreSpec.from_lines(_ALWAYS))]
        above = [_Patterns(path, _read(path)) for path in _repository_above(workdir)]
        if not any(_decide(above, path, is_directory=True) for path in (workdir, *workdir.parents)):
            self._patterns += above
        self._patterns.append(_Patterns(workdir, _read(workdir)))

    def below(self, directory: Path) -> Ignores:
        """Return what holds in a subdirectory of the one that these patterns hold in."""
        deeper = Ignores.__new__(Ignores)
        deeper._patterns = [*self._patterns, _Patterns(directory, _read(directory))]  # noqa: SLF001
        return deeper

    def match(self, path: Path, *, is_directory: bool) -> bool:
        """Say whether the entry is left out; nothing below a directory that is can come back."""
        return is_secret(path.name) or _decide(self._patterns, path, is_directory=is_directory)


def is_secret(name: str) -> bool:
    """Say whether an entry is never code, whatever any pattern says: .git, .env and .env.* are not."""
    lower = name.lower()  # A case-insensitive file system opens .ENV as .env.
    return lower in (".git", ".env") or lower.startswith(".env.")


def _decide(patterns: list[_Patterns], path: Path, *, is_directory: bool) -> bool:
    for one in reversed(patterns):
        if one.directory not in path.parents:
            continue
        name = path.relative_to(one.directory).as_posix() + ("/" if is_directory else "")
        decision = one.spec.check_file(name).include
        if decision is not None:
            return decision
    return False


def _repository_above(workdir: Path) -> Iterator[Path]:
    """Yield the directories from the enclosing repository's root down to above ``workdir``."""
    if os.path.lexists(workdir / ".git"):
        return
    for number, parent in enumerate(workdir.parents):
        if os.path.lexists(parent / ".git"):
            yield from reversed(workdir.parents[: number + 1])
            return


def _read(directory: Path) -> GitIgnoreSpec:
    lines: list[str] = []
    for name in IGNORE_FILES:
        try:
            text = (directory / name).read_text(encoding="utf-8", errors="surrogateescape")
        except (FileNotFoundError, IsADirectoryError):
            continue
        except OSError as error:
            raise BundleError(f"{directory / name} cannot be read: {error.strerror}") from error
        lines += [_as_git_walks(line) for line in text.split("\n")]
    return GitIgnoreSpec.from_lines(line for line in lines if _is_valid(line))


def _as_git_walks(line: str) -> str:
    """Return a pattern that excludes the same files when it is also asked about directories.

    ``a/**`` is everything in ``a`` but not ``a``, in which ``!a/b`` may thus bring back a file; pathspec,
    made to be asked about files, says yes for ``a/``, too. ``a/*`` excludes the same and says no.
    """
    pattern = line.rstrip()
    return pattern[:-1] if pattern.endswith("/**") and not pattern.startswith(("!", "#")) else line


def _is_valid(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False  # As git does: an invalid pattern matches nothing.
    return True
