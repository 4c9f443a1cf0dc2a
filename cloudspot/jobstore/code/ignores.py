"""Decide which files of a directory are code: those that git would track, as changed by .cloudspotignore."""

from __future__ import annotations

import os
import shutil
import subprocess
import unicodedata
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from cloudspot.errors import BundleError

_PYTHON_LEFTOVERS = ("__pycache__/",)
"""Patterns that apply unless .cloudspotignore includes such files."""
_REDIRECTING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Variables that git sets in its hooks, and that would make git list another checkout."""


class Ignores:
    """Decides for each entry of a working directory, from the top down, whether it is ignored.

    In a checkout, git lists the files: tracked files even if a pattern names them, and files of submodules
    and nested repositories by their own rules. Elsewhere, or if git is not installed, this class reads the
    .gitignore files, from the top of the enclosing checkout down. If that checkout ignores the working
    directory, only the ignore files inside it count, because the user chose the directory on purpose.

    Patterns in .cloudspotignore exclude or include files regardless of git. Deeper ignore files take
    precedence.
    """

    def __init__(self, workdir: Path) -> None:
        """Read the rules for ``workdir``, which is absolute and without symlinks.

        Raises:
            BundleError: git refuses the checkout; without git's answer, tracked files might be left out.
        """
        self._workdir = workdir
        top = next((one for one in (workdir, *workdir.parents) if os.path.lexists(one / ".git")), None)
        self._listed = None if top is None else _list(workdir)
        self._git = _IgnoreFiles.around(workdir, top or workdir, ".gitignore")
        self._own = _IgnoreFiles.around(workdir, top or workdir, ".cloudspotignore", _PYTHON_LEFTOVERS)

    def match(self, path: Path, *, is_directory: bool) -> bool:
        """Return whether the entry is ignored; all entries below an ignored directory are ignored, too."""
        if is_secret(path.name):
            return True
        verdict = self._own.check(path, is_directory=is_directory)
        if verdict is not None:
            return verdict
        if self._listed is not None:
            return _plain(path.relative_to(self._workdir).as_posix()) not in self._listed
        return bool(self._git.check(path, is_directory=is_directory))


def is_secret(name: str) -> bool:
    """Return whether an entry is never code, whatever the patterns: .git, .env and .env.*."""
    lower = name.lower()  # A case-insensitive file system opens .ENV as .env.
    return lower in (".git", ".env") or lower.startswith(".env.")


class _IgnoreFiles:
    """The ignore files of a given name in a directory and its subdirectories."""

    def __init__(self, top: Path, name: str, defaults: Iterable[str] = ()) -> None:
        self._top = top
        self._name = name
        self._specs = {top: _spec([*defaults, *_lines(top / name)])}

    @classmethod
    def around(cls, workdir: Path, top: Path, name: str, defaults: Iterable[str] = ()) -> _IgnoreFiles:
        """Return the files from ``top`` down, or from ``workdir`` down if one above ignores ``workdir``."""
        files = cls(top, name, defaults)
        between = [one for one in (workdir, *workdir.parents) if top in one.parents]
        is_ignored = any(files.check(one, is_directory=True) for one in between)
        return cls(workdir, name, defaults) if is_ignored else files

    def check(self, path: Path, *, is_directory: bool) -> bool | None:
        """Return whether a rule excludes (True) or includes (False) a path below the top, or None."""
        for directory in path.parents:
            if directory not in self._specs:
                self._specs[directory] = _spec(_lines(directory / self._name))
            name = path.relative_to(directory).as_posix() + "/" * is_directory
            verdict = self._specs[directory].check_file(name).include
            if verdict is not None or directory == self._top:
                return verdict
        return None


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, IsADirectoryError):
        return []
    return text.removeprefix("\ufeff").splitlines()


def _spec(lines: Iterable[str]) -> GitIgnoreSpec:
    patterns: list[Any] = []
    for line in lines:
        # In pathspec, `a/**` also matches `a` itself, while its `a/*` means the same as git's `a/**`.
        text = line.removesuffix("*") if line.endswith("/**") else line
        try:
            patterns += GitIgnoreSpec.from_lines([text]).patterns
        except ValueError:
            continue  # Git also skips such a pattern.
    return GitIgnoreSpec(patterns)


def _list(workdir: Path) -> set[str] | None:
    """Return git's files below the directory, and all directories above them.

    Return None if git is not installed, or if the checkout ignores the directory.
    """
    if shutil.which("git") is None:
        return None
    if _git(workdir, "check-ignore", "--quiet", str(workdir), fine=(0, 1)).returncode == 0:
        return None
    output = _git(workdir, "ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout
    listed = set()
    for data in output.split(b"\0"):
        name = os.fsdecode(data).rstrip("/")
        path = workdir / name
        # The entry is a submodule or a nested repository.
        if name and os.path.lexists(path / ".git") and not path.is_symlink():
            nested = _list(path)
            if nested is None:
                return None
            listed |= {f"{name}/{one}" for one in nested}
        listed.add(name)
    return {_plain(one) for name in listed for one in (name, *map(str, Path(name).parents))}


def _git(directory: Path, *arguments: str, fine: Container[int] = (0,)) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(directory), *arguments]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    if done.returncode not in fine:
        errors = " ".join(done.stderr.decode(errors="replace").split())
        raise BundleError(f"git cannot list the code in {directory}: {errors or 'no reason given'}")
    return done


def _plain(name: str) -> str:
    """Return the name in NFC for comparison: on macOS, git and the disk may use different forms."""
    return unicodedata.normalize("NFC", name)
